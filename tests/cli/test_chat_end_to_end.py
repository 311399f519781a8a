"""End-to-end chat in a real terminal with the local model: from `quire init` to a resumed conversation."""

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_harness import QUIRE_PROGRAM, Terminal

from infra.llama import LocalModel, find_missing_packages
from quire.model import Compaction, Restore
from quire.store import SqlStore

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.real_model,
    pytest.mark.skipif(bool(find_missing_packages()), reason="THE LOCAL MODEL IS NOT INSTALLED: run `just setup`"),
    pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals here"),
]

WINDOW = 1_280
METER = re.compile(r"^#(\d+) · [━─]+ ~?[\d,]+ (?:of [\d,]+ tokens · window 1,280|tokens; compacts first)", re.MULTILINE)
PROMPT = re.compile(r"^›$", re.MULTILINE)

NOTES = {
    "places/Water mills.md": "---\naliases: [mills]\n---\n# Water mills\n\nA water mill grinds grain by the power of a "
    "river.\n\n## Wheels\n\nUndershot wheels are turned by the stream, overshot wheels from above.\n",
    "Millers.md": "# Millers\n\nThe miller keeps every sixteenth sack. He lives at the [[Water mills|mill]].\n",
    "counts.csv": "year,mills\n1086,5624\n1300,12000\n",
}
QUESTIONS = (
    "What does the miller keep? See [[Millers]].",
    "How many mills were there? See @counts.csv.",
    "What is the difference between undershot and overshot wheels? [[Water mills#Wheels]]",
    "Where does [[Nobody]] live?",
    "Why is a river useful?",
    "What is flour made of?",
    "Name three kinds of grain.",
    "What does a stone do in a mill?",
    "Who brings the sacks?",
)
LONG_QUESTIONS = (
    "Write a long story about a river, a mill and a boy.",
    "Describe a walk through a forest in autumn, in ten sentences.",
    "Explain step by step how bread is baked.",
    "Write a letter to a friend about your journey to the sea.",
    "Describe the house of your grandmother, room by room.",
    "Tell a long tale of a king and his three daughters.",
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, text in NOTES.items():
        path = tmp_path / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def env(home: Path) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("QUIRE_", "XDG_", "COLUMNS", "LINES")) and not name.endswith("_API_KEY")
    }
    return {**inherited, "HOME": str(home), "TERM": "xterm-256color"}


@pytest.fixture
def model() -> Iterator[LocalModel]:
    with LocalModel(context=WINDOW) as running:
        yield running


class ChatProgram:
    """`quire chat` in a terminal."""

    def __init__(self, env: dict[str, str], home: Path) -> None:
        self.terminal = Terminal([str(QUIRE_PROGRAM), "chat", "--reply-tokens", "64"], env=env, folder=home)
        self.terminal.wait_for(PROMPT)

    def ask(self, question: str) -> int:
        """The number of the reply."""
        self.terminal.type(f"{question}\r")
        return self._wait_for_reply()

    def _wait_for_reply(self) -> int:
        found: list[int] = []
        start = len(METER.findall(self.terminal.text()))
        self.terminal.wait_for(lambda text: found.extend(map(int, METER.findall(text)[start:])) or bool(found))
        self.terminal.wait_for(METER)
        self.terminal.wait_for(PROMPT)
        return found[-1]

    def complete(self, typed: str, offered: str, rest: str) -> int:
        """Takes the first completion of what is typed."""
        self.terminal.type(typed)
        self.terminal.wait_for(offered)
        self.terminal.type("\t")
        self.terminal.wait_for(lambda text: f"{offered}]]" in text)
        self.terminal.type(f"\r{rest}\r")
        return self._wait_for_reply()

    def stop(self, question: str) -> str:
        """Asks, and presses Ctrl-C as soon as the first words are there."""
        before = len(self.terminal.text())
        self.terminal.type(f"{question}\r")
        # A small model's summary may fail first, and the chat says so.
        words = re.compile(r"\n(?!The summary failed)[A-Za-z0-9*\"'].{8,}")
        self.terminal.wait_for(lambda text: bool(words.search(text, before + len(question))))
        self.terminal.type("\x03")
        self.terminal.wait_for(METER)
        return self.terminal.wait_for(PROMPT)[before:]

    def quit(self) -> int:
        self.terminal.type("\x04")
        return self.terminal.wait_for_exit()


def stop_a_reply(chat: ChatProgram) -> str:
    """Stops a reply and returns its question; retries with others, because the model may finish before the stop."""
    for question in LONG_QUESTIONS:
        if re.search(r"Stopped; the partial reply is recorded as #\d+ \(incomplete\)", chat.stop(question)):
            return question
    raise AssertionError(f"No reply was long enough to be stopped:\n{chat.terminal.text()}")


def test_a_chat_from_the_first_run_to_the_next_day(home: Path, env: dict[str, str], model: LocalModel):
    started = Terminal([str(QUIRE_PROGRAM), "init", "--base-url", model.url, "--vault", "notes"], env=env, folder=home)
    assert started.wait_for_exit() == 0
    assert "Model: smollm2" in started.text()
    assert f"Context window: {WINDOW:,} tokens" in started.text()

    chat = ChatProgram(env, home)
    chat.complete("What is [[wat", "Water mills", " good for?")
    for question in QUESTIONS:
        chat.ask(question)
    for question in LONG_QUESTIONS:
        # Where its replies are short, a compaction comes a little later.
        if "Context compacted #1" not in chat.terminal.text():
            chat.ask(question)
    text = chat.terminal.text()
    assert "• [[Water mills]] (places/Water mills.md)\n    A water mill grinds grain by the power of a river." in text
    assert "• @counts.csv (counts.csv)" in text
    assert "✗ [[Nobody]]" in text
    assert "Context compacted #1" in text
    assert re.search(r"\d+ messages archived.*, [\d,]+ tokens freed; undo with /undo", text)

    chat.terminal.send_line("/undo", re.compile(r"Compaction \d+ undone: \d+ messages? restored\."))
    chat.terminal.send_line("/branch 4", "Now on branch 1, forked from #4; to go back, type /switch 0.")
    assert chat.ask("And how many were there in 1086?") == 6
    chat.terminal.send_line("/switch 0", "Now on branch 0, at #")
    chat.terminal.send_line("/context", re.compile(r"[\d,]+ of 1,280 tokens.*512 reserved", re.DOTALL))
    chat.terminal.type("\x03")
    chat.terminal.wait_for("To quit, press Ctrl-D or type /quit.")
    stopped = stop_a_reply(chat)
    assert chat.quit() == 0

    again = ChatProgram(env, home)
    text = again.terminal.text()
    assert re.search(r"^Resumed \w+, at #\d+ of ", text, re.MULTILINE)
    assert f"› {stopped}" in text
    assert "(incomplete)" in text
    again.ask("Thank you.")
    assert again.quit() == 0
    asyncio.run(check_log(home))


async def check_log(home: Path) -> None:
    async with SqlStore.open(f"sqlite:///{home}/.local/share/quire/quire.db") as store:
        [conversation] = await store.list_conversations()
        assert await store.verify_conversation(conversation.id) == []
        bodies = [entry.body for entry in await store.read_range(conversation.id, kinds=["compaction", "restore"])]
        assert isinstance(bodies[0], Compaction)
        assert any(isinstance(body, Restore) for body in bodies)
        assert len(await store.list_branches(conversation.id)) == 2
        messages = await store.read_range(conversation.id, kinds=["message"])
        assert len([entry for entry in messages if entry.role == "user"]) >= 12
        assert [entry.metadata.incomplete for entry in messages].count(True) == 1
