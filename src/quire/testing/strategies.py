"""Hypothesis strategies for Quire's values: any message that the models allow, and some that are hard to keep.

Each is made once: Hypothesis looks into a strategy that is new to it, which takes longer than drawing from it.
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

HARD_TEXTS = (
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
    return st.sampled_from(HARD_TEXTS) | st.text(st.characters(codec="utf-8"), max_size=max_size)


@cache
def foreign() -> SearchStrategy[dict[str, JsonValue] | None]:
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
    return st.builds(ImagePart, url=texts(max_size=30), width=sizes, height=sizes, detail=details, provider=foreign())


@cache
def _text_parts() -> SearchStrategy[TextPart]:
    return st.builds(TextPart, text=texts(), provider=foreign())


@cache
def parts() -> SearchStrategy[Part]:
    thinking = st.builds(
        ThinkingPart,
        text=texts(),
        signature=st.none() | texts(),
        redacted=st.none() | texts(),
        provider=foreign(),
    )
    calls = st.builds(ToolCallPart, id=_ids(), name=_ids(), arguments=texts(), provider=foreign())
    results = st.builds(
        ToolResultPart,
        call_id=_ids(),
        content=st.lists(_text_parts() | images(), max_size=3).map(tuple),
        is_error=st.booleans(),
        provider=foreign(),
    )
    files = st.builds(FilePart, url=texts(max_size=30), name=st.none() | texts(max_size=20), provider=foreign())
    return _text_parts() | thinking | calls | results | images() | files


@cache
def messages() -> SearchStrategy[Message]:
    """Any message, whether or not a provider would take it."""
    roles = st.sampled_from(["system", "user", "assistant", "tool"])
    return st.builds(Message, role=roles, parts=st.lists(parts(), max_size=4).map(tuple), provider=foreign())


@cache
def drafts() -> SearchStrategy[Draft]:
    """A message with all that can be recorded beside it."""
    references = st.builds(
        DocumentReference, link=texts(max_size=20), path=st.none() | texts(max_size=20), summary=st.none() | texts()
    )
    counts = st.integers(0, 100_000)
    usage = st.builds(Usage, model=st.none() | _ids(), input_tokens=counts, output_tokens=counts, provider=foreign())
    return st.builds(
        Draft,
        body=messages(),
        tokens=st.none() | st.builds(TokenCount, tokens=counts, counter=_ids()),
        references=st.lists(references, max_size=2).map(tuple),
        usage=st.none() | usage,
        at=st.none() | st.integers(0, 2**52),
    )
