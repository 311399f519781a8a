"""Rendering of recalled messages: archived messages that a request includes again, and which of them fit.

They form one labelled block in log order, each with its number and speaker, grouped by day. Lines within a message that
look like a message header are indented, so that no text can pass for another message.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from quire.model import Entry, FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.view.excerpts import MAX_CHARS_PER_TOKEN
from quire.wire.agent_boilerplate import remove_boilerplate
from quire.wire.labels import label_text
from quire.wire.tokens import TokenCounter

CharRange = tuple[int, int]
"""Start and end (exclusive) of an excerpt, in characters of the message's text."""

_HEADER_LIKE = re.compile(
    r"(?:^|(?<=[\r\v\f\x1c-\x1e\x85\u2028\u2029]))(?=#\d+ |\[\d{1,2} [A-Z][a-z]{2} \d{4}\])", re.MULTILINE
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LABEL_TOKENS = 38
"""Estimated tokens of the opening and closing label. If they take more, the last message is dropped."""
_MIN_MESSAGE_TOKENS = 8
"""Minimum tokens of a message with its number and speaker."""


class RenderedLine(NamedTuple):
    """A whole message as a line of the block, and its tokens by a counter."""

    day: str
    line: str
    tokens: int
    counter: str


class RecallCandidate(NamedTuple):
    """An archived message relevant to the question. `excerpt_ranges` are used if the whole message does not fit."""

    entry: Entry
    score: float
    excerpt_ranges: tuple[CharRange, ...] | None = None
    whole: RenderedLine | None = None
    """The whole message, if it was rendered before."""


def message_to_text(message: Message) -> str:
    """Plain text of a message: its texts, tool results and tool calls."""
    return "\n".join(text for part in message.parts if (text := _part_to_text(part)))


def to_searchable_text(message: Message) -> str:
    """Plain text of a message for search and recall, without the boilerplate that a coding agent added."""
    return message_to_text(remove_boilerplate(message))


def _part_to_text(part: Part) -> str:
    match part:
        case TextPart(text=text):
            return text
        case ToolResultPart(content=content):
            return "\n".join(_part_to_text(piece) for piece in content)
        case ToolCallPart(name=name, arguments=arguments):
            return f"[called {name} with {arguments}]"
        case ImagePart():
            return "[image]"
        case FilePart(name=name):
            return f"[file {name}]" if name else "[file]"
        case ThinkingPart():
            return ""


def render_recalled(candidates: Iterable[RecallCandidate]) -> str:
    """Renders the block for a request; the same entries always give the same bytes."""
    return _render_block(
        (candidate.entry.seq, _format_day(candidate.entry), _render_line(candidate)) for candidate in candidates
    )


def _render_block(rows: Iterable[tuple[int, str, str]]) -> str:
    """Joins rows of number, day and line into one block, in log order."""
    lines: list[str] = []
    day = ""
    for _, today, line in sorted(rows):
        if today != day:
            day = today
            lines.append(day)
        lines.append(line)
    return label_text("recalled", "\n".join(lines))


def _format_day(entry: Entry) -> str:
    """A date format with few tokens, since the block repeats it for every day."""
    time = entry.time
    return f"[{time.day} {_MONTHS[time.month - 1]} {time.year}]"


def _render_line(candidate: RecallCandidate) -> str:
    entry = candidate.entry
    message = entry.message
    text = to_searchable_text(message)
    if candidate.excerpt_ranges is not None:
        # The excerpts are joined with ellipses, and the number to read the message by follows.
        ranges, size = candidate.excerpt_ranges, len(text)
        excerpts = "".join(f"{'' if start == 0 else ' … '}{text[start:end].strip()}" for start, end in ranges)
        ending = "" if ranges and ranges[-1][1] >= size else " …"
        omitted = size - sum(end - start for start, end in ranges)
        text = f"{excerpts}{ending} [{omitted} of {size} characters left out; read #{entry.seq}]"
    speaker = " ".join(message.name.split()) if message.name else message.role
    return f"#{entry.seq} {speaker}: {_HEADER_LIKE.sub(' ', text)}"


class FittedCandidate(NamedTuple):
    candidate: RecallCandidate
    tokens: int
    day: str
    line: str


def restore_candidate(
    entry: Entry, *, score: float, excerpt_ranges: tuple[CharRange, ...] | None, tokens: int
) -> FittedCandidate:
    """A message as an earlier request of the same turn recalled it."""
    candidate = RecallCandidate(entry, score, excerpt_ranges)
    return FittedCandidate(candidate, tokens, _format_day(entry), _render_line(candidate))


def render_fitted(fitted: Iterable[FittedCandidate]) -> str:
    """Like `render_recalled`, for candidates whose lines are rendered already."""
    return _render_block((each.candidate.entry.seq, each.day, each.line) for each in fitted)


def fit_candidates(
    candidates: Sequence[RecallCandidate], *, max_tokens: int, counter: TokenCounter
) -> list[FittedCandidate]:
    """Selects candidates in order while they fit into `max_tokens`, whole or as an excerpt.

    A message that could never fit whole is excerpted in its place. One that the messages before it crowd out is
    excerpted after all whole messages: its excerpt is worth less than they are, though they rank lower.
    """
    block_tokens = available_tokens = max_tokens - _LABEL_TOKENS
    selected: list[FittedCandidate] = []
    days: set[str] = set()
    pending = [
        (each if each.excerpt_ranges is None else each._replace(excerpt_ranges=None), each.excerpt_ranges)
        for each in candidates
    ]
    crowded_out: list[tuple[RecallCandidate, None]] = []
    for candidate, excerpt_ranges in chain(pending, crowded_out):
        if available_tokens < _MIN_MESSAGE_TOKENS:
            break
        if excerpt_ranges is not None and _is_too_long(candidate.entry, block_tokens):
            # Not even rendered: that takes seconds for a message of many megabytes.
            candidate, excerpt_ranges = candidate._replace(excerpt_ranges=excerpt_ranges), None
        fitted = _fit(candidate, days, counter)
        if fitted.tokens > available_tokens and excerpt_ranges is not None:
            excerpt = candidate._replace(excerpt_ranges=excerpt_ranges)
            if fitted.tokens <= block_tokens:
                crowded_out.append((excerpt, None))
                continue
            fitted = _fit(excerpt, days, counter)
        if fitted.tokens <= available_tokens:
            available_tokens -= fitted.tokens
            days.add(fitted.day)
            selected.append(fitted)
    return selected


def _is_too_long(entry: Entry, max_tokens: int) -> bool:
    """Whether a message certainly has more tokens, by its length or by its count, which another tokenizer may have
    made."""
    return len(entry.raw) > MAX_CHARS_PER_TOKEN * max_tokens or (entry.tokens or 0) > 2 * max_tokens


def _fit(candidate: RecallCandidate, days: Collection[str], counter: TokenCounter) -> FittedCandidate:
    """A candidate with its tokens, which include the day unless the block has it already."""
    rendered = candidate.whole
    if rendered is None or rendered.counter != counter.name or candidate.excerpt_ranges is not None:
        rendered = _render(candidate, counter)
    day_tokens = 0 if rendered.day in days else counter.count(f"{rendered.day}\n")
    return FittedCandidate(candidate, day_tokens + rendered.tokens, rendered.day, rendered.line)


def render_whole(entry: Entry, counter: TokenCounter) -> RenderedLine:
    """Renders a message for the candidates of several requests."""
    return _render(RecallCandidate(entry, 0.0), counter)


def _render(candidate: RecallCandidate, counter: TokenCounter) -> RenderedLine:
    line = _render_line(candidate)
    return RenderedLine(_format_day(candidate.entry), line, counter.count(f"{line}\n"), counter.name)
