"""Every value that the application's role can change is named by verification, and no changed text is in a request.

The columns come from the database: on PostgreSQL from the grants of the role, on SQLite from the tables. A new column
is therefore tested, or listed in `OUTSIDE` with a reason.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.engine import make_url

from infra.builders import make_messages, make_turn, with_exchange
from quire.engine import Engine, open_engine
from quire.engine.config import EngineConfig
from quire.engine.message_index import index_messages
from quire.errors import IntegrityViolation
from quire.index.types import IndexedDocument, Passage, VaultDocument, memory_scope, vault_scope
from quire.jobs import queue_schema
from quire.log import Blob, Citation, ConversationOrigin, ConversationRecord, IntegrityFault
from quire.log.exchanges import SentBody, encode_request
from quire.log.imports import ImportBatch, ImportItem
from quire.log.transcripts import TranscriptKey, TranscriptLine
from quire.model import Compaction, Draft, FilePart, Message, Pin, Span, TextPart, TokenCount, Usage
from quire.model.agents import Agent
from quire.settings import Settings
from quire.store import SqlStore

APPLICATION_ROLE = "quire_app"
FORGED = "forgedtext"

REBUILT = "rebuilt from the log or from files; a changed text is no hit and in no request (see the tests below)"
COUNTED = "statistics in no request; `quire scan --usage --recount` compares them with the log and corrects them"
QUEUE = "state of background jobs: they name conversations and hold no text, and the sweep finds lost work"
OUTSIDE = {
    "quire_passages": REBUILT,
    "quire_terms": REBUILT,
    "quire_search_scopes": REBUILT,
    "quire_message_segments": REBUILT,
    "quire_unindexed_branches": "names what to index; without a row, search finds its messages after the next append",
    "quire_documents": REBUILT,
    "quire_imported_files": "decides only whether an import reads a file again",
    "quire_observations": "what `quire scan` prints of an imported file, which a later version of the file replaces",
    "quire_continued_sessions": "where an import appends what an agent says next; a changed place is a branch too many",
    "quire_counted_requests": COUNTED,
    "quire_imports.reads": "decides only whether a newer reader reads a session again",
    "quire_uncounted_branches": "names what to count; without a row, the next append or a recount counts its entries",
    "quire_counted_branches": COUNTED,
    "quire_usage_contributions": COUNTED,
    "quire_usage_totals": COUNTED,
    "quire_usage_turns": COUNTED,
    "quire_document_pairs": COUNTED,
    "quire_sweeps": "time up to which lost work was searched for; an earlier or later one is only more or less work",
    "quire_spend_reservations": "estimated cost of calls in progress, which expires",
    "quire_turn_leases": "names the process that runs a turn, and expires",
    "quire_background_responses": "requests that earlier versions answered in the background; rows are only deleted",
    "quire_conversations.metadata": "what a client notes on its conversation, in no request; older servers lack it",
    "quire_turn_events": "what event streams of other servers show of a running turn; the log has the result",
    "quire_stored_bytes": "a sum of sizes for a quota, which `quire db upgrade` clears and the next write counts again",
    "quire_rate_limits": "permits left in this minute, which every use counts again",
    "quire_users": "in no request; a person whose row was changed can neither sign in nor use a key",
    "quire_sessions": "in no request; a changed session opens nothing, because its tokens cannot be decrypted",
    "quire_shares": "in no request; who shared what is in the audit trail",
    "quire_directory_users": "in no request; a person whose row was changed cannot sign in",
    "quire_directory_groups": "in no request; a group that was changed gives no role",
    "quire_directory_members": "in no request; a membership that was changed gives no role",
    "quire_audit": "a hash chain of its own, which `quire conversation verify --all` computes again",
    "quire_audit_heads": "the end of that hash chain",
    "quire_audit_exports": "how far the trail was sent to a receiver, which sees gaps and repeats by number and digest",
    "quire_pending_objects": "names objects to remove, which are removed only if nothing refers to them",
    "quire_blobs.size": "bytes that a blob in object storage counts under a quota",
    "quire_tenant_keys": "authenticated by the key that wraps it; a changed one opens nothing",
    "quire_blobs.uploaded_at": "decides only when an upload that nothing references is deleted",
    "quire_blobs.media_type": "a label; the role cannot update it, and the digest covers the bytes",
    "quire_version": "version of the schema; the role cannot update it",
    "procrastinate_jobs": QUEUE,
    "procrastinate_events": QUEUE,
    "procrastinate_periodic_defers": QUEUE,
    "procrastinate_workers": QUEUE,
}
"""Tables and columns that verification does not cover, and why."""


class ColumnName(NamedTuple):
    table: str
    column: str

    @property
    def is_outside(self) -> bool:
        return self.table in OUTSIDE or ".".join(self) in OUTSIDE


@contextmanager
def connect(url: str) -> Iterator[Connection]:
    """A connection that bypasses Quire; on PostgreSQL as the role of the URL, for the default tenant."""
    parsed = make_url(url)
    is_postgres = parsed.get_backend_name() == "postgresql"
    engine = create_engine(parsed.set(drivername="postgresql+psycopg") if is_postgres else parsed)
    try:
        with engine.begin() as connection:
            if is_postgres:
                connection.execute(text("SELECT set_config('quire.tenant', 'default', true)"))
            yield connection
    finally:
        engine.dispose()


def list_columns(database_url: str, admin_url: str) -> list[ColumnName]:
    """On PostgreSQL the columns that the role may update, on SQLite all that are in no primary key."""
    if not database_url.startswith("sqlite"):
        with psycopg.connect(admin_url) as connection:
            query = """
                SELECT DISTINCT table_name, column_name FROM information_schema.column_privileges
                WHERE grantee = %s AND privilege_type = 'UPDATE' ORDER BY 1, 2"""
            return [ColumnName(*row) for row in connection.execute(query, [APPLICATION_ROLE]).fetchall()]
    with connect(database_url) as connection:
        inspector = inspect(connection)
        return [
            ColumnName(table, column["name"])
            for table in inspector.get_table_names()
            for column in inspector.get_columns(table)
            if column["name"] not in inspector.get_pk_constraint(table)["constrained_columns"]
        ]


def make_import(conversation: str, *, parent: tuple[int, int]) -> ImportBatch:
    """An item that becomes the entry after another one."""
    raw = Message.user("imported word").canonical_json()
    item = ImportItem("item", "before", raw, "user", at=5, digest=sha256(raw.encode()).digest())
    return ImportBatch(ConversationRecord(conversation, "", 5, 5), [item], {"before": parent})


async def write_everything(store: SqlStore) -> None:
    """Rows in every table that a conversation, an agent and a server write."""
    # Older than the conversation, so that every request contains it.
    await store.memories.add("agent", "the first word", source="a source")
    await store.create_conversation("c", origin=ConversationOrigin(client="word", session="word", project="word"))
    blob = await store.put_blob(b"a picture", media_type="image/png")
    picture = Message(role="user", parts=(TextPart(text="word"), FilePart(blob=blob)))
    noted = Draft(body=picture, tokens=TokenCount(3, "o200k"), usage=Usage(input_tokens=1, model="word"), created_at=5)
    await store.append("c", *make_messages(2), noted, *make_messages(3, start=4), Pin(message=1))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=2), summary="a word"))
    turn = make_turn(*make_messages(2, start=7), blobs=(Blob("text/plain", b"quoted"),), body=b"a word")
    turn = await with_exchange(store, "c", turn._replace(request_id="request", response_id="response"), b"a word")
    await store.record_reply("c", turn)
    base = SentBody("exchange", 0, encode_request("messages", {"x-app": "cli"}, b"a word"))
    next_turn = make_turn(*make_messages(2, start=9), body=b"a word and another")
    next_turn = await with_exchange(store, "c", next_turn, b"a word and another", id="next", base=base)
    await store.record_reply("c", next_turn)
    await store.fork("c", at=5, name="fork")
    await store.append("c", *make_messages(2, start=11), branch=1)
    await store.imports.append([make_import("c", parent=(1, 7))])
    transcript = TranscriptKey("word", "word", "subagents/word")
    lines = [TranscriptLine("word", "a word")]
    await store.transcripts.append(transcript, lines, fold_summary=lambda _, new, at: "a word")
    await store.transcripts.link(transcript, "c")
    await store.rename_conversation("c", "Title")
    old = await store.memories.add("agent", "an old word", citation=Citation("c", 0, 1))
    await store.memories.replace(old.id, "a new word", source="a source")
    await store.keys.create("key", ["chat"])
    document = VaultDocument("n.md", b"digest", 1, 1, title="word", summary="a word", aliases=("word",))
    await store.documents.put("notes", [IndexedDocument(document, (Passage("n.md", "a word about otters"),))])
    assert await list_faults(store) == []


async def list_faults(store: SqlStore) -> list[IntegrityFault]:
    return await store.verify_tenant() + await store.verify_conversation("c")


def change_value(value: Any, column: str) -> Any:
    match value:
        case None:
            return 1 if column.endswith("_at") or column in ("at", "tokens", "seq", "branch") else FORGED
        case int() | float():
            return value + 1
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:]
        case str() if "word" in value:
            return value.replace("word", FORGED)
        case _:
            return f"{value} "


class StoredValue(NamedTuple):
    """One value of one row, found by the row's primary key."""

    name: ColumnName
    key: dict[str, Any]
    value: Any

    def overwrite(self, url: str, value: Any) -> None:
        condition = " AND ".join(f"{column} = :key_{column}" for column in self.key)
        params = {f"key_{column}": part for column, part in self.key.items()}
        statement = text(f"UPDATE {self.name.table} SET {self.name.column} = :value WHERE {condition}")
        with connect(url) as connection:
            assert connection.execute(statement, {**params, "value": value}).rowcount == 1


def read_values(url: str, name: ColumnName) -> list[StoredValue]:
    with connect(url) as connection:
        key_columns = inspect(connection).get_pk_constraint(name.table)["constrained_columns"]
        rows = connection.execute(text(f"SELECT * FROM {name.table}")).mappings().all()
    return [StoredValue(name, {column: row[column] for column in key_columns}, row[name.column]) for row in rows]


@pytest.fixture
async def archiving_store(database_url: str, tmp_path: Path) -> AsyncIterator[SqlStore]:
    async with SqlStore.open(database_url, object_storage=f"file://{tmp_path}/objects") as store:
        yield store


@pytest.mark.every_database
async def test_every_changed_value_is_named(archiving_store: SqlStore, database_url: str, admin_url: str):
    store = archiving_store
    await write_everything(store)
    await index_messages(Engine(store, EngineConfig.create(Settings())))
    while await store.usage.count():
        pass
    # Restored, so that there are rows of entries, too.
    assert await store.offloading.offload("c") is not None
    await store.get_branch("c")
    if not database_url.startswith("sqlite"):
        queue_schema.upgrade(admin_url)
        queue_schema.grant(admin_url, APPLICATION_ROLE)
    columns = list_columns(database_url, admin_url)
    tables = {column.table for column in columns}
    assert {"quire_entries", "quire_branches", "quire_memories", "quire_api_keys", "quire_costs"} <= tables
    for name in columns:
        if name.is_outside:
            continue
        values = read_values(database_url, name)
        assert values, f"no row of {name.table} to change: write one in write_everything"
        # Which rows are verified does not depend on the database, only which columns a role may change.
        for value in values if database_url.startswith("sqlite") else values[:1]:
            value.overwrite(database_url, change_value(value.value, name.column))
            assert await list_faults(store), (name, value.key)
            value.overwrite(database_url, value.value)
    assert await list_faults(store) == []


@pytest.mark.every_postgres
def test_exceptions_name_existing_tables_and_columns(admin_url: str):
    queue_schema.upgrade(admin_url)
    with psycopg.connect(admin_url) as connection:
        rows = connection.execute("SELECT table_name, column_name FROM information_schema.columns").fetchall()
    assert OUTSIDE.keys() <= {name for table, column in rows for name in (table, f"{table}.{column}")}


RENDERED_COLUMNS = (
    ("quire_entries", "body"),
    ("quire_entries", "notes"),
    ("quire_memories", "text"),
)
AGENT = Agent(name="agent", instructions="Help.")


@pytest.mark.parametrize("name", RENDERED_COLUMNS, ids=".".join)
async def test_no_request_contains_a_changed_value(database_url: str, name: tuple[str, str]):
    async with open_engine(database_url, model="gpt-4o", agent=AGENT) as engine:
        await write_everything(engine.store)
    for value in read_values(database_url, ColumnName(*name)):
        if value.key.get("branch"):
            continue
        value.overwrite(database_url, change_value(value.value, name[1]))
        # Another engine, because the first one has read the rows already.
        async with open_engine(database_url, model="gpt-4o", agent=AGENT) as engine:
            with suppress(IntegrityViolation):
                request = await (await engine.conversation("c")).prepare("And now?")
                assert FORGED not in json.dumps(request.to_chat())
        value.overwrite(database_url, value.value)


@pytest.mark.parametrize("column", ["state", "head_seq", "head_digest", "head_path", "name", "updated_at"])
async def test_no_request_is_built_from_a_changed_branch(database_url: str, column: str):
    async with open_engine(database_url, model="gpt-4o") as engine:
        await write_everything(engine.store)
    for value in read_values(database_url, ColumnName("quire_branches", column)):
        value.overwrite(database_url, change_value(value.value, column))
    async with open_engine(database_url, model="gpt-4o") as engine:
        with pytest.raises(IntegrityViolation, match="branch 0 of 'c'"):
            await (await engine.conversation("c")).prepare("And now?")


async def test_a_changed_entry_can_be_purged_to_use_the_conversation_again(database_url: str):
    async with open_engine(database_url, model="gpt-4o") as engine:
        conversation = await engine.conversation("c")
        await conversation.append("May I pay the word?", Message.assistant("No."), "Thanks.")
        [first, *_] = read_values(database_url, ColumnName("quire_entries", "body"))
        first.overwrite(database_url, first.value.replace("word", FORGED))
        with pytest.raises(IntegrityViolation, match="#1"):
            await conversation.prepare("And now?")
        await engine.store.purge("c", [1])
        request = await conversation.prepare("And now?")
        assert FORGED not in json.dumps(request.to_chat())
        assert await engine.store.verify_conversation("c") == []


async def test_a_changed_passage_is_no_hit(store: SqlStore, database_url: str):
    await write_everything(store)
    scopes = [vault_scope("notes"), memory_scope("agent")]
    assert await store.passages.search("otters", scopes=scopes)
    for column in ("text", "title", "key", "at", "digest"):
        for value in read_values(database_url, ColumnName("quire_passages", column)):
            if value.key["scope"] != scopes[0]:
                continue
            value.overwrite(database_url, change_value(value.value, column))
            assert await store.passages.search("otters", scopes=scopes) == []
            changed_key = {**value.key, **({"key": f"{value.value} "} if column == "key" else {})}
            value._replace(key=changed_key).overwrite(database_url, value.value)
    assert await store.passages.search("otters", scopes=scopes)


async def test_a_changed_document_is_not_listed_and_so_indexed_again(store: SqlStore, database_url: str):
    await write_everything(store)
    for column in ("title", "summary", "aliases", "headings", "digest"):
        [value] = read_values(database_url, ColumnName("quire_documents", column))
        value.overwrite(database_url, change_value(value.value, column))
        assert await store.documents.list("notes") == []
        value.overwrite(database_url, value.value)
    assert len(await store.documents.list("notes")) == 1


async def test_a_changed_calibration_is_not_used(store: SqlStore, database_url: str):
    await write_everything(store)
    assert await store.get_calibration("test") == "{}"
    [value] = read_values(database_url, ColumnName("quire_calibrations", "calibration"))
    value.overwrite(database_url, '{"ratio":9}')
    assert await store.get_calibration("test") is None


async def test_a_key_that_was_revoked_cannot_be_made_valid_again(store: SqlStore, database_url: str):
    key, secret = await store.keys.create("key", ["chat"])
    await store.keys.revoke(key.id)
    [value] = read_values(database_url, ColumnName("quire_api_keys", "revoked_at"))
    value.overwrite(database_url, None)
    assert await store.keys.verify(secret) is None


async def test_a_response_is_not_found_by_a_changed_row(store: SqlStore, database_url: str):
    await write_everything(store)
    value, _ = read_values(database_url, ColumnName("quire_manifests", "response_id"))
    value.overwrite(database_url, "another")
    for call in (store.find_response, store.forget_response):
        with pytest.raises(IntegrityViolation, match="reply #10"):
            await call("another")
    assert [(fault.branch, fault.seq) for fault in await list_faults(store)] == [(0, 10)]


async def test_an_exchanged_blob_is_named_and_not_read(store: SqlStore, database_url: str):
    """The role cannot update a blob, but delete it and insert another under its digest."""
    await write_everything(store)
    digest = await store.put_blob(b"a picture")
    with connect(database_url) as connection:
        uses = connection.execute(text("SELECT * FROM quire_blob_uses WHERE seq = 3")).mappings().one()
        connection.execute(text("DELETE FROM quire_blob_uses WHERE seq = 3"))
        blob = dict(
            connection.execute(text("SELECT * FROM quire_blobs WHERE data = :d"), {"d": b"a picture"}).mappings().one()
        )
        connection.execute(text("DELETE FROM quire_blobs WHERE digest = :digest"), {"digest": blob["digest"]})
        insert_row(connection, "quire_blobs", {**blob, "data": FORGED.encode()})
        insert_row(connection, "quire_blob_uses", dict(uses))
    assert [(fault.branch, fault.seq) for fault in await list_faults(store)] == [(0, 3)]
    with pytest.raises(IntegrityViolation, match=digest):
        await store.get_blob(digest)


@pytest.mark.parametrize("is_blob_deleted", [False, True])
async def test_a_deleted_reference_to_a_blob_is_named(store: SqlStore, database_url: str, *, is_blob_deleted: bool):
    await write_everything(store)
    with connect(database_url) as connection:
        connection.execute(text("DELETE FROM quire_blob_uses WHERE seq = 3"))
        if is_blob_deleted:
            connection.execute(text("DELETE FROM quire_blobs WHERE data = :data"), {"data": b"a picture"})
    assert [(fault.branch, fault.seq) for fault in await list_faults(store)] == [(0, 3)]


@pytest.mark.parametrize(
    ("table", "changed"),
    [
        ("quire_entries", {"seq": 99}),
        ("quire_entries", {"branch": 7}),
        ("quire_paths", {"seq": 99, "path": b"\x01" * 32}),
        ("quire_manifests", {"seq": 1}),
        ("quire_manifests", {"seq": 99}),
    ],
)
async def test_an_inserted_row_is_named(store: SqlStore, database_url: str, table: str, changed: dict[str, Any]):
    await write_everything(store)
    with connect(database_url) as connection:
        row = dict(connection.execute(text(f"SELECT * FROM {table} WHERE branch = 0 LIMIT 1")).mappings().one())
        insert_row(connection, table, {**row, **changed})
    position = {"branch": 0, "seq": row["seq"]} | {key: value for key, value in changed.items() if key != "path"}
    assert (position["branch"], position["seq"]) in {(fault.branch, fault.seq) for fault in await list_faults(store)}


def insert_row(connection: Connection, table: str, row: dict[str, Any]) -> None:
    columns = ", ".join(row)
    values = ", ".join(f":{column}" for column in row)
    connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)
