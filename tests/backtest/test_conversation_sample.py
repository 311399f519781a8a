"""Samples: drawn by the index of paths, in proportion to messages, and only from the own tenant."""

from collections import Counter

import pytest

from quire.backtest import select_conversations
from quire.errors import ConversationNotFound
from quire.log.types import ConversationOrigin
from quire.model import Message
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


async def fill(store: SqlStore, sizes: dict[str, int]) -> None:
    for conversation, size in sizes.items():
        await store.create_conversation(conversation, origin=ConversationOrigin(project=conversation[:1]))
        await store.append(conversation, *(Message.user(f"{conversation} {number}") for number in range(size)))


async def test_named_conversations_and_those_of_a_project_are_all_selected(store: SqlStore):
    await fill(store, {"a1": 2, "a2": 2, "b1": 2})
    named = await select_conversations(store, ["b1", "a2"])
    assert [each.id for each in named.conversations] == ["b1", "a2"]
    project = await select_conversations(store, project="a")
    assert sorted(each.id for each in project.conversations) == ["a1", "a2"]
    assert not project.is_sample
    with pytest.raises(ConversationNotFound, match="'c'"):
        await select_conversations(store, project="c")
    with pytest.raises(ConversationNotFound, match="'a3'"):
        await select_conversations(store, ["a1", "a3"])


async def test_a_sample_is_repeated_by_its_seed_and_one_of_all_is_none(store: SqlStore):
    await fill(store, {f"a{number}": 1 for number in range(20)})
    first, again = [await select_conversations(store, sample=5, seed=7) for _ in range(2)]
    assert first == again
    assert first.is_sample
    assert len({each.id for each in first.conversations}) == 5
    assert not (await select_conversations(store, sample=20)).is_sample


async def test_of_many_conversations_messages_are_drawn(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    sizes = {"small": 10, "large": 90}
    await fill(store, sizes)
    await fill(store.for_tenant("other"), {"foreign": 100})
    monkeypatch.setattr("quire.backtest.selection.MAX_LISTED_CONVERSATIONS", 1)
    selection = await select_conversations(store, sample=400, seed=1)
    times = {each.id: each.weight * sizes[each.id] for each in selection.conversations}
    assert times.keys() == sizes.keys()
    assert sum(times.values()) == pytest.approx(400)
    # In proportion to the messages, as far as the gaps between 100 random paths allow.
    assert 0.75 < times["large"] / 400 < 0.98


async def test_a_random_path_after_the_last_one_wraps_around(store: SqlStore):
    assert await store.samples.draw_messages([b"\xff" * 32]) == []
    await fill(store, {"only": 1})
    drawn = await store.samples.draw_messages([bytes(32), b"\xff" * 32])
    assert Counter(drawn) == {"only": 2}
