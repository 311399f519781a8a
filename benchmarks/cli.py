"""CPU time of the command line compared with the bare interpreter: `--version`, and commands that read a long chat.

Every command runs in its own process, with compiled bytecode and its own home; its user and system time is measured.
The conversation has 100,000 messages; it was compacted, as one of that length would be, and the rest fills half of the
window. The same conversation without any compaction is measured too, a recorded request of an agent, and the
import of the libraries alone, below which `context show` of a next request cannot go. `ask` gets three words from a
server in the process of the benchmark, so its figure is the command's own.
"""

import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from quire.engine import open_engine
from quire.engine.conversation import Conversation
from quire.log import ReplyRecord
from quire.model import Compaction, Draft, ForwardedRequest, Message, Span, TokenCount
from quire.view.counted_input import count_summary
from support import Report, run_benchmark

VERSION_GOAL_RATIO = 2.0
COMMAND_GOAL_RATIO = 15.0
ASK_GOAL_RATIO = 30.0
READING_COMMANDS = {
    "context_show": ("context", "show", "compacted"),
    "context_show_recorded": ("context", "show", "agent"),
    "conversation_list": ("conversation", "list"),
    "search": ("search", "spring tide"),
}
IMPORT_LIBRARIES = """
import asyncio, sqlite3, pydantic, rich.console, rich.table, sqlalchemy.dialects.sqlite, typer
pydantic.BaseModel, pydantic.TypeAdapter
"""
"""The libraries that `context show` uses, and the parts of pydantic that load on first use."""
MESSAGE_COUNT = 100_000
ACTIVE_MESSAGES = 1_000
AGENT_MESSAGES = 400
BATCH_SIZE = 5_000

MESSAGE_TEXT = (
    "The tide tables for {number} say that high water at the bar comes {number} minutes later than at the harbour, "
)
MESSAGE_TEXT += (
    "and that with the wind in the south-west another half metre should be reckoned with. We leave on the flood."
)
SUMMARY_TEXT = (
    "The task is to plan the passage [#1]. Decided: leave on the morning flood, cross at half tide or later [#{}]. "
)


class ModelHandler(BaseHTTPRequestHandler):
    """Answers every chat completion with the same short stream."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
        events = [
            *({"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("High ", "at ", "noon.")),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage},
        ]
        for event in events:
            self.wfile.write(f"data: {json.dumps({'id': 'x', 'model': 'tiny', **event})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve_model() -> Generator[str]:
    """Runs a chat completions server; yields its base URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ModelHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


class CommandRunner:
    """Runs programs as a user would, each in its own process."""

    def __init__(self, folder: Path) -> None:
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "PYTHON", "XDG_"))},
            "HOME": str(folder),
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        }
        self.quire_path = str(Path(sys.executable).with_name("quire"))

    def run(self, *words: str) -> str:
        outcome = subprocess.run(
            words, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        )
        return outcome.stderr

    def run_quire(self, *words: str) -> None:
        self.run(self.quire_path, *words)

    def run_python(self) -> None:
        self.run(sys.executable, "-c", "pass")

    def run_imports(self) -> None:
        self.run(sys.executable, "-c", IMPORT_LIBRARIES)

    def run_version(self) -> None:
        self.run(self.quire_path, "--version")

    def measure_imports(self, words: Sequence[str]) -> list[tuple[object, ...]]:
        """Measures import time in milliseconds by package; measuring makes it about a third longer."""
        spent: defaultdict[str, float] = defaultdict(float)
        for line in self.run(sys.executable, "-X", "importtime", self.quire_path, *words).splitlines():
            if found := re.match(r"import time:\s*(\d+) \|\s*\d+ \|\s*([\w.]+)", line):
                package, _, module = found[2].partition(".")
                spent[f"quire.{module.partition('.')[0]}" if package == "quire" else package] += int(found[1]) / 1_000
        largest = sorted(spent.items(), key=lambda each: -each[1])[:12]
        rest = sum(spent.values()) - sum(time for _, time in largest)
        return [*largest, ("the rest", rest), ("together", sum(spent.values()))]


def measure_cpu_rounds(*commands: Callable[[], None], rounds: int) -> list[list[float]]:
    """Milliseconds of CPU time of each command's process, interleaved, so that a slow moment affects all of them."""
    spent: list[list[float]] = [[] for _ in commands]
    for _ in range(rounds):
        for times, run_command in zip(spent, commands, strict=True):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run_command()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1_000)
    return spent


async def create_database(folder: Path, messages: int) -> None:
    data_folder = folder / ".local/share/quire"
    data_folder.mkdir(parents=True)
    async with open_engine(f"sqlite:///{data_folder}/quire.db") as engine:
        for name in ("whole", "compacted"):
            await _append_messages(await engine.conversation(name), messages)
        last = messages - ACTIVE_MESSAGES
        body = Compaction(number=1, covers=Span(first=1, last=last), summary=SUMMARY_TEXT.format(last) * 20)
        await engine.store.append("compacted", Draft(body=body, tokens=count_summary(body, engine.message_counter)))
        agent = await engine.conversation("agent")
        await _append_messages(agent, min(messages, AGENT_MESSAGES))
        prepared = (await agent.prepare("What is next?")).manifest
        forwarded = ForwardedRequest(form="unchanged", digest=prepared.digest, replayable=True)
        manifest = prepared.model_copy(update={"forwarded": forwarded})
        drafts = (Draft(body=Message.user("What is next?")), Draft(body=Message.assistant("The bar.")))
        await engine.store.record_reply("agent", ReplyRecord(drafts=drafts, build_manifest=lambda _: manifest))


async def _append_messages(conversation: Conversation, messages: int) -> None:
    counter, store = conversation.engine.message_counter, conversation.engine.store
    for first in range(0, messages, BATCH_SIZE):
        texts = [MESSAGE_TEXT.format(number=number) for number in range(first, min(first + BATCH_SIZE, messages))]
        bodies = [Message.assistant(text) if index % 2 else Message.user(text) for index, text in enumerate(texts)]
        drafts = [Draft(body=each, tokens=TokenCount(counter.count(each), counter.name)) for each in bodies]
        await store.append(conversation.id, *drafts)


async def run(*, quick: bool) -> Report:
    report = Report("cli")
    folder = Path(tempfile.mkdtemp())
    try:
        messages, rounds = (20_000, 9) if quick else (MESSAGE_COUNT, 25)
        await create_database(folder, messages)
        commands = CommandRunner(folder)
        with serve_model() as url:
            words_by_name = {
                **READING_COMMANDS,
                # After `search`, which indexes all messages when it runs first.
                "ask": ("ask", "When?", "--set", "model=tiny", "--set", f"base_url={url}"),
            }
            timed = (
                commands.run_python,
                commands.run_version,
                commands.run_imports,
                *(partial(commands.run_quire, *words) for words in words_by_name.values()),
                partial(commands.run_quire, "context", "show", "whole"),
            )
            measure_cpu_rounds(*timed, rounds=1)  # Compile the bytecode and fill the file cache.
            bare, version, imports, *alone, whole = measure_cpu_rounds(*timed, rounds=rounds)
        names = [f"quire {name.replace('_', ' ')}" for name in words_by_name]
        report.print_table(
            f"milliseconds of CPU time a command, {messages:,} messages",
            ("what", "median", "least"),
            [
                (name, statistics.median(times), min(times))
                for name, times in (
                    ("python -c pass", bare),
                    ("quire --version", version),
                    ("importing the libraries", imports),
                    *zip(names, alone, strict=True),
                    ("context show, never compacted", whole),
                )
            ],
        )
        report.print_table(
            "of it importing", ("package", "ms"), commands.measure_imports(["context", "show", "compacted"])
        )
        ratio = statistics.median(ours / theirs for ours, theirs in zip(version, bare, strict=True))
        report.require_at_most("version_over_python", ratio, VERSION_GOAL_RATIO)
        floor = statistics.median(bare)
        for name, times in zip(words_by_name, alone, strict=True):
            goal = ASK_GOAL_RATIO if name == "ask" else COMMAND_GOAL_RATIO
            report.require_at_most(f"{name}_over_python", statistics.median(times) / floor, goal)
    finally:
        shutil.rmtree(folder)
    return report


if __name__ == "__main__":
    run_benchmark(run)
