"""A psycopg connection that gives up on a server that does not answer.

`statement_timeout` is the server's own limit. A frozen server enforces none, and a cancelled statement waits for it. So
this shuts the socket down: libpq then reports a broken connection, which no pool uses again.
"""

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any, Self

from psycopg import AsyncConnection, OperationalError
from psycopg.pq import TransactionStatus

from quire.log.host_order import find_host_order

CONNECT_SECONDS = 5
"""Maximum time to connect to one host."""
_GRACE_SECONDS = 1.0
"""Time after the deadline to read an answer that arrived while the event loop was busy."""


class DeadlineConnection(AsyncConnection[Any]):
    """Shuts its socket down if the server has not answered a statement within `deadline_seconds`."""

    deadline_seconds: float = 10.0
    _timer: asyncio.TimerHandle | None = None

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

    async def wait(self, *args: Any, **kwargs: Any) -> Any:
        self._start_timer(self.deadline_seconds, self._on_deadline)
        try:
            return await super().wait(*args, **kwargs)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _start_timer(self, seconds: float, callback: Any) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, callback)

    def _on_deadline(self) -> None:
        self._start_timer(_GRACE_SECONDS, self._shut_down)

    def _shut_down(self) -> None:
        # An idle connection waits for notifications, which may take any time.
        if not self.closed and self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
