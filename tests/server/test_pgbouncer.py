"""PgBouncer in transaction mode in front of PostgreSQL: each transaction may be in another session.

With QUIRE_TEST_PGBOUNCER=1 every other test reaches PostgreSQL through it, too.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from quire.errors import StoreError
from quire.log import SqlStore, migrate
from quire.model import Message
from quire.testing.contract import StoreContract
from quire.testing.given import turns
from quire.testing.pgbouncer import SESSIONS, Pooler, find_pgbouncer
from quire.testing.postgres import Server

ROLE = "quire_app"

pytestmark = pytest.mark.parametrize("backend", ["postgres18"])


@pytest.fixture
def server(admin_url: str) -> Server:
    return Server(int(admin_url.rpartition(":")[2].partition("/")[0]))


@pytest.fixture
def name(admin_url: str) -> str:
    return admin_url.rpartition("/")[2]


@pytest.fixture
def pooler(server: Server) -> Iterator[Pooler]:
    if find_pgbouncer() is None:
        message = "PGBOUNCER IS NOT INSTALLED: nothing is tested through it here"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    with Pooler.start(server, users=(ROLE, "postgres")) as pooler:
        yield pooler


@pytest.fixture
async def store(pooler: Pooler, name: str) -> AsyncIterator[SqlStore]:
    async with SqlStore.open(pooler.url(name, user=ROLE)) as store:
        yield store


@pytest.mark.slow
class TestContract(StoreContract):
    """Every promise of the store holds through a pooler."""


async def used_often(store: SqlStore, *, clients: int) -> None:
    """The same statements, many times, at once: enough for a driver to prepare them."""

    async def one(number: int) -> None:
        conversation = await store.create_conversation(f"c{number}")
        for turn in range(12):
            await store.append(conversation.id, Message.user(f"{number}.{turn}"))
            await store.window(conversation.id)

    await asyncio.gather(*map(one, range(clients)))


def prepared(url: str) -> list[Any]:
    """What is prepared in the session that is given to us."""
    with psycopg.connect(url, prepare_threshold=None) as connection:
        return connection.execute("SELECT name, statement FROM pg_prepared_statements").fetchall()


async def test_more_clients_than_sessions_lose_nothing(store: SqlStore, pooler: Pooler, name: str):
    await used_often(store, clients=8 * SESSIONS)
    for number in range(8 * SESSIONS):
        texts = [entry.body.text for entry in await store.range(f"c{number}") if isinstance(entry.body, Message)]
        assert texts == [f"{number}.{turn}" for turn in range(12)]


async def test_nothing_is_left_prepared_in_a_session(pooler: Pooler, name: str):
    url = pooler.url(name, user=ROLE)
    async with SqlStore.open(url) as store:
        await used_often(store, clients=2 * SESSIONS)
        for _ in range(SESSIONS):
            assert prepared(url) == []


async def test_without_a_pooler_statements_are_prepared(server: Server, name: str):
    """So that the pooler is found out, and not everybody pays for it."""
    async with SqlStore.open(server.url(name, user=ROLE)) as store:
        await used_often(store, clients=1)
        assert await store._database.read(_prepared_here, tenant="default") > 0


def _prepared_here(connection: Connection) -> int:
    return connection.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar_one()


async def test_tenants_that_share_one_session_do_not_see_each_other(server: Server, name: str):
    with Pooler.start(server, users=(ROLE,), settings={"default_pool_size": "1"}) as narrow:
        async with SqlStore.open(narrow.url(name, user=ROLE)) as store:
            tenants = [store.for_tenant(f"t{number}") for number in range(6)]
            await asyncio.gather(*(each.create_conversation("c", title=each.tenant) for each in tenants))
            for _ in range(5):
                found = await asyncio.gather(*(each.conversations() for each in tenants))
                assert [[each.title for each in theirs] for theirs in found] == [[each.tenant] for each in tenants]
        with psycopg.connect(narrow.url(name, user=ROLE), prepare_threshold=None) as bare:
            assert bare.execute("SELECT current_setting('quire.tenant', true)").fetchone() in ((None,), ("",))
            assert bare.execute("SELECT count(*) FROM quire_conversations").fetchone() == (0,)


async def test_a_pooler_that_comes_back_is_used_again(server: Server, name: str):
    first = Pooler.start(server, users=(ROLE,))
    try:
        async with SqlStore.open(first.url(name, user=ROLE)) as store:
            await store.create_conversation("c")
            await store.append("c", *turns(3))
            first.restart()
            await store.append("c", Message.user("after"))
            assert len(await store.range("c")) == 4
            first.stop()
            with pytest.raises(StoreError):
                await store.range("c")
    finally:
        first.stop()


async def test_a_session_that_the_server_ends_is_replaced(store: SqlStore, admin_url: str):
    await store.create_conversation("c")
    await store.append("c", *turns(3))
    with psycopg.connect(admin_url, autocommit=True) as owner:
        ours = "usename = %s AND datname = current_database()"
        owner.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}", [ROLE])
    assert len(await store.range("c")) == 3


def test_the_schema_can_be_upgraded_through_it(server: Server, pooler: Pooler):
    name = f"fresh_{uuid.uuid4().hex}"
    server.create_database(name)
    try:
        url = pooler.url(name, user="postgres")
        assert migrate.upgrade(url) is None
        assert migrate.status(url) == migrate.HEAD
        migrate.grant(url, ROLE)
    finally:
        server.drop_database(name)


def test_the_file_that_is_deployed_is_one_that_pgbouncer_takes(server: Server, name: str):
    """The settings of deploy/pgbouncer.ini, but for what belongs to a place: addresses, files, passwords."""
    import configparser

    read = configparser.ConfigParser(interpolation=None)
    read.read(Path(__file__).parents[2] / "deploy/pgbouncer.ini")
    ours = {key: value for key, value in read["pgbouncer"].items() if key not in PLACES}
    assert ours["pool_mode"] == "transaction"
    with Pooler.start(server, users=(ROLE,), settings=ours) as pooler:

        async def ask() -> None:
            async with SqlStore.open(pooler.url(name, user=ROLE)) as store:
                await used_often(store, clients=20)

        asyncio.run(ask())


PLACES = ("listen_addr", "listen_port", "auth_type", "auth_file", "auth_user", "auth_query", "auth_dbname")
