"""Records a chat in a real terminal, and draws it as docs/picture/chat.svg.

    .venv/bin/python docs/picture/record.py

The model follows a script. All else is real. Look at the picture afterwards.
"""

import os
import re
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

HERE = Path(__file__).parent
TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "cli")]

from chat_harness import QUIRE_PROGRAM, TERMINAL_COLUMNS, Terminal  # noqa: E402
from scripted_server import scripted_server  # noqa: E402

WINDOW = 1_024
NOTES = {
    "places/Water mills.md": "# Water mills\n\nA water mill grinds grain by the power of a river.\n\n"
    "Undershot wheels are turned by the stream, overshot wheels by water that falls from above.\n",
    "Millers.md": "# Millers\n\nThe miller keeps every sixteenth sack. He lives at the [[Water mills]].\n",
    "counts.csv": "year,mills\n1086,5624\n1300,12000\n",
}
AGENT = 'instructions = "You are a helpful assistant. Answer in one or two short sentences."'
SETTINGS = """\
# A low threshold, so that a compaction comes soon.
context_threshold = 0.33
document_share = 1.0
reserved_response_tokens = 256
"""
QUESTIONS = (
    "What is a water mill? See [[Water mills]].",
    "Which years are in @counts.csv?",
    "What does the miller keep? See [[Millers]] and [[Bakers]].",
)
REPLIES = {
    "What is": "A water mill grinds grain by the power of a river. Its wheel is undershot or overshot.",
    "Which years": "1086, with 5,624 mills, and 1300, with 12,000.",
    "the miller keep": "Every sixteenth sack. There is no note on [[Bakers]].",
}
SUMMARY = "The user asked about water mills [#1]. A river turns the wheel, from below or from above [#2]."
METER = re.compile(r"^#\d+ · [━─]+ ", re.MULTILINE)
PROMPT = re.compile(r"^›$", re.MULTILINE)

THEME = TerminalTheme(
    (24, 24, 27), (222, 222, 224),
    [(60, 60, 66), (248, 113, 113), (134, 206, 127), (234, 190, 96), (122, 162, 247), (199, 146, 234), (94, 200, 210),
     (222, 222, 224)],
    [(145, 145, 155), (255, 140, 140), (160, 230, 150), (250, 210, 120), (150, 185, 255), (220, 170, 250),
     (130, 225, 232), (255, 255, 255)],
)  # fmt: skip

# Rich's default frame loads a web font; this one uses the reader's fonts.
FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
    <title>{description}</title>
    <style>
    .{unique_id}-matrix {{
        font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
        font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
    }}
    .{unique_id}-title {{ font-size: 18px; font-family: system-ui, sans-serif; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, scripted_server(answer) as model:
        model.window = WINDOW
        home = Path(folder)
        for name, text in NOTES.items():
            path = home / "notes" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        env = make_environment(home)
        init = [str(QUIRE_PROGRAM), "init", "--base-url", model.url, "--vault", "notes"]
        Terminal(init, env=env, folder=home).wait_for_exit()
        (home / "quire.toml").write_text(SETTINGS)
        (home / ".config/quire/agents").mkdir()
        (home / ".config/quire/agents/guide.toml").write_text(AGENT)
        session = record_session(env, home)
    draw_svg(
        session,
        command="quire chat --agent guide",
        path=HERE / "chat.svg",
        description="A chat over a vault of notes in the terminal",
    )


def make_environment(home: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "XDG_"))}
    return env | {"HOME": str(home), "TERM": "xterm-256color"}


def answer(newest: str) -> str:
    return next((reply for question, reply in REPLIES.items() if question in newest), SUMMARY)


def record_session(env: dict[str, str], home: Path) -> list[Text]:
    terminal = Terminal(
        [str(QUIRE_PROGRAM), "chat", "--new", "--agent", "guide", "--reply-tokens", "110"], env=env, folder=home
    )
    terminal.wait_for(PROMPT)
    for question in QUESTIONS:
        for sign in question:
            terminal.type(sign)
            time.sleep(0.02)
        time.sleep(0.2)
        terminal.send_line("", METER)
    terminal.send_line("/context", "reserved  ")
    terminal.send_line("/undo", re.compile(r"undone|nothing|no compaction"))
    terminal.type("\x04")
    terminal.wait_for_exit()
    return [to_rich_text(line) for line in terminal.cells()]


def to_rich_text(line: list) -> Text:
    text = Text()
    for look, signs in groupby(line, key=lambda sign: sign._replace(data="")):
        text.append("".join(sign.data for sign in signs), style=to_rich_style(look))
    text.rstrip()
    return text


def to_rich_style(cell: Any) -> Style:
    return Style(
        color=_to_rich_color(cell.fg),
        bgcolor=_to_rich_color(cell.bg),
        bold=cell.bold,
        italic=cell.italics,
        underline=cell.underscore,
    )


def _to_rich_color(name: str) -> str | None:
    """Translates a color name of pyte to Rich's."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    name = name.replace("brown", "yellow")
    return f"bright_{name.removeprefix('bright')}" if name.startswith("bright") else name


def draw_svg(lines: list[Text], *, command: str, path: Path, description: str) -> None:
    while lines and not lines[-1].plain.strip(" ›$"):
        lines.pop()
    console = Console(record=True, width=TERMINAL_COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115, PTH123
    console.print(Text(f"$ {command}", style="bold"))
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop")
    frame = FRAME.replace("{description}", description)
    svg = console.export_svg(title=" ".join(command.split()[:2]), theme=THEME, code_format=frame, unique_id="chat")
    path.write_text(svg, encoding="utf-8")
    sys.stdout.write("\n".join(line.plain for line in lines))


if __name__ == "__main__":
    main()
