"""A psycopg connection that gives up on a server that does not answer.

`statement_timeout` is the server's own limit. A frozen server enforces none, and a cancelled statement waits for it. So
this shuts the socket down: libpq then reports a broken connection, which no pool uses again.

If the URL names several hosts, the one that worked last is tried first, and one that failed last. Otherwise a frozen
host that the URL names first would delay every new connection until the time limit.
"""

import asyncio
import os
import socket
from collections.abc import Generator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Self

from psycopg import AsyncConnection, OperationalError
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait

Address = tuple[str, str]
"""Host and port."""


class HostOrder:
    """Order in which the hosts of a database URL are tried."""

    def __init__(self, addresses: tuple[Address, ...]) -> None:
        self._addresses = list(addresses)

    def list_arguments(self) -> dict[str, str]:
        """The hosts and ports as arguments of libpq, in the order to try them."""
        hosts, ports = zip(*self._addresses, strict=True)
        return {"host": ",".join(hosts), "port": ",".join(ports)}

    def prefer(self, address: Address) -> None:
        """Puts the host first that a connection was made to."""
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.insert(0, address)

    def demote_first(self) -> None:
        """Puts the first host last, because no host accepted a connection; it may be the one that does not answer."""
        self._addresses.append(self._addresses.pop(0))


_get_host_order = lru_cache(maxsize=100)(HostOrder)


def find_host_order(arguments: Mapping[str, Any]) -> HostOrder | None:
    """The order of these hosts, shared by all connections of the process; None for a single host."""
    hosts, ports = str(arguments.get("host", "")).split(","), str(arguments.get("port", "")).split(",")
    if len(hosts) < 2 or len(hosts) != len(ports):
        return None
    return _get_host_order(tuple(zip(hosts, ports, strict=True)))


CONNECT_SECONDS = 5
"""Maximum time to connect to one host."""
_GRACE_SECONDS = 1.0
"""Time after the deadline to read an answer that arrived while the event loop was busy."""


class DeadlineConnection(AsyncConnection[Any]):
    """Shuts its socket down if the server has not answered a statement within `deadline_seconds`."""

    deadline_seconds: float = 10.0
    _deadline: float | None = None
    """When the server must have answered the statement of now."""
    _timer: asyncio.TimerHandle | None = None
    """One for many statements: each only moves the deadline, and the timer starts again if it is too early."""

    @classmethod
    async def connect(cls, *args: Any, **kwargs: Any) -> Self:
        """Connects to the first host that accepts it, in the order of `HostOrder`."""
        order = find_host_order(kwargs)
        if order is None:
            return await super().connect(*args, **kwargs)
        try:
            connection = await super().connect(*args, **(kwargs | order.list_arguments()))
        except OperationalError:
            order.demote_first()
            raise
        order.prefer((connection.info.host, str(connection.info.port)))
        return connection

    async def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        self._deadline = deadline = loop.time() + self.deadline_seconds
        if self._timer is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._check_deadline)
        try:
            return await super().wait(self._skip_write_waits(gen), *args, **kwargs)
        finally:
            self._deadline = None

    def _skip_write_waits(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Answers "ready to write" at once while the socket takes everything that libpq has to send.

        psycopg asks the event loop before each statement of a pipeline, and once more after it: a pipeline of three
        statements would watch the socket nine times. A socket that takes no more is watched as usual, for both
        directions, so that a server whose results are not read cannot stop the two.
        """
        try:
            state = next(gen)
            while True:
                is_sent = False
                if state == Wait.RW:
                    # If the connection is broken, the generator meets the error itself.
                    with suppress(OperationalError):
                        is_sent = self.pgconn.flush() == 0
                state = gen.send(Ready.W if is_sent else (yield state))
        except StopIteration as end:
            return end.value

    async def rollback(self) -> None:
        """Rolls an open transaction back. Without one, which the pool does not know, there is nothing to wait for."""
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            await super().rollback()

    def _check_deadline(self) -> None:
        loop, deadline = asyncio.get_running_loop(), self._deadline
        self._timer = None
        if deadline is None:
            return
        if loop.time() < deadline:
            self._timer = loop.call_at(deadline, self._check_deadline)
        else:
            loop.call_later(_GRACE_SECONDS, self._shut_down, deadline)

    def _shut_down(self, deadline: float) -> None:
        """Shuts the socket down if the statement with this deadline has no answer yet."""
        # An idle connection waits for notifications, which may take any time.
        is_active = not self.closed and self.pgconn.transaction_status == TransactionStatus.ACTIVE
        if is_active and self._deadline == deadline:
            with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
