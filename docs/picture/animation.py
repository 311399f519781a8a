"""Draws the frames of a recorded terminal session as one SVG that plays by itself.

Every distinct line is drawn once and used by all frames that show it. A reader who prefers reduced motion sees the last
frame. For everybody else the loop begins with it, so that the first look shows the result and not an empty screen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

from rich.color import Color
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 19, 16
MIN_FRAME_SECONDS, MAX_FRAME_SECONDS, LAST_FRAME_SECONDS = 0.06, 1.2, 6.0
"""Times between frames are shortened and lengthened to these; the last frame stays to be read."""

SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>{description}</title>
<style>
text {{ font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; }}
.frame {{ visibility: hidden; }}
.last {{ visibility: visible; }}
@media (prefers-reduced-motion: no-preference) {{
.last {{ visibility: hidden; }}
{animations}
}}
</style>
<rect width="{width}" height="{height}" rx="8" fill="{background}"/>
<defs>
{lines}
</defs>
{frames}
</svg>
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """The screen from a second of the recording on."""

    at: float
    lines: tuple[Text, ...]


def draw_animation(
    frames: Sequence[Frame], *, columns: int, rows: int, theme: TerminalTheme, description: str, path: Path
) -> None:
    """Writes the animation; frames that show the same screen as the one before are left out."""
    shown = [frames[0], *(after for before, after in pairwise(frames) if after.lines != before.lines)]
    starts = list(_place_frames(shown))
    total = starts[-1] + LAST_FRAME_SECONDS
    numbers: dict[str, int] = {}
    groups: list[str] = []
    for index, frame in enumerate(shown):
        uses = [
            f'<use href="#l{numbers.setdefault(drawn, len(numbers))}" y="{row * LINE_HEIGHT}"/>'
            for row, line in enumerate(frame.lines[:rows])
            if (drawn := _draw_line(line, theme))
        ]
        last = " last" if frame is shown[-1] else ""
        groups.append(f'<g class="frame f{index}{last}">{"".join(uses)}</g>')
    svg = SVG.format(
        width=round(columns * CELL_WIDTH) + 2 * MARGIN,
        height=rows * LINE_HEIGHT + 2 * MARGIN,
        description=escape(description),
        animations="\n".join(_animate(starts, total)),
        background=theme.background_color.hex,
        lines="\n".join(f'<g id="l{number}">{drawn}</g>' for drawn, number in numbers.items()),
        frames="\n".join(groups),
    )
    path.write_text(svg, encoding="utf-8")


def _place_frames(frames: Sequence[Frame]) -> Iterable[float]:
    at = 0.0
    yield at
    for before, after in pairwise(frames):
        at += min(MAX_FRAME_SECONDS, max(MIN_FRAME_SECONDS, after.at - before.at))
        yield at


def _animate(starts: Sequence[float], total: float) -> Iterable[str]:
    """Rules that show each frame for its part of the loop."""
    for index, (start, end) in enumerate(pairwise([*starts, total])):
        first, until = 100 * start / total, 100 * end / total
        before = "0% { visibility: hidden; } " if start else ""
        after = f" {until:.3f}% {{ visibility: hidden; }}" if end < total else ""
        yield f"@keyframes k{index} {{ {before}{first:.3f}% {{ visibility: visible; }}{after} }}"
        yield f".f{index} {{ animation: k{index} {total:.2f}s step-end -{starts[-1]:.2f}s infinite; }}"


def _draw_line(line: Text, theme: TerminalTheme) -> str:
    """One text element for each run of the same style."""
    pieces: list[str] = []
    column = 0
    for run in line.divide([edge for span in line.spans for edge in (span.start, span.end)]):
        style = run.spans[0].style if run.spans else ""
        if run.plain.strip():
            width = len(run.plain) * CELL_WIDTH
            place = f'x="{MARGIN + column * CELL_WIDTH:.1f}" y="{MARGIN + 14}" textLength="{width:.1f}"'
            look = _format_style(style if isinstance(style, Style) else Style(), theme)
            pieces.append(f"<text {place} {look}>{escape(run.plain)}</text>")
        column += len(run.plain)
    return "".join(pieces)


def _format_style(style: Style, theme: TerminalTheme) -> str:
    color: Color | None = style.color
    fill = (color.get_truecolor(theme) if color is not None else theme.foreground_color).hex
    weight = ' font-weight="bold"' if style.bold else ""
    return f'fill="{fill}"{weight}'
