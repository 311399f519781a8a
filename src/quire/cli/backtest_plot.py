"""Plot of a backtest for the terminal: tokens by turn, one bar chart for each variant, all on the same scale.

The charts are below each other, so that they can be compared without colors: lines in one chart could not.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.cli.output import sanitize

if TYPE_CHECKING:
    from rich.text import Text

    from quire.schemas.backtests import SeriesPointSchema

MAX_COLUMNS = 120
"""Columns of the bars; a wider terminal is not filled, because long rows are hard to compare."""
MIN_COLUMNS = 20
ROWS, COMPACT_ROWS = 6, 3
"""Rows of a chart; the smaller number where more than `MAX_TALL_CHARTS` are drawn."""
MAX_TALL_CHARTS = 4
MAX_BAR_COLUMNS, MIN_GAPPED_COLUMNS = 8, 3
"""Columns of one bar, where there are few, and the number from which the last of them is a gap."""

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_CACHED = "░"
_NEW_STYLE, _CACHED_STYLE = "cyan", "dim cyan"


def draw_plot(charts: "Sequence[tuple[str, Sequence[SeriesPointSchema]]]", *, unit: str, width: int) -> "list[Text]":
    """Lines of the charts: a title, the bars with their scale, and below the last one the axis."""
    from rich.text import Text

    top = max((point.tokens for _, points in charts for point in points), default=0.0)
    if not top:
        return []
    label_columns = len(f"{round(top):,}")
    longest = max(len(points) for _, points in charts)
    columns = max(MIN_COLUMNS, min(width - label_columns - 3, MAX_COLUMNS))
    bar_columns = max(1, min(columns // longest, MAX_BAR_COLUMNS))
    rows = ROWS if len(charts) <= MAX_TALL_CHARTS else COMPACT_ROWS
    lines = [Text.assemble(
        f"Tokens sent by {unit}: ", ("█", _NEW_STYLE), " new, ", (_CACHED, _CACHED_STYLE), " repeats the request before"
    )]  # fmt: skip
    for name, points in charts:
        lines.append(Text(sanitize(name), style="bold"))
        bars = _fit_bars(points, columns // bar_columns)
        lines += _draw_chart(bars, top=top, rows=rows, bar_columns=bar_columns, label_columns=label_columns)
    last = max((points[-1].position for _, points in charts if points), default=1)
    used = min(longest, columns // bar_columns) * bar_columns
    lines.append(_draw_axis(unit, last, columns=used, indent=label_columns + 2))
    return lines


def _fit_bars(points: "Sequence[SeriesPointSchema]", count: int) -> list[tuple[float, float]]:
    """Tokens and cached tokens of at most `count` bars; neighbouring points share a bar and are averaged."""
    if len(points) <= count:
        return [(point.tokens, point.cached_tokens) for point in points]
    bars: list[tuple[float, float]] = []
    for index in range(count):
        shared = points[index * len(points) // count : (index + 1) * len(points) // count]
        bars.append(
            (
                sum(point.tokens for point in shared) / len(shared),
                sum(point.cached_tokens for point in shared) / len(shared),
            )
        )
    return bars


def _draw_chart(
    bars: Sequence[tuple[float, float]], *, top: float, rows: int, bar_columns: int, label_columns: int
) -> "list[Text]":
    from rich.text import Text

    lines: list[Text] = []
    for row in reversed(range(rows)):
        is_labelled = row in (rows - 1, rows // 2 - 1 if rows > COMPACT_ROWS else rows - 1)
        label = f"{round(top * (row + 1) / rows):,}" if is_labelled else ""
        line = Text(f"{label:>{label_columns}} {'┤' if label else '│'}", style="")
        for tokens, cached in bars:
            cell, style = _draw_cell(tokens / top * rows - row, cached / top * rows - row)
            gap = " " if bar_columns >= MIN_GAPPED_COLUMNS else ""
            line.append(cell * (bar_columns - len(gap)) + gap, style=style)
        line.rstrip()
        lines.append(line)
    return lines


def _draw_cell(tokens: float, cached: float) -> tuple[str, str]:
    """One cell of a bar, given how many cells of it are above the lower edge of this one."""
    if cached >= 0.5 and tokens >= 1:
        return (_CACHED, _CACHED_STYLE) if cached >= 1 or cached >= tokens - 0.5 else ("█", _NEW_STYLE)
    if tokens >= 1:
        return "█", _NEW_STYLE
    eighths = max(0, min(8, round(tokens * 8)))
    return _EIGHTHS[eighths], _NEW_STYLE


def _draw_axis(unit: str, last: int, *, columns: int, indent: int) -> "Text":
    from rich.text import Text

    end = f"{unit} {last:,}"
    if columns < len(end) + 3:
        return Text(f"{'':>{indent}}1 to {end}", style="dim")
    return Text(f"{'':>{indent}}1{end:>{columns - 1}}", style="dim")
