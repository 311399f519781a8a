"""A home for the command tests, with a project, an agent, and a log written by the library.

Times and ids are fixed, so that the output of a command is always the same.
"""

import itertools
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner, Result

from quire.engine import Conversation, open_engine
from quire.log import Citation
from quire.model import ids
from quire.schemas import JsonModel
from quire.settings import Settings
from quire.store import SqlStore

START_TIME = 1_767_603_600_000_000
"""2026-01-05 09:00 UTC, in the log's microseconds."""
NEXT_DAY = START_TIME + 86_400_000_000

TIDES_ID = "01ke6p8kt00000000000000003"
GREETING_ID = "01ke6p6s700000000000000002"
"""Conversations of the home, by the fixed clock and the fixed ids."""

SETTINGS_TOML = """\
# The user's own settings.
agent = "../.config/quire/agents/sailor/agent.toml"
vault = "."
strategy = "summarize"
context_limit = 1600
reserved_response_tokens = 200
"""

AGENT_TOML = """\
# Answers questions about the sea.
name = "sailor"
description = "Knows tides and winds"
instructions = "You are an old sailor. Answer in a sentence or two."

[settings]
recent_messages_to_keep = 2

[rules.plain]
text = "Use no jargon without explaining it."
include = "always"
description = "Plain words"

[references.harbour]
text = "The harbour mouth is three metres deep at mean low water."
include = "manual"
description = "Depths of the harbour"
"""

PROJECT_MEMORY = "The boat draws one metre eighty. Her name is Gannet.\n"

PREFERENCES = """\
# Preferences

- Heights are given in metres.
- Times are local, not UTC.

## Harbour
The bar is crossed only two hours either side of high water.
"""

TURNS = (
    (
        "When is the spring tide this month?",
        "The spring tide comes with the new moon on the eighteenth; high water at Gullhaven is 5.4 metres at "
        "12:40. Neaps follow a week later, with barely three metres. The days on either side of the springs are "
        "nearly as high: 5.2 metres on the seventeenth at 11:55, and 5.3 on the nineteenth at 13:25. Low water "
        "comes about six hours and twenty minutes after each of them, and on the eighteenth it leaves no more than"
        " four tenths of a metre over the outer bank. The stream in the narrows runs hardest in the third and "
        "fourth hour, at three knots and a half on the ebb and a little less on the flood, and it turns about "
        "twenty minutes after the tide gauge says so.",
    ),
    (
        "Can we cross the bar at half tide with our draught?",
        "With one metre eighty you want two metres over the bar. Half tide leaves about two metres ten in calm "
        "water, so it can be done, but not with any swell running. The leading marks are the white tower and the "
        "church: keep them in line until the second red buoy is abeam, then steer for the end of the mole. The "
        "sand on the north side has moved forty metres since the last survey, so do not cut that corner, whatever "
        "the chart shows. At night the sector light is white over the deepest water. If it turns green you are too"
        " far north, and if it turns red too far south.",
    ),
    (
        "A storm is forecast from the south-west on the nineteenth. What does it change?",
        "A south-westerly blows straight into the mouth and raises a swell on the bar. Add half a metre to what you "
        "need, and do not try it on the ebb, when wind and stream meet.",
    ),
    (
        "So what is the plan?",
        "Leave on the seventeenth, on the morning flood, and be tied up in Gullhaven before the wind turns.",
    ),
)


class FakeClock:
    """Clock that moves only by `advance_minutes`."""

    def __init__(self, start: int) -> None:
        self.now = start

    def time_ns(self) -> int:
        return self.now * 1_000

    def advance_minutes(self, minutes: int = 1) -> None:
        self.now += minutes * 60_000_000


def freeze_time(monkeypatch: pytest.MonkeyPatch, start: int) -> FakeClock:
    """Replaces the log's clock and random bits."""
    clock, dice = FakeClock(start), itertools.count(1)
    monkeypatch.setattr(ids, "time", clock)
    monkeypatch.setattr(ids, "secrets", SimpleNamespace(randbits=lambda _bits: next(dice)))
    return clock


class CliHome:
    """A user's home with settings, agent, project and database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock(START_TIME)
        self.project = path / "project"
        self.settings = path / ".config/quire/quire.toml"
        self.agent = path / ".config/quire/agents/sailor/agent.toml"
        self.database = path / ".local/share/quire/quire.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"

    def write_files(self) -> None:
        self.project.mkdir(parents=True)
        self.agent.parent.mkdir(parents=True)
        self.database.parent.mkdir(parents=True)
        self.settings.write_text(SETTINGS_TOML)
        self.agent.write_text(AGENT_TOML)
        (self.project / "AGENTS.md").write_text(PROJECT_MEMORY)
        (self.project / "preferences.md").write_text(PREFERENCES)
        (self.project / "leaked-key.txt").write_text("not-in-any-conversation\n")

    def activate(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes commands run in this home."""
        others = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "NO_COLOR", "FORCE_COLOR", "EDITOR", "VISUAL")
        for name in (*others, *(each for each in os.environ if each.startswith("QUIRE_"))):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(self.path))
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setenv("TZ", "UTC")
        monkeypatch.chdir(self.project)


async def create_conversations(home: CliHome, url: str | None = None) -> None:
    """Creates a short conversation, and a longer one with a compaction, a pin, a branch and an item."""
    from quire.context.agent_loader import load_agent

    clock = home.clock
    known = Settings(context_limit=1600, reserved_response_tokens=200, strategy="summarize")
    async with open_engine(url or home.url, settings=known, agent=load_agent(home.agent), vault=home.project) as engine:
        await engine.store.memories.add("sailor", "The owner is Ada, and she gets seasick.", source="notes.md")
        clock.advance_minutes()
        older = await engine.conversation()
        await older.append("Hello there.")
        await engine.store.rename_conversation(older.id, "A greeting")
        clock.advance_minutes()
        await _create_tides_conversation(await engine.conversation(), engine, clock)
    async with SqlStore.open(url or home.url) as store:
        await store.keys.create("a page of my own", ["read"], requests_per_minute=60)


async def _create_tides_conversation(conversation: Conversation, engine: Any, clock: FakeClock) -> None:
    for question, answer in TURNS[:3]:
        clock.advance_minutes()
        request = await conversation.prepare(question)
        await conversation.record(answer, request=request)
    first = (await conversation.messages())[0]
    await engine.store.memories.add(
        "sailor",
        "Spring tides are what she plans around.",
        citation=Citation(conversation.id, 0, first.seq),
    )
    await conversation.compact()
    clock.advance_minutes()
    await conversation.add_item("harbour")
    request = await conversation.prepare(TURNS[3][0])
    await conversation.record(TURNS[3][1], request=request)
    await conversation.pin((await conversation.messages())[2].seq)
    await conversation.fork(5, name="if the wind holds")
    await engine.store.rename_conversation(conversation.id, "Tides")


async def export_newest(home: CliHome) -> None:
    """Exports the newest conversation to a file for import tests."""
    async with SqlStore.open(home.url) as store:
        [newest] = await store.list_conversations(limit=1)
        lines = [line async for line in store.export_conversation(newest.id)]
    (home.project / "tides.jsonl").write_text("".join(f"{line}\n" for line in lines))


def copy_home(template: CliHome, to: Path) -> CliHome:
    shutil.copytree(template.path, to)
    return CliHome(to)


def invoke_cli(*words: str, input: str | None = None, **options: Any) -> Result:
    from quire.cli.app import app

    return CliRunner().invoke(app, list(words), input=input, **options)


def run_json(*words: str, input: str | None = None) -> Any:
    """Runs a command with `--json`, which must succeed, and parses its document."""
    outcome = invoke_cli(*words, "--json", input=input)
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def validate_document(document: Any, model: type[JsonModel]) -> None:
    """Checks that the JSON document has the fields of this schema and no other."""
    schema = model.model_json_schema(mode="serialization") | {"additionalProperties": False}
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(document)
