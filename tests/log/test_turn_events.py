"""Events of running turns: stored for other processes, and gone with the turn, its expiry or a purge."""

import pytest

from quire.model import Message
from quire.store import SqlStore
from quire.turns import events as turn_events

pytestmark = pytest.mark.every_database


@pytest.fixture
async def conversation(store: SqlStore) -> str:
    await store.create_conversation("c")
    await store.append("c", Message.user("a"))
    await store.turn_events.append("c", "turn", 0, '["first", "sesame-1234"]')
    await store.turn_events.append("c", "turn", 2, '["third"]')
    return "c"


async def test_events_are_read_from_a_number_on(store: SqlStore, conversation: str):
    assert await store.turn_events.list("c", "turn", first=0) == ['["first", "sesame-1234"]', '["third"]']
    assert await store.turn_events.list("c", "turn", first=2) == ['["third"]']
    assert await store.turn_events.list("c", "other", first=0) == []


async def test_another_tenant_does_not_see_them(store: SqlStore, conversation: str):
    other = store.for_tenant("other")
    assert await other.turn_events.list("c", "turn", first=0) == []
    await other.turn_events.delete("c", "turn")
    assert len(await store.turn_events.list("c", "turn", first=0)) == 2


async def test_the_end_of_a_turn_deletes_its_events(store: SqlStore, conversation: str):
    await store.turn_events.append("c", "other", 0, "[]")
    await store.turn_events.delete("c", "turn")
    assert await store.turn_events.list("c", "turn", first=0) == []
    assert await store.turn_events.list("c", "other", first=0) == ["[]"]


async def test_the_next_turn_deletes_expired_events(
    store: SqlStore, conversation: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(turn_events, "EXPIRY_SECONDS", 0)
    await store.turn_events.append("c", "old", 0, "[]")
    await store.turn_events.append("c", "new", 0, "[]")
    assert await store.turn_events.list("c", "old", first=0) == []
    assert len(await store.turn_events.list("c", "turn", first=0)) == 2


async def test_a_purge_deletes_them(store: SqlStore, conversation: str):
    await store.purge("c", [1])
    assert await store.turn_events.list("c", "turn", first=0) == []


async def test_a_purge_of_a_value_deletes_them(store: SqlStore, conversation: str):
    purged = await store.purge_value("sesame-1234")
    assert purged.remaining == ()
    assert await store.turn_events.list("c", "turn", first=0) == []
