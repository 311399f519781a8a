"""SqlStore contract for data derived from messages: the message index and memories."""

import asyncio
from collections.abc import Sequence

import pytest

from infra.builders import make_messages
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import index_messages
from quire.engine.search import MessageFilter, search_messages
from quire.errors import (
    ConversationNotFound,
    EntryNotFound,
    InvalidEntry,
    MemoryNotFound,
    MemoryRetired,
    StaleSegment,
)
from quire.index.types import (
    IndexedBranch,
    SegmentData,
    SegmentUpdate,
    memory_scope,
)
from quire.log import Citation, MessageKey
from quire.model import Message, Pin
from quire.search.postings import ENTRIES_PER_SEGMENT, POSTING_BYTES
from quire.settings import Settings
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

WORDS = ("otter", "heron", "badger", "willow", "river", "mill", "tide", "spring")


def make_engine(store: SqlStore) -> Engine:
    return Engine(store, EngineConfig.create(Settings()))


async def find_messages(
    store: SqlStore, query: str, *, where: MessageFilter | None = None
) -> list[tuple[str, int, int]]:
    """Conversation, branch and number of the messages that a search of the current index finds, in their order."""
    found = await search_messages(make_engine(store), query, where=where or MessageFilter(), limit=100)
    return [(hit.entry.conversation, hit.entry.branch, hit.entry.seq) for hit in found.messages]


def make_update(
    first: int, last: int, *, conversation: str = "c", branch: int = 0, base: int | None = None
) -> SegmentUpdate:
    """An update without messages, for what depends on its entries alone."""
    segment = (last - 1) // ENTRIES_PER_SEGMENT
    return SegmentUpdate(conversation, branch, segment, first, last, base, 0, SegmentData(b"columns", b"terms"), None)


async def test_what_is_appended_is_unindexed_until_its_segments_are_stored(store: SqlStore) -> None:
    await store.create_conversation("c")
    assert not await store.message_index.has_unindexed()
    await store.append("c", *make_messages(ENTRIES_PER_SEGMENT + 10))
    assert await store.message_index.has_unindexed()
    assert await store.message_index.has_unindexed(conversations=["x", "c"])
    assert not await store.message_index.has_unindexed(conversations=["x"])
    batch = await store.message_index.read_batch(max_entries=100)
    assert [(task.segment, task.last_seq, len(task.entries)) for task in batch.tasks] == [(0, 512, 512)]
    assert batch.branches == ()
    batch = await store.message_index.read_batch(max_entries=1_000)
    assert [(task.segment, task.last_seq, len(task.entries)) for task in batch.tasks] == [
        (0, 512, 512),
        (1, 522, 10),
    ]
    assert batch.branches == (IndexedBranch("c", 0, 522),)
    assert await store.message_index.read_batch(max_entries=1_000, conversations=["x"]) == ((), ())
    await store.append("c", *make_messages(1))
    await index_messages(make_engine(store))
    assert not await store.message_index.has_unindexed()
    refs = await store.message_index.list_segments("c")
    assert [(ref.branch, ref.segment, ref.number, ref.last_seq) for ref in refs] == [(0, 0, 0, 512), (0, 1, 1, 523)]
    assert (
        await store.message_index.read_segments("c", refs[::-1])
        == (await store.message_index.read_segments("c", refs))[::-1]
    )
    assert await find_messages(store, "message 517") != []


async def test_a_branch_that_has_moved_on_stays_unindexed(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(2))
    await store.append("c", *make_messages(1))
    assert await store.message_index.put_segments([make_update(1, 2)], indexed=[IndexedBranch("c", 0, 2)]) == []
    assert await store.message_index.has_unindexed()
    assert await store.message_index.put_segments([], indexed=[IndexedBranch("c", 0, 3)]) == []
    assert not await store.message_index.has_unindexed()


async def test_a_segment_grows_by_its_new_entries_alone(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(30))
    await index_messages(make_engine(store))
    [first] = await store.message_index.list_segments("c")
    await store.append("c", Message.user("an otter"))
    [task] = (await store.message_index.read_batch(max_entries=100)).tasks
    assert (task.stored, [entry.seq for entry in task.entries]) == (first, [31])
    await index_messages(make_engine(store))
    [grown] = await store.message_index.list_segments("c")
    assert (grown.number, grown.last_seq) == (first.number, 31)
    assert grown.revision > first.revision
    with pytest.raises(StaleSegment):
        await store.message_index.read_segments("c", [first])
    assert await find_messages(store, "otters") == [("c", 0, 31)]
    assert len(await find_messages(store, "message")) == 30


async def test_a_segment_that_was_changed_meanwhile_is_refused(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(3))
    update = make_update(1, 3)
    assert await store.message_index.put_segments([update]) == []
    [stored] = await store.message_index.list_segments("c")
    for base in (None, stored.revision + 1):
        late = update._replace(base_revision=base)
        assert await store.message_index.put_segments([late], indexed=[IndexedBranch("c", 0, 3)]) == [late]
    assert await store.message_index.has_unindexed()
    assert await store.message_index.put_segments([update._replace(base_revision=stored.revision)]) == []


async def test_a_segment_holds_entries_of_its_own_branch_and_range(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(20))
    branch = (await store.fork("c", at=5)).number
    await store.append("c", *make_messages(3), branch=branch)
    outside = [make_update(1, 21), make_update(1, 10)._replace(segment=1), make_update(1, 5, branch=branch)]
    for wrong in outside:
        with pytest.raises(InvalidEntry):
            await store.message_index.put_segments([make_update(1, 20), wrong])
    with pytest.raises(ConversationNotFound):
        await store.message_index.put_segments([make_update(1, 1, conversation="other")])
    assert await store.message_index.list_segments("c") == []


async def test_segments_are_listed_along_the_branch_and_each_message_is_found_once(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(2 * ENTRIES_PER_SEGMENT + 20))
    branch = (await store.fork("c", at=ENTRIES_PER_SEGMENT + 5)).number
    await store.append("c", Message.user("an otter"), Message.user("a heron"), branch=branch)
    await index_messages(make_engine(store))
    main, forked = (
        await store.message_index.list_segments("c"),
        await store.message_index.list_segments("c", branch=branch),
    )
    assert [(ref.branch, ref.segment, ref.last_seq) for ref in main] == [(0, 0, 512), (0, 1, 1_024), (0, 2, 1_044)]
    assert forked[:2] == main[:2]
    assert [(ref.branch, ref.segment, ref.last_seq) for ref in forked[2:]] == [(branch, 1, 519)]
    assert await find_messages(store, "otter") == [("c", branch, 518)]
    assert (await find_messages(store, "message 7")).count(("c", 0, 7)) == 1
    empty = await store.fork("c", at=0)
    assert await store.message_index.list_segments("c", branch=empty.number) == []


async def test_a_search_covers_all_conversations_and_each_condition_holds(store: SqlStore) -> None:
    for name in ("a", "b"):
        await store.create_conversation(name)
        await store.append(name, *(Message.user(f"{word} of {name}") for word in WORDS))
    engine = make_engine(store)
    assert set(await find_messages(store, "heron")) == {("a", 0, 2), ("b", 0, 2)}
    assert await find_messages(store, "heron", where=MessageFilter(conversations=("b", "none"))) == [("b", 0, 2)]
    assert await find_messages(store, "heron", where=MessageFilter(conversations=())) == []
    assert await find_messages(store, "heron", where=MessageFilter(role="assistant")) == []
    found = await search_messages(engine, "heron", min_score=0.99)
    assert (found.messages, found.complete) == ([], True)


async def test_a_purge_erases_a_message_from_the_index(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *(Message.user(f"{word} number {number}") for number, word in enumerate(WORDS * 2)))
    await index_messages(make_engine(store))
    [before] = await store.message_index.list_segments("c")
    await store.purge("c", [2])
    [after] = await store.message_index.list_segments("c")
    assert (after.erasures, after.last_seq, after.number) == (before.erasures + 1, before.last_seq, before.number)
    assert await find_messages(store, "heron") == [("c", 0, 10)]
    read = await store.message_index.read_changes(["heron", "1"], after_revision=0)
    assert {term: sum(len(data) for _, data in blocks) for term, blocks in read.postings.items()} == {
        "heron": POSTING_BYTES
    }
    assert not await store.message_index.has_unindexed()
    await store.append("c", Message.user("one more heron"))
    assert set(await find_messages(store, "heron")) == {("c", 0, 10), ("c", 0, 17)}
    await store.purge("c")
    assert await find_messages(store, " ".join(WORDS)) == []
    read = await store.message_index.read_changes(list(WORDS), after_revision=0)
    assert read.postings == {}
    await store.append("c", Message.user("a heron again"))
    assert await find_messages(store, "heron") == [("c", 0, 18)]


async def test_a_segment_that_was_built_before_a_purge_is_refused_after_it(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(20))
    await store.purge("c", [7])
    for late in (make_update(1, 10), make_update(1, 20)):
        assert await store.message_index.put_segments([late]) == [late]
    assert await store.message_index.list_segments("c") == []
    assert await store.message_index.put_segments([make_update(1, 6), make_update(8, 20, base=1)]) == []


async def test_concurrent_indexing_and_purges_store_nothing_that_was_purged(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *(Message.user(f"{word} number {number}") for number, word in enumerate(WORDS * 2)))
    before, after = ([index_messages(make_engine(store)) for _ in range(4)] for _ in range(2))
    await asyncio.gather(*before, store.purge("c", [2]), *after)
    await index_messages(make_engine(store))
    assert await find_messages(store, "heron") == [("c", 0, 10)]
    read = await store.message_index.read_changes(["heron", "otter"], after_revision=0)
    assert {term: sum(len(data) for _, data in blocks) for term, blocks in read.postings.items()} == {
        "heron": POSTING_BYTES,
        "otter": 2 * POSTING_BYTES,
    }


async def test_messages_that_lack_an_embedders_vectors_are_indexed_again(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(3))
    await index_messages(make_engine(store))
    assert await store.message_index.mark_unembedded("letters") == 1
    [task] = (await store.message_index.read_batch(max_entries=10, embedder="letters")).tasks
    assert len(task.entries) == 3
    assert (await store.message_index.read_batch(max_entries=10)).tasks == ()


async def test_messages_are_read_by_key_with_their_conversations(store: SqlStore) -> None:
    await store.create_conversation("c", title="Otters")
    entries: Sequence[object] = await store.append("c", *make_messages(3), Pin(message=1))
    await store.purge("c", [2])
    keys = [MessageKey("c", 0, 3), MessageKey("c", 0, 2), MessageKey("c", 0, 4), MessageKey("d", 0, 1)]
    found, records = await store.message_index.read_messages(keys)
    assert found == [entries[2], None, None, None]
    assert [record.title for record in records.values()] == ["Otters"]


async def test_a_memory_cites_its_message_and_is_found(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(3), Pin(message=1))
    branch = (await store.fork("c", at=2)).number
    memory = await store.memories.add("agent", "Ann likes tea", citation=Citation("c", branch, 2))
    assert (memory.namespace, memory.text, memory.citation) == ("agent", "Ann likes tea", Citation("c", 0, 2))
    assert await store.memories.get(memory.id) == memory
    [hit] = await store.passages.search("tea", scopes=[memory_scope("agent")])
    assert (hit.key, hit.text, hit.at) == (memory.id, memory.text, memory.created_at)
    imported = await store.memories.add("agent", "Ann is a\x00 baker", source="notes.md")
    assert (imported.citation, imported.source, imported.text) == (None, "notes.md", "Ann is a\ufffd baker")
    quoted = await store.memories.add("agent", "Ann has a mill", citation=Citation("c", 0, 1), source="mill.md")
    assert (quoted.citation, quoted.source) == (Citation("c", 0, 1), "mill.md")
    for citation in (None, Citation("c", 0, 4)):
        with pytest.raises(InvalidEntry):
            await store.memories.add("agent", "x", citation=citation)
    with pytest.raises(InvalidEntry):
        await store.memories.add("agent", " ", source="s")
    with pytest.raises(EntryNotFound):
        await store.memories.add("agent", "x", citation=Citation("c", 0, 9))
    with pytest.raises(ConversationNotFound):
        await store.memories.add("agent", "x", citation=Citation("other", 0, 1))


async def test_correcting_a_memory_retires_it(store: SqlStore) -> None:
    old = await store.memories.add("agent", "Ann likes tea", source="s")
    new = await store.memories.replace(old.id, "Ann likes coffee", source="t")
    retired = await store.memories.get(old.id)
    assert (retired.text, retired.replaced_by) == ("Ann likes tea", new.id)
    assert retired.retired_at is not None
    assert await store.memories.list("agent") == [new]
    assert await store.memories.list("agent", include_retired=True) == [new, retired]
    scope = [memory_scope("agent")]
    assert [hit.key for hit in await store.passages.search("Ann tea coffee", scopes=scope)] == [new.id]
    with pytest.raises(MemoryRetired, match=new.id):
        await store.memories.replace(old.id, "Ann likes water", source="u")
    again = await store.memories.retire(new.id)
    assert await store.memories.retire(new.id) == again
    assert await store.memories.list("agent") == []
    assert await store.passages.search("Ann", scopes=scope) == []
    for call in (store.memories.get("no"), store.memories.retire("no"), store.memories.replace("no", "x", source="s")):
        with pytest.raises(MemoryNotFound):
            await call


async def test_of_two_corrections_at_once_one_is_refused(store: SqlStore) -> None:
    old = await store.memories.add("agent", "Ann likes tea", source="s")
    corrections = (
        store.memories.replace(old.id, f"Ann likes {what}", source="t") for what in ("milk", "water", "juice")
    )
    outcomes = await asyncio.gather(*corrections, return_exceptions=True)
    assert sum(isinstance(outcome, MemoryRetired) for outcome in outcomes) == 2
    assert len(await store.memories.list("agent")) == 1


async def test_memories_are_listed_newest_first_page_by_page(store: SqlStore) -> None:
    memories = [await store.memories.add("agent", f"fact {number}", source="s") for number in range(7)]
    await store.memories.add("other", "fact", source="s")
    await store.memories.retire(memories[2].id)
    first = await store.memories.list("agent", limit=4)
    rest = await store.memories.list("agent", limit=4, before=first[-1])
    expected = [memory for memory in memories if memory.id != memories[2].id]
    assert [*first, *rest] == sorted(expected, key=lambda each: (each.created_at, each.id), reverse=True)


async def test_a_purge_erases_the_memories_that_cite_a_purged_message(store: SqlStore) -> None:
    for name in ("c", "d"):
        await store.create_conversation(name)
        await store.append(name, *make_messages(3))
    others = [
        await store.memories.add("agent", "of another message", citation=Citation("c", 0, 1)),
        await store.memories.add("agent", "of another conversation", citation=Citation("d", 0, 2)),
    ]
    doomed = await store.memories.add("agent", "a secret", citation=Citation("c", 0, 2))
    corrected = await store.memories.replace(doomed.id, "a better secret", citation=Citation("c", 0, 2))
    await store.purge("c", [2])
    for memory in (doomed, corrected):
        purged = await store.memories.get(memory.id)
        assert (purged.text, purged.citation) == ("[purged]", Citation("c", 0, 2))
        assert purged.retired_at is not None
    assert await store.memories.list("agent") == others[::-1]
    assert await store.passages.search("secret", scopes=[memory_scope("agent")]) == []
    with pytest.raises(InvalidEntry):
        await store.memories.add("agent", "a secret", citation=Citation("c", 0, 2))
    await store.purge("c")
    assert await store.memories.list("agent") == [others[1]]
