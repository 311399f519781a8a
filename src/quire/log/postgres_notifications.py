"""LISTEN and NOTIFY of PostgreSQL: a process listens on one connection, which reconnects, and sends on any other.

The connection must reach PostgreSQL directly: behind a pooler in transaction mode, LISTEN would be registered in a
session that belongs to another client a moment later.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.log.deadline_connection import DeadlineConnection

CHANNEL = "quire"
KEEPALIVE_SECONDS = 10.0
"""Time without notifications after which the connection is tested."""
MIN_RECONNECT_SECONDS = 0.2
MAX_RECONNECT_SECONDS = 10.0
"""The pause before a reconnect doubles from the minimum to the maximum."""


def build_notify_sql(payloads: Sequence[str]) -> str:
    """The statement that sends these payloads, in a transaction of its own.

    It writes nothing else, and need not be on disk: otherwise it would hold NOTIFY's global lock that long.
    """
    from psycopg.sql import Literal

    values = ", ".join(f"({Literal(payload).as_string()})" for payload in payloads)
    return (
        f"SELECT set_config('synchronous_commit', 'off', true), pg_notify('{CHANNEL}', payload) "  # noqa: S608 (literals)
        f"FROM (VALUES {values}) AS notifications (payload)"
    )


class PostgresTransport:
    """The `NotificationTransport` of PostgreSQL."""

    def __init__(
        self,
        send: Callable[[Sequence[str]], Awaitable[None]],
        connect: "Callable[[], Awaitable[DeadlineConnection]]",
    ) -> None:
        self._send, self._connect = send, connect
        self._task: asyncio.Task[None] | None = None
        self._is_listening = False

    @property
    def is_listening(self) -> bool:
        return self._is_listening

    async def send(self, payloads: Sequence[str]) -> None:
        await self._send(payloads)

    def start_listening(self, on_payload: Callable[[str], None], *, on_resume: Callable[[], None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._listen(on_payload, on_resume))

    async def _listen(self, on_payload: Callable[[str], None], on_resume: Callable[[], None]) -> None:
        """Listens until it is cancelled; not at all behind a pooler."""
        from psycopg import Error

        pause_seconds = MIN_RECONNECT_SECONDS
        while True:
            with suppress(Error):
                connection = await self._connect()
                try:
                    if await is_pooled(connection):
                        return
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._is_listening, pause_seconds = True, MIN_RECONNECT_SECONDS
                    on_resume()
                    await _receive(connection, on_payload)
                finally:
                    self._is_listening = False
                    await connection.close()
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
            pause_seconds = min(2 * pause_seconds, MAX_RECONNECT_SECONDS)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


async def is_pooled(connection: "DeadlineConnection") -> bool:
    """Whether a pooler is in between: the backend PID in its greeting differs from that of the server process."""
    cursor = await connection.execute("SELECT pg_backend_pid()")
    return await cursor.fetchone() != (connection.info.backend_pid,)


async def _receive(connection: "DeadlineConnection", on_payload: Callable[[str], None]) -> None:
    while True:
        async for notify in connection.notifies(timeout=KEEPALIVE_SECONDS):
            on_payload(notify.payload)
        await connection.execute("SELECT 1")
