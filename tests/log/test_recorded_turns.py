"""A recorded turn: all of its rows or none, stored once, and in one transaction that sets its tenant first."""

import asyncio
from typing import Any

import pytest

from infra.builders import make_messages, make_turn
from quire.db.notifications import Notifications
from quire.errors import StaleHead
from quire.model import Message, Pin
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


async def test_a_branch_that_changed_is_read_again(store: SqlStore):
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2)))
    head = (await store.get_branch("c")).head_path
    # A pin is no message: the turn follows it.
    await store.append("c", Pin(message=1))
    stored = await store.record_reply("c", make_turn(*make_messages(2)), after=head)
    assert [each.seq for each in stored] == [4, 5]
    # A retry finds the turn stored, with one manifest and one cost.
    assert await store.record_reply("c", make_turn(*make_messages(2)), after=head) == stored
    # Another turn has followed: this one belongs on a fork.
    with pytest.raises(StaleHead):
        await store.record_reply("c", make_turn(Message.user("other"), Message.assistant("other")), after=head)
    assert await store.get_conversation_cost("c") == 0.5


async def test_concurrent_turns_after_one_head_are_stored_once(store: SqlStore):
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2)))
    head = (await store.get_branch("c")).head_path
    turns = [make_turn(Message.user(f"question {number}"), Message.assistant("answer")) for number in range(4)]
    outcomes = await asyncio.gather(
        *(store.record_reply("c", each, after=head) for each in turns), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in outcomes) == ["StaleHead"] * 3 + ["list"]
    assert (await store.get_branch("c")).head_seq == 4
    assert await store.verify_conversation("c") == []


async def test_every_statement_is_in_a_transaction_with_its_tenant(
    store: SqlStore, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    """A message with SET LOCAL has nothing else in it, and no INSERT reads: a distributed PostgreSQL needs both."""
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has no row-level security")
    from psycopg import AsyncCursor

    monkeypatch.setattr(Notifications, "publish", lambda *_: None)
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2)))
    executed: list[str] = []
    execute = AsyncCursor[Any].execute

    async def collect_and_execute(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        executed.append(query if isinstance(query, str) else bytes(query).decode())
        return await execute(self, query, *args, **kwargs)

    monkeypatch.setattr(AsyncCursor, "execute", collect_and_execute)
    await store.record_reply("c", make_turn(*make_messages(9))._replace(cost=0.25))
    assert executed[0].startswith("BEGIN; SELECT set_config('statement_timeout'")
    assert executed[1] == f"SET LOCAL quire.tenant = '{store.tenant}'"
    assert executed[-1].endswith("COMMIT")
    inserts = [each for each in executed if each.startswith("INSERT")]
    assert len(inserts) >= 3
    assert all(" VALUES " in each and "SELECT" not in each for each in inserts)
    executed.clear()
    await store.get_branch("c")
    assert executed[0].startswith("BEGIN")
    assert executed[-1] == "COMMIT"
