"""Draws the diagrams of the design page: `python docs/picture/diagrams.py`."""

from pathlib import Path

FOLDER = Path(__file__).parent
ROWS = {
    "Programs": ("#dbeafe", "cli server mcp_server jobs sync types events schemas testing"),
    "Client-held history": ("#e0e7ff", "adapters proxy"),
    "Engine": ("#dcfce7", "engine agent findings backtest compaction context ledger importers resume llm"),
    "Store": ("#fef3c7", "store access index turns usage log db"),
    "Pure": ("#f1f5f9", "view search wire settings concurrency model rows errors"),
}
ENGINE = (
    "Engine",
    "view: builds the request, within the window",
    "compaction, recall, context sources",
    "ledger: a manifest for each request",
)
LEFT, WIDTH, GAP = 176, 768, 6


def box(x: float, y: float, width: float, height: float, fill: str, *lines: str) -> str:
    shape = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="6" fill="{fill}" stroke="#64748b"/>'
    first = y + height / 2 + 4.5 - 9 * (len(lines) - 1)
    for number, line in enumerate(lines):
        style = 'font-weight="600" ' if number == 0 and len(lines) > 1 else ""
        shape += (
            f'<text x="{x + width / 2:.1f}" y="{first + 18 * number:.0f}" text-anchor="middle" font-size="12.5" '
            f'{style}fill="#0f172a">{line}</text>'
        )
    return shape


def arrow(path: str, *, both: bool = False) -> str:
    start = ' marker-start="url(#tip)"' if both else ""
    return f'<path d="{path}" fill="none" stroke="#64748b" stroke-width="1.5"{start} marker-end="url(#tip)"/>'


def draw(name: str, width: int, height: int, label: str, *shapes: str) -> None:
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="#64748b"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" '
    )
    body = "\n".join((tip, '<rect width="100%" height="100%" fill="#ffffff"/>', *shapes))
    (FOLDER / name).write_text(f'{head}role="img" aria-label="{label}">\n{body}\n</svg>\n')


def draw_rooms() -> None:
    shapes: list[str] = []
    for row, (title, (fill, rooms)) in enumerate(ROWS.items()):
        y, names = 16 + 78 * row, rooms.split()
        width = (WIDTH - GAP * (len(names) - 1)) / len(names)
        shapes.append(f'<text x="16" y="{y + 33}" font-size="15" font-weight="600" fill="#334155">{title}</text>')
        shapes += [box(LEFT + each * (width + GAP), y, width, 54, fill, name) for each, name in enumerate(names)]
        if row:
            shapes.append(arrow(f"M567 {y - 22} v18"))
    draw("rooms.svg", 960, 398, "Packages of the source by layer; imports point downward", *shapes)


def draw_architecture() -> None:
    draw(
        "architecture.svg",
        960,
        430,
        "Programs reach the engine through the gateway, the library or the command line; it reads and writes the log",
        box(16, 20, 210, 62, "#dbeafe", "Coding agents", "Claude Code, Codex, …"),
        box(16, 102, 210, 62, "#dbeafe", "Other clients", "OpenAI or Anthropic format"),
        box(16, 184, 210, 62, "#dbeafe", "Your program", "Python, agent frameworks"),
        box(16, 266, 210, 62, "#dbeafe", "People", "terminal, browser"),
        box(300, 61, 200, 62, "#e0e7ff", "Gateway", "/v1, quire run"),
        box(300, 184, 200, 62, "#e0e7ff", "Library, adapters", "prepare, record"),
        box(300, 266, 200, 62, "#e0e7ff", "Command line, server", "web interface, /api, MCP"),
        box(574, 20, 370, 62, "#fef3c7", "Model", "a provider, or a server on your machine"),
        box(574, 143, 370, 103, "#dcfce7", *ENGINE),
        box(574, 302, 370, 62, "#fef3c7", "Log", "SQLite or PostgreSQL: entries, manifests, indexes"),
        box(16, 348, 210, 62, "#dbeafe", "Stored sessions", "of 26 programs"),
        box(300, 348, 200, 62, "#e0e7ff", "Importers, hooks", "quire import, quire hook"),
        arrow("M226 51 L296 84", both=True),
        arrow("M226 133 L296 100", both=True),
        arrow("M226 215 H296", both=True),
        arrow("M226 297 H296", both=True),
        arrow("M226 379 H296"),
        arrow("M500 80 L570 55", both=True),
        arrow("M500 104 L570 165", both=True),
        arrow("M500 205 H570", both=True),
        arrow("M500 290 L570 230", both=True),
        arrow("M500 379 L570 345"),
        arrow("M759 246 V298", both=True),
        arrow("M759 143 V86", both=True),
    )  # fmt: skip


if __name__ == "__main__":
    draw_rooms()
    draw_architecture()
