"""The summary that needs no model: lines of the messages themselves, each with its citation, in the order of the log.

Chooses what adds most for the tokens that it takes, the previous summary's lines among it. Lines that differ only in
their values are written once, with the values after them, and read back when the summary is folded. Deterministic.
"""

import heapq
import re
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from quire.compaction.citations import CITATION, without_citations
from quire.compaction.lines import GAP, LONGEST_LINE, ROLES, SENTENCES, Cutter, Line, clauses, one_line
from quire.model import Entry, Message
from quire.view.tokens import Counter

HEADING = "Extracts from archived messages, word for word; each can be read by its number."
FIRST, NEWEST = "First request: ", "Newest request: "

_REQUEST_SHARE = 8
"""The first request and the newest take at most one in so many of the tokens, each."""
_PLAIN_SHARE = 4
"""Lines that tell nothing in particular fill at most one in so many of the tokens."""
_SHARED = 3
"""So many lines of one form are written as one."""
_KEPT_BEFORE = 1.6
"""How much more a line of the previous summary weighs: it was chosen once already."""
_AGAIN = 0.85
"""What each further line of one message weighs, against the one chosen before it."""
_TOLD = 0.25
"""What a value weighs that a chosen line tells already."""
_MISSES = 50
"""The room counts as full when so many lines in a row were too long for it."""
_ROUNDS = 4
_FULL = 0.97

_SECTION = re.compile(r"#{1,6}\s|\*\*[^*]{1,60}\*\*:?$|[A-Z][\w ]{0,40}:$")
_CITED = re.compile(r"#([0-9]{1,15})(?![0-9])")


def extractive_summary(
    entries: Sequence[Entry],
    *,
    previous: str | None,
    limit: int,
    counter: Counter,
    instructions: str | None = None,
) -> str:
    """The lines that matter most, at most `limit` tokens of them; empty where not one has room."""
    messages = [(entry.seq, entry.message) for entry in entries if entry.kind == "message"]
    cutter = Cutter(instructions)
    forced, lines = _previous_lines(previous or "", cutter)
    requests = dict(_requests(messages, first=not previous, characters=max(0, limit) // _REQUEST_SHARE * 4))
    forced += [cutter.line(text, f"[#{seq}]", (seq, -1), seq, role="user") for seq, text in requests.items()]
    for seq, message in messages:
        if requests.get(seq, GAP).endswith(GAP):
            lines += cutter.lines(seq, message)
    distinct = _distinct(lines)
    _estimate(distinct)
    return _fitted(forced, distinct, limit, counter)


def _requests(messages: Sequence[tuple[int, Message]], *, first: bool, characters: int) -> Iterator[tuple[int, str]]:
    """The first thing the user asked, unless a summary tells it already, and the newest."""
    asked = [(seq, message) for seq, message in messages if message.role == "user" and message.text.strip()]
    chosen = [(FIRST, *asked[0])] if first and asked else []
    if asked and (not chosen or len(asked) > 1):
        chosen.append((NEWEST, *asked[-1]))
    for label, seq, message in chosen:
        text = without_citations(one_line(message.text))
        yield seq, label + (text if len(text) <= characters else f"{text[:characters].rsplit(' ', 1)[0]} {GAP}")


def _previous_lines(previous: str, cutter: Cutter) -> tuple[list[Line], list[Line]]:
    """The previous summary's lines: those that stay whatever comes, and those that compete."""
    forced: list[Line] = []
    lines: list[Line] = []
    number = 0
    for place, raw in enumerate(_told_lines(previous)):
        text = one_line(raw)
        if not text or text == HEADING or _SECTION.match(text):
            continue
        if len(CITATION.findall(raw)) != len(CITATION.findall(text)):
            text = without_citations(text)
        numbers = _CITED.findall("".join(CITATION.findall(text)))
        number = int(numbers[0]) if numbers else number
        text, cites = _parted(text.removeprefix("- "))
        told = clauses(text.removeprefix(NEWEST)) if text.startswith(NEWEST) else (text,)
        for each in filter(None, told):
            line = cutter.line(each, cites, (number, place), -place - 1, role="user")
            line.factor = ROLES["assistant"] * _KEPT_BEFORE
            (forced if text.startswith(FIRST) and not forced else lines).append(line)
    return forced, lines


def _told_lines(previous: str) -> Iterator[str]:
    """A summary's lines, those of several values written out, long ones without a citation cut to sentences."""
    for line in previous.splitlines():
        if (items := _written_out(line)) is not None:
            yield from items
        elif len(line) > LONGEST_LINE and not CITATION.search(line):
            yield from SENTENCES.split(one_line(line))
        else:
            yield line


def _parted(text: str) -> tuple[str, str]:
    """A line, and the citation at its end."""
    bare = text.rstrip(" .")
    at = bare.rfind("[")
    if at >= 0 and CITATION.fullmatch(bare, at):
        return bare[:at].rstrip(), bare[at:]
    return text, ""


def _distinct(lines: Iterable[Line]) -> list[Line]:
    """The lines without repetitions; what is said twice is cited where it was said first."""
    seen: dict[str, Line] = {}
    for line in lines:
        seen.setdefault(line.text.lower(), line)
    return list(seen.values())


def _estimate(lines: Iterable[Line]) -> None:
    """About how many tokens each line takes; less where others share its form, which else it loses."""
    forms = Tally(line.form.lower() for line in lines if line.form and line.cites)
    for line in lines:
        if forms[line.form.lower()] < _SHARED or not line.cites:
            line.form = ""
        line.length = len(", ".join(line.filled) if line.form else line.text) // 3 + 8


def _fitted(forced: Sequence[Line], lines: Sequence[Line], limit: int, counter: Counter) -> str:
    """The best lines, as many as fit: chosen, written, measured, and chosen again by what they took."""
    budget, best, most = float(limit), "", 0
    for _ in range(_ROUNDS):
        text = _written(_chosen(forced, lines, budget, counter))
        tokens = counter.count(text)
        if most < tokens <= limit:
            best, most = text, tokens
        if not tokens or limit * _FULL < tokens <= limit or tokens < limit / 2:
            break
        budget *= 0.985 * limit / tokens
    return best or _shortest(forced, lines, limit, counter)


def _shortest(forced: Sequence[Line], lines: Sequence[Line], limit: int, counter: Counter) -> str:
    """Where there is hardly any room: one line without the heading, a request if one fits."""
    for line in (*forced, *heapq.nsmallest(20, lines, key=lambda line: line.length)):
        if counter.count(line.whole) <= limit:
            return line.whole
    return ""


@dataclass(slots=True)
class _Choice:
    """Lines chosen so far, and what they tell already."""

    lines: list[Line] = field(default_factory=list["Line"])
    told: set[str] = field(default_factory=set[str])
    by_source: Tally[int] = field(default_factory=Tally[int])
    opened: set[str] = field(default_factory=set[str])
    tokens: int = 0

    def take(self, line: Line, tokens: int) -> None:
        self.lines.append(line)
        self.told.update(line.values)
        self.by_source[line.source] += 1
        self.opened.add(line.form.lower())
        self.tokens += tokens

    def worth(self, line: Line) -> float:
        """What the line adds to what was chosen, for each token that it takes."""
        told = self.told
        fresh = sum([weight * _TOLD if value in told else weight for value, weight in line.values.items()])
        return (line.base + fresh) * line.factor * _AGAIN ** self.by_source[line.source] / line.length

    def cost(self, line: Line, counter: Counter) -> int:
        if not line.form:
            return counter.count(line.whole) + 1
        values = counter.count(_item(line) + ";")
        return values if line.form.lower() in self.opened else values + counter.count(f"- {line.form}:") + 1


def _chosen(forced: Sequence[Line], lines: Sequence[Line], budget: float, counter: Counter) -> list[Line]:
    """Always the line that adds most. Each choice only lessens what others add, so they are weighed in their turn."""
    choice = _Choice(tokens=counter.count(HEADING) + 1)
    for line in forced:
        choice.take(line, counter.count(line.whole) + 1)
    heap = [(-choice.worth(line), place) for place, line in enumerate(lines)]
    heapq.heapify(heap)
    misses = 0
    while heap and misses < _MISSES:
        _, place = heap[0]
        line = lines[place]
        worth = choice.worth(line)
        if -worth > heap[0][0]:
            heapq.heapreplace(heap, (-worth, place))
            continue
        heapq.heappop(heap)
        tokens = choice.cost(line, counter)
        if choice.tokens + tokens > (budget / _PLAIN_SHARE if line.plain else budget):
            misses += 1
            continue
        misses = 0
        choice.take(line, tokens)
    return choice.lines


def _written(chosen: Sequence[Line]) -> str:
    if not chosen:
        return ""
    forms: dict[str, list[Line]] = {}
    for place, line in enumerate(sorted(chosen, key=lambda line: line.order)):
        forms.setdefault(line.form.lower() or f"{GAP}{place}", []).append(line)
    return "\n".join([HEADING, *(text for alike in forms.values() for text in _alike(alike))])


def _alike(lines: Sequence[Line]) -> Iterator[str]:
    """Lines of one form as one, if there are enough of them: the form, then each line's values with its citation."""
    if len(lines) < _SHARED:
        yield from (line.whole for line in lines)
        return
    yield f"- {lines[0].form}:{';'.join(map(_item, lines))}"


def _item(line: Line) -> str:
    return f" {', '.join(line.filled)} {line.cites}"


def _written_out(line: str) -> list[str] | None:
    """The lines that `_alike` made one of; None for any other line."""
    head, gap, rest = line.rpartition(GAP)
    tail, colon, items = rest.partition(": ")
    if not gap or not colon:
        return None
    between = (head + gap + tail).split(GAP)
    found: list[str] = []
    for item in items.split("; "):
        values, cites = _parted(item)
        filled = values.split(", ")
        if not cites or len(filled) != len(between) - 1:
            return None
        found.append("".join(text + value for text, value in zip(between, (*filled, ""), strict=True)) + f" {cites}")
    return found
