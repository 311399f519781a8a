"""Hypothesis strategies for histories: turns as chats and agents have them, whole and broken off.

Each is made once, as in `quire.testing.strategies`.
"""

from functools import cache

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from quire.model import (
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from quire.testing.strategies import messages, texts


def _repeated(word: str, count: int) -> str:
    return f"{word} " * count


@cache
def _said() -> SearchStrategy[str]:
    """Mostly short, sometimes empty, now and then huge."""
    words = st.sampled_from(["water", "mill", "Ärger", "漢字", "👩‍🚀", "x = 1\n", " ", "0451", "def f():"])
    long = st.builds(_repeated, words, st.integers(1, 400))
    huge = st.builds(_repeated, words, st.integers(2_000, 10_000))
    return st.one_of(texts(max_size=80), texts(max_size=80), long, long, st.just(""), huge)


@cache
def _asked() -> SearchStrategy[Message]:
    images = st.builds(ImagePart, url=st.just("https://example.org/a.png"), width=st.none() | st.integers(1, 4_000))
    parts: SearchStrategy[tuple[Part, ...]] = st.lists(
        st.builds(TextPart, text=_said()) | images, min_size=1, max_size=3
    ).map(tuple)
    return st.builds(Message, role=st.just("user"), parts=parts)


@cache
def _answered() -> SearchStrategy[list[Message]]:
    thoughts = st.builds(ThinkingPart, text=_said(), signature=st.none() | st.text("abc+/=", max_size=20))
    parts: SearchStrategy[tuple[Part, ...]] = st.tuples(
        st.lists(thoughts, max_size=1), st.lists(st.builds(TextPart, text=_said()), max_size=2)
    ).map(lambda both: (*both[0], *both[1]))
    return st.builds(Message, role=st.just("assistant"), parts=parts).map(lambda message: [message])


@st.composite
def _used_tools(draw: st.DrawFn) -> list[Message]:
    """A batch of parallel calls and their results, in one message or several, in any order, or cut off."""
    ids = draw(st.lists(st.sampled_from(["a", "b", "c", "call 1", "ü"]), min_size=1, max_size=4))
    thought = [ThinkingPart(text="hm", signature="c2ln")] if draw(st.booleans()) else []
    calls = [
        ToolCallPart(id=id_, name="read", arguments=draw(st.sampled_from(["{}", '{"a":1}', "[", ""]))) for id_ in ids
    ]
    results = [
        ToolResultPart(call_id=id_, content=(TextPart(text=draw(_said())),), is_error=draw(st.booleans()))
        for id_ in draw(st.permutations(ids))
    ]
    results = results[: draw(st.integers(0, len(results)))] if draw(st.integers(0, 4)) == 0 else results
    call = Message(role="assistant", parts=(*thought, *calls))
    if draw(st.booleans()):
        return [call, *(Message(role="tool", parts=(result,)) for result in results)]
    return [call, *([Message(role="tool", parts=tuple(results))] if results else [])]


@cache
def histories(*, max_turns: int = 12) -> SearchStrategy[list[Message]]:
    """Messages in the order in which a conversation could have left them; some were never valid."""
    odd = messages().map(lambda message: [message])
    asked = _asked().map(lambda message: [message])
    piece = st.one_of(asked, asked, _answered(), _answered(), _used_tools(), odd)
    return st.lists(piece, max_size=max_turns).map(lambda pieces: [message for piece in pieces for message in piece])


def questions() -> SearchStrategy[Message]:
    """What is asked now: any user's message."""
    return _asked()
