"""What any backend of the log must do, as tests. A backend passes if a subclass of `StoreContract` does.

    class TestMyStore(StoreContract):
        @pytest.fixture
        async def store(self): ...

The `store` is empty and fresh for each test. Needs pytest, pytest-asyncio in auto mode, and Hypothesis.
"""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import (
    BlobNotFound,
    BranchNotFound,
    ConversationNotFound,
    EntryNotFound,
    InvalidEntry,
    StaleHead,
)
from quire.log import Store
from quire.model import (
    ROOT,
    Compaction,
    Draft,
    Entry,
    ImagePart,
    Message,
    Notes,
    Pin,
    Span,
    TokenCount,
    Usage,
)
from quire.testing.archive import ArchiveContract
from quire.testing.given import exported, for_any, turns
from quire.testing.leaving import LeavingContract
from quire.testing.listing import ListingContract
from quire.testing.recording import RecordingContract
from quire.testing.searching import SearchContract
from quire.testing.strategies import drafts
from quire.testing.told import Told
from quire.testing.windows import WindowContract


class StoreContract(
    ListingContract, WindowContract, RecordingContract, LeavingContract, SearchContract, ArchiveContract
):
    async def test_appended_messages_read_back_in_order(self, store: Store) -> None:
        await store.create_conversation("c")
        said = turns(5)
        appended = await store.append("c", *said)
        assert [entry.seq for entry in appended] == [1, 2, 3, 4, 5]
        assert await store.range("c") == appended
        assert [entry.message for entry in appended] == said
        assert (await store.branch("c")).head_digest == appended[-1].digest
        assert await store.append("c") == []

    async def test_what_is_recorded_beside_a_message_reads_back(self, store: Store) -> None:
        await store.create_conversation("c")
        usage = Usage(model="m", input_tokens=10, cache_read_tokens=7, provider={"x": [1]})
        draft = Draft(body=Message.assistant("a"), tokens=TokenCount(3, "o200k"), usage=usage, at=1_000_001)
        [entry] = await store.append("c", draft)
        found = await store.entry("c", 1)
        assert found == entry
        assert found.notes == Notes(usage=usage)
        assert found.token_count == TokenCount(3, "o200k")
        assert (found.at, found.author, found.role) == (1_000_001, "assistant", "assistant")

    async def test_reads_by_range_tail_kind_and_role(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(6), Pin(message=2), *turns(3, start=7))

        def seqs(found: Sequence[Entry]) -> list[int]:
            return [entry.seq for entry in found]

        assert seqs(await store.range("c", first=3, last=5)) == [3, 4, 5]
        assert seqs(await store.range("c", first=3, limit=2)) == [3, 4]
        assert seqs(await store.tail("c", 3)) == [8, 9, 10]
        assert seqs(await store.tail("c", 2, last=6)) == [5, 6]
        assert seqs(await store.tail("c", 100)) == list(range(1, 11))
        assert seqs(await store.range("c", kinds=["pin"])) == [7]
        assert seqs(await store.tail("c", 2, roles=["user"])) == [8, 10]
        assert seqs(await store.range("c", roles=["user"], kinds=["message"], limit=2)) == [1, 3]
        assert seqs(await store.range("c", first=11)) == []
        with pytest.raises(EntryNotFound):
            await store.entry("c", 11)
        with pytest.raises(ConversationNotFound):
            await store.range("other")
        with pytest.raises(BranchNotFound):
            await store.tail("c", 1, branch=3)

    async def test_appending_after_the_same_message_twice_is_one_append(self, store: Store) -> None:
        await store.create_conversation("c")
        one, two, three = turns(3)
        first = await store.append("c", one, two, after=ROOT)
        assert await store.append("c", one, two, after=ROOT) == first
        longer = await store.append("c", one, two, three, after=ROOT)
        assert longer[:2] == first
        assert [entry.seq for entry in await store.range("c")] == [1, 2, 3]
        assert await store.append("c", three, after=first[1].path) == longer[2:]
        with pytest.raises(StaleHead):
            await store.append("c", Message.user("something else"), after=first[1].path)
        with pytest.raises(StaleHead):
            await store.append("c", one, two, Message.user("something else"), after=ROOT)
        await store.append("c", one)
        assert len(await store.range("c")) == 4

    async def test_a_compaction_in_between_does_not_disturb_an_append_after_a_message(self, store: Store) -> None:
        await store.create_conversation("c")
        said = await store.append("c", *turns(3))
        await store.append("c", Compaction(number=1, covers=Span(first=1, last=2), summary="s"))
        [reply] = await store.append("c", Message.assistant("reply"), after=said[-1].path)
        assert reply.seq == 5
        with pytest.raises(InvalidEntry):
            await store.append("c", Pin(message=1), after=ROOT)

    async def test_concurrent_appends_are_all_kept_in_one_order(self, store: Store) -> None:
        await store.create_conversation("c")
        await asyncio.gather(*(store.append("c", message) for message in turns(40)))
        found = await store.range("c")
        assert [entry.seq for entry in found] == list(range(1, 41))
        assert {entry.message.text for entry in found} == {message.text for message in turns(40)}
        assert await store.verify("c") == []

    async def test_a_branch_shares_its_past_and_has_its_own_future(self, store: Store) -> None:
        await store.create_conversation("c")
        await store.append("c", *turns(6))
        branch = await store.fork("c", at=3, name="what if")
        assert (branch.number, branch.name, branch.head_seq) == (1, "what if", 3)
        [mine] = await store.append("c", Message.user("instead"), branch=1)
        assert mine.seq == 4
        texts = [entry.message.text for entry in await store.range("c", branch=1)]
        assert texts == ["message 1", "message 2", "message 3", "instead"]
        deeper = await store.fork("c", branch=1, at=2)
        assert deeper.number == 2
        assert [entry.branch for entry in await store.range("c", branch=2)] == [0, 0]
        assert [entry.seq for entry in await store.tail("c", 2, branch=1)] == [3, 4]
        empty = await store.fork("c", at=0)
        assert await store.range("c", branch=empty.number) == []
        assert [each.number for each in await store.branches("c")] == [0, 1, 2, 3]
        for at in (-1, 7):
            with pytest.raises(EntryNotFound):
                await store.fork("c", at=at)
        assert await store.verify("c") == []

    async def test_the_longest_stored_prefix_is_found(self, store: Store) -> None:
        await store.create_conversation("c")
        said = turns(6)
        await store.append("c", *said[:2], Pin(message=1), *said[2:])
        found = await store.longest_prefix([*said[:4], Message.user("new")])
        assert found is not None
        assert (found.length, found.conversation, found.branch, found.seq) == (4, "c", 0, 5)
        assert await store.longest_prefix([]) is None
        assert await store.longest_prefix([Message.user("never said")]) is None
        assert await store.longest_prefix(said[1:]) is None
        branch = await store.fork("c", at=3)
        [edited] = await store.append("c", Message.user("edited"), branch=branch.number)
        found = await store.longest_prefix([*said[:2], Message.user("edited"), Message.assistant("x")])
        assert found is not None
        assert (found.length, found.branch, found.seq) == (3, branch.number, edited.seq)

    async def test_the_prefix_is_looked_for_here_or_in_the_newest_conversation(self, store: Store) -> None:
        said = turns(3)
        for name in ("a", "b"):
            await store.create_conversation(name)
            await store.append(name, *said)
        found = await store.longest_prefix(said)
        here = await store.longest_prefix(said, conversation="a")
        assert found is not None
        assert here is not None
        assert (found.conversation, here.conversation) == ("b", "a")
        assert await store.longest_prefix(said, conversation="nowhere") is None

    async def test_blobs_are_kept_once_by_digest(self, store: Store) -> None:
        digest = await store.put_blob(b"\x00data", media_type="image/png")
        assert await store.put_blob(b"\x00data", media_type="text/plain") == digest
        blob = await store.blob(digest)
        assert (blob.data, blob.media_type) == (b"\x00data", "image/png")
        with pytest.raises(BlobNotFound):
            await store.blob("0" * 64)
        await store.create_conversation("c")
        with pytest.raises(BlobNotFound):
            await store.append("c", Message(role="user", parts=(ImagePart(blob="0" * 64),)))
        assert await store.range("c") == []

    @for_any
    @given(said=st.lists(drafts(), min_size=1, max_size=5))
    async def test_any_message_reads_back_byte_for_byte(self, store: Store, said: list[Draft]) -> None:
        conversation = (await store.create_conversation()).id
        await store.append(conversation, *said)
        found = await store.range(conversation)
        assert [entry.raw for entry in found] == [draft.body.canonical() for draft in said]
        assert [entry.raw_notes for entry in found] == [draft.notes() for draft in said]
        assert await store.verify(conversation) == []
        lines = await exported(store, conversation)
        copy = await store.import_(lines, rename=conversation + "-copy")
        assert (await exported(store, copy.id))[1:] == lines[1:]

    @for_any
    @given(data=st.data())
    async def test_any_sequence_of_acts_keeps_every_message_on_every_branch(
        self, store: Store, data: st.DataObject
    ) -> None:
        told = Told((await store.create_conversation()).id)
        for _ in range(data.draw(st.integers(1, 12))):
            await told.act(store, data)
        for number, expected in enumerate(told.branches):
            found = await store.range(told.conversation, branch=number)
            assert [entry.seq for entry in found] == list(range(1, len(expected) + 1))
            assert [entry.raw for entry in found] == [body.canonical() for body in expected]
            assert [entry.body for entry in found] == expected
            await told.check_window(store, number)
        assert await store.verify(told.conversation) == []
        lines = await exported(store, told.conversation)
        copy = await store.import_(lines, rename=told.conversation + "-copy")
        assert (await exported(store, copy.id))[1:] == lines[1:]
        originals = await store.branches(told.conversation)
        copies = await store.branches(copy.id)
        assert [branch.state for branch in copies] == [branch.state for branch in originals]
