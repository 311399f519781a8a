"""What any backend must do with what is made from messages, shelves and memories, as tests."""

import asyncio

import pytest

from quire.errors import (
    ConversationNotFound,
    EntryNotFound,
    InvalidEntry,
    MemoryNotFound,
    MemoryRetired,
    StaleShelf,
)
from quire.log import (
    SHELF,
    Citation,
    Passage,
    Shelf,
    ShelfMark,
    Store,
    conversation_scope,
    memory_scope,
    message_key,
)
from quire.model import Pin
from quire.testing.given import turns
from quire.testing.searching import keys


def shelf_of(first: int, last: int, *, branch: int = 0, data: bytes = b"index", purged: int = 0) -> Shelf:
    """A shelf with a passage for each of these entries."""
    passages = tuple(Passage(message_key(branch, seq), f"message {seq}", at=seq) for seq in range(first, last + 1))
    return Shelf(branch, (first - 1) // SHELF, last, data, passages, purged)


class ArchiveContract:
    """The part of `StoreContract` about what is made from messages, and goes with them."""

    async def test_a_shelf_is_listed_read_and_found_by_its_messages(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(SHELF + 10))
        assert await store.shelves("c") == []
        marks = [
            await store.put_shelf("c", shelf_of(1, SHELF, data=b"\x00one")),
            await store.put_shelf("c", shelf_of(SHELF + 1, SHELF + 10, data=b"two\xff")),
        ]
        assert [mark[:3] for mark in marks] == [(0, 0, SHELF), (0, 1, SHELF + 10)]
        assert await store.shelves("c") == marks
        assert await store.read_shelves("c", marks[::-1]) == [b"two\xff", b"\x00one"]
        assert await store.read_shelves("c", []) == []
        [hit] = await store.search("517", scopes=[conversation_scope("c")])
        assert (hit.key, hit.at) == ("0:517", 517)

    async def test_a_shelf_grows_and_each_writing_has_a_version_of_its_own(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(30))
        first = await store.put_shelf("c", shelf_of(1, 10, data=b"first"))
        again = await store.put_shelf("c", shelf_of(1, 10, data=b"again"))
        longer = await store.put_shelf("c", shelf_of(1, 30, data=b"longer"))
        assert len({first.version, again.version, longer.version}) == 3
        assert await store.put_shelf("c", shelf_of(1, 20, data=b"late")) == longer
        assert await store.shelves("c") == [longer]
        assert await store.read_shelves("c", [longer]) == [b"longer"]
        for stale in (first, again, longer._replace(shelf=1, version="x")):
            with pytest.raises(StaleShelf):
                await store.read_shelves("c", [longer, stale])
        assert len(await store.search("message", scopes=[conversation_scope("c")], limit=100)) == 30

    async def test_a_shelf_holds_entries_of_its_own_branch_and_range(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(20))
        branch = (await store.fork("c", at=5)).number
        await store.append("c", *turns(3), branch=branch)
        strange = shelf_of(1, 10)._replace(passages=(Passage("0:11", "text"),))
        outside = [shelf_of(1, 21), shelf_of(1, 10)._replace(number=1), shelf_of(1, 5, branch=branch), strange]
        for wrong in outside:
            with pytest.raises(InvalidEntry):
                await store.put_shelf("c", wrong)
        with pytest.raises(ConversationNotFound):
            await store.put_shelf("other", shelf_of(1, 1))
        assert await store.shelves("c") == []

    async def test_shelves_are_listed_along_the_branch(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(2 * SHELF + 20))
        marks = [await store.put_shelf("c", shelf_of(n * SHELF + 1, min((n + 1) * SHELF, 1044))) for n in range(3)]
        branch = (await store.fork("c", at=SHELF + 5)).number
        await store.append("c", *turns(2), branch=branch)
        mine = await store.put_shelf("c", shelf_of(SHELF + 6, SHELF + 7, branch=branch, data=b"mine"))
        assert await store.shelves("c") == marks
        assert await store.shelves("c", branch=branch) == [*marks[:2], mine]
        assert await store.read_shelves("c", [mine, marks[0]]) == [b"mine", b"index"]
        empty = await store.fork("c", at=0)
        assert await store.shelves("c", branch=empty.number) == []

    async def test_a_purge_takes_the_passage_and_the_shelf(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(SHELF + 2))
        await store.put_shelf("c", shelf_of(1, SHELF))
        kept = await store.put_shelf("c", shelf_of(SHELF + 1, SHELF + 2))
        scope = [conversation_scope("c")]
        assert keys(await store.search("7", scopes=scope)) == ["0:7"]
        await store.purge("c", [7])
        assert await store.search("7", scopes=scope) == []
        assert keys(await store.search("8", scopes=scope)) == ["0:8"]
        assert await store.shelves("c") == [kept]
        await store.purge("c")
        assert await store.shelves("c") == []
        assert await store.search("8 message", scopes=scope) == []

    async def test_a_shelf_that_was_made_before_a_purge_is_refused_after_it(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(20))
        await store.purge("c", [3])
        known = shelf_of(1, 10, purged=1)
        await store.put_shelf("c", known)
        await store.purge("c", [7])
        for late in (known, shelf_of(1, 20, purged=1)):
            with pytest.raises(StaleShelf):
                await store.put_shelf("c", late)
        assert await store.shelves("c") == []
        assert await store.search("7", scopes=[conversation_scope("c")]) == []
        await store.put_shelf("c", shelf_of(1, 5, purged=1))
        await store.put_shelf("c", shelf_of(1, 20, purged=2))

    async def test_shelves_and_purges_at_once_leave_nothing_that_was_purged(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(12))
        before, after = ([store.put_shelf("c", shelf_of(1, last)) for last in range(4, 12)] for _ in range(2))
        outcomes = await asyncio.gather(*before, store.purge("c", [2]), *after, return_exceptions=True)
        assert all(isinstance(outcome, StaleShelf | ShelfMark | list) for outcome in outcomes), outcomes
        assert await store.search("2", scopes=[conversation_scope("c")]) == []
        assert await store.shelves("c") == []

    async def test_a_memory_cites_its_message_and_is_found(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(3), Pin(message=1))
        branch = (await store.fork("c", at=2)).number
        made = await store.remember("agent", "Ann likes tea", cites=Citation("c", branch, 2))
        assert (made.agent, made.text, made.cites) == ("agent", "Ann likes tea", Citation("c", 0, 2))
        assert await store.memory(made.id) == made
        [hit] = await store.search("tea", scopes=[memory_scope("agent")])
        assert (hit.key, hit.text, hit.at) == (made.id, made.text, made.created_at)
        imported = await store.remember("agent", "Ann is a\x00 baker", source="notes.md")
        assert (imported.cites, imported.source, imported.text) == (None, "notes.md", "Ann is a\ufffd baker")
        wrong = [(None, None), (Citation("c", 0, 1), "both"), (Citation("c", 0, 4), None)]
        for cites, source in wrong:
            with pytest.raises(InvalidEntry):
                await store.remember("agent", "x", cites=cites, source=source)
        with pytest.raises(InvalidEntry):
            await store.remember("agent", " ", source="s")
        with pytest.raises(EntryNotFound):
            await store.remember("agent", "x", cites=Citation("c", 0, 9))
        with pytest.raises(ConversationNotFound):
            await store.remember("agent", "x", cites=Citation("other", 0, 1))

    async def test_correcting_a_memory_retires_it(self, store: Store) -> None:
        old = await store.remember("agent", "Ann likes tea", source="s")
        new = await store.correct(old.id, "Ann likes coffee", source="t")
        retired = await store.memory(old.id)
        assert (retired.text, retired.replaced_by) == ("Ann likes tea", new.id)
        assert retired.retired_at is not None
        assert await store.memories("agent") == [new]
        assert await store.memories("agent", retired=True) == [new, retired]
        scope = [memory_scope("agent")]
        assert keys(await store.search("Ann tea coffee", scopes=scope)) == [new.id]
        with pytest.raises(MemoryRetired, match=new.id):
            await store.correct(old.id, "Ann likes water", source="u")
        gone = await store.retire(new.id)
        assert await store.retire(new.id) == gone
        assert await store.memories("agent") == []
        assert await store.search("Ann", scopes=scope) == []
        for call in (store.memory("no"), store.retire("no"), store.correct("no", "x", source="s")):
            with pytest.raises(MemoryNotFound):
                await call

    async def test_of_two_corrections_at_once_one_is_refused(self, store: Store) -> None:
        old = await store.remember("agent", "Ann likes tea", source="s")
        corrections = (store.correct(old.id, f"Ann likes {what}", source="t") for what in ("milk", "water", "juice"))
        outcomes = await asyncio.gather(*corrections, return_exceptions=True)
        assert sum(isinstance(outcome, MemoryRetired) for outcome in outcomes) == 2
        assert len(await store.memories("agent")) == 1

    async def test_memories_are_listed_newest_first_page_by_page(self, store: Store) -> None:
        made = [await store.remember("agent", f"fact {number}", source="s") for number in range(7)]
        await store.remember("other", "fact", source="s")
        await store.retire(made[2].id)
        first = await store.memories("agent", limit=4)
        rest = await store.memories("agent", limit=4, before=first[-1])
        expected = [memory for memory in made if memory.id != made[2].id]
        assert [*first, *rest] == sorted(expected, key=lambda each: (each.created_at, each.id), reverse=True)

    async def test_a_purge_takes_the_memories_that_cite_what_is_purged(self, store: Store) -> None:
        for name in ("c", "d"):
            await store.create_conversation(name)
            await store.append(name, *turns(3))
        kept = [
            await store.remember("agent", "of another message", cites=Citation("c", 0, 1)),
            await store.remember("agent", "of another conversation", cites=Citation("d", 0, 2)),
        ]
        doomed = await store.remember("agent", "a secret", cites=Citation("c", 0, 2))
        corrected = await store.correct(doomed.id, "a better secret", cites=Citation("c", 0, 2))
        await store.purge("c", [2])
        for memory in (doomed, corrected):
            purged = await store.memory(memory.id)
            assert (purged.text, purged.cites) == ("[purged]", Citation("c", 0, 2))
            assert purged.retired_at is not None
        assert await store.memories("agent") == kept[::-1]
        assert await store.search("secret", scopes=[memory_scope("agent")]) == []
        with pytest.raises(InvalidEntry):
            await store.remember("agent", "a secret", cites=Citation("c", 0, 2))
        await store.purge("c")
        assert await store.memories("agent") == [kept[1]]
