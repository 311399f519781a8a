"""The timeline of a conversation as one SVG file, for a report: no script, no font and no image from elsewhere."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby, pairwise

from quire.cli.timeline import SLOT_NAMES, Cliff, find_cliffs, find_top_tokens, format_headline
from quire.ledger.timeline import Fate, Timeline, TimelineRow, decode_fates
from quire.model.policy import SLOTS

PLOT_WIDTH, SLOTS_HEIGHT, MESSAGES_HEIGHT, BAND_HEIGHT = 1_180, 250, 300, 46
LEFT, TOP, GAP = 76, 116, 44
MAX_CELLS = 590
"""Columns and rows of the grid of messages; more requests share a column."""
MIN_LABEL_DISTANCE = 76

SLOT_COLORS = dict(
    zip(SLOTS, ("#5c7c99", "#8976a6", "#b5825a", "#77966a", "#c9a23f", "#2b5d63", "#e0762c", "#4f9a91"), strict=True)
)
UNKNOWN_COLOR = "#93a6ab"
FATE_STYLES: Mapping[Fate, tuple[str, str]] = {
    "w": ("#2b5d63", "whole"),
    "x": ("#7fa9a6", "shortened"),
    "c": ("#c4d8d4", "cleared"),
    "s": ("#efe6d4", "only in the summary"),
    "r": ("#e0762c", "came back (recalled)"),
    "k": ("#7a4fa0", "pinned or of priority"),
    "b": ("#b3568f", "restored"),
    "d": ("#b3402a", "dropped"),
    "o": ("#d8d4cc", "left out"),
}
CACHE_COLORS = {"read from the cache": "#5f9ea0", "written to the cache": "#c9a23f", "neither": "#dcd6c8"}


def render_svg(timeline: Timeline, *, title: str) -> str:
    rows = timeline.rows
    head = max((span.last for row in rows for span, _ in decode_fates(row.fates)), default=1)
    cliffs = find_cliffs(timeline)
    messages_top = SLOTS_HEIGHT + GAP
    cache_top = messages_top + MESSAGES_HEIGHT + GAP
    cost_top = cache_top + BAND_HEIGHT + GAP
    height = cost_top + BAND_HEIGHT
    parts = [
        *_draw_slots(rows),
        *_draw_heading(messages_top, "Every message, and what became of it in each request"),
        *_draw_messages(rows, head, messages_top),
        *_draw_heading(cache_top, "Input by the provider's count: from the cache or not"),
        *_draw_cache(rows, cache_top),
        *_draw_heading(cost_top, f"Cost of each request; {_format_cost(rows)}"),
        *_draw_costs(rows, cost_top),
        *_draw_cliffs(cliffs, len(rows), cost_top + BAND_HEIGHT),
        *_draw_axis(rows, height),
    ]
    names = {SLOT_NAMES[slot]: color for slot, color in SLOT_COLORS.items()}
    if any(not row.slots for row in rows):
        names["Sent, parts unknown"] = UNKNOWN_COLOR
    used = {fate for row in rows for _, fate in decode_fates(row.fates)}
    fates = {name: color for fate, (color, name) in FATE_STYLES.items() if fate in used}
    total_height = TOP + height + 92
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + PLOT_WIDTH + 24} {total_height}" '
            f'width="{LEFT + PLOT_WIDTH + 24}" height="{total_height}" role="img" aria-labelledby="title summary" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif" font-size="11" '
            'fill="#5d574c">',
            f'<title id="title">{escape(title)}</title><desc id="summary">{escape(format_headline(timeline))}</desc>',
            '<rect width="100%" height="100%" fill="#faf8f3"/>',
            f'<text x="{LEFT}" y="34" font-size="20" font-weight="700" fill="#25231f">{escape(title)}</text>',
            f'<text x="{LEFT}" y="54" font-size="13">{escape(format_headline(timeline))}</text>',
            *_draw_legend("", names, 78),
            f'<g transform="translate({LEFT},{TOP})">{"".join(parts)}</g>',
            *_draw_legend("A message is", fates, TOP + height + 50),
            *_draw_legend("Input is", CACHE_COLORS, TOP + height + 72),
            "</svg>\n",
        ]
    )


def _draw_heading(top: float, text: str) -> Iterator[str]:
    yield f'<text x="0" y="{top - 9}" font-weight="700" fill="#25231f">{escape(text)}</text>'


def _draw_legend(heading: str, names: Mapping[str, str], y: int) -> Iterator[str]:
    x = float(LEFT)
    if heading:
        yield f'<text x="{x:.0f}" y="{y}" font-size="12" font-weight="700" fill="#25231f">{heading}</text>'
        x += 96
    for name, color in names.items():
        yield f'<rect x="{x:.0f}" y="{y - 10}" width="11" height="11" rx="2" fill="{color}"/>'
        yield f'<text x="{x + 16:.0f}" y="{y}" font-size="12">{escape(name)}</text>'
        x += 34 + 6.6 * len(name)


def _draw_slots(rows: Sequence[TimelineRow]) -> Iterator[str]:
    """Tokens by slot as one path each, under the lines of window and trigger."""
    top_tokens, width = find_top_tokens(rows), PLOT_WIDTH / max(1, len(rows))

    def to_y(tokens: float) -> float:
        return SLOTS_HEIGHT - min(tokens, top_tokens) / top_tokens * SLOTS_HEIGHT

    below = [0] * len(rows)
    layers = [(SLOT_COLORS[slot], [row.slots[n] if row.slots else 0 for row in rows]) for n, slot in enumerate(SLOTS)]
    layers.append((UNKNOWN_COLOR, [0 if row.slots else row.total_tokens for row in rows]))
    for color, tokens in layers:
        above = [low + used for low, used in zip(below, tokens, strict=True)]
        yield _draw_columns(color, [to_y(each) for each in above], [to_y(each) for each in below], width)
        below = above
    step = next(step * 10**power for power in range(12) for step in (1, 2, 5) if top_tokens / (step * 10**power) <= 4)
    for tokens in range(0, top_tokens, step):
        yield f'<text x="-8" y="{to_y(tokens) + 4:.1f}" text-anchor="end">{tokens:,}</text>'
    yield from _draw_limit([row.window for row in rows], "window", "#8b8474", "", to_y, top_tokens)
    triggers = [row.trigger_tokens for row in rows]
    yield from _draw_limit(triggers, "compacts at", "#b3402a", ' stroke-dasharray="5 4"', to_y, top_tokens)


def _draw_limit(
    values: Sequence[int | None], name: str, color: str, dashes: str, to_y: Callable[[float], float], top_tokens: int
) -> Iterator[str]:
    width, x = PLOT_WIDTH / max(1, len(values)), 0.0
    for value, run in groupby(values):
        end = x + width * len(list(run))
        if value is not None and value <= top_tokens:
            y = to_y(value)
            yield f'<path d="M{x:.1f} {y:.1f}H{end:.1f}" stroke="{color}" fill="none"{dashes}/>'
            if end > PLOT_WIDTH - 1:
                yield (
                    f'<text x="{PLOT_WIDTH - 4}" y="{y - 5:.1f}" text-anchor="end" fill="{color}" stroke="#faf8f3" '
                    f'stroke-width="4" paint-order="stroke">{name} {value:,}</text>'
                )
        x = end


def _draw_columns(color: str, highs: Sequence[float], lows: Sequence[float], width: float) -> str:
    """One path of columns; equal neighbours are one."""
    path: list[str] = []
    for (high, low), run in groupby(enumerate(zip(highs, lows, strict=True)), key=lambda each: each[1]):
        indexes = [index for index, _ in run]
        if low - high > 0.05:
            x = indexes[0] * width
            path.append(f"M{x:.1f} {low:.1f}V{high:.1f}h{len(indexes) * width:.1f}V{low:.1f}z")
    return f'<path fill="{color}" d="{"".join(path)}"/>' if path else ""


def _draw_messages(rows: Sequence[TimelineRow], head: int, top: float) -> Iterator[str]:
    """The grid of requests and messages: one path per fate, of runs along the requests."""
    columns, lines = min(len(rows), MAX_CELLS), min(head, MAX_CELLS)
    cells: list[list[str]] = [["-"] * columns for _ in range(lines)]
    for column in range(columns):
        row = rows[column * len(rows) // columns]
        for span, fate in decode_fates(row.fates):
            first, last = (span.first - 1) * lines // head, (span.last - 1) * lines // head
            for line in range(first, last + 1):
                cells[line][column] = fate
    width, line_height = PLOT_WIDTH / max(1, columns), MESSAGES_HEIGHT / lines
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for line, fates in enumerate(cells):
        starts = [0, *(n for n, (before, after) in enumerate(pairwise(fates), 1) if before != after), columns]
        for start, end in pairwise(starts):
            if (fate := fates[start]) != "-":
                y = top + line * line_height
                box = f"M{start * width:.1f} {y:.1f}h{(end - start) * width:.1f}v{line_height:.2f}"
                paths[fate].append(f"{box}h{-(end - start) * width:.1f}z")
    for fate, (color, _) in FATE_STYLES.items():
        if path := paths[fate]:
            yield f'<path fill="{color}" shape-rendering="crispEdges" d="{"".join(path)}"/>'
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, head) if head / step <= 6)
    for seq in range(step, head + 1, step):
        yield f'<text x="-8" y="{top + seq / head * MESSAGES_HEIGHT:.1f}" text-anchor="end">#{seq}</text>'


def _draw_cache(rows: Sequence[TimelineRow], top: float) -> Iterator[str]:
    most, width = max((row.input_tokens or 0 for row in rows), default=0), PLOT_WIDTH / max(1, len(rows))
    if not most:
        yield f'<text x="0" y="{top + 14}">No usage is recorded.</text>'
        return
    read = [row.cache_read_tokens or 0 for row in rows]
    written = [low + (row.cache_write_tokens or 0) for low, row in zip(read, rows, strict=True)]
    total = [max(low, row.input_tokens or 0) for low, row in zip(written, rows, strict=True)]
    below = [0] * len(rows)
    for color, above in zip(CACHE_COLORS.values(), (read, written, total), strict=True):
        highs, lows = ([top + BAND_HEIGHT * (1 - value / most) for value in level] for level in (above, below))
        yield _draw_columns(color, highs, lows, width)
        below = above
    yield f'<text x="-8" y="{top + 9}" text-anchor="end">{most:,}</text>'


def _draw_costs(rows: Sequence[TimelineRow], top: float) -> Iterator[str]:
    costs, width = [row.cost_usd or 0.0 for row in rows], PLOT_WIDTH / max(1, len(rows))
    most = max(costs, default=0.0)
    if most:
        bottom = top + BAND_HEIGHT
        highs = [bottom - BAND_HEIGHT * cost / most for cost in costs]
        yield _draw_columns("#8f6f4f", highs, [bottom] * len(rows), width)
        yield f'<text x="-8" y="{top + 9}" text-anchor="end">${most:.2g}</text>'


def _format_cost(rows: Sequence[TimelineRow]) -> str:
    costs = [row.cost_usd for row in rows if row.cost_usd is not None]
    return f"${sum(costs):,.2f} in all" if costs else "none is known"


def _draw_cliffs(cliffs: Sequence[Cliff], count: int, bottom: float) -> Iterator[str]:
    labelled = -MIN_LABEL_DISTANCE
    for cliff in cliffs:
        x = cliff.request * PLOT_WIDTH / max(1, count)
        yield f'<path d="M{x:.1f} -4V{bottom:.1f}" stroke="#25231f" stroke-dasharray="2 3" opacity=".45"/>'
        if x - labelled >= MIN_LABEL_DISTANCE:
            place = f'x="{x + 3:.1f}"' if x < PLOT_WIDTH - MIN_LABEL_DISTANCE else f'x="{PLOT_WIDTH}" text-anchor="end"'
            yield f'<text {place} y="-8" font-weight="700" fill="#25231f">{escape(cliff.label)}</text>'
            labelled = x


def _draw_axis(rows: Sequence[TimelineRow], y: float) -> Iterator[str]:
    turns = bool(rows) and rows[-1].turn * 3 > len(rows)
    for index in range(0, len(rows), max(1, len(rows) // 8)):
        label = f"turn {rows[index].turn}" if turns else f"request {index + 1}"
        yield f'<text x="{index * PLOT_WIDTH / len(rows):.1f}" y="{y + 18}">{label}</text>'
