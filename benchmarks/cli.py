"""How soon the command line answers, beside the bare interpreter: its version, and the window of a long conversation.

Everything runs as a process of its own, with compiled bytecode, in a home of its own. The conversation has 100,000
messages; it was compacted, as one of that length is, and what is left fills half of the window. Beside it stands the
same conversation as it would be if nothing had ever been compacted.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from quire.engine import open_engine
from quire.engine.conversation import Conversation
from quire.model import Compaction, Draft, Message, Span, TokenCount
from quire.view.gather import summary_tokens
from support import Report, main, rounds_of

VERSION_GOAL = 2.5
SHOW_GOAL = 0.6
MESSAGES = 100_000
KEPT = 1_000
AT_ONCE = 5_000

TEXT = "The tide tables for {number} say that high water at the bar comes {number} minutes later than at the harbour, "
TEXT += "and that with the wind in the south-west another half metre should be reckoned with. We leave on the flood."
SUMMARY = (
    "The task is to plan the passage [#1]. Decided: leave on the morning flood, cross at half tide or later [#{}]. "
)


class Commands:
    """Runs programs as a user would, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "PYTHON", "XDG_"))},
            "HOME": str(folder),
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        }
        self.quire = str(Path(sys.executable).with_name("quire"))

    def run(self, *words: str) -> str:
        outcome = subprocess.run(words, env=self._environment, capture_output=True, text=True, check=True)
        return outcome.stderr

    def show(self, conversation: str) -> None:
        self.run(self.quire, "context", "show", conversation)

    def bare(self) -> None:
        self.run(sys.executable, "-c", "pass")

    def version(self) -> None:
        self.run(self.quire, "--version")

    def imports(self, words: Sequence[str]) -> list[tuple[object, ...]]:
        """Milliseconds of importing, by package; measuring makes them about a third longer."""
        spent: defaultdict[str, float] = defaultdict(float)
        for line in self.run(sys.executable, "-X", "importtime", self.quire, *words).splitlines():
            if found := re.match(r"import time:\s*(\d+) \|\s*\d+ \|\s*([\w.]+)", line):
                package, _, module = found[2].partition(".")
                spent[f"quire.{module.partition('.')[0]}" if package == "quire" else package] += int(found[1]) / 1_000
        largest = sorted(spent.items(), key=lambda each: -each[1])[:12]
        rest = sum(spent.values()) - sum(time for _, time in largest)
        return [*largest, ("the rest", rest), ("together", sum(spent.values()))]


async def fill(folder: Path, messages: int) -> None:
    place = folder / ".local/share/quire"
    place.mkdir(parents=True)
    async with open_engine(f"sqlite:///{place}/quire.db") as engine:
        for name in ("whole", "compacted"):
            await _speak(await engine.conversation(name), messages)
        last = messages - KEPT
        body = Compaction(number=1, covers=Span(first=1, last=last), summary=SUMMARY.format(last) * 20)
        await engine.store.append("compacted", Draft(body=body, tokens=summary_tokens(body, engine.meter)))


async def _speak(conversation: Conversation, messages: int) -> None:
    meter, store = conversation.engine.meter, conversation.engine.store
    for first in range(0, messages, AT_ONCE):
        said = [TEXT.format(number=number) for number in range(first, min(first + AT_ONCE, messages))]
        spoken = [Message.assistant(text) if place % 2 else Message.user(text) for place, text in enumerate(said)]
        drafts = [Draft(body=each, tokens=TokenCount(meter.count(each), meter.name)) for each in spoken]
        await store.append(conversation.id, *drafts)


async def run(*, quick: bool) -> Report:
    report = Report("cli")
    folder = Path(tempfile.mkdtemp())
    try:
        messages, rounds = (20_000, 9) if quick else (MESSAGES, 25)
        await fill(folder, messages)
        commands = Commands(folder)
        timed = (
            commands.bare,
            commands.version,
            lambda: commands.show("compacted"),
            lambda: commands.show("whole"),
        )
        await rounds_of(*timed, rounds=1)  # So that bytecode is compiled, and files are at hand.
        bare, version, compacted, whole = await rounds_of(*timed, rounds=rounds)
        report.table(
            f"milliseconds a process, {messages:,} messages",
            ("what", "median", "least"),
            [
                (name, statistics.median(times), min(times))
                for name, times in (
                    ("python -c pass", bare),
                    ("quire --version", version),
                    ("quire context show", compacted),
                    ("the same, never compacted", whole),
                )
            ],
        )
        report.table("of it importing", ("package", "ms"), commands.imports(["context", "show", "compacted"]))
        ratio = statistics.median(ours / theirs for ours, theirs in zip(version, bare, strict=True))
        report.at_most("version_over_python", ratio, VERSION_GOAL)
        report.at_most("context_show_seconds", statistics.median(compacted) / 1_000, SHOW_GOAL)
    finally:
        shutil.rmtree(folder)
    return report


if __name__ == "__main__":
    main(run)
