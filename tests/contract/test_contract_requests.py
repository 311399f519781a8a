"""SqlStore contract for requests: compactions, windows and manifests."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from infra.builders import make_messages, make_turn
from quire.access.spending import SpendCaps
from quire.errors import (
    ConversationNotFound,
    EntryNotFound,
    SpendCapReached,
    SpendReserved,
    StaleCompaction,
    StaleHead,
)
from quire.log import Blob
from quire.model import (
    CHAIN_ROOT,
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
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


async def test_the_window_is_the_summary_and_what_follows_it(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(10))
    assert (await store.read_window("c")).compaction is None
    [compaction] = await store.append("c", Compaction(number=1, covers=Span(first=1, last=7), summary="s"))
    await store.append("c", *make_messages(2, start=11), Pin(message=3), Pin(message=9))
    window = await store.read_window("c")
    assert window.compaction == compaction
    assert [entry.seq for entry in window.messages] == [8, 9, 10, 12, 13]
    assert [entry.seq for entry in window.pinned] == [3]
    assert window.branch == await store.get_branch("c")


async def test_the_window_has_the_messages_that_the_compaction_preserves(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(10), Pin(message=3))
    covers = Span(first=1, last=7)
    [compaction] = await store.append("c", Compaction(number=1, covers=covers, preserved=(2, 5, 9), summary="s"))
    assert [entry.seq for entry in (await store.read_window("c")).pinned] == [2, 3, 5]
    await store.append("c", Restore(compaction=compaction.seq))
    assert (await store.read_window("c")).pinned == ()


async def test_a_compaction_may_start_after_the_first_entry(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(6), Compaction(number=1, covers=Span(first=2, last=4), summary="s"))
    assert [entry.seq for entry in (await store.read_window("c")).messages] == [1, 5, 6]


async def test_undo_brings_back_exactly_the_window_before(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(10))
    windows, compactions = [await store.read_window("c")], list[int]()
    for number, last in ((1, 3), (2, 6), (3, 8)):
        active = compactions[-1] if compactions else None
        covers = Span(first=1, last=last)
        compaction = Compaction(number=number, covers=covers, summary=f"s{number}", supersedes=active)
        compactions.append((await store.append("c", compaction))[0].seq)
        windows.append(await store.read_window("c"))
    for seq in reversed(compactions):
        windows.pop()
        await store.append("c", Restore(compaction=seq))
        now = await store.read_window("c")
        assert (now.compaction, now.messages) == (windows[-1].compaction, windows[-1].messages)
    with pytest.raises(StaleCompaction):
        await store.append("c", Restore(compaction=compactions[0]))


async def test_of_two_compactions_of_one_state_the_second_is_refused(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(4))
    compaction = Compaction(number=1, covers=Span(first=1, last=2), summary="s")
    outcomes = await asyncio.gather(*(store.append("c", compaction) for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(outcome, StaleCompaction) for outcome in outcomes) == 3
    before = await store.read_range("c")
    with pytest.raises(StaleCompaction):
        await store.append("c", Message.user("in the same append"), compaction)
    assert await store.read_range("c") == before


async def test_a_fork_has_the_state_of_its_entry(store: SqlStore) -> None:
    await store.create_conversation("c")
    item = ContextItem(type="rule", name="style")
    await store.append(
        "c",
        *make_messages(4),
        Pin(message=1),
        ContextChange(action="add", item=item, include="always"),
        Unpin(message=1),
    )
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=3), summary="s"))
    early = await store.fork("c", at=6)
    assert (early.state.pins, early.state.active_compaction) == ((1,), None)
    assert [each.item for each in early.state.items] == [item]
    late = await store.fork("c", at=8)
    assert late.state == (await store.get_branch("c")).state
    await store.append("c", Restore(compaction=8), branch=late.number)
    assert (await store.get_branch("c")).state.active_compaction is not None
    assert await store.verify_conversation("c") == []


async def test_a_long_window_is_read_from_its_end(store: SqlStore) -> None:
    await store.create_conversation("c")
    counted = [Draft(body=message, tokens=TokenCount(10, "test")) for message in make_messages(1_300)]
    await store.append("c", *counted)
    window = await store.read_window("c", max_tokens=3_000)
    assert window.not_loaded == Span(first=1, last=1_300 - 512)
    assert [entry.seq for entry in window.messages] == list(range(1_300 - 511, 1_301))
    assert (await store.read_window("c", max_tokens=100_000)).not_loaded is None
    [compaction] = await store.append("c", Compaction(number=1, covers=Span(first=1, last=20), summary="s"))
    await store.append("c", *counted)
    window = await store.read_window("c", max_tokens=3_000)
    assert window.compaction == compaction
    assert window.not_loaded is not None
    assert window.not_loaded.first == 21


async def test_a_known_window_is_extended_by_what_changed(store: SqlStore) -> None:
    await store.create_conversation("c")
    await store.append("c", *make_messages(600))
    known = await store.read_window("c", max_tokens=100_000)
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: store.append("c", *make_messages(3)),
        lambda: store.purge("c", [2]),
        lambda: store.purge("c", [603]),
        lambda: store.append("c", Pin(message=4)),
        lambda: store.append("c", Compaction(number=1, covers=Span(first=1, last=500), summary="s")),
        lambda: store.append("c", *make_messages(2)),
        lambda: store.append("c", Restore(compaction=605)),
    ]
    for change in steps:
        await change()
        window = await store.read_window("c", max_tokens=100_000, known=known)
        assert window == await store.read_window("c", max_tokens=100_000)
        known = window
    same = await store.read_window("c", max_tokens=100_000, known=known)
    assert same == known
    assert same.loaded[0] is known.loaded[0], "the entry was read again"


async def test_a_known_window_of_another_history_is_not_used(store: SqlStore) -> None:
    """As after the loss of a database whose standby had less: the same numbers have other messages."""
    for name in ("c", "other"):
        await store.create_conversation(name)
        await store.append(name, *(Message.user(f"{name} {number}") for number in range(5)))
    other = await store.read_window("other")
    assert await store.read_window("c", known=other) == await store.read_window("c")


async def test_a_turn_is_recorded_with_its_manifest(store: SqlStore) -> None:
    await store.create_conversation("c")
    document = Blob("text/plain", b"a document")
    question, reply = make_messages(2)
    turn = make_turn(question, reply, blobs=(document,))._replace(cost=0.25, request_id="r")
    stored = await store.record_reply("c", turn, after=CHAIN_ROOT)
    assert [entry.seq for entry in stored] == [1, 2]
    manifest = await store.get_manifest("c", 2)
    assert (manifest.conversation, manifest.total_tokens, len(manifest.decisions)) == ("c", 2, 1)
    assert await store.get_blob(manifest.decisions[0].blob or "") == document
    assert await store.record_reply("c", turn, after=CHAIN_ROOT) == stored
    assert await store.spending.get_cost("c") == 0.25
    with pytest.raises(StaleHead):
        await store.record_reply("c", turn._replace(request_id="another"), after=CHAIN_ROOT)
    with pytest.raises(EntryNotFound):
        await store.get_manifest("c", 1)
    with pytest.raises(StaleHead):
        await store.record_reply("c", make_turn(reply), after=CHAIN_ROOT)


async def test_manifests_are_read_along_the_branch(store: SqlStore) -> None:
    await store.create_conversation("c")
    for _ in range(3):
        await store.record_reply("c", make_turn(*make_messages(2)))
    branch = (await store.fork("c", at=4)).number
    await store.record_reply("c", make_turn(*make_messages(2)), branch=branch)
    assert [seq for seq, _ in await store.list_manifests("c", branch=branch)] == [2, 4, 6]
    assert [manifest.branch for _, manifest in await store.list_manifests("c", branch=branch)] == [0, 0, branch]
    assert [seq for seq, _ in await store.list_manifests("c", limit=2)] == [4, 6]
    assert [seq for seq, _ in await store.list_manifests("c", branch=branch, limit=2, last=5)] == [2, 4]


async def test_a_models_calibration_is_stored(store: SqlStore) -> None:
    await store.create_conversation("c")
    assert await store.get_calibration("test") is None
    for ratio in ('{"ratio":1.1}', '{"ratio":1.2}'):
        await store.record_reply("c", make_turn(*make_messages(2), calibration=ratio))
    assert await store.get_calibration("test") == '{"ratio":1.2}'


async def test_what_a_conversation_costs_adds_up(store: SqlStore) -> None:
    await store.create_conversation("c")
    assert await store.spending.get_cost("c") == 0
    await store.record_reply("c", make_turn(*make_messages(2)))
    assert await store.spending.add_cost("c", 0.5) == 0.75
    assert await store.spending.get_cost("c") == 0.75
    with pytest.raises(ConversationNotFound):
        await store.spending.add_cost("other", 1)


async def test_a_cap_admits_calls_while_reservations_and_costs_are_below_it(store: SqlStore) -> None:
    await store.create_conversation("c")
    caps = SpendCaps(conversation=1.0, key=1.0, tenant=1.0)
    first = await store.spending.reserve("c", 0.75, caps, key_id="k")
    second = await store.spending.reserve("c", 0.75, caps, key_id="k")
    with pytest.raises(SpendReserved):
        await store.spending.reserve("c", 0.1, caps, key_id="k")
    turn = make_turn(*make_messages(2))._replace(cost=0.25, key_id="k", reservation_id=first)
    await store.record_reply("c", turn)
    await store.spending.check("c", caps, key_id="k")
    await store.spending.settle(second, 0.75)
    await store.spending.settle(second, 0.75)
    assert await store.spending.get_cost("c") == 1.0
    for call in (store.spending.check("c", caps, key_id="k"), store.spending.reserve("c", 0.0, caps, key_id="k")):
        with pytest.raises(SpendCapReached):
            await call
