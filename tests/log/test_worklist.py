"""The worklist: ids and update times of the conversations of all tenants, and nothing else."""

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors, sql
from sqlalchemy.engine import make_url

from infra.postgres import PostgresServer
from quire.db import migrate
from quire.index.types import PassageVector
from quire.index.vectors import pack_vector
from quire.store import SqlStore
from quire.store.all_tenants import ConversationActivity

pytestmark = pytest.mark.every_database

FAR_FUTURE = 1 << 60


async def list_all(
    store: SqlStore, *, since: int = 0, until: int = FAR_FUTURE, limit: int = 500
) -> list[ConversationActivity]:
    found: list[ConversationActivity] = []
    while page := await store.all_tenants.list_updated_conversations(
        since=since, until=until, limit=limit, after=found[-1] if found else None
    ):
        found += page
    return found


async def create_conversations(store: SqlStore, *names: str) -> list[ConversationActivity]:
    records = [await store.for_tenant(name[0]).create_conversation(name) for name in names]
    return sorted(
        (ConversationActivity(each.id[0], each.id, each.updated_at) for each in records),
        key=lambda each: (each.updated_at, each.tenant, each.conversation),
    )


async def test_the_conversations_of_all_tenants_are_listed_in_the_order_of_their_updates(store: SqlStore):
    expected = await create_conversations(store, "a1", "b1", "a2", "c1")
    assert await list_all(store) == expected
    assert await list_all(store.for_tenant("a"), limit=1) == expected
    assert await list_all(store, since=expected[1].updated_at) == expected[1:]
    assert await list_all(store, until=expected[1].updated_at) == expected[:2]
    assert await list_all(store, until=expected[0].updated_at - 1) == []


async def test_conversations_updated_at_one_time_are_each_listed_once(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.log.conversations.now", lambda: 1_000)
    expected = await create_conversations(store, *(f"{tenant}{number}" for tenant in "abc" for number in range(4)))
    assert {each.updated_at for each in expected} == {1_000}
    assert await list_all(store, limit=5) == expected


async def test_the_time_of_a_sweep_is_shared_by_all_tenants(store: SqlStore):
    assert await store.all_tenants.get_sweep_time("minute") is None
    await store.all_tenants.record_sweep("minute", 5)
    await store.for_tenant("a").all_tenants.record_sweep("minute", 7)
    await store.all_tenants.record_sweep("hour", 1)
    assert await store.for_tenant("b").all_tenants.get_sweep_time("minute") == 7


async def test_passages_without_vectors_are_found_in_memories(store: SqlStore):
    for tenant in ("a", "b"):
        mine = store.for_tenant(tenant)
        await mine.memories.add("sailor", "her name is Gannet", source="by hand")
    mine = store.for_tenant("a")
    assert await mine.passages.list_unembedded_scopes(embedder="e") == ["memory:sailor"]
    for scope in ("memory:sailor",):
        lacking = await mine.passages.list_unembedded(scope, embedder="e")
        await mine.passages.put_vectors(
            scope,
            [PassageVector(each.key, each.part, each.digest, pack_vector([1.0])) for each in lacking],
            embedder="e",
        )
    assert await mine.passages.list_unembedded_scopes(embedder="e") == []
    # Vectors of another embedder do not count.
    assert await mine.passages.list_unembedded_scopes(embedder="d") == ["memory:sailor"]
    assert await store.for_tenant("b").passages.list_unembedded_scopes(embedder="e") != []


@pytest.fixture
def owned_urls(admin_url: str) -> Iterator[tuple[str, str]]:
    """URLs of a database whose owner is not a superuser: as the owner, and as the application."""
    server, name = PostgresServer(make_url(admin_url).port or 0), f"owned_{uuid.uuid4().hex}"
    server.create_role("quire_owner")
    server.create_database(name)
    with psycopg.connect(server.url(name), autocommit=True) as superuser:
        superuser.execute(sql.SQL("ALTER DATABASE {} OWNER TO quire_owner").format(sql.Identifier(name)))
        superuser.execute("ALTER SCHEMA public OWNER TO quire_owner")
    owner = server.url(name, user="quire_owner")
    migrate.upgrade(owner)
    migrate.grant_access(owner, "quire_app")
    yield owner, server.url(name, user="quire_app")
    server.drop_database(name)


@pytest.mark.every_postgres
async def test_an_owner_under_row_level_security_can_still_list_all_conversations(owned_urls: tuple[str, str]):
    owner, application = owned_urls
    async with SqlStore.open(application) as store:
        expected = await create_conversations(store, "a1", "b1", "a2")
        assert await list_all(store) == expected
    with psycopg.connect(owner, autocommit=True) as session:
        assert session.execute("SELECT count(*) FROM quire_conversations").fetchall() == [(0,)]


@pytest.mark.every_postgres
async def test_the_application_gets_ids_and_times_and_nothing_more(owned_urls: tuple[str, str]):
    _, application = owned_urls
    async with SqlStore.open(application) as store:
        await create_conversations(store, "a1", "b1")
    with psycopg.connect(application, autocommit=True) as session:
        # The setting that lets the function see all rows has no effect for another role.
        session.execute("SET quire.sweep = 'on'")
        assert session.execute("SELECT * FROM quire_conversations").fetchall() == []
        session.execute("SELECT set_config('quire.tenant', 'a', false)")
        assert session.execute("SELECT conversation FROM quire_conversations").fetchall() == [("a1",)]
        assert session.execute("SELECT * FROM quire_branches").rowcount == 1
        # The function resets the setting before it returns.
        session.execute("RESET quire.sweep")
        session.execute("SELECT * FROM quire_list_updated_conversations(0, '', '', 9000000000000000000, 10)")
        assert session.execute("SELECT current_setting('quire.sweep', true)").fetchall() in ([("",)], [(None,)])
        with pytest.raises(errors.InsufficientPrivilege):
            session.execute("DELETE FROM quire_sweeps")
        # A temporary table of the same name does not shadow the table that the function reads.
        session.execute("CREATE TEMP TABLE quire_conversations (tenant text, conversation text, updated_at bigint)")
        listed = session.execute(
            "SELECT conversation FROM quire_list_updated_conversations(0, '', '', 9000000000000000000, 10)"
        )
        assert listed.fetchall() == [("a1",), ("b1",)]


@pytest.mark.every_postgres
def test_a_role_without_a_grant_cannot_list_anything(owned_urls: tuple[str, str]):
    owner, _ = owned_urls
    server = PostgresServer(make_url(owner).port or 0)
    server.create_role("quire_stranger")
    url = server.url(str(make_url(owner).database), user="quire_stranger")
    with psycopg.connect(url) as stranger, pytest.raises(errors.InsufficientPrivilege):
        stranger.execute("SELECT * FROM quire_list_updated_conversations(0, '', '', 1, 1)")
