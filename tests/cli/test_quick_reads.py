"""Commands that read SQLite without the store print what the store's command prints, or leave it to that command."""

import asyncio
import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, get_args

import pexpect
import pytest
from cli_fixtures import TIDES_ID, CliHome
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from test_startup import RUN_COMMAND
from typer.testing import CliRunner

from quire.cli.app import app
from quire.cli.quick_reads import OTHER_SETTINGS, find_schema_version, print_quickly
from quire.db.migrate import SCHEMA_VERSION
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import index_messages
from quire.log import ConversationOrigin, ReplyRecord
from quire.model import (
    Compaction,
    Decision,
    DocumentReference,
    Draft,
    Drop,
    Entry,
    ForwardedRequest,
    Manifest,
    Message,
    Pin,
    Policy,
    Restore,
    Span,
    TextPart,
    ToolResultPart,
    TurnTotals,
    Usage,
)
from quire.model.base import JsonObject
from quire.model.manifest import DecisionKind, DecisionReason, SlotUsage
from quire.model.policy import SLOTS
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


@contextmanager
def open_home(monkeypatch: pytest.MonkeyPatch, columns: str) -> Generator[Path]:
    """A home without settings; yields the path of its database."""
    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as patch:
        for name in [each for each in os.environ if each.startswith(("QUIRE_", "XDG_"))]:
            patch.delenv(name)
        patch.setenv("HOME", folder)
        patch.setenv("COLUMNS", columns)
        patch.chdir(folder)
        database = Path(folder, ".local/share/quire/quire.db")
        database.parent.mkdir(parents=True)
        yield database


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
    with open_home(monkeypatch, columns) as database:
        asyncio.run(fill_store(database, conversations))
        words = ["conversation", "list", *options]
        capsys.readouterr()
        assert print_quickly(words)
        printed = capsys.readouterr().out
        assert printed == CliRunner().invoke(app, words).stdout


def test_the_list_shows_titles_of_conversations_in_object_storage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    async def fill(path: Path) -> None:
        async with SqlStore.open(f"sqlite:///{path}", object_storage=f"file://{tmp_path}/objects") as store:
            await store.create_conversation("c")
            await store.append("c", Message.user("When is the spring tide?"), Message.assistant("At noon."))
            while await store.usage.count():
                pass
            await index_messages(Engine(store, EngineConfig.create(Settings())))
            assert await store.offloading.offload("c") is not None

    with open_home(monkeypatch, "100") as database:
        asyncio.run(fill(database))
        words = ["conversation", "list"]
        capsys.readouterr()
        assert print_quickly(words)
        printed = capsys.readouterr().out
        assert "When is the spring tide?" in printed
        assert printed == CliRunner().invoke(app, words).stdout
        assert not print_quickly(["context", "show", "c"])


SPANS = st.one_of(
    st.none(), st.builds(lambda first, more: Span(first=first, last=first + more), *[st.integers(1, 9)] * 2)
)
DECISIONS = st.builds(
    Decision,
    slot=st.sampled_from(SLOTS),
    kind=st.sampled_from(get_args(DecisionKind)),
    included=st.booleans(),
    reason=st.sampled_from(get_args(DecisionReason)),
    tokens=st.integers(0, 90_000),
    span=SPANS,
    name=st.one_of(st.none(), TEXTS),
    score=st.one_of(st.none(), st.floats(0, 1)),
    min_score=st.one_of(st.none(), st.just(0.5)),
    excerpt_chars=st.one_of(st.none(), st.integers(0, 500)),
    document_tokens=st.one_of(st.none(), st.integers(0, 500)),
    pending=st.sampled_from([None, True]),
)
POLICIES = st.builds(
    Policy,
    model=TEXTS.filter(bool),
    wire_format=st.just("chat"),
    window=st.integers(1_000, 300_000),
    context_management_enabled=st.booleans(),
    reserved_response_tokens=st.integers(0, 2_000),
)
USAGES = st.lists(
    st.builds(
        SlotUsage,
        slot=st.sampled_from(SLOTS),
        budget=st.integers(0, 9_999),
        used=st.integers(0, 99_999),
        overflows=st.sampled_from([None, True]),
    ),
    max_size=8,
    unique_by=lambda each: each.slot,
)
TURNS = st.one_of(
    st.none(),
    st.builds(
        TurnTotals,
        steps=st.integers(1, 5),
        usage=st.builds(Usage, input_tokens=st.integers(0, 9_999), output_tokens=st.integers(0, 9_999)),
        cost_usd=st.sampled_from([0.0, 0.125]),
        compactions=st.sampled_from([None, (3,)]),
    ),
)
REQUEST = st.fixed_dictionaries(
    {
        "policy": POLICIES,
        "slots": USAGES,
        "decisions": st.lists(DECISIONS, max_size=6),
        "numbers": st.tuples(*[st.integers(0, 300_000)] * 4),
        "exact": st.booleans(),
        "is_forwarded": st.sampled_from([True, True, True, False]),
        "turn": TURNS,
        "references": st.lists(
            st.builds(DocumentReference, link=TEXTS, path=st.sampled_from([None, "a.md"])), max_size=2
        ),
    }
)
SESSION = st.fixed_dictionaries(
    {
        "requests": st.lists(REQUEST, min_size=1, max_size=3),
        "purpose": st.sampled_from([None, None, "subagent"]),
        "forks_at": st.sampled_from([None, None, 2, 4]),
        "after": st.sampled_from(
            ["", "", "", "question", "pin", "drop", "compaction", "undo", "purge reply", "purge all"]
        ),
    }
)


async def fill_sessions(path: Path, sessions: list[dict[str, Any]]) -> None:
    async with SqlStore.open(f"sqlite:///{path}") as store:
        for number, session in enumerate(sessions):
            name = f"c{number}"
            await store.create_conversation(name, origin=ConversationOrigin(client="codex", purpose=session["purpose"]))
            branch = 0
            for position, each in enumerate(session["requests"]):
                head = (await store.get_branch(name, branch)).head_seq
                if session["forks_at"] is not None and position and session["forks_at"] <= head:
                    branch = (await store.fork(name, at=session["forks_at"], branch=branch)).number

                def build_manifest(stored: Sequence[Entry], each: dict[str, Any] = each) -> Manifest:
                    forwarded = ForwardedRequest(form="unchanged", digest="", replayable=True)
                    return Manifest(
                        renderer=1, conversation=stored[-1].conversation, branch=stored[-1].branch,
                        head=stored[0].seq - 1, policy=each["policy"], counter="openai:test", exact=each["exact"],
                        slots=tuple(each["slots"]), total_tokens=each["numbers"][0],
                        full_history_tokens=each["numbers"][1], max_input_tokens=each["numbers"][2],
                        trigger_tokens=each["numbers"][3], decisions=tuple(each["decisions"]), stable_messages=0,
                        digest="", forwarded=forwarded if each["is_forwarded"] else None,
                    )  # fmt: skip

                reply = Draft(
                    body=Message.assistant("At noon."), turn=each["turn"], references=tuple(each["references"])
                )
                drafts = (Draft(body=Message.user("When?")), reply)
                await store.record_reply(name, ReplyRecord(drafts=drafts, build_manifest=build_manifest), branch=branch)
            head = (await store.get_branch(name, branch)).head_seq
            match session["after"]:
                case "question":
                    await store.append(name, Message.user("And then?"), branch=branch)
                case "pin":
                    await store.append(name, Pin(message=1), branch=branch)
                case "drop":
                    await store.append(name, Drop(message=1), branch=branch)
                case "compaction" | "undo" as action:
                    body = Compaction(number=1, covers=Span(first=1, last=1), summary="Mills.")
                    [entry] = await store.append(name, body, branch=branch)
                    if action == "undo":
                        await store.append(name, Restore(compaction=entry.seq), branch=branch)
                case "purge reply" | "purge all" as action:
                    await store.purge(name, [head] if action == "purge reply" else None, branch=branch)
                case _:
                    pass


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(SESSION, max_size=3),
    st.sampled_from([(), (), ("c0",), ("c1", "--branch", "1"), ("--branch", "0"), ("--reply", "2"), ("--reply", "4")]),
    st.sampled_from([(), ("--all",), ("--unfold", "messages", "--unfold", "tools")]),
    st.sampled_from(["30", "59", "80", "120"]),
)
def test_a_recorded_request_is_the_same_as_from_the_store(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sessions: list[dict[str, Any]],
    target: tuple[str, ...],
    options: tuple[str, ...],
    columns: str,
):
    with open_home(monkeypatch, columns) as database:
        asyncio.run(fill_sessions(database, sessions))
        words = ["context", "show", *target, *options]
        capsys.readouterr()
        is_quick = print_quickly(words)
        printed = capsys.readouterr().out
        event("quick" if is_quick else "left to the store")
        if is_quick:
            assert printed == CliRunner().invoke(app, words).stdout
        else:
            assert printed == ""
        # An agent's newest request is read quickly as long as nothing waits for the next one.
        newest = next((each for each in reversed(sessions) if each["purpose"] is None), None)
        if not target and newest is not None and newest["after"] in ("", "question", "purge reply"):
            assert is_quick == newest["requests"][-1]["is_forwarded"]


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
    commands = [["conversation", "list", "--all"], ["context", "show", "--reply", "3"]]
    # Titles are stored, so that one that is missing is read from the entries.
    change_database("UPDATE quire_conversations SET title = ''")(home, monkeypatch)
    assert all(map(print_quickly, commands))
    change(home, monkeypatch)
    capsys.readouterr()
    existed = home.database.exists()
    assert not any(map(print_quickly, commands))
    assert capsys.readouterr().out == ""
    assert home.database.exists() == existed


@pytest.mark.parametrize(
    "more", [["--json"], ["--limit"], ["--limit", "0"], ["--limit", "x"], ["--tag", "sea"], ["--help"], ["tides"]]
)
def test_other_options_are_left_to_the_store(home: CliHome, more: list[str]):
    assert not print_quickly(["conversation", "list", *more])


@pytest.mark.parametrize(
    "more",
    [
        [], ["--json"], ["--reply"], ["--reply", "0"], ["--reply", "4"], ["--reply", "99"], ["--help"],
        ["--reply", "3", "--servers"], ["--reply", "3", "--set", "strategy=discard"], ["--reply", "3", "--branch", "9"],
        ["--reply", "3", "--unfold", "nothing"], ["no-such-id", "--reply", "3"], [TIDES_ID, "again", "--reply", "3"],
    ],
)  # fmt: skip
def test_other_requests_are_left_to_the_store(home: CliHome, more: list[str]):
    assert print_quickly(["context", "show", TIDES_ID, "--reply", "3"])
    assert not print_quickly(["context", "show", *more])


def test_a_changed_reply_is_left_to_the_store(home: CliHome, monkeypatch: pytest.MonkeyPatch):
    change_database("UPDATE quire_entries SET body = body || ' ' WHERE seq = 3")(home, monkeypatch)
    assert not print_quickly(["context", "show", TIDES_ID, "--reply", "3"])


def test_the_other_settings_are_settings():
    assert set(Settings.model_fields) >= OTHER_SETTINGS
    assert not OTHER_SETTINGS & {"database_url", "listen_database_url", "replica_url", "cells", "encryption"}


def test_the_newest_migration_is_the_schema():
    assert find_schema_version() == SCHEMA_VERSION
