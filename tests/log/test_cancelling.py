"""Whoever waits for the store may give up at any moment: that is all that happens, and the store goes on."""

import asyncio

import pytest

from quire.log import SqlStore
from quire.model import Message
from quire.testing.given import turns

pytestmark = pytest.mark.every_backend


async def test_a_cancelled_call_is_cancelled_and_nothing_else(store: SqlStore):
    """A moment more each time, so that every step of a transaction is met: connecting, statements, the commit."""
    await store.create_conversation("c")
    await store.append("c", *turns(20))
    calls = (
        lambda number: store.append("c", Message.user(f"late {number}")),
        lambda _: store.window("c"),
        lambda _: store.calibration("m"),
        lambda _: store.conversations(),
    )
    given_up = 0
    for step in range(120):
        task = asyncio.ensure_future(calls[step % 4](step))
        await asyncio.sleep(0.00015 * (step // 4))
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            given_up += 1
    assert given_up > 0
    assert await store.verify("c") == []
    await asyncio.gather(*(store.append("c", Message.user(f"after {number}")) for number in range(40)))
    texts = [entry.body.text for entry in await store.range("c") if isinstance(entry.body, Message)]
    assert len(texts) == len(set(texts))
    assert {f"after {number}" for number in range(40)} <= set(texts)
