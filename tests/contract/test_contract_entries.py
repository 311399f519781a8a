"""SqlStore contract for the entries of a log: append, read, fork, and blobs.

The tests of this folder are what every store must do (`quire.log.Store`). For another store, replace the fixture
`store`: it must give a new and empty one to each test.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.builders import export_lines, make_messages, property_settings
from infra.strategies import drafts, messages
from quire.errors import (
    BlobNotFound,
    BranchNotFound,
    ConversationNotFound,
    EntryNotFound,
    InvalidEntry,
    StaleHead,
)
from quire.log import Branch
from quire.model import (
    CHAIN_ROOT,
    Body,
    Compaction,
    Draft,
    Entry,
    EntryMetadata,
    ImagePart,
    Message,
    Pin,
    Restore,
    Span,
    TokenCount,
    Usage,
)
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


async def test_appended_messages_read_back_in_order(store: SqlStore) -> None:
    await store.create_conversation("c")
    messages = make_messages(5)
    appended = await store.append("c", *messages)
    assert [entry.seq for entry in appended] == [1, 2, 3, 4, 5]
    assert await store.read_range("c") == appended
    assert [entry.message for entry in appended] == messages
    assert (await store.get_branch("c")).head_digest == appended[-1].digest
    assert await store.append("c") == []


async def test_the_metadata_of_a_message_reads_back(store: SqlStore) -> None:
    await store.create_conversation("c")
    usage = Usage(model="m", input_tokens=10, cache_read_tokens=7, provider_fields={"x": [1]})
    draft = Draft(body=Message.assistant("a"), tokens=TokenCount(3, "o200k"), usage=usage, created_at=1_000_001)
    [entry] = await store.append("c", draft)
    found = await store.get_entry("c", 1)
    assert found == entry
    assert found.metadata == EntryMetadata(usage=usage)
    assert found.token_count == TokenCount(3, "o200k")
    assert (found.created_at, found.author, found.role) == (1_000_001, "assistant", "assistant")


async def test_reads_by_range_tail_kind_and_role(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(6), Pin(message=2), *make_messages(3, start=7))

    def seqs(found: Sequence[Entry]) -> list[int]:
        return [entry.seq for entry in found]

    assert seqs(await store.read_range("c", first=3, last=5)) == [3, 4, 5]
    assert seqs(await store.read_range("c", first=3, limit=2)) == [3, 4]
    assert seqs(await store.read_tail("c", 3)) == [8, 9, 10]
    assert seqs(await store.read_tail("c", 2, last=6)) == [5, 6]
    assert seqs(await store.read_tail("c", 100)) == list(range(1, 11))
    assert seqs(await store.read_range("c", kinds=["pin"])) == [7]
    assert seqs(await store.read_tail("c", 2, roles=["user"])) == [8, 10]
    assert seqs(await store.read_range("c", roles=["user"], kinds=["message"], limit=2)) == [1, 3]
    assert seqs(await store.read_range("c", first=11)) == []
    with pytest.raises(EntryNotFound):
        await store.get_entry("c", 11)
    with pytest.raises(ConversationNotFound):
        await store.read_range("other")
    with pytest.raises(BranchNotFound):
        await store.read_tail("c", 1, branch=3)


async def test_appending_after_the_same_message_twice_is_one_append(store: SqlStore) -> None:
    await store.create_conversation("c")
    one, two, three = make_messages(3)
    first = await store.append("c", one, two, after=CHAIN_ROOT)
    assert await store.append("c", one, two, after=CHAIN_ROOT) == first
    longer = await store.append("c", one, two, three, after=CHAIN_ROOT)
    assert longer[:2] == first
    assert [entry.seq for entry in await store.read_range("c")] == [1, 2, 3]
    assert await store.append("c", three, after=first[1].path) == longer[2:]
    with pytest.raises(StaleHead):
        await store.append("c", Message.user("something else"), after=first[1].path)
    with pytest.raises(StaleHead):
        await store.append("c", one, two, Message.user("something else"), after=CHAIN_ROOT)
    await store.append("c", one)
    assert len(await store.read_range("c")) == 4


async def test_a_compaction_in_between_does_not_disturb_an_append_after_a_message(store: SqlStore) -> None:
    await store.create_conversation("c")
    entries = await store.append("c", *make_messages(3))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=2), summary="s"))
    [reply] = await store.append("c", Message.assistant("reply"), after=entries[-1].path)
    assert reply.seq == 5
    with pytest.raises(InvalidEntry):
        await store.append("c", Pin(message=1), after=CHAIN_ROOT)


async def test_concurrent_appends_are_all_stored_in_one_order(store: SqlStore) -> None:
    await store.create_conversation("c")
    await asyncio.gather(*(store.append("c", message) for message in make_messages(40)))
    found = await store.read_range("c")
    assert [entry.seq for entry in found] == list(range(1, 41))
    assert {entry.message.text for entry in found} == {message.text for message in make_messages(40)}
    assert await store.verify_conversation("c") == []


async def test_a_branch_shares_its_past_and_has_its_own_future(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(6))
    branch = await store.fork("c", at=3, name="what if")
    assert (branch.number, branch.name, branch.head_seq) == (1, "what if", 3)
    [mine] = await store.append("c", Message.user("instead"), branch=1)
    assert mine.seq == 4
    texts = [entry.message.text for entry in await store.read_range("c", branch=1)]
    assert texts == ["message 1", "message 2", "message 3", "instead"]
    deeper = await store.fork("c", branch=1, at=2)
    assert deeper.number == 2
    assert [entry.branch for entry in await store.read_range("c", branch=2)] == [0, 0]
    assert [entry.seq for entry in await store.read_tail("c", 2, branch=1)] == [3, 4]
    empty = await store.fork("c", at=0)
    assert await store.read_range("c", branch=empty.number) == []
    assert [each.number for each in await store.list_branches("c")] == [0, 1, 2, 3]
    for at in (-1, 7):
        with pytest.raises(EntryNotFound):
            await store.fork("c", at=at)
    assert await store.verify_conversation("c") == []


async def test_blobs_are_stored_once_by_digest(store: SqlStore) -> None:
    digest = await store.put_blob(b"\x00data", media_type="image/png")
    assert await store.put_blob(b"\x00data", media_type="text/plain") == digest
    blob = await store.get_blob(digest)
    assert (blob.data, blob.media_type) == (b"\x00data", "image/png")
    with pytest.raises(BlobNotFound):
        await store.get_blob("0" * 64)
    await store.create_conversation("c")
    with pytest.raises(BlobNotFound):
        await store.append("c", Message(role="user", parts=(ImagePart(blob="0" * 64),)))
    assert await store.read_range("c") == []


@property_settings
@given(written=st.lists(drafts(), min_size=1, max_size=5))
async def test_any_message_reads_back_byte_for_byte(store: SqlStore, written: list[Draft]) -> None:
    conversation = (await store.create_conversation()).id
    await store.append(conversation, *written)
    found = await store.read_range(conversation)
    assert [entry.raw for entry in found] == [draft.body.canonical_json() for draft in written]
    assert [entry.raw_metadata for entry in found] == [draft.metadata_json() for draft in written]
    assert await store.verify_conversation(conversation) == []
    lines = await export_lines(store, conversation)
    copy = await store.import_conversation(lines, as_id=conversation + "-copy")
    assert (await export_lines(store, copy.id))[1:] == lines[1:]


@property_settings
@given(data=st.data())
async def test_any_sequence_of_actions_preserves_every_message_on_every_branch(
    store: SqlStore, data: st.DataObject
) -> None:
    reference = ReferenceLog((await store.create_conversation()).id)
    for _ in range(data.draw(st.integers(1, 12))):
        await reference.apply_random_action(store, data)
    for number, expected in enumerate(reference.branches):
        found = await store.read_range(reference.conversation, branch=number)
        assert [entry.seq for entry in found] == list(range(1, len(expected) + 1))
        assert [entry.raw for entry in found] == [body.canonical_json() for body in expected]
        assert [entry.body for entry in found] == expected
        await reference.check_window(store, number)
    assert await store.verify_conversation(reference.conversation) == []
    lines = await export_lines(store, reference.conversation)
    copy = await store.import_conversation(lines, as_id=reference.conversation + "-copy")
    assert (await export_lines(store, copy.id))[1:] == lines[1:]
    originals = await store.list_branches(reference.conversation)
    copies = await store.list_branches(copy.id)
    assert [branch.state for branch in copies] == [branch.state for branch in originals]


@dataclass
class ReferenceLog:
    """Reference model of a log in memory: all bodies of every branch, from the first."""

    conversation: str
    branches: list[list[Body]] = field(default_factory=lambda: [[]])

    async def apply_random_action(self, store: SqlStore, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.branches) - 1), label="branch")
        branch = await store.get_branch(self.conversation, number)
        actions = ["append", "fork"]
        if branch.head_seq:
            actions += ["compact", "pin"]
        if branch.state.active_compaction is not None:
            actions += ["restore", "edit"]
        if (action := data.draw(st.sampled_from(actions), label="action")) == "fork":
            at = data.draw(st.integers(0, branch.head_seq), label="at")
            await store.fork(self.conversation, branch=number, at=at)
            self.branches.append(self.branches[number][:at])
        else:
            bodies = _draw_bodies(action, branch, data)
            await store.append(self.conversation, *bodies, branch=number)
            self.branches[number].extend(bodies)

    async def check_window(self, store: SqlStore, number: int) -> None:
        """Checks that the window has the messages outside the active compaction, and the pins inside it."""
        window = await store.read_window(self.conversation, branch=number)
        active = window.branch.state.active_compaction
        covers = active.covers if active else None
        covered = set(range(covers.first, covers.last + 1)) if covers else set[int]()
        message_seqs = {seq for seq, body in enumerate(self.branches[number], 1) if isinstance(body, Message)}
        assert [entry.seq for entry in window.messages] == sorted(message_seqs - covered)
        assert [entry.seq for entry in window.pinned] == sorted(set(window.branch.state.pins) & covered)
        if active is not None:
            assert window.compaction is not None
            assert window.compaction.seq == active.seq


def _draw_bodies(action: str, branch: Branch, data: st.DataObject) -> list[Body]:
    active, head = branch.state.active_compaction, branch.head_seq
    match action:
        case "append":
            return list(data.draw(st.lists(messages(), min_size=1, max_size=3)))
        case "pin":
            return [Pin(message=data.draw(st.integers(1, head)))]
        case "restore" if active is not None:
            return [Restore(compaction=active.seq)]
        case "edit" if active is not None:
            covers = active.covers
        case _:
            last = data.draw(st.integers(1, head))
            covers = Span(first=data.draw(st.integers(1, last)), last=last)
    number = branch.state.compaction_count + 1
    return [Compaction(number=number, covers=covers, summary="s", supersedes=active.seq if active else None)]


@pytest.mark.parametrize("backend", ["postgres15", "pgbouncer"])
async def test_the_oldest_postgresql_and_a_pooler_serve_a_conversation(store: SqlStore) -> None:
    """A part of the contract in one test; `just postgres15` and `just pooled` run it whole."""
    await store.create_conversation("c")
    first, *_ = await store.append("c", *make_messages(6), Pin(message=2))
    await asyncio.gather(*(store.append("c", message) for message in make_messages(10, start=7)))
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=5), summary="s"))
    window = await store.read_window("c")
    assert ([entry.seq for entry in window.pinned], window.messages[0].seq) == ([2], 6)
    found = await store.match_history([first.path])
    assert found is not None
    assert (found.branch.conversation, found.length) == ("c", 1)
    branch = await store.fork("c", at=3)
    await store.append("c", Message.user("instead"), branch=branch.number)
    other = store.for_tenant("other")
    await other.import_conversation(await export_lines(store, "c"), as_id="copy")
    assert [each.id for each in await other.list_conversations()] == ["copy"]
    await store.purge("c", [first.seq])
    assert (await store.get_entry("c", first.seq)).purged_at is not None
    assert await store.verify_conversation("c") == []
    assert await other.verify_conversation("copy") == []
