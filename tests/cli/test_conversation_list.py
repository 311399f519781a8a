"""`quire conversation list` without the store prints what the store's command prints, or leaves it to that command."""

import asyncio
import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pexpect
import pytest
from cli_fixtures import CliHome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_startup import RUN_COMMAND, list_imports, to_third_party
from typer.testing import CliRunner

from quire.cli.app import app
from quire.cli.conversation_list import OTHER_SETTINGS, print_list
from quire.db.migrate import SCHEMA_VERSION
from quire.log import ConversationOrigin
from quire.model import Compaction, Message, Span, TextPart, ToolResultPart
from quire.model.base import JsonObject
from quire.rows.conversations import extract_question
from quire.settings import Settings
from quire.store import SqlStore
from quire.wire.agent_boilerplate import remove_boilerplate

REMINDER = "<system-reminder>\nBe kind.\n</system-reminder>\n"
TEXTS = st.one_of(
    st.sampled_from(
        [
            "When is the spring tide?",
            REMINDER,
            f"{REMINDER}Why do mills turn in the wind, and who built the first one of them all, on which hill? " * 2,
            "<command-name>/review</command-name><command-args>the harbour</command-args>",
            "# AGENTS.md instructions <INSTRUCTIONS>be brief</INSTRUCTIONS>",
            "Generate a title for this conversation:\n",
            "",
            "Ünïcödé \u202e 漢字かな 👩‍🚀 \x1b[31mred",
        ]
    ),
    st.text(max_size=200),
)
CLIENT_STATE: JsonObject = {"responses": {"type": "configuration_update"}}
PARTS = st.one_of(
    TEXTS.map(lambda text: TextPart(text=text)),
    TEXTS.map(lambda text: TextPart(text=text, provider_fields=CLIENT_STATE)),
    TEXTS.map(lambda text: ToolResultPart(call_id="a", content=(TextPart(text=text),))),
)
MESSAGES = st.lists(PARTS, max_size=3).map(lambda parts: Message(role="user", parts=tuple(parts)))
CONVERSATION = st.fixed_dictionaries(
    {
        "title": st.sampled_from(["", "", "Tides", "A long title " * 20]),
        "purpose": st.sampled_from([None, None, "subagent", "title"]),
        "messages": st.lists(MESSAGES, max_size=6),
        "tags": st.sampled_from([(), ("sea", "näss")]),
        "forks": st.integers(0, 2),
        "compacts": st.booleans(),
        "purges": st.sampled_from(["", "", "first", "all"]),
    }
)


async def fill_store(path: Path, conversations: list[dict[str, Any]]) -> None:
    async with SqlStore.open(f"sqlite:///{path}") as store:
        for number, each in enumerate(conversations):
            name, origin = f"c{number}", ConversationOrigin(client="codex", purpose=each["purpose"])
            await store.create_conversation(name, title=each["title"], origin=origin)
            length = len(await store.append(name, *each["messages"])) if each["messages"] else 0
            if each["compacts"] and length > 1:
                await store.append(name, Compaction(number=1, covers=Span(first=1, last=1), summary="Mills."))
            for at in range(each["forks"] if length else 0):
                fork = await store.fork(name, at=at)
                await store.append(name, Message.assistant("Aye."), branch=fork.number)
            await store.set_tags(name, each["tags"])
            if each["purges"] and length:
                await store.purge(name, [1] if each["purges"] == "first" else None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(CONVERSATION, max_size=5),
    st.sampled_from([(), ("--all",), ("--limit", "2")]),
    st.sampled_from(["30", "59", "100", "250"]),
)
def test_the_list_is_the_same_as_from_the_store(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    conversations: list[dict[str, Any]],
    options: tuple[str, ...],
    columns: str,
):
    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as patch:
        for name in [each for each in os.environ if each.startswith(("QUIRE_", "XDG_"))]:
            patch.delenv(name)
        patch.setenv("HOME", folder)
        patch.setenv("COLUMNS", columns)
        patch.chdir(folder)
        database = Path(folder, ".local/share/quire/quire.db")
        database.parent.mkdir(parents=True)
        asyncio.run(fill_store(database, conversations))
        words = ["conversation", "list", *options]
        capsys.readouterr()
        assert print_list(words)
        printed = capsys.readouterr().out
        assert printed == CliRunner().invoke(app, words).stdout


@given(MESSAGES)
def test_a_question_is_what_is_left_of_a_message(message: Message):
    own = remove_boilerplate(message).parts
    question = "\n".join(part.text for part in own if isinstance(part, TextPart))
    assert extract_question(json.loads(message.canonical_json())) == (message.text, question)


@pytest.mark.parametrize("columns", [40, 120])
def test_a_terminal_shows_the_same(home: CliHome, columns: int):
    shown: list[bytes] = []
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm-256color"}
    for more in ([], ["--set", "strategy=hybrid"]):
        arguments = ["-c", RUN_COMMAND, "conversation", "list", *more]
        shown.append(pexpect.spawn(sys.executable, arguments, env=environment, dimensions=(24, columns)).read())
    assert shown[0] == shown[1]
    assert b"\x1b[1m" in shown[0]


def test_it_imports_no_database_library_and_no_schemas(home: CliHome):
    modules = list_imports(RUN_COMMAND, "conversation", "list")
    assert to_third_party(modules) <= {"platformdirs", "rich"}
    assert "asyncio" not in modules


def change_database(statement: str) -> Callable[[CliHome, pytest.MonkeyPatch], None]:
    def change(home: CliHome, _: pytest.MonkeyPatch) -> None:
        with closing(sqlite3.connect(home.database)) as connection:
            connection.execute(statement)
            connection.commit()

    return change


@pytest.mark.parametrize(
    "change",
    [
        change_database("UPDATE quire_version SET version_num = '0001'"),
        change_database("UPDATE quire_version SET version_num = '9999'"),
        change_database("INSERT INTO quire_tenant_keys VALUES ('default', x'00', x'00', 1)"),
        change_database("UPDATE quire_branches SET head_seq = head_seq + 1"),
        change_database("DROP TABLE quire_entries"),
        lambda home, _: home.database.write_bytes(b"no database"),
        lambda home, _: home.database.unlink(),
        lambda home, _: home.settings.write_text('database_url = "postgresql://127.0.0.1/quire"'),
        lambda home, _: home.settings.write_text("[encryption]\nkey_env = 'KEY'"),
        lambda home, _: home.settings.write_text("strateg = 'hybrid'"),
        lambda home, _: home.settings.write_text("no TOML"),
        lambda home, _: (home.project / "quire.toml").write_text(""),
        lambda _, patch: patch.setenv("QUIRE_DATABASE_URL", "postgresql://127.0.0.1/quire"),
    ],
)
def test_anything_else_is_left_to_the_store(
    home: CliHome,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[CliHome, pytest.MonkeyPatch], object],
):
    words = ["conversation", "list", "--all"]
    # Titles are stored, so that one that is missing is read from the entries.
    change_database("UPDATE quire_conversations SET title = ''")(home, monkeypatch)
    assert print_list(words)
    change(home, monkeypatch)
    capsys.readouterr()
    existed = home.database.exists()
    assert not print_list(words)
    assert capsys.readouterr().out == ""
    assert home.database.exists() == existed


@pytest.mark.parametrize(
    "more", [["--json"], ["--limit"], ["--limit", "0"], ["--limit", "x"], ["--tag", "sea"], ["--help"], ["tides"]]
)
def test_other_options_are_left_to_the_store(home: CliHome, more: list[str]):
    assert not print_list(["conversation", "list", *more])


def test_the_other_settings_are_settings():
    assert set(Settings.model_fields) >= OTHER_SETTINGS
    assert not OTHER_SETTINGS & {"database_url", "listen_database_url", "replica_url", "cells", "encryption"}


def test_the_newest_migration_is_the_schema():
    from quire.cli.conversation_list import find_schema_version

    assert find_schema_version() == SCHEMA_VERSION
