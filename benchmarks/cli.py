"""CPU time of the command line compared with the bare interpreter: `--version`, and `context show` of a long chat.

Every command runs in its own process, with compiled bytecode and its own home; its user and system time is measured.
The conversation has 100,000 messages; it was compacted, as one of that length would be, and the rest fills half of the
window. The same conversation without any compaction is measured too, and the import of the libraries alone, below which
`context show` cannot go.
"""

import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from quire.engine import open_engine
from quire.engine.conversation import Conversation
from quire.model import Compaction, Draft, Message, Span, TokenCount
from quire.view.counted_input import count_summary
from support import Report, run_benchmark

VERSION_GOAL_RATIO = 2.0
SHOW_GOAL_RATIO = 60.0
IMPORT_LIBRARIES = """
import asyncio, sqlite3, pydantic, rich.console, rich.table, sqlalchemy.dialects.sqlite, typer
pydantic.BaseModel, pydantic.TypeAdapter
"""
"""The libraries that `context show` uses, and the parts of pydantic that load on first use."""
MESSAGE_COUNT = 100_000
ACTIVE_MESSAGES = 1_000
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
        outcome = subprocess.run(words, env=self._environment, capture_output=True, text=True, check=True)
        return outcome.stderr

    def run_context_show(self, conversation: str) -> None:
        self.run(self.quire_path, "context", "show", conversation)

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
        timed = (
            commands.run_python,
            commands.run_version,
            commands.run_imports,
            lambda: commands.run_context_show("compacted"),
            lambda: commands.run_context_show("whole"),
        )
        measure_cpu_rounds(*timed, rounds=1)  # Compile the bytecode and fill the file cache.
        bare, version, imports, compacted, whole = measure_cpu_rounds(*timed, rounds=rounds)
        report.print_table(
            f"milliseconds of CPU time a process, {messages:,} messages",
            ("what", "median", "least"),
            [
                (name, statistics.median(times), min(times))
                for name, times in (
                    ("python -c pass", bare),
                    ("quire --version", version),
                    ("importing the libraries", imports),
                    ("quire context show", compacted),
                    ("the same, never compacted", whole),
                )
            ],
        )
        report.print_table(
            "of it importing", ("package", "ms"), commands.measure_imports(["context", "show", "compacted"])
        )
        ratio = statistics.median(ours / theirs for ours, theirs in zip(version, bare, strict=True))
        report.require_at_most("version_over_python", ratio, VERSION_GOAL_RATIO)
        show_ratio = statistics.median(ours / theirs for ours, theirs in zip(compacted, bare, strict=True))
        report.require_at_most("context_show_over_python", show_ratio, SHOW_GOAL_RATIO)
    finally:
        shutil.rmtree(folder)
    return report


if __name__ == "__main__":
    run_benchmark(run)
