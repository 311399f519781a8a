"""SqlStore contract for imports: each item once, branches where the source has them, compactions, and live sessions."""

from hashlib import sha256

import pytest

from quire.log import ConversationOrigin, ConversationRecord
from quire.log.imports import ImportBatch, ImportItem
from quire.model import Compaction, Message
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

ORIGIN = ConversationOrigin(client="codex", session="session-1")


def _make_item(id: str, parent: str | None, *, compaction: Compaction | None = None) -> ImportItem:
    raw = Message.user(id).canonical_json()
    return ImportItem(id, parent, raw, "user", 1_000, sha256(raw.encode()).digest(), compaction=compaction)


def _make_batch(*items: ImportItem, conversation: str = "imported") -> ImportBatch:
    return ImportBatch(ConversationRecord(conversation, "", 500, 500, ORIGIN), items, {})


async def test_an_item_is_imported_once(store: SqlStore) -> None:
    items = [_make_item("a", None), _make_item("b", "a")]
    [first] = await store.imports.append([_make_batch(*items)])
    [second] = await store.imports.append([_make_batch(*items, _make_item("c", "b"))])
    assert first == {"a": (0, 1), "b": (0, 2)}
    assert second == {"a": (0, 1), "b": (0, 2), "c": (0, 3)}
    ledger = (await store.imports.read_ledgers(["imported", "unknown"]))["imported"]
    assert {item: position for (item, _), position in ledger.items()} == second
    record = await store.get_conversation("imported")
    assert (record.created_at, record.updated_at, record.origin) == (500, 1_000, ORIGIN)
    assert await store.verify_conversation("imported") == []


async def test_a_second_child_begins_a_branch(store: SqlStore) -> None:
    batch = _make_batch(_make_item("a", None), _make_item("b", "a"), _make_item("c", "a"))
    positions, _ = await store.imports.append([batch, _make_batch(_make_item("x", None), conversation="other")])
    assert positions["c"] == (1, 2)
    assert [branch.head_seq for branch in await store.list_branches("imported")] == [2, 2]
    assert await store.verify_conversation("imported") == []


async def test_a_compaction_covers_what_is_before_it(store: SqlStore) -> None:
    summary = Compaction(number=1, summary="What happened.", strategy="imported")
    items = [_make_item("a", None), _make_item("b", "a", compaction=summary), _make_item("c", "b")]
    await store.imports.append([_make_batch(*items)])
    window = await store.read_window("imported")
    assert [entry.message.text for entry in window.messages] == ["c"]
    assert await store.verify_conversation("imported") == []


async def test_conversations_are_listed_by_session_without_side_calls(store: SqlStore) -> None:
    await store.imports.append([_make_batch(_make_item("a", None))])
    await store.create_conversation("live", origin=ORIGIN)
    await store.create_conversation("side", origin=ORIGIN.model_copy(update={"purpose": "side"}))
    found = await store.imports.list_sessions("codex", ["session-1", "session-2"])
    assert {session: {each.id for each in records} for session, records in found.items()} == {
        "session-1": {"imported", "live"}
    }
    assert await store.imports.list_sessions("claude-code", ["session-1"]) == {}
