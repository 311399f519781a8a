"""Files that the real programs wrote: imported, imported again, and grown. `data/recorded` has one folder for each.

They were recorded against the scripted provider: a prompt with a tool call, one with a sub-agent where the program has
them, its compaction, and one more prompt. Versions: Aider 0.86.2, Cline 3.0.65, Continue 1.5.47, Copilot CLI 1.0.102,
Droid 0.225.2, Gemini CLI 0.61.0, Kilo 7.7.9, opencode 1.18.33, pi 0.73.1, Qwen Code 0.15.10. Paths of the machine are
replaced, and long texts are cut.
"""

import json
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from importers.source_counts import COUNTERS, SourceCounts, add_up
from importers.transcript_files import copy_transcripts, dump_store, import_path
from infra.export_samples import load_llm_log
from infra.recorded_files import RECORDED, copy_recorded, set_age
from quire.model import Compaction, Usage
from quire.model.entry_metadata import sum_usage
from quire.sources.base import SourceConversation
from quire.sources.registry import SOURCES
from quire.store import SqlStore


def cut_files(folder: Path) -> None:
    """Removes what the program wrote last, at a moment when it is still running."""
    for path in sorted(folder.rglob("*")):
        match path.suffix:
            case ".jsonl":
                lines = path.read_text().splitlines(keepends=True)
                path.write_text("".join(lines[: len(lines) * 2 // 3]))
            case ".db":
                with closing(sqlite3.connect(path)) as connection, connection:
                    connection.execute(
                        "DELETE FROM message WHERE id IN (SELECT id FROM message ORDER BY id DESC LIMIT 3)"
                    )
                    connection.execute("DELETE FROM part WHERE message_id NOT IN (SELECT id FROM message)")
            case ".json":
                document: Any = json.loads(path.read_text())
                name = next((name for name in ("history", "messages") if name in document), None)
                if name is not None:
                    path.write_text(json.dumps({**document, name: document[name][:-1]}))
            case ".md":
                text = path.read_text()
                path.write_text(text[: text.rindex("# aider chat started")])
            case _:
                pass
    set_age(folder, 0)


async def count_stored(store: SqlStore) -> SourceCounts:
    messages, compactions, sub_agents = 0, 0, 0
    usages: list[Usage] = []
    for record in await store.list_conversations(limit=100):
        assert await store.verify_conversation(record.id) == []
        assert len(await store.list_branches(record.id)) == 1
        assert record.origin is not None
        sub_agents += record.origin.purpose == "subagent"
        for entry in await store.read_range(record.id):
            if isinstance(entry.body, Compaction):
                compactions += 1
                usages += [entry.body.usage] if entry.body.usage else []
            else:
                messages += 1
                usages += [entry.metadata.usage] if entry.metadata.usage else []
    total = sum_usage(usages)
    return SourceCounts(
        messages, compactions, sub_agents, total.input_tokens, total.cache_read_tokens, total.output_tokens
    )


def test_every_recorded_source_is_counted():
    assert {path.name for path in RECORDED.iterdir()} == set(COUNTERS)


@pytest.mark.parametrize("source", sorted(COUNTERS))
async def test_what_a_program_wrote_is_imported_once(source: str, store: SqlStore, tmp_path: Path):
    folder = copy_recorded(source, tmp_path / "files")
    report = await import_path(store, source, folder)
    counted = COUNTERS[source](folder)
    assert (report.error_count, report.errors) == (0, [])
    assert await count_stored(store) == counted
    assert report.messages == counted.messages + counted.compactions
    before = await dump_store(store)
    assert (await import_path(store, source, folder)).messages == 0
    assert await dump_store(store) == before


@pytest.mark.parametrize("source", sorted(COUNTERS))
async def test_a_file_that_has_grown_adds_what_is_new(source: str, store: SqlStore, tmp_path: Path):
    live, whole = store.for_tenant("live"), store.for_tenant("whole")
    folder = copy_recorded(source, tmp_path / "files")
    cut_files(folder)
    first = await import_path(live, source, folder)
    shutil.rmtree(folder)
    second = await import_path(live, source, copy_recorded(source, tmp_path / "files"))
    at_once = await import_path(whole, source, folder)
    assert first.messages > 0
    assert second.messages > 0
    assert first.messages + second.messages == at_once.messages
    assert await count_stored(live) == await count_stored(whole)


PLACES = {
    "aider": "project",
    "cline": ".cline/data/sessions",
    "continue": ".continue/sessions",
    "copilot-cli": ".copilot/session-state",
    "droid": ".factory/sessions",
    "gemini": ".gemini/tmp",
    "kilo": ".local/share/kilo",
    "opencode": ".local/share/opencode",
    "pi": ".pi/agent/sessions",
    "qwen-code": ".qwen/projects",
}


@pytest.mark.parametrize("source", sorted(COUNTERS))
def test_files_are_found_in_the_place_of_the_program(source: str, tmp_path: Path):
    chosen, env = SOURCES[source], {"HOME": str(tmp_path), "PWD": str(tmp_path)}
    assert chosen.find_default_paths(env) == []
    copy_recorded(source, tmp_path / PLACES[source])
    assert [file for path in chosen.find_default_paths(env) for file in chosen.find_files(path)]


def change_value(value: Any, position: int, replacement: Any) -> tuple[Any, int]:
    """The value with that of its inner values replaced, and how many positions are left."""
    if position == 0:
        return replacement, -1
    position -= 1
    if isinstance(value, dict | list):
        items: Any = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in list(items):
            changed, position = change_value(inner, position, replacement)
            if position < 0:
                value[key] = changed
                return value, position
    return value, position


@pytest.mark.parametrize("source", sorted(COUNTERS))
def test_a_value_of_any_type_is_never_a_failure(source: str, tmp_path: Path):
    folder, seeded, read = copy_recorded(source, tmp_path / "files"), random.Random(1), 0
    for _ in range(60):
        path = seeded.choice([path for path in folder.rglob("*") if path.suffix in (".json", ".jsonl")] or [folder])
        if path == folder:
            return
        original = path.read_text()
        lines = original.splitlines() if path.suffix == ".jsonl" else [original]
        number, replacement = (
            seeded.randrange(len(lines)),
            seeded.choice([None, [], {}, "x", -1, True, [None], {"a": 1}]),
        )
        changed, _ = change_value(json.loads(lines[number]), seeded.randrange(1, 40), replacement)
        path.write_text("\n".join([*lines[:number], json.dumps(changed), *lines[number + 1 :]]) + "\n")
        set_age(folder, 3_600)
        for conversation in SOURCES[source].read(path):
            read += isinstance(conversation, SourceConversation) and len(list(conversation.messages)) > 0
        path.write_text(original)
    assert read > 0


def append_line(path: Path, **line: Any) -> None:
    with path.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    set_age(path.parent, 3_600)


async def read_entries(store: SqlStore, source: str, folder: Path) -> list[tuple[str, str | None]]:
    """Kind and text of the entries of the only conversation that is no sub-agent's."""
    report = await import_path(store, source, folder)
    assert report.errors == []
    records = [each for each in await store.list_conversations() if each.origin and not each.origin.purpose]
    entries = await store.read_range(records[0].id, branch=0)
    return [
        (entry.kind, entry.body.summary if isinstance(entry.body, Compaction) else entry.message.text)
        for entry in entries
    ]


async def test_a_compression_of_gemini_is_a_compaction(store: SqlStore, tmp_path: Path):
    folder = copy_recorded("gemini", tmp_path / "files")
    path = min(folder.rglob("session-*.jsonl"))
    last = json.loads(path.read_text().splitlines()[-2])
    summary = {"id": "s1", "type": "user", "content": [{"text": "<state_snapshot>Greeted.</state_snapshot>"}]}
    thanks = {"id": "s2", "type": "gemini", "content": "Got it."}
    append_line(path, **{"$set": {"messages": [summary, thanks, last]}})
    append_line(path, id="s3", type="user", content="And now?")
    entries = await read_entries(store, "gemini", folder)
    assert entries[-4:] == [
        ("message", "Noted."),
        ("compaction", "<state_snapshot>Greeted.</state_snapshot>"),
        ("message", "Got it."),
        ("message", "And now?"),
    ]


async def test_a_rewind_of_gemini_is_a_branch(store: SqlStore, tmp_path: Path):
    folder = copy_recorded("gemini", tmp_path / "files")
    path = min(folder.rglob("session-*.jsonl"))
    users = [line for line in map(json.loads, path.read_text().splitlines()) if line.get("type") == "user"]
    append_line(path, **{"$rewindTo": users[-1]["id"]})
    append_line(path, id="s3", type="user", content="Another way.")
    assert (await read_entries(store, "gemini", folder))[-1] == ("message", "Another way.")
    records = [each for each in await store.list_conversations() if each.origin and not each.origin.purpose]
    assert len(await store.list_branches(records[0].id)) == 2


async def test_a_compression_of_qwen_is_a_compaction(store: SqlStore, tmp_path: Path):
    folder = copy_recorded("qwen-code", tmp_path / "files")
    [path] = folder.rglob("*.jsonl")
    [*_, last] = [line for line in map(json.loads, path.read_text().splitlines()) if line["type"] == "assistant"]
    history = [{"role": "user", "parts": [{"text": "The user was greeted."}]}]
    payload = {"info": {"originalTokenCount": 900, "newTokenCount": 90}, "compressedHistory": history}
    line = {**last, "uuid": "s1", "parentUuid": last["uuid"], "type": "system", "subtype": "chat_compression"}
    del line["usageMetadata"]
    append_line(path, **line, systemPayload=payload)
    append_line(path, **{**last, "uuid": "s2", "parentUuid": "s1"}, aNewField={"x": 1})
    entries = await read_entries(store, "qwen-code", folder)
    assert entries[-2:] == [("compaction", "The user was greeted."), ("message", "Noted.")]


async def test_a_summary_of_continue_is_a_compaction(store: SqlStore, tmp_path: Path):
    folder = copy_recorded("continue", tmp_path / "files")
    [path] = folder.glob("*-*.json")
    session = json.loads(path.read_text())
    session["history"][3]["conversationSummary"] = "The user was greeted."
    path.write_text(json.dumps(session))
    set_age(folder, 3_600)
    kinds = [kind for kind, _ in await read_entries(store, "continue", folder)]
    assert kinds.index("compaction") == 5


async def test_an_unfinished_reply_of_opencode_waits_unless_it_was_abandoned(store: SqlStore, tmp_path: Path):
    folder = copy_recorded("opencode", tmp_path / "files")
    with closing(sqlite3.connect(folder / "opencode.db")) as connection, connection:
        connection.execute(
            "UPDATE message SET data = json_remove(data, '$.time.completed') WHERE id = (SELECT max(id) FROM message)"
        )
        connection.execute("UPDATE session SET time_updated = ?", (time.time() * 1_000,))
    assert (await read_entries(store, "opencode", folder))[-1] == ("message", "Once more.")
    with closing(sqlite3.connect(folder / "opencode.db")) as connection, connection:
        connection.execute("UPDATE session SET time_updated = time_updated - 700000")
    assert (await read_entries(store, "opencode", folder))[-1] == ("message", "Noted.")


async def test_kinds_and_fields_of_a_newer_version_are_stored(store: SqlStore, tmp_path: Path):
    folder = copy_recorded("pi", tmp_path / "files")
    [path] = folder.rglob("*.jsonl")
    last = json.loads(path.read_text().splitlines()[-1])
    message = {"role": "assistant", "content": [{"type": "hologram", "x": 1}], "aNewField": 2}
    append_line(path, **{**last, "id": "0000000a", "parentId": last["id"], "message": message})
    append_line(path, type="a_new_type", id="0000000b", parentId="0000000a")
    assert (await read_entries(store, "pi", folder))[-1] == ("message", "[hologram]")
    [record] = await store.list_conversations()
    stored = (await store.read_range(record.id))[-1].message
    assert stored.provider_fields == {"pi": {"aNewField": 2}}
    assert stored.parts[0].provider_fields == {"pi": {"type": "hologram", "x": 1}}


def count_claude_code(folder: Path) -> tuple[int, int, int]:
    """A reply is several lines with the same id and usage; the copy in a fork may have counts of 0."""
    usages: dict[str, dict[str, int]] = {}
    for path in folder.rglob("*.jsonl"):
        lines = (line for line in map(json.loads, path.read_text().splitlines()) if line["type"] == "assistant")
        for line in lines:
            usage = line["message"]["usage"]
            if usage["output_tokens"] or line["message"]["id"] not in usages:
                usages[line["message"]["id"]] = usage
    rows = [
        (each["input_tokens"] + each["cache_read_input_tokens"] + each["cache_creation_input_tokens"], each)
        for each in usages.values()
    ]
    return add_up((sent, each["cache_read_input_tokens"], each["output_tokens"]) for sent, each in rows)


def count_codex(folder: Path) -> tuple[int, int, int]:
    lines = [json.loads(line) for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]
    usages = [line["payload"]["usage"] for line in lines if line["type"] == "token_usage_record"]
    return add_up((each["input_tokens"], each["cached_input_tokens"], each["output_tokens"]) for each in usages)


def count_llm(folder: Path) -> tuple[int, int, int]:
    with closing(sqlite3.connect(folder / "logs.db")) as connection:
        cached = "sum(json_extract(token_details, '$.cached_tokens'))"
        query = f"SELECT sum(input_tokens), coalesce({cached}, 0), sum(output_tokens) FROM turns"
        return connection.execute(query).fetchone()


@pytest.mark.parametrize(
    ("source", "count"), [("claude-code", count_claude_code), ("codex", count_codex), ("llm", count_llm)]
)
async def test_tokens_equal_those_of_the_files(
    source: str, count: Callable[[Path], tuple[int, int, int]], store: SqlStore, tmp_path: Path
):
    if source == "llm":
        load_llm_log("llm_0_36.sql", tmp_path / "logs.db")
    else:
        copy_transcripts(source, tmp_path / "files")
    await import_path(store, source, tmp_path)
    # A fork repeats the usage of the session that it continues. It is counted once.
    used = [await store.usage.read_conversation(each) for each in await store.list_conversation_ids()]
    assert add_up((each.input_tokens, each.cache_read_tokens, each.output_tokens) for each in used) == count(tmp_path)
