"""Tenant isolation: no statement and no method of a tenant reads or changes the rows of another."""

import inspect
import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql
from sqlalchemy import Connection

from infra.builders import make_turn, with_exchange
from quire.access.spending import SpendCaps
from quire.db.dialects import insert_rows
from quire.db.schema import archived_replies, archives, background_responses, pending_objects
from quire.db.store_part import StorePart, write
from quire.errors import (
    BlobNotFound,
    ConversationNotFound,
    MemoryNotFound,
    RequestNotFound,
    ResponseNotFound,
    SpendCapReached,
    SpendReserved,
)
from quire.index.types import (
    IndexedDocument,
    Passage,
    PassageVector,
    SegmentData,
    SegmentRef,
    SegmentTask,
    SegmentUpdate,
    VaultDocument,
)
from quire.index.vectors import pack_vector
from quire.log import Citation, ConversationOrigin, ConversationRecord, MessageKey
from quire.log.imports import ContinuedSession, ImportBatch, ImportItem
from quire.log.observations import FileVersion
from quire.log.row_digests import with_row_digest
from quire.log.transcripts import TranscriptKey, TranscriptLine
from quire.model import (
    DocumentReference,
    Draft,
    EntryMetadata,
    FilePart,
    Message,
    Span,
    TextPart,
    Topic,
    TopicIndex,
    Usage,
)
from quire.store import SqlStore
from quire.team.directory import GroupChange
from quire.team.store import TeamStore
from quire.usage.report import NO_SUB_AGENTS

pytestmark = pytest.mark.every_database

TRANSCRIPT = TranscriptKey("project", "session", "subagents/agent-1")

REFERENCES = tuple(DocumentReference(link=each) for each in ("a.md", "b.md"))
ANSWER = Draft(body=Message.assistant("an answer"), usage=Usage(input_tokens=3))

CONVERSATIONS = 3

# The setting is unset in a new session, and empty in one that had a tenant before.
NO_TENANT = (None, "")

# Every relation with rows, views included; except those without a tenant column, which have names and times alone.
TABLES = r"""
    SELECT relname FROM pg_class AS relation
    WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND relname LIKE 'quire\_%'
    AND relname NOT IN ('quire_version', 'quire_sweeps')
"""
TABLES_IN_REACH = rf"""
    {TABLES} AND (
        has_any_column_privilege('quire_app', oid, 'SELECT, INSERT, UPDATE, REFERENCES')
        OR has_table_privilege('quire_app', oid, 'DELETE, TRUNCATE, TRIGGER')
    )
"""
UNPROTECTED = rf"""
    {TABLES} AND NOT (relrowsecurity AND relforcerowsecurity AND (
        SELECT count(*) = 1 AND bool_and(
            polcmd = '*' AND polroles = '{{0}}'
            AND pg_get_expr(polqual, polrelid) = pg_get_expr(polwithcheck, polrelid)
            AND pg_get_expr(polqual, polrelid) ~ '^\(tenant = .*current_setting\(''quire.tenant''::text, true\)'
        ) FROM pg_policy WHERE polrelid = relation.oid
    ))
"""
# test_keys covers the extra policy for a presented key; test_worklist the one for ids and times of conversations. The
# ones of audit trails, background responses and data keys are of the same kind: only the owner's function may read ids
# or names of all tenants by it.
TABLES_WITH_EXTRA_POLICIES = {
    "quire_api_keys",
    "quire_archives",
    "quire_audit_exports",
    "quire_audit_heads",
    "quire_background_responses",
    "quire_branches",
    "quire_conversations",
    "quire_pending_objects",
    "quire_tenant_keys",
}
COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position"

Session = psycopg.Connection[tuple[Any, ...]]
Rows = list[tuple[Any, ...]]


def make_import(conversation: str) -> ImportBatch:
    raw = Message.user("imported").canonical_json()
    item = ImportItem("an item", None, raw, "user", at=1, digest=sha256(raw.encode()).digest())
    origin = ConversationOrigin(client="a client", session="an imported session")
    usage = EntryMetadata(usage=Usage(model="m", input_tokens=5)).canonical_json()
    said = Message.assistant("imported").canonical_json()
    reply = ImportItem(
        "a reply", "an item", said, "assistant", at=1, digest=sha256(said.encode()).digest(), metadata=usage
    )
    return ImportBatch(ConversationRecord(conversation, "", 1, 1, origin), [item, reply], {})


async def fill_store(store: SqlStore) -> None:
    """Writes the same rows for every tenant, so that ids, digests and paths are equal in each partition."""
    file = FilePart(blob=await store.put_blob(b"a document"))
    names = [f"conversation {number}" for number in range(CONVERSATIONS)]
    for number, name in enumerate(names):
        await store.create_conversation(name)
        question = Draft(body=Message.user(name), references=REFERENCES)
        turn = make_turn(body=b"a body")._replace(drafts=(question, ANSWER))
        await store.record_reply(name, await with_exchange(store, name, turn, b"a body"))
        await store.passages.put(f"vault:{number}", [Passage("note.md", name)])
    await store.append(names[0], Message(role="user", parts=(TextPart(text="a file"), file)))
    await store.message_index.put_segments([SEGMENT._replace(conversation=name) for name in names])
    await store.imports.append([make_import(f"imported {number}") for number in range(CONVERSATIONS)])
    await store.imports.record_continued("a session", ContinuedSession("imported 0", 0, 1, 1))
    await store.imports.record_files([FileVersion(b"a file", 1, 1)], {"imported 0": "[]"})
    while await store.usage.count():
        pass
    await store.append("conversation 0", Message.user("an uncounted message"))
    await store.memories.add("agent", "a memory", citation=Citation("conversation 0", 0, 1))
    note = VaultDocument("note.md", b"digest", 1, 1)
    await store.documents.put("vault", [IndexedDocument(note, (Passage("note.md", "a note"),))])
    await store.transcripts.append(TRANSCRIPT, [TranscriptLine("id", "{}")])
    await store.keys.create("a key", ["read"])
    await store.spending.reserve("conversation 0", 1.0, SpendCaps(tenant=100.0))
    await store.leases.acquire("conversation 0", 0, owner="a process")
    await store.turn_events.append("conversation 0", "a turn", 0, "[]")
    await store.rate_limits.take("a key", per_minute=60, permits=1)
    user = await TeamStore(store).users.confirm("a subject", name="a name", email="an address", roles=["member"])
    await TeamStore(store).sessions.create(b"a digest", user.id, expires_at=2**62, refresh_at=2**62, tokens="tokens")
    await TeamStore(store).shares.set_readers(user.id, "conversation 0", ["a reader"])
    await TeamStore(store).audit.append("sign_in", actor=user.id, target={})
    await TeamStore(store).audit.claim_export(claim="a process", seconds=60)
    await store.run(write, insert_object_rows)
    person = await TeamStore(store).directory.create_user({"userName": "a name", "active": True}, {})
    await TeamStore(store).directory.create_group(GroupChange("a group", None, frozenset({person.id})), {})


def insert_object_rows(connection: Connection, tenant: str) -> None:
    """What a conversation in object storage and an unfinished upload have in the database."""
    archive = {"conversation": "conversation 0", "object": None, "title": "", "tokens": 0, "bytes": 0, "changed_at": 1}
    insert_rows(connection, archives, [with_row_digest(archives, {"tenant": tenant, **archive})])
    reply = {"tenant": tenant, "response_id": "a response", "conversation": "conversation 0"}
    insert_rows(connection, archived_replies, [reply])
    insert_rows(connection, pending_objects, [{"tenant": tenant, "object": "an upload", "since": 1}])
    request = {"tenant": tenant, "response": "a response", "conversation": "conversation 0", "created_at": 1}
    insert_rows(connection, background_responses, [{**request, "request": "{}"}])


@pytest.fixture
async def filled_store(store: SqlStore) -> None:
    for tenant in ("a", "b"):
        await fill_store(store.for_tenant(tenant, max_stored_bytes=1_000_000_000))


@pytest.fixture
def owner(admin_url: str, filled_store: None) -> Iterator[Session]:
    """A superuser session, which sees all rows."""
    with psycopg.connect(admin_url, autocommit=True) as session:
        # The tenants are not encrypted, so that their rows are equal.
        session.execute(
            "INSERT INTO quire_tenant_keys SELECT tenant, 'id', 'key', 1 FROM unnest('{a,b}'::text[]) tenant"
        )
        yield session


def tables(owner: Session) -> list[str]:
    return sorted(name for (name,) in owner.execute(TABLES))


def read_rows(owner: Session, table: str, tenant: str) -> Rows:
    """Rows with their ctid and xmin, which change even when a row is rewritten with the same values."""
    query = sql.SQL(
        "SELECT tableoid, ctid, xmin::text, stored.* FROM {} AS stored WHERE tenant = %s ORDER BY tableoid, ctid"
    )
    return owner.execute(query.format(sql.Identifier(table)), [tenant]).fetchall()


def build_statements(owner: Session, table: str) -> Iterator[sql.Composed]:
    """Statements that could change rows of another tenant; none of them filters by tenant."""
    name = sql.Identifier(table)
    columns = [column for (column,) in owner.execute(COLUMNS, [table])]
    for column in map(sql.Identifier, columns):
        yield sql.SQL("UPDATE {} SET {} = {}").format(name, column, column)
    yield sql.SQL("UPDATE {} SET tenant = 'b'").format(name)
    other_row = sql.SQL(", ").join(map(sql.Literal, read_other_row(owner, table, columns)))
    yield sql.SQL("INSERT INTO {} VALUES ({})").format(name, other_row)
    yield sql.SQL("INSERT INTO {} VALUES ({}) ON CONFLICT DO NOTHING").format(name, other_row)
    yield sql.SQL("DELETE FROM {}").format(name)
    yield sql.SQL("TRUNCATE {} CASCADE").format(name)


def read_other_row(owner: Session, table: str, columns: list[str]) -> tuple[Any, ...]:
    query = sql.SQL("SELECT {} FROM {} WHERE tenant = 'b' LIMIT 1")
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    row = owner.execute(query.format(listed, sql.Identifier(table))).fetchone()
    assert row is not None
    return row


def try_statement(session: Session, tenant: str | None, statement: sql.Composed) -> Rows | None:
    """The rows that the statement returns as this tenant, or None if the database refuses it."""
    try:
        with session.transaction():
            if tenant is not None:
                session.execute("SELECT set_config('quire.tenant', %s, true)", [tenant])
            cursor = session.execute(statement)
            return cursor.fetchall() if cursor.description else [("rows written", cursor.rowcount)]
    except (errors.InsufficientPrivilege, errors.ForeignKeyViolation):
        return None


def list_visible_tenants(session: Session, tenant: str | None, table: str) -> set[str] | None:
    rows = try_statement(session, tenant, sql.SQL("SELECT tenant FROM {}").format(sql.Identifier(table)))
    return None if rows is None else {row[0] for row in rows}


@pytest.mark.every_postgres
def test_no_statement_sees_or_changes_another_tenants_rows(owner: Session, database_url: str) -> None:
    names = [table for (table,) in owner.execute(TABLES_IN_REACH)]
    assert len(tables(owner)) >= 6 + 2 * 16
    # Partitions are reached through their table alone: the role has no right to them.
    assert not [table for table in names if re.search(r"_\d\d$", table)]
    for table in names:
        assert read_rows(owner, table, "a"), table
        assert read_rows(owner, table, "b"), table
    insert = sql.SQL("INSERT INTO quire_conversations VALUES ('', 'without tenant', '', 0, 0)").format()
    for tenant in (*NO_TENANT, "a"):
        with psycopg.connect(database_url, autocommit=True) as session:
            visible = {table: list_visible_tenants(session, tenant, table) for table in names}
            readable = {table: tenants for table, tenants in visible.items() if tenants is not None}
            assert len(readable) >= 6
            assert readable == {table: {"a"} if tenant == "a" else set() for table in readable}
            if tenant != "a":
                assert try_statement(session, tenant, insert) is None
            for table in names:
                before = read_rows(owner, table, "b")
                for statement in build_statements(owner, table):
                    try_statement(session, tenant, statement)
                # The ctid and xmin of a row show which of the statements reached it.
                assert read_rows(owner, table, "b") == before, table


@pytest.mark.every_postgres
def test_the_version_cannot_be_changed_by_the_application(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as session:
        assert try_statement(session, None, sql.SQL("SELECT * FROM quire_version").format())
        assert try_statement(session, None, sql.SQL("DELETE FROM quire_version").format()) is None
        assert try_statement(session, None, sql.SQL("UPDATE quire_version SET version_num = '0'").format()) is None


@pytest.mark.every_postgres
def test_every_table_is_under_row_level_security(admin_url: str) -> None:
    with psycopg.connect(admin_url) as owner:
        assert {name for (name,) in owner.execute(UNPROTECTED)} == TABLES_WITH_EXTRA_POLICIES
        # Proves that the query above notices a forgotten table, view or policy.
        owner.execute("CREATE TABLE quire_forgotten (tenant text)")
        owner.execute("CREATE TABLE quire_open (tenant text)")
        for statement in ("ENABLE ROW LEVEL SECURITY", "FORCE ROW LEVEL SECURITY"):
            owner.execute(sql.SQL("ALTER TABLE quire_open {}").format(sql.SQL(statement)))
        owner.execute("CREATE POLICY everyone ON quire_open USING (true) WITH CHECK (true)")
        owner.execute("CREATE VIEW quire_all AS SELECT * FROM quire_entries")
        owner.execute("CREATE POLICY more ON quire_blobs FOR SELECT USING (true)")
        found = {name for (name,) in owner.execute(UNPROTECTED)}
        assert found == {"quire_forgotten", "quire_open", "quire_all", "quire_blobs"} | TABLES_WITH_EXTRA_POLICIES


MESSAGE = Message.user("a's own")
SEGMENT = SegmentUpdate(
    "theirs", 0, 0, 1, 1, None, 0, SegmentData(b"columns", b"terms"), None, ((0, ({"message": 1},)),)
)
SEGMENT_TASK = SegmentTask("theirs", 0, 0, 1, None, None, ())
TOPIC = Topic(kind="topic", label="a's topic", text="a message", messages=(1,))
NOTE = IndexedDocument(VaultDocument("note.md", b"digest", 1, 1), (Passage("note.md", "a's note"),))
SCOPES = ("memory:agent", "vault:vault")

REFUSED: dict[str, Callable[[SqlStore], Any]] = {
    "get_conversation": lambda store: store.get_conversation("theirs"),
    "is_purged": lambda store: store.is_purged("theirs"),
    "get_metadata": lambda store: store.get_metadata("theirs"),
    "set_metadata": lambda store: store.set_metadata("theirs", {"a": "b"}),
    "set_tags": lambda store: store.set_tags("theirs", ["mine"]),
    "rename_conversation": lambda store: store.rename_conversation("theirs", "mine"),
    "get_branch": lambda store: store.get_branch("theirs"),
    "list_branches": lambda store: store.list_branches("theirs"),
    "fork": lambda store: store.fork("theirs", at=1),
    "append": lambda store: store.append("theirs", MESSAGE),
    "get_entry": lambda store: store.get_entry("theirs", 1),
    "get_entries": lambda store: store.get_entries("theirs", [1]),
    "read_range": lambda store: store.read_range("theirs"),
    "find_replies": lambda store: store.find_replies("theirs", "text"),
    "list_referencing_entries": lambda store: store.list_referencing_entries("theirs"),
    "read_tail": lambda store: store.read_tail("theirs", 1),
    "read_window": lambda store: store.read_window("theirs"),
    "record_reply": lambda store: store.record_reply("theirs", make_turn(MESSAGE)),
    "get_manifest": lambda store: store.get_manifest("theirs", 1),
    "get_request_body": lambda store: store.get_request_body("theirs", 1),
    "get_request_bodies": lambda store: store.get_request_bodies("theirs", [1]),
    "list_manifests": lambda store: store.list_manifests("theirs"),
    "list_manifest_texts": lambda store: store.list_manifest_texts("theirs", first=1, last=2),
    "list_roles": lambda store: store.list_roles("theirs"),
    "sum_message_tokens": lambda store: store.sum_message_tokens("theirs", span=Span(first=1, last=2)),
    "spending.add_cost": lambda store: store.spending.add_cost("theirs", 1.0),
    "purge": lambda store: store.purge("theirs"),
    "thin_manifests": lambda store: store.thin_manifests("theirs", before=2**62),
    "verify_conversation": lambda store: store.verify_conversation("theirs"),
    "export_conversation": lambda store: collect_export(store, "theirs"),
    "message_index.list_segments": lambda store: store.message_index.list_segments("theirs"),
    "message_index.read_segments": lambda store: store.message_index.read_segments(
        "theirs", [SegmentRef(0, 0, 0, 1, 1, 0, 1, None)]
    ),
    "message_index.put_segments": lambda store: store.message_index.put_segments([SEGMENT]),
    "offloading.offload": lambda store: store.offloading.offload("theirs"),
    "take_over": lambda store: store.take_over("theirs"),
    "reimport.replace": lambda store: store.reimport.replace(make_import("theirs")),
    "reimport.delete_twin": lambda store: store.reimport.delete_twin("theirs"),
    "reimport.is_plain_import": lambda store: store.reimport.is_plain_import("theirs"),
    "memories.add": lambda store: store.memories.add("agent", "mine", citation=Citation("theirs", 0, 1)),
}
WITHOUT_CONVERSATION = {
    "create_conversation",
    "open_conversation",
    "list_conversations",
    "list_origins",
    "list_tags",
    "list_session",
    "fill_titles",
    "sum_tokens",
    "match_history",
    "get_request",
    "begin_exchange",
    "end_exchange",
    "list_unanswered",
    "find_exchange",
    "read_exchange",
    "find_response",
    "forget_response",
    "get_calibration",
    "spending.charge",
    "spending.get_cost",
    "get_conversation_cost",
    "has_purged_content",
    "spending.check",
    "spending.reserve",
    "spending.settle",
    "put_blob",
    "rewrap_keys",
    "get_blob",
    "import_conversation",
    "imports.append",
    "imports.read_ledgers",
    "imports.list_sessions",
    "imports.list_outdated",
    "imports.list_doubles",
    "imports.record_continued",
    "imports.read_continued",
    "imports.has_imported",
    "imports.list_files",
    "imports.record_files",
    "imports.read_observations",
    "usage.list_conversation_costs",
    "usage.list_session_costs",
    "usage.read_sub_agents",
    "transcripts.append",
    "transcripts.load",
    "transcripts.list",
    "transcripts.list_subpaths",
    "transcripts.delete",
    "transcripts.link",
    "purge_value",
    "find_value",
    "verify_tenant",
    "purge_tenant",
    "check",
    "check_recordable",
    "fetch_branches",
    "close",
    "for_tenant",
    "get_pool_stats",
    "observe_transactions",
    "on_connection_loss",
    "open",
    "offloading.collect",
    "offloading.delete_all",
    "offloading.get_storage",
    "offloading.has_objects",
    "offloading.is_restored",
    "offloading.list_restored",
    "offloading.move_blobs",
    "offloading.read_in_transaction",
    "offloading.read_messages",
    "offloading.read_object",
    "offloading.restore",
    "offloading.restore_containing",
    "read_messages",
    "passages.list_unembedded_scopes",
    "spending.find_key",
    "spending.sum_by_key",
    "passages.search",
    "passages.put",
    "passages.delete",
    "passages.get",
    "passages.list_unembedded",
    "passages.put_vectors",
    "memories.replace",
    "memories.retire",
    "memories.get",
    "memories.list",
    "documents.put",
    "documents.delete",
    "documents.touch",
    "documents.list",
    "message_index.fetch_segments",
    "message_index.has_unindexed",
    "message_index.remove_retired",
    "message_index.read_batch",
    "message_index.mark_unembedded",
    "message_index.reset_format",
    "message_index.read_changes",
    "message_index.read_messages",
    "message_index.list_topics",
    "message_index.find_topics",
    "list_conversation_ids",
    "usage.has_uncounted",
    "usage.count",
    "usage.read_conversation",
    "usage.read_report",
    "usage.read_document_pairs",
    "usage.read_item_counts",
    "usage.recount",
}


async def collect_export(store: SqlStore, conversation: str) -> list[str]:
    return [line async for line in store.export_conversation(conversation)]


# These parts are tested on their own: they hold nothing of a conversation's content, or see all tenants by design.
OTHER_PARTS = {
    "keys", "rate_limits", "leases", "turn_events", "samples", "all_tenants", "users", "sessions",
    "shares", "audit", "directory",
}  # fmt: skip


def list_methods(owner: object) -> set[str]:
    inherited = {name for name, _ in inspect.getmembers(StorePart, inspect.isfunction)}
    methods = {name for name, _ in inspect.getmembers(owner, inspect.isroutine) if not name.startswith("_")}
    return methods - inherited


def test_every_method_of_a_store_is_accounted_for() -> None:
    no_database: Any = None
    store = SqlStore(no_database)
    parts = {name: part for name, part in vars(store).items() if isinstance(part, StorePart)}
    methods = list_methods(store) | {
        f"{name}.{method}" for name, part in parts.items() if name not in OTHER_PARTS for method in list_methods(part)
    }
    assert methods == set(REFUSED) | WITHOUT_CONVERSATION
    assert not set(REFUSED) & WITHOUT_CONVERSATION


@pytest.fixture
async def other_store(store: SqlStore) -> SqlStore:
    """The store of tenant `a`, which has a conversation and a blob."""
    other = store.for_tenant("a")
    await other.create_conversation("theirs", origin=ConversationOrigin(client="a client", session="a's session"))
    file = FilePart(blob=await other.put_blob(b"a's document"))
    await other.append("theirs", MESSAGE, Message(role="user", parts=(file,)))
    turn = make_turn(Message.user("a question"), Message.assistant("an answer"))
    await other.record_reply("theirs", turn._replace(request_id="a's request", response_id="a's response"))
    await other.append("theirs", TopicIndex(covers=Span(first=1, last=2), topics=(TOPIC,)))
    await other.message_index.put_segments([SEGMENT])
    await other.memories.add("agent", "a's memory", citation=Citation("theirs", 0, 1))
    await other.transcripts.append(TRANSCRIPT, [TranscriptLine("id", "a's line")])
    await other.documents.put("vault", [NOTE])
    return other


async def test_no_method_reaches_another_tenants_conversation(other_store: SqlStore) -> None:
    await other_store.set_tags("theirs", ["a tag"])
    before = await collect_export(other_store, "theirs")
    mine = other_store.for_tenant("b")
    for name, call in REFUSED.items():
        with pytest.raises(ConversationNotFound):
            pytest.fail(f"{name} gave {await call(mine)}")
    assert await mine.list_conversations() == []
    assert await mine.list_origins() == []
    assert await mine.list_tags() == []
    assert [each.client for each in await other_store.list_origins()] == ["a client"]
    assert await mine.imports.list_sessions("a client", ["a's session"]) == {}
    assert list(await other_store.imports.list_sessions("a client", ["a's session"])) == ["a's session"]
    await other_store.imports.append([make_import("imported")])
    assert list(await other_store.imports.read_ledgers(["imported"])) == ["imported"]
    assert await mine.imports.read_ledgers(["imported"]) == {}
    await mine.imports.append([make_import("imported")])
    assert [(await each.get_branch("imported")).head_seq for each in (mine, other_store)] == [2, 2]
    record = await other_store.get_conversation("theirs")
    [titled] = await other_store.fill_titles(record)
    assert titled.title
    assert await mine.fill_titles(record) == [record]
    assert await mine.sum_tokens(["theirs"]) == {}
    assert await other_store.sum_tokens(["theirs"]) != {}
    assert await mine.get_calibration("test") is None
    assert await mine.find_value("a's document") == {}
    await mine.transcripts.delete(TRANSCRIPT)
    await mine.transcripts.link(TRANSCRIPT, "mine")
    assert await mine.transcripts.load(TRANSCRIPT) is None
    assert await mine.transcripts.list("project") == []
    assert await mine.transcripts.list_subpaths("project", "session") == []
    assert await other_store.transcripts.load(TRANSCRIPT) == ["a's line"]
    assert (await mine.purge_value("a's document")).entries == ()
    assert await other_store.find_value("a's document")
    assert await mine.spending.get_cost("theirs") == await mine.get_conversation_cost("theirs") == 0
    assert not await mine.imports.has_imported("theirs")
    theirs = FileVersion(b"file", 1, 2)
    await other_store.imports.record_files([theirs], {"imported": "[]"})
    assert await other_store.imports.list_files() == {b"file": theirs}
    assert [each.conversation for each in await other_store.imports.read_observations()] == ["imported"]
    assert await mine.imports.list_files() == {}
    assert await mine.imports.read_observations() == []
    assert [each.conversation for each in await mine.usage.list_conversation_costs()] == ["imported"]
    assert await mine.usage.list_session_costs("a session") == []
    assert await mine.usage.read_sub_agents(record) == (NO_SUB_AGENTS, {})
    assert not any(await mine.usage.read_conversation("theirs"))
    path = (await other_store.get_entry("theirs", 1)).path
    assert await other_store.match_history([path]) is not None
    assert await mine.match_history([path]) is None
    assert await mine.match_history([path], conversation="theirs") is None
    assert (await other_store.get_request("a's request")).conversation == "theirs"
    with pytest.raises(RequestNotFound):
        await mine.get_request("a's request")
    with pytest.raises(ResponseNotFound):
        await mine.find_response("a's response")
    assert not await mine.forget_response("a's response")
    assert (await other_store.find_response("a's response")).conversation == "theirs"
    assert await other_store.list_session("a's session") == [record]
    assert await mine.list_session("a's session") == []
    assert await other_store.match_history([path], session="a's session") is not None
    assert await mine.match_history([path], session="a's session") is None
    assert await collect_export(other_store, "theirs") == before


async def test_no_segments_of_another_tenants_branch_are_fetched(other_store: SqlStore) -> None:
    branch = await other_store.get_branch("theirs")
    assert await other_store.message_index.fetch_segments(branch)
    assert await other_store.for_tenant("b").message_index.fetch_segments(branch) == []


async def test_no_method_counts_or_settles_another_tenants_spending(other_store: SqlStore) -> None:
    caps = SpendCaps(conversation=1.0, key=1.0, tenant=1.0)
    reservation = await other_store.spending.reserve("theirs", 1.0, caps)
    spent = await other_store.spending.get_cost("theirs")
    mine = other_store.for_tenant("b")
    await mine.spending.settle(reservation, 9.0)
    await mine.spending.check("theirs", caps)
    assert await mine.spending.get_cost("theirs") == 0
    assert await other_store.spending.get_cost("theirs") == spent
    with pytest.raises(SpendReserved):
        await other_store.spending.reserve("theirs", 1.0, caps)
    await mine.spending.reserve("theirs", 1.0, caps)
    await other_store.spending.settle(reservation, 1.0)
    with pytest.raises(SpendCapReached):
        await other_store.spending.check("theirs", caps)
    await mine.spending.check("theirs", caps)
    before = await other_store.spending.get_cost("theirs")
    await mine.spending.charge("theirs", 5.0)
    assert (await mine.spending.get_cost("theirs"), await other_store.spending.get_cost("theirs")) == (5.0, before)


async def test_another_tenants_blobs_are_out_of_reach(other_store: SqlStore) -> None:
    mine = other_store.for_tenant("b")
    digest = (await other_store.get_entry("theirs", 2)).message.parts[0].blob
    with pytest.raises(BlobNotFound):
        await mine.get_blob(digest)
    await mine.create_conversation("mine")
    quoting = Message(role="user", parts=(FilePart(blob=digest),))
    with pytest.raises(BlobNotFound):
        await mine.append("mine", quoting)


async def search_everything(store: SqlStore) -> object:
    """All results of a search and of the methods that list what it searches."""
    [memory] = await store.memories.list("agent")
    return (
        await store.passages.search("message memory note", scopes=SCOPES, vector=[1.0], embedder="e"),
        [await store.passages.list_unembedded(scope, embedder="e") for scope in SCOPES],
        [await store.passages.get(scope, key) for scope, key in zip(SCOPES, (memory.id, "note.md"), strict=True)],
        await store.message_index.list_segments("theirs"),
        await store.message_index.read_changes(["message"], after_revision=0),
        await store.message_index.read_batch(max_entries=10),
        await store.message_index.read_messages([MessageKey("theirs", 0, 1)]),
        await store.message_index.list_topics(SEGMENT_TASK),
        await store.message_index.find_topics([MessageKey("theirs", 0, 1)]),
        await store.list_conversation_ids(),
        await store.documents.list("vault"),
        await store.memories.list("agent", include_retired=True),
    )


async def test_no_method_finds_or_changes_what_another_tenant_can_find(other_store: SqlStore) -> None:
    before = await search_everything(other_store)
    [hits, *_] = before
    assert (await other_store.message_index.list_topics(SEGMENT_TASK)).keys() == {1}
    assert {hit.scope for hit in hits} == set(SCOPES)
    mine = other_store.for_tenant("b")
    [memory] = await other_store.memories.list("agent")
    assert await mine.passages.search("message memory note", scopes=SCOPES, vector=[1.0], embedder="e") == []
    for scope in SCOPES:
        assert await mine.passages.list_unembedded(scope, embedder="e") == []
        assert await mine.passages.get(scope, hits[0].key) == []
        lacking = await other_store.passages.list_unembedded(scope, embedder="e")
        new_vectors = [PassageVector(each.key, each.part, each.digest, pack_vector([1.0])) for each in lacking]
        await mine.passages.put_vectors(scope, new_vectors, embedder="e")
        await mine.passages.delete(scope, [hit.key for hit in hits])
    assert await mine.memories.list("agent", include_retired=True) == []
    assert await mine.documents.list("vault") == []
    assert not await mine.message_index.has_unindexed()
    assert not await mine.usage.has_uncounted()
    assert await mine.usage.count() == 0
    assert not any((await mine.usage.read_report()).totals)
    assert await mine.usage.read_document_pairs() == []
    assert await mine.usage.read_item_counts(items=[("tool", "look"), ("rule", "tone")]) == {}
    assert await mine.usage.recount() == (0, 0, 0)
    assert await mine.message_index.read_batch(max_entries=10) == ((), ())
    read = await mine.message_index.read_changes(["message"], after_revision=0)
    assert (read.changes, read.postings) == ((), {})
    assert await mine.message_index.read_messages([MessageKey("theirs", 0, 1)]) == ([None], {})
    assert await mine.message_index.list_topics(SEGMENT_TASK) == {}
    assert await mine.message_index.find_topics([MessageKey("theirs", 0, 1)]) == {}
    assert await mine.list_conversation_ids() == []
    assert await mine.message_index.mark_unembedded("e") == 0
    await mine.message_index.reset_format()
    for call in (
        mine.memories.get(memory.id),
        mine.memories.retire(memory.id),
        mine.memories.replace(memory.id, "mine", source="s"),
    ):
        with pytest.raises(MemoryNotFound):
            await call
    await mine.passages.put("vault:vault", [Passage("note.md", "b's note")])
    await mine.documents.put("vault", [NOTE])
    await mine.documents.delete("vault", ["note.md"])
    await mine.documents.touch("vault", [("note.md", 9, 9)])
    assert await search_everything(other_store) == before


async def test_equal_content_is_stored_for_each_tenant(other_store: SqlStore) -> None:
    """With the same ids, messages and blobs, a purge by one tenant does not affect the other."""
    before = await collect_export(other_store, "theirs")
    mine = other_store.for_tenant("b")
    await mine.import_conversation(before)
    match = await mine.match_history([(await mine.get_entry("theirs", 1)).path])
    assert match is not None
    assert match.branch.conversation == "theirs"
    await mine.purge("theirs")
    assert await collect_export(other_store, "theirs") == before
    assert await collect_export(mine, "theirs") != before


async def test_no_sample_has_a_conversation_of_another_tenant(store: SqlStore, other_store: SqlStore) -> None:
    mine, every_path = store.for_tenant("b"), [bytes([first]) + bytes(31) for first in range(256)]
    assert await other_store.samples.list_frame(limit=9) == ["theirs"]
    assert set(await other_store.samples.draw_messages(every_path)) == {"theirs"}
    assert await other_store.samples.count_messages("theirs") > 0
    assert await mine.samples.list_frame(limit=9) == []
    assert await mine.samples.draw_messages(every_path) == []
    assert await mine.samples.count_messages("theirs") == 0
