"""The timeline of a conversation in the terminal: stacked slots under window and trigger, cliffs, cache and cost."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from quire.cli.context_window import MAX_BAR_COLUMNS, SLOT_STYLES
from quire.cli.output import make_table, make_text, pluralize
from quire.errors import format_usd
from quire.ledger.timeline import Timeline, TimelineEvent, TimelineRow
from quire.model.policy import SLOTS
from quire.usage.contribution import NANOS_PER_DOLLAR

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

PLOT_LINES = 14
LABEL_COLUMNS = 9
MAX_LISTED_EVENTS = 12
LEVELS = " ▁▂▃▄▅▆▇█"
SLOT_NAMES = {
    "system": "Instructions",
    "tools": "Tools",
    "memory": "Memory",
    "references": "References",
    "summary": "Summary",
    "messages": "Messages",
    "recall": "Recalled",
    "newest": "This turn",
}
EVENT_NAMES = {
    "compaction": "compacted",
    "restore": "undid the compaction",
    "pin": "pinned",
    "unpin": "unpinned",
    "drop": "dropped",
    "undrop": "took back",
    "epoch": "applied the edits to the agent's list",
    "provider_edit": "cleared on its side",
}
AUTHOR_NAMES = {
    "quire": "Quire",
    "client": "the agent",
    "provider": "the provider",
    "user": "you",
    "model": "the model",
}


class Cliff(NamedTuple):
    """A compaction before this request, an index of the rows."""

    request: int
    freed_tokens: int
    event: TimelineEvent

    @property
    def label(self) -> str:
        author = "" if self.event.author == "quire" else f" {self.event.author}"
        return f"✂{f' −{self.freed_tokens:,}' if self.freed_tokens else ''}{author}"


def find_cliffs(timeline: Timeline) -> list[Cliff]:
    """The compactions, each before the first request that has it. An undone one that no request had is left out."""
    rows, cliffs = timeline.rows, list[Cliff]()
    index = 0
    for event in timeline.events:
        if event.kind != "compaction" and event.kind != "provider_edit":
            continue
        acts_from = event.seq if event.kind == "compaction" else event.seq - 1
        while index < len(rows) and rows[index].reply <= acts_from:
            index += 1
        if index < len(rows):
            before = rows[index - 1].total_tokens if index else 0
            freed = event.freed_tokens or max(0, before - rows[index].total_tokens)
            cliffs.append(Cliff(index, freed, event))
    return cliffs


def find_top_tokens(rows: Sequence[TimelineRow]) -> int:
    """Tokens at the top of the plot: above the window, or above the largest request where that is far below it."""
    largest = max((row.total_tokens for row in rows), default=1)
    window = max((row.window or 0 for row in rows), default=0)
    return max(1, int(1.08 * window) if largest > 0.3 * window > 0 else int(1.25 * largest))


def format_headline(timeline: Timeline) -> str:
    rows = timeline.rows
    if not rows:
        return "No request is recorded."
    turns = len({row.turn for row in rows})
    authors = Counter(event.author for event in timeline.events if event.kind == "compaction")
    by = [f"{count:,} by {AUTHOR_NAMES[author]}" for author, count in authors.items()]
    compactions = pluralize(sum(authors.values()), "compaction") + (f" ({', '.join(by)})" if by else "")
    cached = sum(row.cache_read_tokens or 0 for row in rows)
    sent = sum(row.input_tokens or row.total_tokens for row in rows)
    cache = f", {100 * cached / sent:.0f} % of the input from the cache" if cached and sent else ""
    cost = sum(row.cost_usd or 0.0 for row in rows)
    bound = "at least " if any(not row.is_cost_complete for row in rows) else ""
    price = f", {bound}{format_usd(cost, 2)}" if cost else ""
    called = timeline.sub_agents
    if called.cost_nanos:
        bound = bound or ("at least " if called.unpriced_requests else "")
        price += f", {bound}{format_usd(cost + called.cost_nanos / NANOS_PER_DOLLAR, 2)} with sub-agents"
    return f"{pluralize(len(rows), 'request')} in {pluralize(turns, 'turn')}, {compactions}{cache}{price}."


def draw_timeline(timeline: Timeline, console: "Console") -> "Iterable[RenderableType]":
    rows = timeline.rows
    yield make_text(format_headline(timeline))
    if not rows:
        return
    colored = console.color_system is not None and not console.no_color
    count = min(len(rows), max(10, min(console.width, MAX_BAR_COLUMNS) - LABEL_COLUMNS))
    # A column of several requests has the largest of them.
    groups = [range(n * len(rows) // count, (n + 1) * len(rows) // count) for n in range(count)]
    columns = [max((rows[index] for index in group), key=lambda row: row.total_tokens) for group in groups]
    widths = _spread(count, max(10, min(console.width, MAX_BAR_COLUMNS) - LABEL_COLUMNS))
    yield make_text("")
    yield from _draw_plot(columns, widths, colored=colored)
    cut = {group_index for cliff in find_cliffs(timeline) for group_index, g in enumerate(groups) if cliff.request in g}
    if cut:
        marks = "".join(("✂" if n in cut else " ").ljust(width) for n, width in enumerate(widths))
        yield make_text(f"{'cuts'.rjust(LABEL_COLUMNS - 2)}  {marks}".rstrip())
    yield from _draw_bands(rows, groups, widths)
    first, last = f"turn {rows[0].turn}", f"turn {rows[-1].turn}"
    yield make_text(f"{' ' * LABEL_COLUMNS}{first}{last.rjust(max(1, sum(widths) - len(first)))}", style="dim")
    yield make_text("")
    yield _draw_legend(columns, colored=colored)
    yield from _draw_events(timeline)


def _spread(columns: int, width: int) -> list[int]:
    """Cells of each column: few requests have wide columns, at most 4."""
    return [max(1, min(4, width // columns))] * columns


def _draw_plot(columns: Sequence[TimelineRow], widths: Sequence[int], *, colored: bool) -> "Iterable[Text]":
    top = find_top_tokens(columns)
    limits = {
        min(PLOT_LINES - 1, int(value / top * PLOT_LINES)): (mark, name, value)
        for name, mark, value in (
            ("window", "─", columns[-1].window),
            ("compacts", "╌", columns[-1].trigger_tokens),
        )
        if value and value <= top
    }
    for line in reversed(range(PLOT_LINES)):
        middle = (line + 0.5) / PLOT_LINES * top
        mark, name, value = limits.get(line, (" ", "", None))
        label = f"{value:,}" if value is not None else f"{int(line / PLOT_LINES * top):,}" if line % 5 == 0 else ""
        text = make_text(f"{label.rjust(LABEL_COLUMNS - 2)}  ", style="dim")
        for row, width in zip(columns, widths, strict=True):
            slot = _find_slot(row, middle)
            if slot is None:
                text.append(mark * width, style="dim")
            elif slot == "unknown":
                text.append(("█" if colored else "?") * width, style="bright_black" if colored else "")
            else:
                style = SLOT_STYLES[slot]
                text.append(("█" if colored else style.letter) * width, style=style.color if colored else "")
        if name:
            text.append(f" {name}", style="dim")
        yield text


def _find_slot(row: TimelineRow, tokens: float) -> str | None:
    """The slot at this height of a request's column."""
    if not row.slots:
        return "unknown" if tokens < row.total_tokens else None
    height = 0
    for slot, used in zip(SLOTS, row.slots, strict=True):
        height += used
        if tokens < height:
            return slot
    return None


def _draw_bands(rows: Sequence[TimelineRow], groups: Sequence[range], widths: Sequence[int]) -> "Iterable[Text]":
    """Lines of cache and cost: the share of the input that was read from the cache, and the cost of a request."""
    cached = [sum(rows[index].cache_read_tokens or 0 for index in group) for group in groups]
    sent = [sum(rows[index].input_tokens or 0 for index in group) for group in groups]
    shares = [read / total if total else 0.0 for read, total in zip(cached, sent, strict=True)]
    costs = [sum(rows[index].cost_usd or 0.0 for index in group) / len(group) for group in groups]
    most = max(costs)
    for name, levels in (
        ("cached", shares if any(cached) else []),
        ("cost", [each / most for each in costs] if most else []),
    ):
        if levels:
            band = "".join(
                LEVELS[min(8, round(8 * level))] * width for level, width in zip(levels, widths, strict=True)
            )
            yield make_text(f"{name.rjust(LABEL_COLUMNS - 2)}  {band}".rstrip())


def _draw_legend(columns: Sequence[TimelineRow], *, colored: bool) -> "Text":
    text = make_text("")
    for index, slot in enumerate(SLOTS):
        if any(row.slots and row.slots[index] for row in columns):
            style = SLOT_STYLES[slot]
            text.append("█" if colored else style.letter, style=style.color if colored else "")
            text.append(f" {SLOT_NAMES[slot]}   ")
    if any(not row.slots for row in columns):
        text.append("█" if colored else "?", style="bright_black" if colored else "")
        text.append(" sent, parts unknown")
    return text


def _draw_events(timeline: Timeline) -> "Iterable[RenderableType]":
    events = timeline.events
    if not events:
        return
    if len(events) > MAX_LISTED_EVENTS:
        yield make_text(f"\nThe newest {MAX_LISTED_EVENTS} of {len(events):,} changes:")
    else:
        yield make_text("")
    yield make_table(
        "entry", "who", "what", "messages", "freed",
        rows=[
            (
                f"#{event.seq}",
                AUTHOR_NAMES[event.author],
                EVENT_NAMES[event.kind],
                "" if event.span is None
                else f"#{event.span.first}" if event.span.first == event.span.last
                else f"#{event.span.first} to #{event.span.last}",
                event.freed_tokens,
            )
            for event in events[-MAX_LISTED_EVENTS:]
        ],
        right_aligned=("freed",),
    )  # fmt: skip
