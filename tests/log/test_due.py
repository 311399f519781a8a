"""Who used which conversation when, of all tenants: listed by ids and times, and by no other way."""

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors, sql
from sqlalchemy.engine import make_url

from quire.log import Shelf, SqlStore, migrate
from quire.log.due import Used
from quire.log.found import Embedded, Passage
from quire.log.vectors import packed
from quire.model import Message
from quire.testing.postgres import Server

on_postgres = pytest.mark.parametrize("backend", ["postgres18", "postgres15"])
EVER = 1 << 60


async def listed(store: SqlStore, *, since: int = 0, upto: int = EVER, limit: int = 500) -> list[Used]:
    found: list[Used] = []
    while page := await store.used(since=since, upto=upto, limit=limit, after=found[-1] if found else None):
        found += page
    return found


async def made(store: SqlStore, *names: str) -> list[Used]:
    known = [await store.for_tenant(name[0]).create_conversation(name) for name in names]
    return sorted(
        (Used(each.id[0], each.id, each.used_at) for each in known),
        key=lambda used: (used.used_at, used.tenant, used.conversation),
    )


@pytest.mark.every_backend
async def test_the_conversations_of_all_tenants_are_listed_in_the_order_of_their_use(store: SqlStore):
    expected = await made(store, "a1", "b1", "a2", "c1")
    assert await listed(store) == expected
    assert await listed(store.for_tenant("a"), limit=1) == expected
    assert await listed(store, since=expected[1].used_at) == expected[1:]
    assert await listed(store, upto=expected[1].used_at) == expected[:2]
    assert await listed(store, upto=expected[0].used_at - 1) == []


@pytest.mark.every_backend
async def test_those_used_at_the_same_time_are_each_listed_once(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.log.store.now", lambda: 1_000)
    expected = await made(store, *(f"{tenant}{number}" for tenant in "abc" for number in range(4)))
    assert {used.used_at for used in expected} == {1_000}
    assert await listed(store, limit=5) == expected


@pytest.mark.every_backend
async def test_how_far_somebody_looked_is_kept_for_all(store: SqlStore):
    assert await store.looked("minute") is None
    await store.note_look("minute", 5)
    await store.for_tenant("a").note_look("minute", 7)
    await store.note_look("hour", 1)
    assert await store.for_tenant("b").looked("minute") == 7


@pytest.mark.every_backend
async def test_passages_without_vectors_are_found_in_messages_and_memories(store: SqlStore):
    for tenant in ("a", "b"):
        mine = store.for_tenant(tenant)
        await mine.create_conversation("c")
        await mine.append("c", Message.user("the mill"))
        await mine.put_shelf("c", Shelf(0, 0, 1, b"index", (Passage("0:1", "the mill"),)))
        await mine.remember("sailor", "her name is Gannet", source="by hand")
    mine = store.for_tenant("a")
    assert await mine.scopes_without_vectors("c", embedder="e") == ["conversation:c", "memory:sailor"]
    for scope in ("conversation:c", "memory:sailor"):
        lacking = await mine.unembedded(scope, embedder="e")
        await mine.put_vectors(
            scope, [Embedded(each.key, each.part, each.digest, packed([1.0])) for each in lacking], embedder="e"
        )
    assert await mine.scopes_without_vectors("c", embedder="e") == []
    # Another embedder's vectors are none.
    assert await mine.scopes_without_vectors("c", embedder="d") == ["conversation:c", "memory:sailor"]
    assert await store.for_tenant("b").scopes_without_vectors("c", embedder="e") != []


@pytest.fixture
def owned(admin_url: str) -> Iterator[tuple[str, str]]:
    """A database whose owner is no superuser, as its owner reaches it and as the application does."""
    server, name = Server(make_url(admin_url).port or 0), f"owned_{uuid.uuid4().hex}"
    server.create_role("quire_owner")
    server.create_database(name)
    with psycopg.connect(server.url(name), autocommit=True) as superuser:
        superuser.execute(sql.SQL("ALTER DATABASE {} OWNER TO quire_owner").format(sql.Identifier(name)))
        superuser.execute("ALTER SCHEMA public OWNER TO quire_owner")
    owner = server.url(name, user="quire_owner")
    migrate.upgrade(owner)
    migrate.grant(owner, "quire_app")
    yield owner, server.url(name, user="quire_app")
    server.drop_database(name)


@on_postgres
async def test_an_owner_whom_row_level_security_holds_can_still_have_it_listed(owned: tuple[str, str]):
    owner, application = owned
    async with SqlStore.open(application) as store:
        expected = await made(store, "a1", "b1", "a2")
        assert await listed(store) == expected
    with psycopg.connect(owner, autocommit=True) as session:
        assert session.execute("SELECT count(*) FROM quire_conversations").fetchall() == [(0,)]


@on_postgres
async def test_the_application_gets_ids_and_times_and_nothing_more(owned: tuple[str, str]):
    _, application = owned
    async with SqlStore.open(application) as store:
        await made(store, "a1", "b1")
    with psycopg.connect(application, autocommit=True) as session:
        # What lets the function see all rows lets nobody else.
        session.execute("SET quire.sweep = 'on'")
        assert session.execute("SELECT * FROM quire_conversations").fetchall() == []
        session.execute("SELECT set_config('quire.tenant', 'a', false)")
        assert session.execute("SELECT conversation FROM quire_conversations").fetchall() == [("a1",)]
        assert session.execute("SELECT * FROM quire_branches").rowcount == 1
        # Nor does it last longer than the call.
        session.execute("RESET quire.sweep")
        session.execute("SELECT * FROM quire_used(0, '', '', 9000000000000000000, 10)")
        assert session.execute("SELECT current_setting('quire.sweep', true)").fetchall() in ([("",)], [(None,)])
        with pytest.raises(errors.InsufficientPrivilege):
            session.execute("DELETE FROM quire_sweeps")
        # A table of one's own in its place changes nothing for the function.
        session.execute("CREATE TEMP TABLE quire_conversations (tenant text, conversation text, used_at bigint)")
        found = session.execute("SELECT conversation FROM quire_used(0, '', '', 9000000000000000000, 10)").fetchall()
        assert found == [("a1",), ("b1",)]


@on_postgres
def test_a_role_that_was_not_let_in_cannot_list_anything(owned: tuple[str, str]):
    owner, _ = owned
    server = Server(make_url(owner).port or 0)
    server.create_role("quire_stranger")
    url = server.url(str(make_url(owner).database), user="quire_stranger")
    with psycopg.connect(url) as stranger, pytest.raises(errors.InsufficientPrivilege):
        stranger.execute("SELECT * FROM quire_used(0, '', '', 1, 1)")
