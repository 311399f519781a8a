"""Notifications of changed conversations, within a process and between processes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import psycopg
import pytest

from infra.pgbouncer import PgBouncer, find_pgbouncer
from infra.postgres import PostgresServer
from quire.db import notifications
from quire.db.notifications import CHANGED, CHANNEL, RESUMED, Notification, topic_of
from quire.errors import StaleHead
from quire.model import CHAIN_ROOT, Compaction, Message, Span
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


class Inbox:
    """Notifications that arrived, and a wait for one of them."""

    def __init__(self, store: SqlStore) -> None:
        self.received: list[Notification] = []
        self._arrived = asyncio.Event()
        store.notifications.subscribe(self._add)

    def _add(self, notification: Notification) -> None:
        self.received.append(notification)
        self._arrived.set()

    async def wait_for(self, condition: Callable[[Notification], bool], *, timeout_seconds: float = 10) -> Notification:
        async with asyncio.timeout(timeout_seconds):
            while True:
                for each in self.received:
                    if condition(each):
                        return each
                self._arrived.clear()
                await self._arrived.wait()

    async def wait_for_change(self, *names: str) -> None:
        await self.wait_for(lambda each: each == Notification(CHANGED, topic_of(*names)))


@asynccontextmanager
async def open_listening(url: str, **options: str) -> AsyncIterator[tuple[SqlStore, Inbox]]:
    async with SqlStore.open(url, **options) as store:
        inbox = Inbox(store)
        await inbox.wait_for(lambda each: each.kind == RESUMED)
        yield store, inbox


async def test_every_kind_of_change_is_announced_in_its_own_process(store: SqlStore):
    inbox = Inbox(store)
    await store.create_conversation("c")
    await inbox.wait_for_change("default", "c")
    summary = Compaction(number=1, covers=Span(first=1, last=1), summary="s", strategy="discard", trigger="manual")
    changes = (
        lambda: store.append("c", Message.user("a"), Message.assistant("b")),
        lambda: store.append("c", summary),
        lambda: store.fork("c", at=1),
    )
    for change in changes:
        inbox.received.clear()
        await change()
        await inbox.wait_for_change("default", "c")


async def test_what_was_rolled_back_or_only_read_is_not_announced(store: SqlStore):
    await store.create_conversation("c")
    await store.append("c", Message.user("a"))
    inbox = Inbox(store)
    with pytest.raises(StaleHead):
        await store.append("c", Message.user("b"), after=CHAIN_ROOT)
    await store.read_window("c")
    await store.rename_conversation("c", "title")
    await asyncio.sleep(0.1)
    assert [each for each in inbox.received if each.kind == CHANGED] == []


@pytest.mark.every_postgres
class TestBetweenProcesses:
    async def test_a_change_arrives_once_and_not_at_its_sender(self, store: SqlStore, database_url: str):
        own = Inbox(store)
        async with open_listening(database_url) as (_, inbox):
            await store.create_conversation("c")
            await inbox.wait_for_change("default", "c")
            store.notifications.publish("stop", topic_of("default", "c"), "0")
            await inbox.wait_for(lambda each: each == Notification("stop", topic_of("default", "c"), "0"))
            assert len(inbox.received) == 3
            assert [each.kind for each in own.received if each.kind != RESUMED] == [CHANGED]

    async def test_pending_notifications_are_sent_when_a_store_closes(self, database_url: str):
        async with open_listening(database_url) as (_, inbox):
            async with SqlStore.open(database_url) as brief:
                await brief.create_conversation("c")
            await inbox.wait_for_change("default", "c")

    async def test_many_changes_take_few_transactions(self, store: SqlStore, database_url: str):
        sent: list[int] = []
        transport = store.notifications._transport
        assert transport is not None
        send = transport.send

        async def send_counted(payloads: Sequence[str]) -> None:
            sent.append(len(payloads))
            await send(payloads)

        transport.send = send_counted
        async with open_listening(database_url) as (_, inbox):
            store.notifications.announce_changes([("default", f"c{number % 10}") for number in range(1_000)])
            for number in range(10):
                await inbox.wait_for_change("default", f"c{number}")
        assert sum(sent) == 10
        assert len(sent) <= 2

    async def test_a_payload_names_neither_tenant_nor_conversation(self, store: SqlStore, admin_url: str):
        async with await psycopg.AsyncConnection.connect(admin_url, autocommit=True) as eavesdropper:
            await eavesdropper.execute(f"LISTEN {CHANNEL}")
            tenant = store.for_tenant("acme")
            await tenant.create_conversation("merger-talks", title="Project Swan")
            await tenant.append("merger-talks", Message.user("secret"))
            payloads = [each.payload async for each in eavesdropper.notifies(timeout=5, stop_after=1)]
        assert payloads
        for payload in payloads:
            assert not [word for word in ("acme", "merger", "Swan", "secret") if word in payload]

    async def test_payloads_of_others_on_the_channel_are_ignored(self, database_url: str, admin_url: str):
        async with open_listening(database_url) as (store, inbox):
            with psycopg.connect(admin_url, autocommit=True) as stranger:
                for payload in ("", "no json", "[]", "{}", "3", json.dumps(["x"] * 3), json.dumps(["x"] * 9)):
                    stranger.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])
                stranger.execute("SELECT pg_notify(%s, %s)", [CHANNEL, json.dumps(["x", "last", "t", ""])])
            await inbox.wait_for(lambda each: each.kind == "last")
            assert [each.kind for each in inbox.received] == [RESUMED, "last"]
            assert store.notifications.is_listening

    async def test_listening_resumes_after_its_connection_was_ended(self, database_url: str, admin_url: str):
        async with open_listening(database_url) as (_, inbox), SqlStore.open(database_url) as elsewhere:
            await elsewhere.create_conversation("c")
            await inbox.wait_for_change("default", "c")
            inbox.received.clear()
            with psycopg.connect(admin_url, autocommit=True) as owner:
                owner.execute(
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN {CHANNEL}'"
                )
            await inbox.wait_for(lambda each: each.kind == RESUMED)
            await elsewhere.append("c", Message.user("after"))
            await inbox.wait_for_change("default", "c")

    async def test_behind_a_pooler_listening_needs_a_url_past_it(self, admin_url: str):
        if find_pgbouncer() is None:
            pytest.skip("PgBouncer is not installed")
        server = PostgresServer(int(admin_url.rpartition(":")[2].partition("/")[0]))
        name = admin_url.rpartition("/")[2]
        with PgBouncer.start(server, users=("quire_app",)) as pooler:
            pooled = pooler.url(name, user="quire_app")
            async with (
                open_listening(pooled, listen_url=server.url(name, user="quire_app")) as (_, inbox),
                SqlStore.open(pooled) as other,
            ):
                deaf = Inbox(other)
                await other.create_conversation("c")
                await inbox.wait_for_change("default", "c")
                assert not other.notifications.is_listening
                assert [each.kind for each in deaf.received] == [CHANGED]

    async def test_a_notification_has_no_room_for_content(self, store: SqlStore):
        with pytest.raises(ValueError, match="500 characters"):
            store.notifications.publish("text", "t", "x" * (notifications.MAX_DETAIL_CHARS + 1))


async def test_heads_of_several_tenants_are_read_at_once(store: SqlStore):
    other = store.for_tenant("other")
    await store.create_conversation("a")
    await other.create_conversation("a")
    await other.append("a", Message.user("x"), Message.user("y"))
    await other.fork("a", at=1)
    await store.create_conversation("unnamed")
    heads = await store.all_tenants.list_branch_heads([("default", "a"), ("other", "a"), ("other", "missing")])
    assert heads == {("default", "a"): {0: 0}, ("other", "a"): {0: 2, 1: 1}}
