"""Store contract for data derived from messages: recall segments and memories."""

import asyncio

import pytest

from quire.errors import (
    ConversationNotFound,
    EntryNotFound,
    InvalidEntry,
    MemoryNotFound,
    MemoryRetired,
    StaleSegment,
)
from quire.log import (
    ENTRIES_PER_SEGMENT,
    Citation,
    Passage,
    SegmentRef,
    SegmentRow,
    Store,
    conversation_scope,
    memory_scope,
    message_key,
)
from quire.model import Pin
from quire.testing.builders import make_messages
from quire.testing.contract_search import get_hit_keys


def make_segment(first: int, last: int, *, branch: int = 0, data: bytes = b"index", purge_count: int = 0) -> SegmentRow:
    """Makes a segment with a passage for each of these entries."""
    passages = tuple(Passage(message_key(branch, seq), f"message {seq}", at=seq) for seq in range(first, last + 1))
    return SegmentRow(branch, (first - 1) // ENTRIES_PER_SEGMENT, last, data, passages, purge_count)


class RecallContract:
    """The part of `StoreContract` about data that is derived from messages, and purged with them."""

    async def test_a_segment_is_listed_read_and_found_by_its_messages(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *make_messages(ENTRIES_PER_SEGMENT + 10))
        assert await store.list_segments("c") == []
        refs = [
            await store.put_segment("c", make_segment(1, ENTRIES_PER_SEGMENT, data=b"\x00one")),
            await store.put_segment(
                "c", make_segment(ENTRIES_PER_SEGMENT + 1, ENTRIES_PER_SEGMENT + 10, data=b"two\xff")
            ),
        ]
        assert [ref[:3] for ref in refs] == [(0, 0, ENTRIES_PER_SEGMENT), (0, 1, ENTRIES_PER_SEGMENT + 10)]
        assert await store.list_segments("c") == refs
        assert await store.read_segments("c", refs[::-1]) == [b"two\xff", b"\x00one"]
        assert await store.read_segments("c", []) == []
        [hit] = await store.search("517", scopes=[conversation_scope("c")])
        assert (hit.key, hit.at) == ("0:517", 517)

    async def test_a_segment_grows_and_each_write_has_its_own_version(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *make_messages(30))
        first = await store.put_segment("c", make_segment(1, 10, data=b"first"))
        again = await store.put_segment("c", make_segment(1, 10, data=b"again"))
        longer = await store.put_segment("c", make_segment(1, 30, data=b"longer"))
        assert len({first.version, again.version, longer.version}) == 3
        assert await store.put_segment("c", make_segment(1, 20, data=b"late")) == longer
        assert await store.list_segments("c") == [longer]
        assert await store.read_segments("c", [longer]) == [b"longer"]
        for stale in (first, again, longer._replace(segment=1, version="x")):
            with pytest.raises(StaleSegment):
                await store.read_segments("c", [longer, stale])
        assert len(await store.search("message", scopes=[conversation_scope("c")], limit=100)) == 30

    async def test_a_segment_holds_entries_of_its_own_branch_and_range(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *make_messages(20))
        branch = (await store.fork("c", at=5)).number
        await store.append("c", *make_messages(3), branch=branch)
        strange = make_segment(1, 10)._replace(passages=(Passage("0:11", "text"),))
        outside = [
            make_segment(1, 21),
            make_segment(1, 10)._replace(segment=1),
            make_segment(1, 5, branch=branch),
            strange,
        ]
        for wrong in outside:
            with pytest.raises(InvalidEntry):
                await store.put_segment("c", wrong)
        with pytest.raises(ConversationNotFound):
            await store.put_segment("other", make_segment(1, 1))
        assert await store.list_segments("c") == []

    async def test_segments_are_listed_along_the_branch(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *make_messages(2 * ENTRIES_PER_SEGMENT + 20))
        refs = [
            await store.put_segment(
                "c", make_segment(n * ENTRIES_PER_SEGMENT + 1, min((n + 1) * ENTRIES_PER_SEGMENT, 1044))
            )
            for n in range(3)
        ]
        branch = (await store.fork("c", at=ENTRIES_PER_SEGMENT + 5)).number
        await store.append("c", *make_messages(2), branch=branch)
        mine = await store.put_segment(
            "c", make_segment(ENTRIES_PER_SEGMENT + 6, ENTRIES_PER_SEGMENT + 7, branch=branch, data=b"mine")
        )
        assert await store.list_segments("c") == refs
        assert await store.list_segments("c", branch=branch) == [*refs[:2], mine]
        assert await store.read_segments("c", [mine, refs[0]]) == [b"mine", b"index"]
        empty = await store.fork("c", at=0)
        assert await store.list_segments("c", branch=empty.number) == []

    async def test_a_purge_deletes_the_passage_and_the_segment(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *make_messages(ENTRIES_PER_SEGMENT + 2))
        await store.put_segment("c", make_segment(1, ENTRIES_PER_SEGMENT))
        other = await store.put_segment("c", make_segment(ENTRIES_PER_SEGMENT + 1, ENTRIES_PER_SEGMENT + 2))
        scope = [conversation_scope("c")]
        assert get_hit_keys(await store.search("7", scopes=scope)) == ["0:7"]
        await store.purge("c", [7])
        assert await store.search("7", scopes=scope) == []
        assert get_hit_keys(await store.search("8", scopes=scope)) == ["0:8"]
        assert await store.list_segments("c") == [other]
        await store.purge("c")
        assert await store.list_segments("c") == []
        assert await store.search("8 message", scopes=scope) == []

    async def test_a_segment_that_was_built_before_a_purge_is_refused_after_it(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *make_messages(20))
        await store.purge("c", [3])
        known = make_segment(1, 10, purge_count=1)
        await store.put_segment("c", known)
        await store.purge("c", [7])
        for late in (known, make_segment(1, 20, purge_count=1)):
            with pytest.raises(StaleSegment):
                await store.put_segment("c", late)
        assert await store.list_segments("c") == []
        assert await store.search("7", scopes=[conversation_scope("c")]) == []
        await store.put_segment("c", make_segment(1, 5, purge_count=1))
        await store.put_segment("c", make_segment(1, 20, purge_count=2))

    async def test_concurrent_segments_and_purges_store_nothing_that_was_purged(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *make_messages(12))
        before, after = ([store.put_segment("c", make_segment(1, last)) for last in range(4, 12)] for _ in range(2))
        outcomes = await asyncio.gather(*before, store.purge("c", [2]), *after, return_exceptions=True)
        assert all(isinstance(outcome, StaleSegment | SegmentRef | list) for outcome in outcomes), outcomes
        assert await store.search("2", scopes=[conversation_scope("c")]) == []
        assert await store.list_segments("c") == []

    async def test_a_memory_cites_its_message_and_is_found(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *make_messages(3), Pin(message=1))
        branch = (await store.fork("c", at=2)).number
        memory = await store.add_memory("agent", "Ann likes tea", citation=Citation("c", branch, 2))
        assert (memory.namespace, memory.text, memory.citation) == ("agent", "Ann likes tea", Citation("c", 0, 2))
        assert await store.get_memory(memory.id) == memory
        [hit] = await store.search("tea", scopes=[memory_scope("agent")])
        assert (hit.key, hit.text, hit.at) == (memory.id, memory.text, memory.created_at)
        imported = await store.add_memory("agent", "Ann is a\x00 baker", source="notes.md")
        assert (imported.citation, imported.source, imported.text) == (None, "notes.md", "Ann is a\ufffd baker")
        quoted = await store.add_memory("agent", "Ann has a mill", citation=Citation("c", 0, 1), source="mill.md")
        assert (quoted.citation, quoted.source) == (Citation("c", 0, 1), "mill.md")
        for citation in (None, Citation("c", 0, 4)):
            with pytest.raises(InvalidEntry):
                await store.add_memory("agent", "x", citation=citation)
        with pytest.raises(InvalidEntry):
            await store.add_memory("agent", " ", source="s")
        with pytest.raises(EntryNotFound):
            await store.add_memory("agent", "x", citation=Citation("c", 0, 9))
        with pytest.raises(ConversationNotFound):
            await store.add_memory("agent", "x", citation=Citation("other", 0, 1))

    async def test_correcting_a_memory_retires_it(self, store: Store) -> None:
        old = await store.add_memory("agent", "Ann likes tea", source="s")
        new = await store.replace_memory(old.id, "Ann likes coffee", source="t")
        retired = await store.get_memory(old.id)
        assert (retired.text, retired.replaced_by) == ("Ann likes tea", new.id)
        assert retired.retired_at is not None
        assert await store.list_memories("agent") == [new]
        assert await store.list_memories("agent", include_retired=True) == [new, retired]
        scope = [memory_scope("agent")]
        assert get_hit_keys(await store.search("Ann tea coffee", scopes=scope)) == [new.id]
        with pytest.raises(MemoryRetired, match=new.id):
            await store.replace_memory(old.id, "Ann likes water", source="u")
        again = await store.retire_memory(new.id)
        assert await store.retire_memory(new.id) == again
        assert await store.list_memories("agent") == []
        assert await store.search("Ann", scopes=scope) == []
        for call in (store.get_memory("no"), store.retire_memory("no"), store.replace_memory("no", "x", source="s")):
            with pytest.raises(MemoryNotFound):
                await call

    async def test_of_two_corrections_at_once_one_is_refused(self, store: Store) -> None:
        old = await store.add_memory("agent", "Ann likes tea", source="s")
        corrections = (
            store.replace_memory(old.id, f"Ann likes {what}", source="t") for what in ("milk", "water", "juice")
        )
        outcomes = await asyncio.gather(*corrections, return_exceptions=True)
        assert sum(isinstance(outcome, MemoryRetired) for outcome in outcomes) == 2
        assert len(await store.list_memories("agent")) == 1

    async def test_memories_are_listed_newest_first_page_by_page(self, store: Store) -> None:
        memories = [await store.add_memory("agent", f"fact {number}", source="s") for number in range(7)]
        await store.add_memory("other", "fact", source="s")
        await store.retire_memory(memories[2].id)
        first = await store.list_memories("agent", limit=4)
        rest = await store.list_memories("agent", limit=4, before=first[-1])
        expected = [memory for memory in memories if memory.id != memories[2].id]
        assert [*first, *rest] == sorted(expected, key=lambda each: (each.created_at, each.id), reverse=True)

    async def test_a_purge_erases_the_memories_that_cite_a_purged_message(self, store: Store) -> None:
        for name in ("c", "d"):
            await store.create_conversation(name)
            await store.append(name, *make_messages(3))
        others = [
            await store.add_memory("agent", "of another message", citation=Citation("c", 0, 1)),
            await store.add_memory("agent", "of another conversation", citation=Citation("d", 0, 2)),
        ]
        doomed = await store.add_memory("agent", "a secret", citation=Citation("c", 0, 2))
        corrected = await store.replace_memory(doomed.id, "a better secret", citation=Citation("c", 0, 2))
        await store.purge("c", [2])
        for memory in (doomed, corrected):
            purged = await store.get_memory(memory.id)
            assert (purged.text, purged.citation) == ("[purged]", Citation("c", 0, 2))
            assert purged.retired_at is not None
        assert await store.list_memories("agent") == others[::-1]
        assert await store.search("secret", scopes=[memory_scope("agent")]) == []
        with pytest.raises(InvalidEntry):
            await store.add_memory("agent", "a secret", citation=Citation("c", 0, 2))
        await store.purge("c")
        assert await store.list_memories("agent") == [others[1]]
