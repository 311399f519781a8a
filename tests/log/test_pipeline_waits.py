"""Pipelines of the driver: the event loop watches the socket for writing only if it takes no more."""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from quire.db.deadline_connection import DeadlineConnection

pytestmark = pytest.mark.every_postgres


async def connect(url: str) -> DeadlineConnection:
    return await DeadlineConnection.connect(url.replace("+psycopg", ""), autocommit=True)


def count_calls(monkeypatch: pytest.MonkeyPatch, name: str) -> Callable[[], int]:
    loop: Any = asyncio.get_running_loop()
    original, count = getattr(loop, name), 0

    def count_and_call(*args: Any) -> Any:
        nonlocal count
        count += 1
        return original(*args)

    monkeypatch.setattr(loop, name, count_and_call)
    return lambda: count


async def test_a_short_pipeline_waits_for_its_results_alone(database_url: str, monkeypatch: pytest.MonkeyPatch):
    async with await connect(database_url) as connection:
        writes, reads = count_calls(monkeypatch, "add_writer"), count_calls(monkeypatch, "add_reader")
        async with connection.pipeline():
            cursors = [await connection.execute("SELECT %s::int", [number]) for number in range(3)]
        assert [await cursor.fetchone() for cursor in cursors] == [(0,), (1,), (2,)]
        assert writes() == 0
        # The results of the three may arrive one by one.
        assert 1 <= reads() <= 4


async def test_a_pipeline_that_fills_the_socket_in_both_directions_ends(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    text = "x" * 8_000_000
    async with await connect(database_url) as connection:
        writes = count_calls(monkeypatch, "add_writer")
        async with asyncio.timeout(30), connection.pipeline():
            cursors = [await connection.execute("SELECT %s::text || %s", [text, str(number)]) for number in range(6)]
        assert [await cursor.fetchone() for cursor in cursors] == [(f"{text}{number}",) for number in range(6)]
        assert writes() > 0


async def run_pipeline(connection: DeadlineConnection) -> None:
    async with connection.pipeline():
        await connection.execute("SELECT 1")
        await connection.execute("SELECT 2")


async def test_a_pipeline_on_a_broken_connection_fails(database_url: str):
    async with await connect(database_url) as connection, await connect(database_url) as other:
        await other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        await asyncio.sleep(0.1)
        with pytest.raises(psycopg.OperationalError):
            await run_pipeline(connection)
        assert connection.closed
