"""Notifications between processes: which conversation changed, and what servers say to each other about a turn.

A notification names a topic and no content, and its topic is a digest: every role that may connect to the database can
listen to all of them. A process acts only on topics that it watches, and reads what changed as the tenant in question.

They are sent after the commit, all of one process together. NOTIFY within the transaction of every append would
serialize all commits of the cluster: it holds a global lock until its transaction is on disk, and on a synchronous
standby. A process that dies between its commit and the notification sends none, so who must not miss a change also
looks at the database now and then.

On PostgreSQL a process listens on one connection, which reconnects, and sends on any other. The listening connection
must reach PostgreSQL directly: behind a pooler in transaction mode, LISTEN would be registered in a session that
belongs to another client a moment later.
"""

import asyncio
import json
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, cast

from sqlalchemy import Connection

from quire.errors import QuireError

if TYPE_CHECKING:
    from quire.db.deadline_connection import DeadlineConnection


CHANGED = "changed"
"""Kind of the notification that a branch of a conversation has a new head."""
RESUMED = "resumed"
"""Kind of the notification, without a topic, that notifications of other processes may have been missed until now."""
SEND_INTERVAL_SECONDS = 0.05
"""Minimum time between two transactions that send notifications."""
MAX_DETAIL_CHARS = 500
"""Maximum length of a detail; PostgreSQL accepts payloads of less than 8,000 bytes."""

ConversationKey = tuple[str, str]
"""Tenant and conversation."""

_CHANGES_KEY = "quire changed conversations"


class Notification(NamedTuple):
    kind: str
    topic: str
    detail: str = ""
    """A short text that is not content: numbers and ids."""


NotificationListener = Callable[[Notification], None]


def topic_of(*names: str) -> str:
    """The topic of a tenant's conversation, or of anything else with these names."""
    return sha256("\0".join(names).encode(errors="replace")).hexdigest()[:32]


def mark_changed(connection: Connection, tenant: str, conversation: str) -> None:
    """Announces a change of the conversation once the transaction of this connection has committed."""
    connection.info.setdefault(_CHANGES_KEY, set()).add((tenant, conversation))


def take_changes(connection: Connection) -> set[ConversationKey]:
    """Removes and returns the conversations that the transaction of this connection has changed."""
    return cast(set[ConversationKey], connection.info.pop(_CHANGES_KEY, set()))


class Notifications:
    """Notifications of a process. Without a transport there is no other process to exchange them with."""

    def __init__(self, transport: "PostgresTransport | None" = None) -> None:
        self._transport = transport
        self._sender = secrets.token_hex(4)
        self._listeners: list[NotificationListener] = []
        self._is_started = False
        self._pending: dict[Notification, None] = {}
        """In the order in which they are sent."""
        self._send_task: asyncio.Task[None] | None = None
        self._is_closing = asyncio.Event()

    @property
    def has_transport(self) -> bool:
        """Whether there may be other processes to exchange notifications with."""
        return self._transport is not None

    @property
    def is_listening(self) -> bool:
        """Whether notifications of other processes arrive."""
        return self._transport is not None and self._transport.is_listening

    def subscribe(self, listener: NotificationListener) -> Callable[[], None]:
        """Calls `listener` with the notifications of other processes, and with changes by this one. Returns a function
        that unsubscribes. The first call starts to listen, with a separate connection."""
        self._listeners.append(listener)
        if self._transport is not None and not self._is_started:
            self._is_started = True
            self._transport.start_listening(
                self._on_payload, on_resume=lambda: self._deliver(Notification(RESUMED, ""))
            )
        return lambda: self._listeners.remove(listener)

    def publish(self, kind: str, topic: str, detail: str = "") -> None:
        """Sends a notification to the other processes, soon and with others. It may get lost."""
        if self._transport is None:
            return
        if len(detail) > MAX_DETAIL_CHARS:
            raise ValueError(f"a notification's detail has at most {MAX_DETAIL_CHARS} characters")
        notification = Notification(kind, topic, detail)
        self._pending[notification] = None
        if self._send_task is None:
            self._send_task = asyncio.get_running_loop().create_task(self._send_pending(self._transport))

    def announce_changes(self, changed: Iterable[ConversationKey]) -> None:
        """Notifies this and the other processes that these conversations have changed."""
        for tenant, conversation in changed:
            notification = Notification(CHANGED, topic_of(tenant, conversation))
            self._deliver(notification)
            self.publish(*notification)

    def _deliver(self, notification: Notification) -> None:
        for listener in list(self._listeners):
            listener(notification)

    def _on_payload(self, payload: str) -> None:
        try:
            sender, kind, topic, detail = map(str, json.loads(payload))
        except (ValueError, TypeError):
            # Any role of the database can send on the channel.
            return
        if sender != self._sender:
            self._deliver(Notification(kind, topic, detail))

    async def _send_pending(self, transport: "PostgresTransport") -> None:
        try:
            while self._pending:
                payloads = [json.dumps([self._sender, *each], ensure_ascii=False) for each in self._pending]
                self._pending.clear()
                with suppress(QuireError):
                    await transport.send(payloads)
                with suppress(TimeoutError):
                    async with asyncio.timeout(SEND_INTERVAL_SECONDS):
                        await self._is_closing.wait()
        finally:
            self._send_task = None

    async def close(self) -> None:
        """Sends what is pending and stops to listen."""
        self._is_closing.set()
        if self._send_task is not None:
            await asyncio.wait([self._send_task])
        if self._transport is not None:
            await self._transport.close()


CHANNEL = "quire"
KEEPALIVE_SECONDS = 10.0
"""Time without notifications after which the connection is tested."""
MIN_RECONNECT_SECONDS = 0.2
MAX_RECONNECT_SECONDS = 10.0
"""The pause before a reconnect doubles from the minimum to the maximum."""


def build_notify_sql(payloads: Sequence[str]) -> str:
    """The statement that sends these payloads, in a separate transaction.

    It writes nothing else, and need not be on disk: otherwise it would hold NOTIFY's global lock that long.
    """
    from psycopg.sql import Literal

    values = ", ".join(f"({Literal(payload).as_string()})" for payload in payloads)
    return (
        f"SELECT set_config('synchronous_commit', 'off', true), pg_notify('{CHANNEL}', payload) "  # noqa: S608 (literals)
        f"FROM (VALUES {values}) AS notifications (payload)"
    )


class PostgresTransport:
    """Exchanges payloads with other processes by LISTEN and NOTIFY."""

    def __init__(
        self,
        send: Callable[[Sequence[str]], Awaitable[None]],
        connect: "Callable[[], Awaitable[DeadlineConnection]]",
    ) -> None:
        self.send, self._connect = send, connect
        self._task: asyncio.Task[None] | None = None
        self.is_listening = False
        """Whether payloads of other processes arrive."""

    def start_listening(self, on_payload: Callable[[str], None], *, on_resume: Callable[[], None]) -> None:
        """Calls `on_payload` for each payload, and `on_resume` whenever some may have been missed."""
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
                    self.is_listening, pause_seconds = True, MIN_RECONNECT_SECONDS
                    on_resume()
                    while True:
                        async for notify in connection.notifies(timeout=KEEPALIVE_SECONDS):
                            on_payload(notify.payload)
                        await connection.execute("SELECT 1")
                finally:
                    self.is_listening = False
                    await connection.close()
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
            pause_seconds = min(2 * pause_seconds, MAX_RECONNECT_SECONDS)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


async def is_pooled(connection: "DeadlineConnection") -> bool:
    """Whether a pooler is in between: its greeting has another backend PID than the server process."""
    cursor = await connection.execute("SELECT pg_backend_pid()")
    return await cursor.fetchone() != (connection.info.backend_pid,)
