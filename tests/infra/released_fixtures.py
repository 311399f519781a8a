"""Databases and settings as a version of Quire wrote them, which every later version must open.

    python -m infra.released_fixtures 0.1.0

writes the fixture of a release: both databases as compressed SQL, what they contain as JSON, and a settings file.
`schema-0013` is that of the first migration.
"""

import argparse
import asyncio
import gzip
import json
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from infra.postgres import Cluster, find_binaries
from quire.db import migrate
from quire.engine import Conversation, Engine, open_engine
from quire.engine.file_import import import_files
from quire.log import Citation
from quire.log.imports import make_conversation_id
from quire.model import Message, ToolCallPart
from quire.settings.toml_template import render_settings_template
from quire.sources.registry import SOURCES
from quire.store import SqlStore

FIXTURES = Path(__file__).parents[1] / "fixtures" / "released"
SQLITE_FILE, POSTGRES_FILE = "sqlite.sql.gz", "postgres.sql.gz"
CONTENT_FILE, SETTINGS_FILE = "content.json", "quire.toml"
APPLICATION_ROLE = "quire_app"
CONVERSATION, NAMESPACE = "voyage", "sailor"
SECRET = "the combination is 4711"
NOTE = "# Harbour\n\nThe mouth is three metres deep at mean low water.\n"
ANSWER = "The mouth is three metres deep at mean low water, and two metres over the bar at half tide. "
SETTINGS = {"model": "gpt-4o", "context_limit": 2_000, "strategy": "hybrid", "shares": {"recall": 0.2}}
SESSION = [
    {
        "type": role, "uuid": uuid, "parentUuid": parent, "sessionId": "pilot", "isSidechain": False,
        "timestamp": "2026-01-02T03:04:05.000Z", "cwd": "/home/dev/harbour",
        "message": {
            "role": role, "id": f"msg-{uuid}", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
        },
    }
    for role, uuid, parent, text in (
        ("user", "a", None, "When is high water?"),
        ("assistant", "b", "a", "At half past six."),
    )
]  # fmt: skip
"""A transcript of Claude Code."""
IMPORTED = make_conversation_id("claude-code", "pilot")
INDEX_SECONDS = 60
Content = dict[str, Any]


async def write_content(url: str) -> str:
    """Fills a database by the ways that users have; returns the API key."""
    with tempfile.TemporaryDirectory() as vault:
        (Path(vault) / "Harbour.md").write_text(NOTE)
        async with open_engine(url, vault=vault, instructions="Be brief.", **SETTINGS) as engine:
            conversation = await engine.conversation(CONVERSATION)
            await _write_tool_turn(conversation)
            [secret] = await conversation.append(SECRET)
            for number in range(12):
                request = await conversation.prepare(f"How deep is the harbour on day {number}?")
                await conversation.record(ANSWER * 4, request=request)
            await conversation.set_priority(2, 9)
            await conversation.compact()
            await conversation.edit_summary("They talked of the depth of the harbour mouth. [#4]")
            await conversation.pin(1)
            await conversation.drop(27, reason="said before")
            await conversation.fork(5, name="if the wind holds")
            await _import_session(engine)
            return await _write_around(engine, secret.seq)


async def _write_tool_turn(conversation: Conversation) -> None:
    request = await conversation.prepare("What does [[Harbour]] say of the depth?")
    call = ToolCallPart(id="call-1", name="read_document", arguments='{"path": "Harbour.md"}')
    await conversation.record(Message(role="assistant", parts=(call,)), request=request)
    outcome = await conversation.run_tool(call, request=request)
    await conversation.append(outcome.message)
    request = await conversation.prepare()
    await conversation.record(ANSWER, request=request, references=outcome.references)


async def _import_session(engine: Engine) -> None:
    """Imports a session of Claude Code as a conversation with tags."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pilot.jsonl"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in SESSION))
        await import_files(engine, SOURCES["claude-code"], [path])
    await cast("SqlStore", engine.store).set_tags(IMPORTED, ["pilotage", "tides"])


async def _write_around(engine: Engine, secret: int) -> str:
    store = cast("SqlStore", engine.store)
    await store.put_blob(b"\x89PNG tides", media_type="image/png")
    await store.memories.add(NAMESPACE, "She gets seasick.", citation=Citation(CONVERSATION, 0, 1))
    retired = await store.memories.add(NAMESPACE, "She owns a dinghy.", source="notes.md")
    await store.memories.retire(retired.id)
    await store.purge(CONVERSATION, [secret])
    _, text = await store.keys.create("telescope", ["read", "chat"], requests_per_minute=60, max_spend=5.0)
    revoked, _ = await store.keys.create("an old one", ["read"])
    await store.keys.revoke(revoked.id)
    return text


async def read_content(url: str, key: str) -> Content:
    """Verifies a database and reads everything that `write_content` wrote."""
    async with open_engine(url, **SETTINGS) as engine:
        store = cast("SqlStore", engine.store)
        faults = [*await store.verify_tenant(), *await store.verify_conversation(CONVERSATION)]
        assert faults == [], faults
        conversation = await engine.conversation(CONVERSATION)
        imported = next(each for each in await store.list_conversations() if each.id == IMPORTED)
        replies = [entry.seq for entry in await conversation.messages() if entry.role == "assistant"]
        async with asyncio.timeout(INDEX_SECONDS):
            # A newer version may index the messages again first.
            while not (found := await conversation.search("depth of the harbour mouth")).complete:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        verified = await store.keys.verify(key)
        assert verified is not None
        return {
            "branches": await _read_branches(store),
            "candidates": [len((await conversation.manifest(seq)).included) for seq in replies],
            "replays": [(await conversation.replay(seq)).matches for seq in replies],
            "imported": [
                sorted(imported.tags),
                [[entry.role, entry.message.text] for entry in await store.read_range(IMPORTED, kinds=["message"])],
            ],
            "pins": list((await store.get_branch(CONVERSATION)).state.pins),
            "dropped": list((await store.get_branch(CONVERSATION)).state.dropped),
            # Versions rank differently, and each finds these.
            "hits": sorted({hit.entry.seq for hit in found.messages} & {4, 7, 9}),
            "memories": [
                [memory.text, memory.retired_at is not None, memory.citation and memory.citation.seq]
                for memory in await store.memories.list(NAMESPACE, include_retired=True)
            ],
            "keys": sorted([each.name, each.revoked_at is not None] for each in await store.keys.list()),
            "key": [verified.name, sorted(verified.scopes), verified.requests_per_minute, verified.max_spend],
        }


async def _read_branches(store: SqlStore) -> dict[str, Any]:
    """The entries of all branches: their recorded JSON and metadata, which no version changes."""
    return {
        branch.name or str(branch.number): [
            [entry.seq, entry.kind, entry.role, entry.raw, entry.raw_metadata, entry.purged_at, entry.digest.hex()]
            for entry in await store.read_range(CONVERSATION, branch=branch.number)
        ]
        for branch in await store.list_branches(CONVERSATION)
    }


def dump_sqlite(path: Path) -> bytes:
    with closing(sqlite3.connect(path)) as connection:
        return "\n".join(connection.iterdump()).encode()


def load_sqlite(dump: bytes, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump.decode())


def dump_postgres(url: str) -> bytes:
    """A plain SQL dump without owners and grants, which belong to an installation."""
    command = [_find_program("pg_dump"), "--no-owner", "--no-privileges", "--dbname", url]
    return subprocess.run(command, capture_output=True, check=True).stdout


def load_postgres(dump: bytes, url: str) -> None:
    command = [_find_program("psql"), "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--dbname", url]
    done = subprocess.run(command, input=dump, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def _find_program(name: str) -> str:
    binaries = find_binaries(18)
    assert binaries is not None, "PostgreSQL 18 is not installed"
    return str(binaries / name)


def write_fixture(folder: Path, cluster: Cluster) -> None:
    """Writes the fixture of the present source."""
    folder.mkdir(parents=True)
    content: Content = {}
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "quire.db"
        content["sqlite"] = asyncio.run(_write_and_read(f"sqlite:///{path}"))
        (folder / SQLITE_FILE).write_bytes(gzip.compress(dump_sqlite(path), mtime=0))
    name = "quire_fixture"
    cluster.create_database(name)
    cluster.create_role(APPLICATION_ROLE)
    migrate.upgrade(cluster.url(name))
    migrate.grant_access(cluster.url(name), APPLICATION_ROLE)
    content["postgres"] = asyncio.run(_write_and_read(cluster.url(name, user=APPLICATION_ROLE)))
    (folder / POSTGRES_FILE).write_bytes(gzip.compress(dump_postgres(cluster.url(name)), mtime=0))
    (folder / CONTENT_FILE).write_text(f"{json.dumps(content, indent=1, ensure_ascii=False)}\n")
    (folder / SETTINGS_FILE).write_text(render_settings_template(SETTINGS))


async def _write_and_read(url: str) -> Content:
    key = await write_content(url)
    return {"api_key": key, "read": await read_content(url, key)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the fixture of a release.")
    parser.add_argument("version", help="the version of the release, such as 0.1.0")
    folder = FIXTURES / parser.parse_args().version
    with Cluster.start(18) as cluster:
        write_fixture(folder, cluster)
    print(f"Wrote {folder}.")


if __name__ == "__main__":
    main()
