"""What any backend must do with compactions and the windows that they leave, as tests."""

import asyncio

import pytest

from quire.errors import StaleCompaction
from quire.log import Store
from quire.model import (
    Compaction,
    ContextChange,
    ContextItem,
    Draft,
    Message,
    Pin,
    Restore,
    Span,
    TokenCount,
    Unpin,
)
from quire.testing.given import turns


class WindowContract:
    """The part of `StoreContract` about what is seen, and what stands for the rest."""

    async def test_the_window_is_the_summary_and_what_follows_it(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(10))
        assert (await store.window("c")).compaction is None
        [compaction] = await store.append("c", Compaction(number=1, covers=Span(first=1, last=7), summary="s"))
        await store.append("c", *turns(2, start=11), Pin(message=3), Pin(message=9))
        window = await store.window("c")
        assert window.compaction == compaction
        assert [entry.seq for entry in window.messages] == [8, 9, 10, 12, 13]
        assert [entry.seq for entry in window.pinned] == [3]
        assert window.branch == await store.branch("c")

    async def test_a_compaction_may_leave_the_beginning_to_be_seen(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(6), Compaction(number=1, covers=Span(first=2, last=4), summary="s"))
        assert [entry.seq for entry in (await store.window("c")).messages] == [1, 5, 6]

    async def test_undo_brings_back_exactly_the_window_before(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(10))
        windows, compactions = [await store.window("c")], list[int]()
        for number, last in ((1, 3), (2, 6), (3, 8)):
            active = compactions[-1] if compactions else None
            made = Compaction(number=number, covers=Span(first=1, last=last), summary=f"s{number}", supersedes=active)
            compactions.append((await store.append("c", made))[0].seq)
            windows.append(await store.window("c"))
        for seq in reversed(compactions):
            windows.pop()
            await store.append("c", Restore(compaction=seq))
            now = await store.window("c")
            assert (now.compaction, now.messages) == (windows[-1].compaction, windows[-1].messages)
        with pytest.raises(StaleCompaction):
            await store.append("c", Restore(compaction=compactions[0]))

    async def test_of_two_compactions_made_on_one_state_the_second_is_refused(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(4))
        made = Compaction(number=1, covers=Span(first=1, last=2), summary="s")
        outcomes = await asyncio.gather(*(store.append("c", made) for _ in range(4)), return_exceptions=True)
        assert sum(isinstance(outcome, StaleCompaction) for outcome in outcomes) == 3
        before = await store.range("c")
        with pytest.raises(StaleCompaction):
            await store.append("c", Message.user("goes with it"), made)
        assert await store.range("c") == before

    async def test_a_fork_has_the_state_of_its_entry(self, store: Store) -> None:
        await store.create_conversation("c")
        item = ContextItem(type="rule", name="style")
        await store.append(
            "c", *turns(4), Pin(message=1), ContextChange(action="add", item=item, include="always"), Unpin(message=1)
        )
        await store.append("c", Compaction(number=1, covers=Span(first=1, last=3), summary="s"))
        early = await store.fork("c", at=6)
        assert (early.state.pins, early.state.active) == ((1,), None)
        assert [known.item for known in early.state.items] == [item]
        late = await store.fork("c", at=8)
        assert late.state == (await store.branch("c")).state
        await store.append("c", Restore(compaction=8), branch=late.number)
        assert (await store.branch("c")).state.active is not None
        assert await store.verify("c") == []

    async def test_a_long_window_is_read_from_its_end(self, store: Store) -> None:
        await store.create_conversation("c")
        counted = [Draft(body=message, tokens=TokenCount(10, "test")) for message in turns(1_300)]
        await store.append("c", *counted)
        window = await store.window("c", max_tokens=3_000)
        assert window.unread == Span(first=1, last=1_300 - 512)
        assert [entry.seq for entry in window.messages] == list(range(1_300 - 511, 1_301))
        assert (await store.window("c", max_tokens=100_000)).unread is None
        [compaction] = await store.append("c", Compaction(number=1, covers=Span(first=1, last=20), summary="s"))
        await store.append("c", *counted)
        window = await store.window("c", max_tokens=3_000)
        assert window.compaction == compaction
        assert window.unread is not None
        assert window.unread.first == 21
