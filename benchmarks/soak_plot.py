"""Plots as SVG: small panels of lines, readable in light and in dark pages. Those of a soak are over minutes."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from soak_samples import SoakRecord, compute_cpu_percents

PANEL_WIDTH, PANEL_HEIGHT = 420, 190
MARGIN_LEFT, MARGIN_TOP, MARGIN_RIGHT, MARGIN_BOTTOM = 56, 40, 16, 40
TICK_COUNT = 4
STYLE = """
.card { fill: #ffffff } text { fill: #24292f; font: 12px system-ui, sans-serif } .title { font-weight: 600 }
.axis { stroke: #57606a } .grid { stroke: #d0d7de } .line0 { stroke: #0969da } .line1 { stroke: #bc4c00 }
.line2 { stroke: #57606a }
.key0 { fill: #0969da } .key1 { fill: #bc4c00 } .key2 { fill: #57606a } path { fill: none; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
.card { fill: #15181d } text { fill: #d8dee6 } .axis { stroke: #9198a1 } .grid { stroke: #30363d }
.line0 { stroke: #58a6ff } .line1 { stroke: #f0883e } .key0 { fill: #58a6ff } .key1 { fill: #f0883e }
}
"""


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]
    """Place on the horizontal axis (minutes, in a soak), and the value."""


class Panel(NamedTuple):
    title: str
    unit: str
    lines: Sequence[Line]


def build_panels(record: SoakRecord) -> list[Panel]:
    resources = record.resources
    minutes = [each.seconds / 60 for each in resources]
    cpu = [(seconds / 60, percent) for seconds, percent in compute_cpu_percents(resources)]

    def line(name: str, values: Sequence[float]) -> Line:
        return Line(name, list(zip(minutes, values, strict=True)))

    def latency(name: str, values: Sequence[float]) -> Line:
        return Line(name, [(each.minute + 0.5, value) for each, value in zip(record.minutes, values, strict=True)])

    return [
        Panel(
            "Memory of the server's processes",
            "MB",
            [
                line("proportional (PSS)", [each.pss_megabytes for each in resources]),
                line("resident (RSS)", [each.rss_megabytes for each in resources]),
            ],
        ),
        Panel("CPU of the server's processes", "% of a core", [Line("", _average(cpu))]),
        Panel(
            "File handles and database connections",
            "count",
            [
                line("file handles", [each.file_handles for each in resources]),
                line("database connections", [each.database_connections for each in resources]),
            ],
        ),
        Panel(
            "Latency of a turn, by minute",
            "ms",
            [
                latency("p50", [each.p50_ms for each in record.minutes]),
                latency("p99", [each.p99_ms for each in record.minutes]),
                latency("p50 without Quire", [each.control_p50_ms for each in record.minutes]),
            ],
        ),
    ]


def _average(points: Sequence[tuple[float, float]], *, minutes: float = 0.5) -> list[tuple[float, float]]:
    """Averages over half a minute, because a clock tick is coarse for a sample of seconds."""
    groups: dict[int, list[tuple[float, float]]] = {}
    for minute, value in points:
        groups.setdefault(int(minute / minutes), []).append((minute, value))
    return [(fmean(each[0] for each in group), fmean(each[1] for each in group)) for group in groups.values()]


def choose_ticks(maximum: float) -> list[float]:
    """Round numbers from zero to at least `maximum`."""
    rough = max(maximum, 1e-9) / TICK_COUNT
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return [step * number for number in range(math.ceil(maximum / step) + 1)]


def draw_panel(
    panel: Panel, *, left: int, top: int, last_x: float, x_label: str = "minutes", x_ticks: Mapping[float, str] | None
) -> str:
    width = PANEL_WIDTH - MARGIN_LEFT - MARGIN_RIGHT
    height = PANEL_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM
    ticks = choose_ticks(max((value for line in panel.lines for _, value in line.points), default=1.0))
    x0, y0 = left + MARGIN_LEFT, top + MARGIN_TOP + height

    def place(x: float, value: float) -> str:
        return f"{x0 + width * x / last_x:.1f} {y0 - height * value / ticks[-1]:.1f}"

    parts = [f'<text class="title" x="{x0}" y="{top + 16}">{panel.title}, {panel.unit}</text>']
    for tick in ticks:
        y = y0 - height * tick / ticks[-1]
        parts.append(f'<path class="{"grid" if tick else "axis"}" d="M{x0} {y:.1f}h{width}"/>')
        parts.append(f'<text x="{x0 - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>')
    for tick, label in (x_ticks or {tick: f"{tick:g}" for tick in choose_ticks(last_x) if tick <= last_x}).items():
        parts.append(f'<text x="{x0 + width * tick / last_x:.1f}" y="{y0 + 16}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{x0 + width / 2}" y="{y0 + 31}" text-anchor="middle">{x_label}</text>')
    key_x = x0
    for number, line in enumerate(panel.lines):
        path = "L".join(place(*point) for point in line.points)
        parts.append(f'<path class="line{number}" d="M{path}"/>')
        if line.name:
            parts.append(f'<rect class="key{number}" x="{key_x}" y="{top + 25}" width="10" height="3"/>')
            parts.append(f'<text x="{key_x + 15}" y="{top + 31}">{line.name}</text>')
            key_x += 40 + 7 * len(line.name)
    return "\n".join(parts)


def draw_plot(record: SoakRecord, *, title: str) -> str:
    return draw_panels(build_panels(record), title=title, last_x=record.resources[-1].seconds / 60)


def draw_panels(
    panels: Sequence[Panel],
    *,
    title: str,
    last_x: float,
    x_label: str = "minutes",
    x_ticks: Mapping[float, str] | None = None,
) -> str:
    drawn = [
        draw_panel(
            panel,
            left=number % 2 * PANEL_WIDTH,
            top=28 + number // 2 * PANEL_HEIGHT,
            last_x=last_x,
            x_label=x_label,
            x_ticks=x_ticks,
        )
        for number, panel in enumerate(panels)
    ]
    width, height = 2 * PANEL_WIDTH, 28 + 2 * PANEL_HEIGHT
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">',
            f"<style>{STYLE}</style>",
            f'<rect class="card" width="{width}" height="{height}" rx="8"/>',
            f'<text class="title" x="{width / 2}" y="20" text-anchor="middle">{title}</text>',
            *drawn,
            "</svg>\n",
        )
    )
