"""Two tenants in one database: neither sees or changes what is the other's, by any statement or any method."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from quire.errors import BlobNotFound, ConversationNotFound, MemoryNotFound, RequestNotFound
from quire.log import (
    Citation,
    Document,
    Embedded,
    IndexedDocument,
    Passage,
    Shelf,
    ShelfMark,
    SqlStore,
    Store,
    packed,
)
from quire.model import FilePart, Message, TextPart
from quire.testing.given import answered

on_postgres = pytest.mark.parametrize("backend", ["postgres18", "postgres15"])

# Enough that every partition has rows of both tenants.
CONVERSATIONS = 80

# A new session has no setting; in one that had a tenant before, it is empty.
NO_TENANT = (None, "")

# Whatever holds rows or shows them, so that a view is noticed too; but for what belongs to no tenant and names none.
TABLES = r"""
    SELECT relname FROM pg_class AS relation
    WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND relname LIKE 'quire\_%'
    AND relname NOT IN ('quire_version', 'quire_sweeps')
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
# What they let be seen besides a tenant's own rows, other tests say: of a key that is shown, test_keys; of all
# conversations their ids and times, by a function, test_due.
OF_THEIR_OWN = {"quire_keys", "quire_conversations"}
COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position"

Session = psycopg.Connection[tuple[Any, ...]]
Rows = list[tuple[Any, ...]]


async def fill(store: SqlStore) -> None:
    """The same for every tenant, so that ids, digests and paths meet in each partition."""
    file = FilePart(blob=await store.put_blob(b"a document"))
    for number in range(CONVERSATIONS):
        name = f"conversation {number}"
        await store.create_conversation(name)
        await store.append(name, Message(role="user", parts=(TextPart(text=name), file)))
        await store.record(name, answered(Message.user("a question"), Message.assistant("an answer")))
        await store.put_shelf(name, Shelf(0, 0, 1, b"index", (Passage("0:1", name),)))
    await store.remember("agent", "a memory", cites=Citation("conversation 0", 0, 1))
    note = Document("note.md", b"digest", 1, 1)
    await store.put_documents("vault", [IndexedDocument(note, (Passage("note.md", "a note"),))])
    await store.create_key("a key", ["read"])


@pytest.fixture
async def filled(store: SqlStore) -> None:
    for tenant in ("a", "b"):
        await fill(store.for_tenant(tenant))


@pytest.fixture
def owner(admin_url: str, filled: None) -> Iterator[Session]:
    """A session that sees all rows."""
    with psycopg.connect(admin_url, autocommit=True) as session:
        yield session


def tables(owner: Session) -> list[str]:
    return sorted(name for (name,) in owner.execute(TABLES))


def rows_of(owner: Session, table: str, tenant: str) -> Rows:
    """With place and age of each row, which show that it was written even if with the same values."""
    wanted = sql.SQL("SELECT tableoid, ctid, xmin::text, stored.* FROM {} AS stored WHERE tenant = %s ORDER BY ctid")
    return owner.execute(wanted.format(sql.Identifier(table)), [tenant]).fetchall()


def statements(owner: Session, table: str) -> Iterator[sql.Composed]:
    """Whatever could reach other rows than a tenant's own, none of it careful to name a tenant."""
    name = sql.Identifier(table)
    columns = [column for (column,) in owner.execute(COLUMNS, [table])]
    for column in map(sql.Identifier, columns):
        yield sql.SQL("UPDATE {} SET {} = {}").format(name, column, column)
    yield sql.SQL("UPDATE {} SET tenant = 'b'").format(name)
    theirs = sql.SQL(", ").join(map(sql.Literal, their_row(owner, table, columns)))
    yield sql.SQL("INSERT INTO {} VALUES ({})").format(name, theirs)
    yield sql.SQL("INSERT INTO {} VALUES ({}) ON CONFLICT DO NOTHING").format(name, theirs)
    yield sql.SQL("DELETE FROM {}").format(name)
    yield sql.SQL("TRUNCATE {} CASCADE").format(name)


def their_row(owner: Session, table: str, columns: list[str]) -> tuple[Any, ...]:
    wanted = sql.SQL("SELECT {} FROM {} WHERE tenant = 'b' LIMIT 1")
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    row = owner.execute(wanted.format(listed, sql.Identifier(table))).fetchone()
    assert row is not None
    return row


def attempt(session: Session, tenant: str | None, statement: sql.Composed) -> Rows | None:
    """What the statement gives under this tenant; None where it is refused."""
    try:
        with session.transaction():
            if tenant is not None:
                session.execute("SELECT set_config('quire.tenant', %s, true)", [tenant])
            done = session.execute(statement)
            return done.fetchall() if done.description else [("rows written", done.rowcount)]
    except errors.InsufficientPrivilege:
        return None


def visible_tenants(session: Session, tenant: str | None, table: str) -> set[str] | None:
    seen = attempt(session, tenant, sql.SQL("SELECT tenant FROM {}").format(sql.Identifier(table)))
    return None if seen is None else {row[0] for row in seen}


@on_postgres
def test_no_statement_sees_another_tenants_rows(owner: Session, database_url: str) -> None:
    assert len(tables(owner)) >= 6 + 2 * 16
    for table in tables(owner):
        # There is something to be seen in each.
        assert rows_of(owner, table, "a"), table
        assert rows_of(owner, table, "b"), table
    with psycopg.connect(database_url, autocommit=True) as session:
        seen = {table: visible_tenants(session, "a", table) for table in tables(owner)}
    readable = {table: tenants for table, tenants in seen.items() if tenants is not None}
    assert len(readable) >= 6
    assert readable == {table: {"a"} for table in readable}


@on_postgres
def test_without_a_tenant_nothing_is_visible(owner: Session, database_url: str) -> None:
    of_nobody = sql.SQL("INSERT INTO quire_conversations VALUES ('', 'of nobody', '', 0)").format()
    for tenant in NO_TENANT:
        with psycopg.connect(database_url, autocommit=True) as session:
            for table in tables(owner):
                assert not visible_tenants(session, tenant, table), table
            assert attempt(session, tenant, of_nobody) is None


@on_postgres
def test_no_statement_changes_another_tenants_rows(owner: Session, database_url: str) -> None:
    for tenant in (*NO_TENANT, "a"):
        with psycopg.connect(database_url, autocommit=True) as session:
            for table in tables(owner):
                check_nothing_changes(owner, session, tenant, table)


def check_nothing_changes(owner: Session, session: Session, tenant: str | None, table: str) -> None:
    before = rows_of(owner, table, "b")
    for statement in statements(owner, table):
        attempt(session, tenant, statement)
        assert rows_of(owner, table, "b") == before, statement.as_string()


@on_postgres
def test_the_version_cannot_be_changed_by_the_application(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as session:
        assert attempt(session, None, sql.SQL("SELECT * FROM quire_version").format())
        assert attempt(session, None, sql.SQL("DELETE FROM quire_version").format()) is None
        assert attempt(session, None, sql.SQL("UPDATE quire_version SET version_num = '0'").format()) is None


@on_postgres
def test_every_table_is_under_row_level_security(admin_url: str) -> None:
    with psycopg.connect(admin_url) as owner:
        assert {name for (name,) in owner.execute(UNPROTECTED)} == OF_THEIR_OWN
        # So that the line above is known to notice what someone forgets.
        owner.execute("CREATE TABLE quire_forgotten (tenant text)")
        owner.execute("CREATE TABLE quire_open (tenant text)")
        for statement in ("ENABLE ROW LEVEL SECURITY", "FORCE ROW LEVEL SECURITY"):
            owner.execute(sql.SQL("ALTER TABLE quire_open {}").format(sql.SQL(statement)))
        owner.execute("CREATE POLICY everyone ON quire_open USING (true) WITH CHECK (true)")
        owner.execute("CREATE VIEW quire_all AS SELECT * FROM quire_entries")
        owner.execute("CREATE POLICY more ON quire_blobs FOR SELECT USING (true)")
        found = {name for (name,) in owner.execute(UNPROTECTED)}
        assert found == {"quire_forgotten", "quire_open", "quire_all", "quire_blobs"} | OF_THEIR_OWN


MESSAGE = Message.user("a's own")
SHELF = Shelf(0, 0, 1, b"index", (Passage("0:1", "a's message"),))
NOTE = IndexedDocument(Document("note.md", b"digest", 1, 1), (Passage("note.md", "a's note"),))
SCOPES = ("conversation:theirs", "memory:agent", "vault:vault")

REFUSED: dict[str, Callable[[Store], Any]] = {
    "conversation": lambda store: store.conversation("theirs"),
    "rename": lambda store: store.rename("theirs", "mine"),
    "branch": lambda store: store.branch("theirs"),
    "branches": lambda store: store.branches("theirs"),
    "fork": lambda store: store.fork("theirs", at=1),
    "append": lambda store: store.append("theirs", MESSAGE),
    "entry": lambda store: store.entry("theirs", 1),
    "entries": lambda store: store.entries("theirs", [1]),
    "range": lambda store: store.range("theirs"),
    "referring": lambda store: store.referring("theirs"),
    "tail": lambda store: store.tail("theirs", 1),
    "window": lambda store: store.window("theirs"),
    "record": lambda store: store.record("theirs", answered(MESSAGE)),
    "manifest": lambda store: store.manifest("theirs", 1),
    "manifests": lambda store: store.manifests("theirs"),
    "spend": lambda store: store.spend("theirs", 1.0),
    "purge": lambda store: store.purge("theirs"),
    "verify": lambda store: store.verify("theirs"),
    "export": lambda store: collected(store, "theirs"),
    "shelves": lambda store: store.shelves("theirs"),
    "read_shelves": lambda store: store.read_shelves("theirs", [ShelfMark(0, 0, 1, "v")]),
    "put_shelf": lambda store: store.put_shelf("theirs", SHELF),
    "remember": lambda store: store.remember("agent", "mine", cites=Citation("theirs", 0, 1)),
}
WITHOUT_CONVERSATION = {
    "create_conversation",
    "conversations",
    "titled",
    "longest_prefix",
    "recognise",
    "request",
    "calibration",
    "spent",
    "put_blob",
    "blob",
    "import_",
    "close",
    "search",
    "put_passages",
    "drop_passages",
    "passages",
    "unembedded",
    "put_vectors",
    "correct",
    "retire",
    "memory",
    "memories",
    "put_documents",
    "drop_documents",
    "touch_documents",
    "document_marks",
    "documents",
}


async def collected(store: Store, conversation: str) -> list[str]:
    return [line async for line in store.export(conversation)]


def test_every_method_of_a_store_is_accounted_for() -> None:
    methods = {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")}
    assert methods == set(REFUSED) | WITHOUT_CONVERSATION
    assert not set(REFUSED) & WITHOUT_CONVERSATION


@pytest.fixture
async def theirs(store: SqlStore) -> SqlStore:
    """The store of tenant a, who has a conversation and a blob in it."""
    theirs = store.for_tenant("a")
    await theirs.create_conversation("theirs")
    file = FilePart(blob=await theirs.put_blob(b"a's document"))
    await theirs.append("theirs", MESSAGE, Message(role="user", parts=(file,)))
    turn = answered(Message.user("a question"), Message.assistant("an answer"))
    await theirs.record("theirs", turn._replace(request="a's request"))
    await theirs.put_shelf("theirs", SHELF)
    await theirs.remember("agent", "a's memory", cites=Citation("theirs", 0, 1))
    await theirs.put_documents("vault", [NOTE])
    return theirs


@pytest.mark.every_backend
async def test_no_method_reaches_another_tenants_conversation(theirs: SqlStore) -> None:
    before = await collected(theirs, "theirs")
    mine = theirs.for_tenant("b")
    for name, call in REFUSED.items():
        with pytest.raises(ConversationNotFound):
            pytest.fail(f"{name} gave {await call(mine)}")
    assert await mine.conversations() == []
    [known] = await theirs.conversations()
    [called] = await theirs.titled(known)
    assert called.title
    assert await mine.titled(known) == [known]
    assert await mine.calibration("test") is None
    assert await mine.spent("theirs") == 0
    assert await mine.longest_prefix([MESSAGE]) is None
    assert await mine.longest_prefix([MESSAGE], conversation="theirs") is None
    assert await theirs.longest_prefix([MESSAGE]) is not None
    path = (await theirs.entry("theirs", 1)).path
    assert await theirs.recognise([path]) is not None
    assert await mine.recognise([path]) is None
    assert await mine.recognise([path], conversation="theirs") is None
    assert (await theirs.request("a's request")).conversation == "theirs"
    with pytest.raises(RequestNotFound):
        await mine.request("a's request")
    assert await collected(theirs, "theirs") == before


@pytest.mark.every_backend
async def test_another_tenants_blobs_are_out_of_reach(theirs: SqlStore) -> None:
    mine = theirs.for_tenant("b")
    digest = (await theirs.entry("theirs", 2)).message.parts[0].blob
    with pytest.raises(BlobNotFound):
        await mine.blob(digest)
    await mine.create_conversation("mine")
    quoting = Message(role="user", parts=(FilePart(blob=digest),))
    with pytest.raises(BlobNotFound):
        await mine.append("mine", quoting)


async def everything_found(store: Store) -> object:
    """All that a search, and whatever lists what it searches, gives."""
    [memory] = await store.memories("agent")
    return (
        await store.search("message memory note", scopes=SCOPES, vector=[1.0], embedder="e"),
        [await store.unembedded(scope, embedder="e") for scope in SCOPES],
        [await store.passages(scope, key) for scope, key in zip(SCOPES, ("0:1", memory.id, "note.md"), strict=True)],
        await store.shelves("theirs"),
        await store.documents("vault"),
        await store.document_marks("vault"),
        await store.memories("agent", retired=True),
    )


@pytest.mark.every_backend
async def test_no_method_finds_or_changes_what_another_tenant_can_find(theirs: SqlStore) -> None:
    before = await everything_found(theirs)
    [hits, *_] = before
    assert {hit.scope for hit in hits} == set(SCOPES)
    mine = theirs.for_tenant("b")
    [memory] = await theirs.memories("agent")
    assert await mine.search("message memory note", scopes=SCOPES, vector=[1.0], embedder="e") == []
    for scope in SCOPES:
        assert await mine.unembedded(scope, embedder="e") == []
        assert await mine.passages(scope, hits[0].key) == []
        lacking = await theirs.unembedded(scope, embedder="e")
        given = [Embedded(each.key, each.part, each.digest, packed([1.0])) for each in lacking]
        await mine.put_vectors(scope, given, embedder="e")
        await mine.drop_passages(scope, [hit.key for hit in hits])
    assert await mine.memories("agent", retired=True) == []
    assert await mine.documents("vault") == []
    assert await mine.document_marks("vault") == []
    for call in (mine.memory(memory.id), mine.retire(memory.id), mine.correct(memory.id, "mine", source="s")):
        with pytest.raises(MemoryNotFound):
            await call
    await mine.put_passages("vault:vault", [Passage("note.md", "b's note")])
    await mine.put_documents("vault", [NOTE])
    await mine.drop_documents("vault", ["note.md"])
    await mine.touch_documents("vault", [("note.md", 9, 9)])
    assert await everything_found(theirs) == before


@pytest.mark.every_backend
async def test_what_both_tenants_have_is_kept_for_each(theirs: SqlStore) -> None:
    """The same id, the same messages, the same blob: what one purges stays for the other."""
    before = await collected(theirs, "theirs")
    mine = theirs.for_tenant("b")
    await mine.import_(before)
    assert (await mine.longest_prefix([MESSAGE])).conversation == "theirs"
    await mine.purge("theirs")
    assert await collected(theirs, "theirs") == before
    assert await collected(mine, "theirs") != before
