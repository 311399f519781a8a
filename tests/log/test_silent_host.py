"""How long a connection waits: for a host that accepts it and stays silent, and for many statements."""

import asyncio
from urllib.parse import urlsplit

import pytest
from psycopg import OperationalError

from quire.db import deadline_connection
from quire.model import Message
from quire.store import SqlStore


@pytest.mark.every_postgres
async def test_a_silent_host_delays_a_connection_by_a_bounded_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The least that libpq accepts.
    monkeypatch.setattr(deadline_connection, "CONNECT_SECONDS", 2)

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as silent:
        address, port = urlsplit(database_url), silent.sockets[0].getsockname()[1]
        url = database_url.replace(
            address.netloc, f"{address.username}@127.0.0.1:{port},{address.hostname}:{address.port}"
        )
        async with asyncio.timeout(30), SqlStore.open(url) as store:
            await store.create_conversation("c")
            assert len(await store.append("c", Message.user("hello"))) == 1


@pytest.mark.every_postgres
async def test_many_statements_may_take_longer_than_the_deadline_of_one(database_url: str) -> None:
    connection = await deadline_connection.DeadlineConnection.connect(database_url.replace("+psycopg", ""))
    async with connection:
        connection.deadline_seconds = 0.5 - deadline_connection._GRACE_SECONDS
        async with connection.cursor() as cursor:
            # The server sends its answers whenever it has some kilobytes of them.
            await cursor.executemany("SELECT pg_sleep(%s), repeat('x', 5000)", [(0.02,)] * 50)
        with pytest.raises(OperationalError):
            await connection.execute("SELECT pg_sleep(5)")
