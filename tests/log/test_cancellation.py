"""Cancellation: a caller may cancel at any moment, and the store stays usable."""

import asyncio
import gc
import warnings
from contextlib import suppress

import pytest

from infra.builders import make_messages
from quire.errors import StoreUnavailable
from quire.model import Message
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


async def test_a_cancelled_call_is_cancelled_and_nothing_else(store: SqlStore):
    """Waits a little longer each time, to cancel in every step of a transaction: connecting, statements, the commit."""
    await store.create_conversation("c")
    await store.append("c", *make_messages(20))
    calls = (
        lambda number: store.append("c", Message.user(f"late {number}")),
        lambda _: store.read_window("c"),
        lambda _: store.get_calibration("m"),
        lambda _: store.list_conversations(),
    )
    cancelled = 0
    for step in range(120):
        task = asyncio.ensure_future(calls[step % 4](step))
        await asyncio.sleep(0.00015 * (step // 4))
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            cancelled += 1
    assert cancelled > 0
    assert await store.verify_conversation("c") == []
    await asyncio.gather(*(store.append("c", Message.user(f"after {number}")) for number in range(40)))
    texts = [entry.body.text for entry in await store.read_range("c") if isinstance(entry.body, Message)]
    assert len(texts) == len(set(texts))
    assert {f"after {number}" for number in range(40)} <= set(texts)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_closing_waits_for_background_work(database_url: str, is_cancelled: bool):
    """Closes at different moments of transactions that nothing awaits; a lost connection warns when it is collected."""

    async def work(store: SqlStore) -> None:
        with suppress(StoreUnavailable):
            while True:
                await store.list_conversations()

    with warnings.catch_warnings(record=True) as lost:
        warnings.simplefilter("always", ResourceWarning)
        for step in range(0, 16, 3):
            async with SqlStore.open(database_url) as store:
                tasks = [asyncio.ensure_future(work(store)) for _ in range(4)]
                await asyncio.sleep(0.0013 * step)
                if is_cancelled:
                    for task in tasks:
                        task.cancel()
            await asyncio.wait(tasks)
        del store
        gc.collect()
    assert [str(each.message) for each in lost if "Connection" in str(each.message)] == []
