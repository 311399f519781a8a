"""Records a long turn of a scripted agent in a real terminal, and draws it: as docs/picture/chat-long-turn.svg, and as
it happens in docs/picture/recording.svg.

    .venv/bin/python docs/picture/record_long_turn.py

The agent reads a log book page by page, in a window that holds a few pages. Look at the pictures afterwards.
"""

import asyncio
import json
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from record import HERE, METER, PROMPT, THEME, draw_svg, make_environment, to_rich_text  # isort: skip
from animation import Frame, draw_animation
from chat_harness import QUIRE_PROGRAM, TERMINAL_COLUMNS, Terminal
from rich.text import Text

from fake_upstream import SSE_DONE, Responder, make_chunk_event, respond_with_stream, run_fake_upstream

PAGES = 26
MISSING_PAGE = 14
PARALLEL_CALLS = (1, 1, 2)
LOSSES = {9: "Lost the jib in a squall.", 22: "The main topsail blew out."}
QUESTION = "Read the whole log book, and name the days on which a sail was lost."
ANSWER = "Sails were lost on **day 9** (the jib) and on **day 22** (the main topsail); day 14 has no page."
SETTINGS = """\
model = "keeper-1"
context_limit = 4000
context_tools = true
summarizer = "extract"
vault = "logbook"
"""
TURN_TIMEOUT_SECONDS = 180
TERMINAL_ROWS = 36
SAMPLE_SECONDS = 0.04
READING_SECONDS = 1.2


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines, frames = asyncio.run(record_turn(Path(folder)))
    draw_animation(
        frames,
        columns=TERMINAL_COLUMNS,
        rows=TERMINAL_ROWS,
        theme=THEME,
        description="A chat in the terminal: an agent reads a log book that is larger than its window, and every "
        "compaction says what it did",
        path=HERE / "recording.svg",
    )
    draw_svg(
        lines,
        command="quire chat",
        path=HERE / "chat-long-turn.svg",
        description="A turn of many steps in the terminal: tool calls, and markers of compactions between them",
    )


async def record_turn(home: Path) -> tuple[list[Text], list[Frame]]:
    write_pages(home / "logbook")
    async with run_fake_upstream(*make_replies()) as upstream:
        (home / "quire.toml").write_text(f'base_url = "{upstream.url}"\n{SETTINGS}')
        return await asyncio.to_thread(run_chat, home)


def write_pages(folder: Path) -> None:
    folder.mkdir()
    for day in range(1, PAGES + 1):
        hours = range(0, 24, 2 if day % 3 == 0 else 1)
        watches = [
            f"{hour:02}:00 wind {'WSN'[day * hour % 3]} {2 + day * hour % 7}, {4 + day % 5} knots" for hour in hours
        ]
        lines = [f"# Day {day}", LOSSES.get(day, "All well on board."), *watches]
        if day != MISSING_PAGE:
            (folder / f"day {day}.md").write_text("\n".join(lines))


def make_replies() -> Iterator[Responder]:
    """One page per step, and at times two in parallel."""
    step, day = 0, 1
    while day <= PAGES:
        days = range(day, min(PAGES + 1, day + PARALLEL_CALLS[step % len(PARALLEL_CALLS)]))
        yield respond_with_stream(make_chunk_event({"tool_calls": list(map(make_call, days))}, "tool_calls"), SSE_DONE)
        step, day = step + 1, days.stop
    yield respond_with_stream(make_chunk_event(ANSWER), make_chunk_event({}, "stop"), SSE_DONE)


def make_call(day: int) -> dict[str, Any]:
    function = {"name": "read_document", "arguments": json.dumps({"path": f"day {day}.md"})}
    return {"index": day, "id": f"call_{day}", "type": "function", "function": function}


def run_chat(home: Path) -> tuple[list[Text], list[Frame]]:
    command = [str(QUIRE_PROGRAM), "chat", "--new"]
    terminal = Terminal(command, env=make_environment(home), folder=home, lines=TERMINAL_ROWS)
    terminal.wait_for(PROMPT)
    with record_frames(terminal) as frames:
        type_slowly(terminal, QUESTION)
        terminal.send_line("", METER, seconds=TURN_TIMEOUT_SECONDS)
        turn = [to_rich_text(line) for line in terminal.cells()]
        time.sleep(READING_SECONDS)
        type_slowly(terminal, "/undo")
        terminal.send_line("", re.compile("undone"))
        time.sleep(READING_SECONDS)
    terminal.type("\x04")
    terminal.wait_for_exit()
    return turn, frames


def type_slowly(terminal: Terminal, text: str) -> None:
    for character in text:
        terminal.type(character)
        time.sleep(SAMPLE_SECONDS)


@contextmanager
def record_frames(terminal: Terminal) -> Iterator[list[Frame]]:
    """Samples the screen until the end of the block."""
    frames: list[Frame] = []
    ended = Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            lines = tuple(to_rich_text(line) for line in terminal.cells()[-TERMINAL_ROWS:])
            frames.append(Frame(time.monotonic(), lines))

    sampler = Thread(target=sample)
    sampler.start()
    try:
        yield frames
    finally:
        ended.set()
        sampler.join()


if __name__ == "__main__":
    main()
