"""PgBouncer in transaction mode: each transaction may run in another session of PostgreSQL.

`just pooled` runs the tests of every rule of the database through it too.
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

from infra.builders import make_messages
from infra.pgbouncer import POOL_SIZE, PgBouncer, find_pgbouncer
from infra.postgres import PostgresServer
from quire.db import migrate
from quire.db.database import TransactionOptions
from quire.errors import StoreError
from quire.model import Message
from quire.store import SqlStore

ROLE = "quire_app"

pytestmark = pytest.mark.parametrize("backend", ["postgres18"])


@pytest.fixture
def server(admin_url: str) -> PostgresServer:
    return PostgresServer(int(admin_url.rpartition(":")[2].partition("/")[0]))


@pytest.fixture
def database_name(admin_url: str) -> str:
    return admin_url.rpartition("/")[2]


@pytest.fixture
def pooler(server: PostgresServer) -> Iterator[PgBouncer]:
    if find_pgbouncer() is None:
        message = "PGBOUNCER IS NOT INSTALLED: nothing is tested through it here"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    with PgBouncer.start(server, users=(ROLE, "postgres")) as pooler:
        yield pooler


@pytest.fixture
async def store(pooler: PgBouncer, database_name: str) -> AsyncIterator[SqlStore]:
    async with SqlStore.open(pooler.url(database_name, user=ROLE)) as store:
        yield store


async def run_many_statements(store: SqlStore, *, clients: int) -> None:
    """Runs the same statements concurrently, often enough for a driver to prepare them."""

    async def one(number: int) -> None:
        conversation = await store.create_conversation(f"c{number}")
        for turn in range(4):
            await store.append(conversation.id, Message.user(f"{number}.{turn}"))
            await store.read_window(conversation.id)

    await asyncio.gather(*map(one, range(clients)))


def list_prepared(url: str) -> list[Any]:
    """Lists the prepared statements of the assigned session."""
    with psycopg.connect(url, prepare_threshold=None) as connection:
        return connection.execute("SELECT name, statement FROM pg_prepared_statements").fetchall()


async def test_more_clients_than_sessions_lose_nothing(store: SqlStore, pooler: PgBouncer, database_name: str):
    await run_many_statements(store, clients=8 * POOL_SIZE)
    for number in range(8 * POOL_SIZE):
        texts = [entry.body.text for entry in await store.read_range(f"c{number}") if isinstance(entry.body, Message)]
        assert texts == [f"{number}.{turn}" for turn in range(4)]


async def test_nothing_is_left_prepared_in_a_session(pooler: PgBouncer, database_name: str):
    url = pooler.url(database_name, user=ROLE)
    async with SqlStore.open(url) as store:
        await run_many_statements(store, clients=2 * POOL_SIZE)
        for _ in range(POOL_SIZE):
            assert list_prepared(url) == []


async def test_without_a_pooler_statements_are_prepared(server: PostgresServer, database_name: str):
    """Statements stay prepared where no pooler is detected."""
    async with SqlStore.open(server.url(database_name, user=ROLE)) as store:
        await run_many_statements(store, clients=1)
        assert await store.base.database.read(_count_prepared, TransactionOptions("default")) > 0


def _count_prepared(connection: Connection) -> int:
    return connection.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar_one()


async def test_tenants_that_share_one_session_do_not_see_each_other(server: PostgresServer, database_name: str):
    with PgBouncer.start(server, users=(ROLE,), settings={"default_pool_size": "1"}) as narrow:
        async with SqlStore.open(narrow.url(database_name, user=ROLE)) as store:
            tenants = [store.for_tenant(f"t{number}") for number in range(6)]
            await asyncio.gather(*(each.create_conversation("c", title=each.tenant) for each in tenants))
            for _ in range(5):
                listings = await asyncio.gather(*(each.list_conversations() for each in tenants))
                assert [[each.title for each in theirs] for theirs in listings] == [[each.tenant] for each in tenants]
        with psycopg.connect(narrow.url(database_name, user=ROLE), prepare_threshold=None) as bare:
            assert bare.execute("SELECT current_setting('quire.tenant', true)").fetchone() in ((None,), ("",))
            assert bare.execute("SELECT count(*) FROM quire_conversations").fetchone() == (0,)


async def test_a_pooler_that_comes_back_is_used_again(server: PostgresServer, database_name: str):
    first = PgBouncer.start(server, users=(ROLE,))
    try:
        async with SqlStore.open(first.url(database_name, user=ROLE)) as store:
            await store.create_conversation("c")
            await store.append("c", *make_messages(3))
            first.restart()
            await store.append("c", Message.user("after"))
            assert len(await store.read_range("c")) == 4
            first.stop()
            with pytest.raises(StoreError):
                await store.read_range("c")
    finally:
        first.stop()


async def test_a_session_that_the_server_ends_is_replaced(store: SqlStore, admin_url: str):
    await store.create_conversation("c")
    await store.append("c", *make_messages(3))
    with psycopg.connect(admin_url, autocommit=True) as owner:
        ours = "usename = %s AND datname = current_database()"
        owner.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}", [ROLE])
    assert len(await store.read_range("c")) == 3


def test_the_schema_can_be_upgraded_through_it(server: PostgresServer, pooler: PgBouncer):
    name = f"fresh_{uuid.uuid4().hex}"
    server.create_database(name)
    try:
        url = pooler.url(name, user="postgres")
        assert migrate.upgrade(url) is None
        assert migrate.get_version_at_url(url) == migrate.SCHEMA_VERSION
        migrate.grant_access(url, ROLE)
    finally:
        server.drop_database(name)


def test_the_file_that_is_deployed_is_one_that_pgbouncer_takes(server: PostgresServer, database_name: str):
    """The settings of deploy/pgbouncer.ini, except addresses, files and passwords."""
    import configparser

    parser = configparser.ConfigParser(interpolation=None)
    parser.read(Path(__file__).parents[2] / "deploy/pgbouncer.ini")
    settings = {key: value for key, value in parser["pgbouncer"].items() if key not in DEPLOYMENT_OPTIONS}
    assert settings["pool_mode"] == "transaction"
    with PgBouncer.start(server, users=(ROLE,), settings=settings) as pooler:

        async def run() -> None:
            async with SqlStore.open(pooler.url(database_name, user=ROLE)) as store:
                await run_many_statements(store, clients=20)

        asyncio.run(run())


DEPLOYMENT_OPTIONS = ("listen_addr", "listen_port", "auth_type", "auth_file", "auth_user", "auth_query", "auth_dbname")
