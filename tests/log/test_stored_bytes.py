"""Quota of stored bytes: it holds under concurrent writes, a purge gives bytes back, other tenants do not notice."""

import asyncio
import random
from typing import Any, cast

import pytest
from sqlalchemy import Connection

from infra.builders import make_messages, make_turn, with_exchange
from quire.access.spending import SpendCaps, StorageDemand
from quire.db import migrate
from quire.db.schema import stored_bytes
from quire.db.store_part import read, write
from quire.db.stored_bytes import recount_bytes
from quire.errors import StorageQuotaReached, TooManyRequests
from quire.model import Message
from quire.store import SqlStore

QUOTA = 10_000


@pytest.fixture
async def limited(store: SqlStore) -> SqlStore:
    limited = store.for_tenant("limited", max_stored_bytes=QUOTA)
    await limited.create_conversation("c")
    return limited


async def read_count(store: SqlStore) -> int:
    def select_bytes(connection: Connection, tenant: str) -> int:
        row = connection.execute(stored_bytes.select().where(stored_bytes.c.tenant == tenant)).first()
        return 0 if row is None else row.bytes

    return await store.run(read, select_bytes)


async def recount(store: SqlStore) -> int:
    await store.run(write, recount_bytes)
    return await read_count(store)


def write_text(size: int) -> Message:
    return Message.user("x" * size)


async def test_an_append_past_the_quota_is_refused_whole(limited: SqlStore, store: SqlStore):
    await limited.append("c", write_text(6_000))
    with pytest.raises(StorageQuotaReached, match="stored_bytes") as refused:
        await limited.append("c", write_text(3_000), write_text(3_000))
    assert (refused.value.quota, 6_000 < refused.value.stored < 6_200) == (QUOTA, True)
    assert [entry.seq for entry in await limited.read_range("c")] == [1]
    with pytest.raises(StorageQuotaReached):
        await limited.put_blob(b"x" * 5_000)
    await limited.append("c", write_text(3_000))
    await store.create_conversation("c")
    await store.append("c", write_text(2 * QUOTA))
    assert await read_count(store) == 0


@pytest.mark.every_database
async def test_concurrent_appends_of_two_servers_stay_below_the_quota(limited: SqlStore, database_url: str):
    async with SqlStore.open(database_url) as second:
        servers = [limited, second.for_tenant("limited", max_stored_bytes=QUOTA)]
        names = [f"c{number}" for number in range(24)]
        for name in names:
            await limited.create_conversation(name)
        outcomes = await asyncio.gather(
            *(servers[number % 2].append(name, write_text(900)) for number, name in enumerate(names)),
            return_exceptions=True,
        )
    refused = [each for each in outcomes if isinstance(each, BaseException)]
    assert {type(each) for each in refused} == {StorageQuotaReached}
    stored = await recount(limited)
    assert QUOTA - 1_000 < stored <= QUOTA
    assert len(outcomes) - len(refused) == 10


@pytest.mark.every_database
async def test_the_count_is_what_the_rows_hold(limited: SqlStore):
    """Also for texts that are not ASCII, bytes that are stored twice, and the bodies of requests."""
    await limited.append("c", Message.user("größer 漢字"), write_text(10))
    for _ in range(2):
        await limited.put_blob(b"blob" * 100)
    body = random.Random(0).randbytes(300)
    turn = await with_exchange(limited, "c", make_turn(*make_messages(2), body=body), body)
    await limited.record_reply("c", turn)
    counted = await read_count(limited)
    assert counted > 700
    assert await recount(limited) == counted
    lines = [line async for line in limited.export_conversation("c")]
    await limited.import_conversation(lines, as_id="copy")
    counted = await read_count(limited)
    assert await recount(limited) == counted


@pytest.mark.every_database
async def test_a_purge_gives_bytes_back(limited: SqlStore, store: SqlStore):
    """Also one by a program that knows no quota, such as the command or a job."""
    await limited.create_conversation("d")
    await limited.append("c", write_text(9_000))
    for purging in (limited, store.for_tenant("limited")):
        with pytest.raises(StorageQuotaReached):
            await limited.append("d", write_text(9_000))
        await purging.purge("c")
        [entry] = await limited.append("d", write_text(9_000))
        await limited.purge("d", [entry.seq])
        await limited.append("c", write_text(9_000))


async def test_what_was_stored_before_the_quota_counts(limited: SqlStore, store: SqlStore):
    await store.for_tenant("limited").append("c", write_text(9_500))
    with pytest.raises(StorageQuotaReached):
        await limited.append("c", write_text(1_000))
    await limited.append("c", write_text(100))


@pytest.mark.every_database
async def test_an_upgrade_of_the_database_lets_the_next_write_count_again(
    limited: SqlStore, store: SqlStore, admin_url: str
):
    """Programs without the quota store bytes that are not counted."""
    await limited.append("c", write_text(100))
    await store.for_tenant("limited").append("c", write_text(9_500))
    await limited.append("c", write_text(100))
    await asyncio.to_thread(migrate.upgrade, admin_url)
    with pytest.raises(StorageQuotaReached):
        await limited.append("c", write_text(500))


async def test_a_reply_is_stored_past_the_quota(limited: SqlStore):
    """Its call was admitted and is paid for; the next one is refused."""
    reply = make_turn(write_text(6_000), Message.assistant("y" * 6_000))
    await limited.record_reply("c", reply)
    assert await read_count(limited) > QUOTA
    for demand in (1, 20_000):
        with pytest.raises(StorageQuotaReached):
            await limited.spending.reserve("c", 0.0, SpendCaps(), storage=StorageDemand(demand, QUOTA))


async def test_calls_in_progress_reserve_what_they_will_store(limited: SqlStore):
    demand = StorageDemand(4_000, QUOTA)
    calls = [limited.spending.reserve("c", 0.0, SpendCaps(tenant=1.0), storage=demand) for _ in range(6)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    admitted = [each for each in outcomes if isinstance(each, str)]
    assert len(admitted) == 2
    assert {type(each) for each in outcomes} == {str, TooManyRequests}
    reply = make_turn(*make_messages(2))._replace(reservation_id=admitted[0])
    await limited.record_reply("c", reply)
    await limited.spending.reserve("c", 0.0, SpendCaps(), storage=demand)


@pytest.mark.parametrize("backend", ["sqlite"])
async def test_without_a_quota_no_statement_is_added(store: SqlStore):
    statements: list[str] = []

    def trace(connection: Connection, tenant: str) -> None:
        cast(Any, connection.connection.driver_connection).set_trace_callback(statements.append)

    await store.create_conversation("c")
    await store.run(write, trace)
    await store.append("c", write_text(10))
    await store.record_reply("c", make_turn(*make_messages(2)))
    await store.put_blob(b"blob")
    assert len(statements) > 10
    assert [each for each in statements if "stored_bytes" in each] == []
