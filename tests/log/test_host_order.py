"""Several hosts in a URL: a host that does not answer delays one connection, not every one."""

import asyncio
from urllib.parse import urlsplit

import psycopg
import pytest

from quire.db.deadline_connection import DeadlineConnection, HostOrder, find_host_order

MIN_CONNECT_SECONDS = 2
"""The least that libpq accepts."""


@pytest.mark.every_postgres
async def test_a_silent_host_delays_the_first_connection_only(database_url: str) -> None:
    attempts = 0

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        await reader.read()
        writer.close()

    address = urlsplit(database_url)
    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        arguments = {
            "host": f"127.0.0.1,{address.hostname}", "port": f"{port},{address.port}", "user": address.username,
            "password": address.password, "dbname": address.path.removeprefix("/"),
            "connect_timeout": MIN_CONNECT_SECONDS,
        }  # fmt: skip
        for _ in range(3):
            connection = await DeadlineConnection.connect(**arguments)
            assert connection.info.port == address.port
            await connection.close()
    assert attempts == 1


async def test_hosts_that_all_refuse_take_turns() -> None:
    arguments = {"host": "127.0.0.1,127.0.0.1,127.0.0.1", "port": "1,2,3", "connect_timeout": MIN_CONNECT_SECONDS}
    order = find_host_order(arguments)
    assert order is not None
    with pytest.raises(psycopg.OperationalError):
        await DeadlineConnection.connect(**arguments)
    assert order.list_arguments()["port"] == "2,3,1"


def test_order_of_hosts() -> None:
    order = HostOrder((("a", "1"), ("b", "2"), ("c", "3")))
    order.prefer(("c", "3"))
    assert order.list_arguments() == {"host": "c,a,b", "port": "3,1,2"}
    order.demote_first()
    assert order.list_arguments() == {"host": "a,b,c", "port": "1,2,3"}
    order.prefer(("elsewhere", "9"))
    assert order.list_arguments()["host"] == "a,b,c"


@pytest.mark.parametrize("arguments", [{}, {"host": "a", "port": "1"}, {"host": "a,b"}])
def test_no_order_for_one_host_or_without_ports(arguments: dict[str, str]) -> None:
    assert find_host_order(arguments) is None
