"""Extractive summary, without a model: lines of the messages, each with its citation, in log order. Deterministic.

Selects the lines that add most information per token, including lines of the previous summary. Lines that differ only
in their values are merged: the template once, then the values. The next compaction expands merged lines again.
"""

import heapq
import re
from collections import Counter as Tally
from collections.abc import Sequence

from quire.compaction.citations import CITATION, escape_citations
from quire.compaction.line_scorer import (
    ELLIPSIS,
    MAX_LINE_CHARS,
    ROLE_WEIGHTS,
    SENTENCE_BOUNDARY,
    LineScorer,
    ScoredLine,
    collapse_whitespace,
    split_clauses,
)
from quire.model import Entry
from quire.wire.agent_boilerplate import remove_boilerplate
from quire.wire.tokens import TokenCounter

EXTRACT_HEADING = (
    "Extract, not a summary: selected lines of archived messages, some of them shortened. Read a message by its number."
)
SHORT_HEADING = "Short form of the summary: selected lines of it. Read a message by its number."
FIRST_REQUEST_PREFIX, NEWEST_REQUEST_PREFIX = "First request: ", "Newest request: "

_REQUEST_TOKENS_DIVISOR = 8
"""The first and the newest request may each use 1/8 of the tokens."""
_PLAIN_TOKENS_DIVISOR = 4
"""Plain lines, without values or decisions, may use 1/4 of the tokens."""
_MIN_TEMPLATE_LINES = 3
"""Minimum lines with one template to be merged."""
_PREVIOUS_SUMMARY_WEIGHT = 1.6
"""Weight factor of lines of the previous summary, which were selected once already."""
_SAME_SOURCE_DECAY = 0.85
"""Weight factor of each further line of the same message."""
_REPEATED_VALUE_WEIGHT = 0.25
"""Weight factor of a value that a selected line contains already."""
_MAX_MISSES = 50
"""Selection stops after this many lines in a row that do not fit."""
_MAX_FIT_ROUNDS = 4
_MIN_FILL_SHARE = 0.97

_SECTION_HEADING = re.compile(r"#{1,6}\s|\*\*[^*]{1,60}\*\*:?$|[A-Z][\w ]{0,40}:$")
_CITED_NUMBER = re.compile(r"#([0-9]{1,15})(?![0-9])")


def extract_summary(
    entries: Sequence[Entry],
    *,
    previous: str | None,
    max_tokens: int,
    counter: TokenCounter,
    instructions: str | None = None,
) -> str:
    """Selects the best lines within `max_tokens`. Empty if not even one fits."""
    messages = [(entry.seq, remove_boilerplate(entry.message)) for entry in entries if entry.kind == "message"]
    scorer = LineScorer(instructions)
    required, lines = _parse_previous(previous or "", scorer)
    # The user's newest request, and the first one unless the previous summary contains it.
    questions = [(seq, message) for seq, message in messages if message.role == "user" and message.text.strip()]
    chosen = [(FIRST_REQUEST_PREFIX, *questions[0])] if questions and not previous else []
    if questions and (not chosen or len(questions) > 1):
        chosen.append((NEWEST_REQUEST_PREFIX, *questions[-1]))
    max_chars = max(0, max_tokens) // _REQUEST_TOKENS_DIVISOR * 4
    requests: dict[int, str] = {}
    for label, seq, message in chosen:
        text = escape_citations(collapse_whitespace(message.text))
        shortened = text if len(text) <= max_chars else f"{text[:max_chars].rsplit(' ', 1)[0]} {ELLIPSIS}"
        requests[seq] = label + shortened
    required += [scorer.score_line(text, f"[#{seq}]", (seq, -1), seq, role="user") for seq, text in requests.items()]
    for seq, message in messages:
        if requests.get(seq, ELLIPSIS).endswith(ELLIPSIS):
            lines += scorer.score_message(seq, message)
    # The first of equal lines stays, with its citation.
    by_text: dict[str, ScoredLine] = {}
    for line in lines:
        by_text.setdefault(line.text.lower(), line)
    distinct = list(by_text.values())
    # A line whose template others share costs only its values.
    template_counts = Tally(line.template.lower() for line in distinct if line.template and line.citation)
    for line in distinct:
        if template_counts[line.template.lower()] < _MIN_TEMPLATE_LINES or not line.citation:
            line.template = ""
        line.estimated_tokens = len(", ".join(line.template_values) if line.template else line.text) // 3 + 8

    # Selected lines are rendered and counted, with a corrected budget until they fill the limit.
    budget, best, best_tokens = float(max_tokens), "", 0
    for _ in range(_MAX_FIT_ROUNDS):
        selection = _LineSelection(counter, budget)
        selection.fill(required, distinct)
        text = _render_lines(selection.lines)
        tokens = counter.count(text)
        if best_tokens < tokens <= max_tokens:
            best, best_tokens = text, tokens
        if not tokens or max_tokens * _MIN_FILL_SHARE < tokens <= max_tokens or tokens < max_tokens / 2:
            break
        budget *= 0.985 * max_tokens / tokens
    if best:
        return best
    # For very small limits: one line without the heading, a request if one fits.
    for line in (*required, *heapq.nsmallest(20, distinct, key=lambda line: line.estimated_tokens)):
        if counter.count(line.bullet) <= max_tokens:
            return line.bullet
    return ""


def shorten_summary(summary: str, *, max_tokens: int, counter: TokenCounter) -> str | None:
    """The best lines of a summary within `max_tokens`, with another heading, or None if it is at most twice as long."""
    if counter.count(summary) <= 2 * max_tokens:
        return None
    text = extract_summary((), previous=summary, max_tokens=max_tokens, counter=counter)
    if EXTRACT_HEADING not in summary:
        text = text.replace(EXTRACT_HEADING, SHORT_HEADING, 1)
    return text or None


def _parse_previous(previous: str, scorer: LineScorer) -> tuple[list[ScoredLine], list[ScoredLine]]:
    """Lines of the previous summary: required ones, and ones that compete with the new lines."""
    required: list[ScoredLine] = []
    lines: list[ScoredLine] = []
    written: list[str] = []
    for line in previous.splitlines():
        if (items := _expand_merged_line(line)) is not None:
            written += items
        elif len(line) > MAX_LINE_CHARS and not CITATION.search(line):
            written += SENTENCE_BOUNDARY.split(collapse_whitespace(line))
        else:
            written.append(line)
    number = 0
    for place, raw in enumerate(written):
        text = collapse_whitespace(raw)
        if not text or text in (EXTRACT_HEADING, SHORT_HEADING) or _SECTION_HEADING.match(text):
            continue
        if len(CITATION.findall(raw)) != len(CITATION.findall(text)):
            text = escape_citations(text)
        numbers = _CITED_NUMBER.findall("".join(CITATION.findall(text)))
        number = int(numbers[0]) if numbers else number
        text, citation = _split_citation(text.removeprefix("- "))
        clauses = (
            split_clauses(text.removeprefix(NEWEST_REQUEST_PREFIX))
            if text.startswith(NEWEST_REQUEST_PREFIX)
            else (text,)
        )
        for clause in filter(None, clauses):
            scored = scorer.score_line(clause, citation, (number, place), -place - 1, role="user")
            scored.role_weight = ROLE_WEIGHTS["assistant"] * _PREVIOUS_SUMMARY_WEIGHT
            (required if text.startswith(FIRST_REQUEST_PREFIX) and not required else lines).append(scored)
    return required, lines


def _split_citation(text: str) -> tuple[str, str]:
    """Splits a line from the citation at its end."""
    bare = text.rstrip(" .")
    start = bare.rfind("[")
    if start >= 0 and CITATION.fullmatch(bare, start):
        return bare[:start].rstrip(), bare[start:]
    return text, ""


class _LineSelection:
    """Greedy selection of lines: those that add most information per token, within a budget."""

    def __init__(self, counter: TokenCounter, budget: float) -> None:
        self.lines: list[ScoredLine] = []
        self._counter, self._budget = counter, budget
        self._covered_values: set[str] = set()
        self._lines_by_source: Tally[int] = Tally()
        self._templates: set[str] = set()
        self._tokens = counter.count(EXTRACT_HEADING) + 1

    def fill(self, required: Sequence[ScoredLine], lines: Sequence[ScoredLine]) -> None:
        """Adds the required lines, then the best of the others.

        Adding a line only lowers other scores, so only the top of the heap is scored again.
        """
        for line in required:
            self._add(line, self._counter.count(line.bullet) + 1)
        heap = [(-self._score(line), index) for index, line in enumerate(lines)]
        heapq.heapify(heap)
        misses = 0
        while heap and misses < _MAX_MISSES:
            _, index = heap[0]
            line = lines[index]
            score = self._score(line)
            if -score > heap[0][0]:
                heapq.heapreplace(heap, (-score, index))
                continue
            heapq.heappop(heap)
            if line.template:
                tokens = self._counter.count(_format_values(line) + ";")
                if line.template.lower() not in self._templates:
                    tokens += self._counter.count(f"- {line.template}:") + 1
            else:
                tokens = self._counter.count(line.bullet) + 1
            if self._tokens + tokens > (self._budget / _PLAIN_TOKENS_DIVISOR if line.is_plain else self._budget):
                misses += 1
                continue
            misses = 0
            self._add(line, tokens)

    def _add(self, line: ScoredLine, tokens: int) -> None:
        self.lines.append(line)
        self._covered_values.update(line.values)
        self._lines_by_source[line.source] += 1
        self._templates.add(line.template.lower())
        self._tokens += tokens

    def _score(self, line: ScoredLine) -> float:
        """Information that the line adds to the selection, per token."""
        covered = self._covered_values
        value_score = sum(
            [weight * _REPEATED_VALUE_WEIGHT if value in covered else weight for value, weight in line.values.items()]
        )
        return (
            (line.base_score + value_score)
            * line.role_weight
            * _SAME_SOURCE_DECAY ** self._lines_by_source[line.source]
            / line.estimated_tokens
        )


def _render_lines(lines: Sequence[ScoredLine]) -> str:
    if not lines:
        return ""
    groups: dict[str, list[ScoredLine]] = {}
    for index, line in enumerate(sorted(lines, key=lambda line: line.order)):
        groups.setdefault(line.template.lower() or f"{ELLIPSIS}{index}", []).append(line)
    written = [EXTRACT_HEADING]
    for group in groups.values():
        if len(group) < _MIN_TEMPLATE_LINES:
            written += [line.bullet for line in group]
        else:
            # Lines with one template: the template, then the values and citation of each line.
            written.append(f"- {group[0].template}:{';'.join(map(_format_values, group))}")
    return "\n".join(written)


def _format_values(line: ScoredLine) -> str:
    return f" {', '.join(line.template_values)} {line.citation}"


def _expand_merged_line(line: str) -> list[str] | None:
    """Expands lines with one template that were merged, or None for any other line."""
    head, gap, rest = line.rpartition(ELLIPSIS)
    tail, colon, items = rest.partition(": ")
    if not gap or not colon:
        return None
    fragments = (head + gap + tail).split(ELLIPSIS)
    expanded: list[str] = []
    for item in items.split("; "):
        values, citation = _split_citation(item)
        item_values = values.split(", ")
        if not citation or len(item_values) != len(fragments) - 1:
            return None
        expanded.append(
            "".join(text + value for text, value in zip(fragments, (*item_values, ""), strict=True)) + f" {citation}"
        )
    return expanded
