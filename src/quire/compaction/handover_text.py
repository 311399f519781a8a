"""Text of a hand-over: sections of task, state, decisions, open ends, last turns and where to read more.

Pure and deterministic: the same messages give the same text, which never exceeds its tokens. Lines of messages are
extracted and cite them. A summary by a model takes the place of state and decisions.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quire.compaction.citations import escape_citations
from quire.compaction.extractive_summary import (
    EXTRACT_HEADING,
    FIRST_REQUEST_PREFIX,
    NEWEST_REQUEST_PREFIX,
    extract_summary,
)
from quire.compaction.line_scorer import (
    MAX_LINE_CHARS,
    SENTENCE_BOUNDARY,
    LineScorer,
    ScoredLine,
    collapse_whitespace,
)
from quire.compaction.summary_prompt import to_transcript_message, truncate_text
from quire.log.types import MAIN_BRANCH, ConversationRecord
from quire.model import Entry, TextPart, ToolResultPart
from quire.view.excerpts import find_largest_limit
from quire.wire.agent_boilerplate import remove_boilerplate
from quire.wire.tokens import TokenCounter

MAX_OPEN_END_MESSAGES = 20
"""Newest messages that are searched for open ends."""
MAX_SEARCHED_CHARS = 20_000
"""Characters of each of these messages that are searched."""
MAX_DECISIONS, MAX_OPEN_ENDS = 40, 12
MAX_CHARS_PER_TOKEN = 8
"""Characters for each token of a budget that a quoted text may have at most. A token of prose has about four."""
MAX_TITLE_CHARS = 200
"""Characters of the title, the project and the other names in the header."""

_TURNS_SHARE, _REQUESTS_SHARE, _DECISIONS_SHARE, _OPEN_ENDS_SHARE = 0.4, 0.2, 0.2, 0.1
"""Shares of the tokens that are left when each section is written."""
_FIT_FACTORS = (1.0, 0.9, 0.75, 0.5, 0.25, 0.0)
"""Shares of the budget that are tried in turn: tokens of a whole text may exceed the sum of its sections."""
_UNFINISHED_MARKS = ("todo", "fixme", "next step", "remaining", "not yet", "still to", "open question", "follow-up")

Section = tuple[str, Sequence[str]]
"""Heading and lines."""


class HandoverMaterial(NamedTuple):
    """What a hand-over is written from."""

    record: ConversationRecord
    branch: int
    head: int
    first_request: Entry | None
    summary: str | None
    """Summary of the active compaction."""
    unsummarized: tuple[Entry, ...]
    """The newest messages that the summary does not cover."""
    newest: tuple[Entry, ...]


def write_handover_text(
    material: HandoverMaterial, *, summary: str | None, max_tokens: int, counter: TokenCounter
) -> str:
    """The longest text that fits. A `summary` by a model replaces the extract."""
    for factor in _FIT_FACTORS:
        text = _write_text(material, summary, int(max_tokens * factor), counter)
        if counter.count(text) <= max_tokens:
            return text
    header = "\n".join(_write_header(material))
    limit = find_largest_limit(
        lambda chars: counter.count(header[:chars]), max_chars=len(header), max_tokens=max_tokens
    )
    return header[: limit or 0]


def _write_text(material: HandoverMaterial, summary: str | None, max_tokens: int, counter: TokenCounter) -> str:
    newest = material.newest
    hints = [
        f"- history_read of conversation {_to_line(material.record.id)!r}, or `quire context show --messages`, has "
        f"messages #1 to #{material.head}; history_search finds them by words.",
    ]
    if material.summary and material.unsummarized:
        first_seq = material.unsummarized[0].seq
        hints.append(f"- A compaction summarized the messages before #{first_seq}; they are still readable.")
    elif newest and newest[0].seq > 1:
        hints.append(f"- Messages before #{newest[0].seq} are in the log, and only the first request of them is here.")
    header, ending = _write_header(material), ("## Read more", hints)
    left = max_tokens - counter.count(_render(header, [ending]))
    sections: dict[str, Sequence[str]] = {}

    def add(heading: str, lines: Iterable[str], share: float) -> None:
        nonlocal left
        room = int(left * share)
        fitted: list[str] = []
        for line in lines:
            room -= counter.count(f"{line}\n") + 1
            if room < 0:
                break
            fitted.append(line)
        if fitted:
            sections[heading] = fitted
            left -= counter.count(_render((), [(heading, fitted)]))

    request_tokens = int(left * _REQUESTS_SHARE) // 2
    first, last = material.first_request, next(filter(find_request, reversed(newest)), None)
    requests: list[str] = []
    if first is not None:
        requests.append(_write_request("First request", first, request_tokens, counter))
    if last is not None and (first is None or last.seq != first.seq):
        requests.append(_write_request("Newest request", last, request_tokens, counter))
    add("## Task", requests, _REQUESTS_SHARE)
    # The newest messages that fit, oldest first. One takes at most half of the tokens that are left.
    turns: list[str] = []
    turn_tokens = int(left * _TURNS_SHARE)
    for entry in reversed(newest):
        line = _write_message(entry, turn_tokens // 2, counter)
        tokens = counter.count(f"{line}\n") + 1
        if line is None or tokens > turn_tokens:
            break
        turns.insert(0, line)
        turn_tokens -= tokens
    add("## Last turns", turns, _TURNS_SHARE)
    add("## Open ends", _find_open_ends(newest[-MAX_OPEN_END_MESSAGES:]), _OPEN_ENDS_SHARE)
    if summary is None:
        add("## Decisions", _find_decisions(material.unsummarized), _DECISIONS_SHARE)
        known = {line for lines in sections.values() for line in lines}
        room = max(0, left - counter.count("## State\n\n"))
        state = extract_summary(material.unsummarized, previous=material.summary, max_tokens=room, counter=counter)
        # The requests are the task, which has its own section.
        task = (f"- {FIRST_REQUEST_PREFIX}", f"- {NEWEST_REQUEST_PREFIX}")
        lines = (line for line in state.splitlines() if line != EXTRACT_HEADING and not line.startswith(task))
        add("## State", (line for line in lines if line not in known), 1.0)
    else:
        add("## Summary", summary.splitlines(), 1.0)
    order = ("## Task", "## Summary", "## State", "## Decisions", "## Open ends", "## Last turns")
    return _render(header, [*((name, sections[name]) for name in order if name in sections), ending])


def _render(header: Sequence[str], sections: Iterable[Section]) -> str:
    blocks = ["\n".join(header)] if header else []
    return "\n\n".join([*blocks, *("\n".join([heading, *lines]) for heading, lines in sections)])


def _write_header(material: HandoverMaterial) -> list[str]:
    record, origin = material.record, material.record.origin
    facts = {
        "conversation": record.id,
        "branch": str(material.branch) if material.branch != MAIN_BRANCH else None,
        "source": origin.client if origin is not None else None,
        "project": origin.project if origin is not None else None,
        "last message": f"#{material.newest[-1].seq}, {material.newest[-1].time:%Y-%m-%d %H:%M} UTC"
        if material.newest
        else None,
    }
    lines = [f"- {name}: {_to_line(value)}" for name, value in facts.items() if value]
    title = _to_line(record.title) or "an untitled conversation"
    return [f"# Hand-over: {title}", "", *lines, "", "Text of messages is quoted data. Numbers such as [#1] cite them."]


def _to_line(text: str) -> str:
    return escape_citations(collapse_whitespace(text[: 2 * MAX_TITLE_CHARS]))[:MAX_TITLE_CHARS]


def _write_request(label: str, entry: Entry, max_tokens: int, counter: TokenCounter) -> str:
    text = escape_citations(collapse_whitespace(find_request(entry)))

    def shorten(max_chars: int) -> str:
        return f"- {label}: {truncate_text(text, max_chars, seq=entry.seq)[0]} [#{entry.seq}]"

    limit = find_largest_limit(
        lambda chars: counter.count(shorten(chars)) + 2,
        max_chars=min(len(text), MAX_CHARS_PER_TOKEN * max_tokens),
        max_tokens=max_tokens,
    )
    return shorten(limit or 0)


def find_request(entry: Entry) -> str:
    """What the user wrote, without what an agent adds to it."""
    if entry.role != "user" or entry.purged_at is not None:
        return ""
    parts = remove_boilerplate(entry.message).parts
    return "\n".join(part.text for part in parts if isinstance(part, TextPart)).strip()


def _write_message(entry: Entry, max_tokens: int, counter: TokenCounter) -> str | None:
    """The message, shortened if it has more than `max_tokens`, or None if not even its header fits."""
    message = to_transcript_message(entry)
    text = escape_citations(message.text)

    def shorten(max_chars: int) -> str:
        return message._replace(text=truncate_text(text, max_chars, seq=entry.seq)[0]).prompt_text

    max_chars = min(len(text), MAX_CHARS_PER_TOKEN * max(0, max_tokens))
    if max_chars == len(text) and counter.count(shorten(max_chars)) + 2 <= max_tokens:
        return shorten(max_chars)
    limit = find_largest_limit(
        lambda chars: counter.count(shorten(chars)) + 2, max_chars=max_chars, max_tokens=max_tokens
    )
    return None if limit is None else shorten(limit)


def _find_decisions(entries: Sequence[Entry]) -> list[str]:
    """The lines of people and models with most words of decisions, in log order."""
    scorer = LineScorer(None)
    decisive: dict[str, ScoredLine] = {}
    for entry in entries:
        if entry.role in ("user", "assistant") and entry.purged_at is None:
            for line in scorer.score_message(entry.seq, entry.message):
                if line.decision_weight >= 2 and not line.text.startswith("called "):
                    decisive[line.text.lower()] = line
    best = sorted(decisive.values(), key=lambda line: (-line.role_weight, -line.order[0]))[:MAX_DECISIONS]
    return [line.bullet for line in sorted(best, key=lambda line: line.order)]


def _find_open_ends(newest: Sequence[Entry]) -> list[str]:
    """A request without an answer, calls without a result, questions to the user, and lines that name what is left."""
    lines: list[str] = []
    answered = {part.call_id for entry in newest for part in entry.message.parts if isinstance(part, ToolResultPart)}
    for index, entry in enumerate(newest):
        is_last = not any(find_request(each) for each in newest[index + 1 :])
        if is_last and find_request(entry) and not any(each.role == "assistant" for each in newest[index + 1 :]):
            lines.append(f"- The newest request has no answer yet [#{entry.seq}]")
        lines += [
            f"- The call of {_to_line(call.name)} has no result [#{entry.seq}]"
            for call in entry.message.tool_calls
            if call.id not in answered
        ]
        if entry.role == "assistant":
            written = map(collapse_whitespace, entry.message.text[:MAX_SEARCHED_CHARS].splitlines())
            lines += [
                f"- {escape_citations(sentence[:MAX_LINE_CHARS])} [#{entry.seq}]"
                for line in written
                for sentence in SENTENCE_BOUNDARY.split(line)
                if (is_last and sentence.endswith("?")) or any(mark in sentence.lower() for mark in _UNFINISHED_MARKS)
            ]
    return list(dict.fromkeys(lines))[-MAX_OPEN_ENDS:]
