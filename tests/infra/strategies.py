"""Hypothesis strategies for Quire's values: any valid message, including edge cases that are hard to store.

Each strategy is cached, because Hypothesis validates every new strategy, which takes longer than drawing from it.
"""

from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import JsonValue

from quire.model import (
    DocumentReference,
    Draft,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    TokenCount,
    ToolCallPart,
    ToolResultPart,
    Usage,
)

EDGE_CASE_TEXTS = (
    "",
    "\x00",
    "\ufeff",
    "\u2028",
    "é",
    "e\u0301",
    "👩‍👩‍👧‍👦",
    "\\u0000",
    '"',
    "\r\n",
    "[purged]",
    "{}",
    "%s",
    "'; --",
)


@cache
def texts(*, max_size: int = 200) -> SearchStrategy[str]:
    """Any text that UTF-8 can carry."""
    return st.sampled_from(EDGE_CASE_TEXTS) | st.text(st.characters(codec="utf-8"), max_size=max_size)


@cache
def provider_fields() -> SearchStrategy[dict[str, JsonValue] | None]:
    """A provider's own fields: any JSON object, or none."""
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts(max_size=20)
    values: SearchStrategy[Any] = st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(max_size=8), inner, max_size=3),
        max_leaves=6,
    )
    return st.none() | st.dictionaries(texts(max_size=8), values, max_size=3)


@cache
def _ids() -> SearchStrategy[str]:
    return st.text("abc123_-", min_size=1, max_size=8)


@cache
def images() -> SearchStrategy[ImagePart]:
    sizes = st.none() | st.integers(1, 8_000)
    details = st.sampled_from([None, "low", "high", "auto"])
    return st.builds(
        ImagePart, url=texts(max_size=30), width=sizes, height=sizes, detail=details, provider_fields=provider_fields()
    )


@cache
def _text_parts() -> SearchStrategy[TextPart]:
    return st.builds(TextPart, text=texts(), provider_fields=provider_fields())


@cache
def parts() -> SearchStrategy[Part]:
    thinking = st.builds(
        ThinkingPart,
        text=texts(),
        signature=st.none() | texts(),
        redacted=st.none() | texts(),
        provider_fields=provider_fields(),
    )
    calls = st.builds(ToolCallPart, id=_ids(), name=_ids(), arguments=texts(), provider_fields=provider_fields())
    results = st.builds(
        ToolResultPart,
        call_id=_ids(),
        content=st.lists(_text_parts() | images(), max_size=3).map(tuple),
        is_error=st.booleans(),
        provider_fields=provider_fields(),
    )
    names = st.none() | texts(max_size=20)
    files = st.builds(FilePart, url=texts(max_size=30), name=names, provider_fields=provider_fields())
    return _text_parts() | thinking | calls | results | images() | files


@cache
def messages() -> SearchStrategy[Message]:
    """Any message, whether or not a provider would take it."""
    roles = st.sampled_from(["system", "user", "assistant", "tool"])
    some_parts = st.lists(parts(), max_size=4).map(tuple)
    return st.builds(Message, role=roles, parts=some_parts, provider_fields=provider_fields())


@cache
def drafts() -> SearchStrategy[Draft]:
    """A message with all its metadata."""
    references = st.builds(
        DocumentReference, link=texts(max_size=20), path=st.none() | texts(max_size=20), summary=st.none() | texts()
    )
    counts = st.integers(0, 100_000)
    usage = st.builds(
        Usage, model=st.none() | _ids(), input_tokens=counts, output_tokens=counts, provider_fields=provider_fields()
    )
    return st.builds(
        Draft,
        body=messages(),
        tokens=st.none() | st.builds(TokenCount, tokens=counts, counter=_ids()),
        references=st.lists(references, max_size=2).map(tuple),
        usage=st.none() | usage,
        created_at=st.none() | st.integers(0, 2**52),
    )


def _repeat_word(word: str, count: int) -> str:
    return f"{word} " * count


@cache
def _message_texts() -> SearchStrategy[str]:
    """Mostly short texts, sometimes empty, occasionally huge."""
    words = st.sampled_from(["water", "mill", "Ärger", "漢字", "👩‍🚀", "x = 1\n", " ", "0451", "def f():"])
    long = st.builds(_repeat_word, words, st.integers(1, 400))
    huge = st.builds(_repeat_word, words, st.integers(2_000, 10_000))
    return st.one_of(texts(max_size=80), texts(max_size=80), long, long, st.just(""), huge)


@cache
def _user_messages() -> SearchStrategy[Message]:
    images = st.builds(ImagePart, url=st.just("https://example.org/a.png"), width=st.none() | st.integers(1, 4_000))
    parts: SearchStrategy[tuple[Part, ...]] = st.lists(
        st.builds(TextPart, text=_message_texts()) | images, min_size=1, max_size=3
    ).map(tuple)
    return st.builds(Message, role=st.just("user"), parts=parts)


@cache
def _assistant_messages() -> SearchStrategy[list[Message]]:
    thoughts = st.builds(ThinkingPart, text=_message_texts(), signature=st.none() | st.text("abc+/=", max_size=20))
    parts: SearchStrategy[tuple[Part, ...]] = st.tuples(
        st.lists(thoughts, max_size=1), st.lists(st.builds(TextPart, text=_message_texts()), max_size=2)
    ).map(lambda both: (*both[0], *both[1]))
    return st.builds(Message, role=st.just("assistant"), parts=parts).map(lambda message: [message])


@st.composite
def _tool_exchanges(draw: st.DrawFn) -> list[Message]:
    """A batch of parallel calls and their results, in one message or several, in any order, or cut off."""
    ids = draw(st.lists(st.sampled_from(["a", "b", "c", "call 1", "ü"]), min_size=1, max_size=4))
    thought = [ThinkingPart(text="hm", signature="c2ln")] if draw(st.booleans()) else []
    calls = [
        ToolCallPart(id=id_, name="read", arguments=draw(st.sampled_from(["{}", '{"a":1}', "[", ""]))) for id_ in ids
    ]
    results = [
        ToolResultPart(call_id=id_, content=(TextPart(text=draw(_message_texts())),), is_error=draw(st.booleans()))
        for id_ in draw(st.permutations(ids))
    ]
    results = results[: draw(st.integers(0, len(results)))] if draw(st.integers(0, 4)) == 0 else results
    call = Message(role="assistant", parts=(*thought, *calls))
    if draw(st.booleans()):
        return [call, *(Message(role="tool", parts=(result,)) for result in results)]
    return [call, *([Message(role="tool", parts=tuple(results))] if results else [])]


@cache
def histories(*, max_turns: int = 12) -> SearchStrategy[list[Message]]:
    """Histories in a plausible order of messages; some messages are invalid."""
    odd = messages().map(lambda message: [message])
    user = _user_messages().map(lambda message: [message])
    piece = st.one_of(user, user, _assistant_messages(), _assistant_messages(), _tool_exchanges(), odd)
    return st.lists(piece, max_size=max_turns).map(lambda pieces: [message for piece in pieces for message in piece])


def questions() -> SearchStrategy[Message]:
    """The pending question: any user message."""
    return _user_messages()
