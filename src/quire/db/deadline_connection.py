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
from psycopg.errors import QueryCanceled
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
        """Puts the first host last, because no host accepted a connection. It may be the one that does not answer."""
        self._addresses.append(self._addresses.pop(0))


_get_host_order = lru_cache(maxsize=100)(HostOrder)


def find_host_order(arguments: Mapping[str, Any]) -> HostOrder | None:
    """The order of these hosts, shared by all connections of the process, or None for a single host."""
    hosts, ports = str(arguments.get("host", "")).split(","), str(arguments.get("port", "")).split(",")
    if len(hosts) < 2 or len(hosts) != len(ports):
        return None
    return _get_host_order(tuple(zip(hosts, ports, strict=True)))


CONNECT_SECONDS = 5
"""Maximum time to connect to one host."""
_GRACE_SECONDS = 1.0
"""Time after the deadline to read an answer that arrived while the event loop was busy."""
_CANCEL_SECONDS = 5.0
"""Time for the server to cancel a statement; after that the connection is closed."""


_READ, _WRITE = int(Wait.R), int(Wait.W)


async def _wait_for_socket(loop: asyncio.AbstractEventLoop, fileno: int, state: int) -> int:
    """Waits until a socket can be read or written, as `state` says. Returns which."""
    ready: asyncio.Future[int] = loop.create_future()

    def wake(direction: int) -> None:
        if not ready.done():
            ready.set_result(direction)

    if state & _READ:
        loop.add_reader(fileno, wake, _READ)
    try:
        if state & _WRITE:
            loop.add_writer(fileno, wake, _WRITE)
        return await ready
    finally:
        if state & _READ:
            loop.remove_reader(fileno)
        if state & _WRITE:
            loop.remove_writer(fileno)


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
        """Runs a generator of psycopg, which yields what it waits for.

        psycopg's own loop sets a timer at each wait, and asks the event loop before each statement of a pipeline
        whether the socket can be written. Here one timer serves all statements, and the socket is only watched for
        writing while it takes no more of what libpq has to send.
        """
        if args or kwargs:
            # With a time limit, to wait for notifications.
            return await super().wait(gen, *args, **kwargs)
        loop = asyncio.get_running_loop()
        self._deadline = deadline = loop.time() + self.deadline_seconds
        if self._timer is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._check_deadline)
        try:
            return await self._run_generator(loop, gen)
        except OSError as error:
            raise OperationalError("connection socket closed") from error
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self._cancel_statement(gen)
            raise
        finally:
            self._deadline = None

    async def _run_generator(self, loop: asyncio.AbstractEventLoop, gen: Generator[Any, Any, Any]) -> Any:
        fileno = self.pgconn.socket
        try:
            state = next(gen)
            while True:
                is_sent = False
                if state == Wait.RW:
                    # If the connection is broken, the generator meets the error itself.
                    with suppress(OperationalError):
                        is_sent = self.pgconn.flush() == 0
                state = gen.send(Ready.W if is_sent else await _wait_for_socket(loop, fileno, state))
        except StopIteration as end:
            return end.value

    async def _cancel_statement(self, gen: Generator[Any, Any, Any]) -> None:
        """Cancels the statement of an interrupted caller, so that the connection can be used again."""
        with suppress(Exception):
            await self.cancel_safe(timeout=_CANCEL_SECONDS)
        try:
            async with asyncio.timeout(_CANCEL_SECONDS):
                await super().wait(gen)
        except QueryCanceled:
            pass
        except TimeoutError:
            self.pgconn.finish()

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
