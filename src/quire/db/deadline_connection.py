"""A psycopg connection that gives up on a server that does not answer.

`statement_timeout` is the server's own limit, and libpq's time limits are for a network or a host that is away. A
frozen server enforces none, and its kernel still acknowledges what it is sent. So a timer shuts the socket down: libpq
then reports a broken connection, which no pool uses again.
"""

import asyncio
import os
import socket
from collections.abc import Generator
from contextlib import suppress
from typing import Any

from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus
from sqlalchemy import URL

CONNECT_SECONDS = 5
"""Maximum time to connect to one host."""
UNACKNOWLEDGED_SECONDS = 7
"""Maximum time for the server's host to acknowledge what it was sent."""
_KEEPALIVE_SECONDS = 10
"""Time without traffic after which libpq tests a connection, and between two tests."""
_GRACE_SECONDS = 1.0
"""Time after the deadline to read an answer that arrived while the event loop was busy."""


def list_time_limits(url: URL) -> dict[str, Any]:
    """Arguments of libpq that bound its waits. Of several hosts it tries a random one first, because one that does not
    answer would otherwise delay every new connection."""
    limits: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": UNACKNOWLEDGED_SECONDS * 1000,
        "keepalives_idle": _KEEPALIVE_SECONDS,
        "keepalives_interval": _KEEPALIVE_SECONDS,
    }
    hosts = url.query.get("host", ())
    if "load_balance_hosts" not in url.query and (
        "," in (url.host or "") or (not isinstance(hosts, str) and len(hosts) > 1)
    ):
        limits["load_balance_hosts"] = "random"
    return limits


class DeadlineConnection(AsyncConnection[Any]):
    """Shuts its socket down if the server has neither taken nor sent anything for `deadline_seconds`."""

    deadline_seconds: float = 10.0

    async def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a generator of psycopg, which yields what it waits for."""
        return await super().wait(self._watch(gen), *args, **kwargs)

    def _watch(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Yields what the generator waits for. Many statements in one pipeline take long, but never without a sign."""
        timer = None
        try:
            awaited = next(gen)
            timer = self._start_timer()
            while True:
                ready = yield awaited
                if ready:
                    timer.cancel()
                    timer = self._start_timer()
                awaited = gen.send(ready)
        except StopIteration as end:
            return end.value
        finally:
            if timer is not None:
                timer.cancel()

    def _start_timer(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self.deadline_seconds + _GRACE_SECONDS, self._shut_down)

    def _shut_down(self) -> None:
        # An idle connection waits for notifications, which may take any time.
        if not self.closed and self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
