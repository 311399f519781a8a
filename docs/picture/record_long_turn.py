"""Records a long turn of a scripted agent in a real terminal, and draws it as docs/picture/chat-long-turn.svg.

    .venv/bin/python docs/picture/record_long_turn.py

The agent reads a log book page by page, in a window that holds a few pages. Look at the picture afterwards.
"""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import HERE, METER, PROMPT, draw_svg, make_environment, to_rich_text  # isort: skip
from chat_harness import QUIRE_PROGRAM, Terminal
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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = asyncio.run(record_turn(Path(folder)))
    draw_svg(
        lines,
        command="quire chat",
        path=HERE / "chat-long-turn.svg",
        description="A turn of many steps in the terminal: tool calls, and markers of compactions between them",
    )


async def record_turn(home: Path) -> list[Text]:
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


def run_chat(home: Path) -> list[Text]:
    terminal = Terminal([str(QUIRE_PROGRAM), "chat", "--new"], env=make_environment(home), folder=home)
    terminal.wait_for(PROMPT)
    terminal.send_line(QUESTION, METER, seconds=TURN_TIMEOUT_SECONDS)
    terminal.type("\x04")
    terminal.wait_for_exit()
    return [to_rich_text(line) for line in terminal.cells()]


if __name__ == "__main__":
    main()
