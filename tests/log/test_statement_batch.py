"""Statement batches: several writes are one statement on PostgreSQL, with the same rows as one by one."""

import asyncio
from typing import Any

import pytest
from psycopg.sql import Literal
from sqlalchemy import Connection, select

from infra.builders import make_messages, make_turn
from quire.db.dialects import insert_rows, upsert
from quire.db.notifications import Notifications
from quire.db.raw_sql import Statement, batch_statements, combine_statements, execute, quote_literal
from quire.db.schema import calibrations, costs
from quire.db.store_part import read, write
from quire.errors import StaleHead, StoreError
from quire.log import Blob, Branch
from quire.log.conversations import overwrite_branch
from quire.model import Entry, Message, Pin
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


def test_parameters_are_numbered_over_all_statements():
    insert = Statement("INSERT %(a)s, %(b)s, %(a)s", {"a": 1, "b": 2})
    sql, values = combine_statements([insert, Statement("UPDATE %(a)s LIKE '%%'", {"a": 3})])
    assert sql == b"WITH s1 AS (UPDATE $3 LIKE '%'), s0 AS (INSERT $1, $2, $1) SELECT 1"
    assert values == [1, 2, 3]
    sql, _ = combine_statements([insert, Statement("UPDATE x", {}, is_guard=True)])
    assert sql.endswith(b"SELECT 1 / (SELECT count(*) FROM s1)")


@pytest.mark.parametrize(
    "value", ["a1", "", "a b", "it's", "a\\b", "ü", "٣", 0, 5, -3, 2**40, True, None, 1.5, b"\x01"]
)
def test_values_are_quoted_as_the_driver_quotes_them(value: object):
    assert quote_literal(value) == Literal(value).as_string()


def write_rows(connection: Connection, tenant: str, model: str) -> None:
    row = {"tenant": tenant, "model": model, "calibration": "{}", "row_digest": b""}
    cost = {"tenant": tenant, "conversation": "c", "key_id": model, "cost_usd": 0.5}
    with batch_statements(connection):
        insert_rows(connection, calibrations, [row])
        execute(connection, upsert(connection, costs, increment=["cost_usd"]), cost)


def read_models(connection: Connection, tenant: str) -> list[str]:
    query = select(calibrations.c.model).where(calibrations.c.tenant == tenant).order_by(calibrations.c.model)
    return list(connection.execute(query).scalars())


async def test_all_rows_of_a_batch_are_written_or_none(store: SqlStore):
    await store.run(write, write_rows, "a")
    with pytest.raises(StoreError):
        await store.run(write, write_rows, "a")
    await store.run(write, write_rows, "b")
    assert await store.run(read, read_models) == ["a", "b"]


def collect_statements(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    from psycopg import AsyncCursor

    executed: list[Any] = []
    execute = AsyncCursor[Any].execute

    async def collect_and_execute(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        executed.append(query)
        return await execute(self, query, *args, **kwargs)

    monkeypatch.setattr(AsyncCursor, "execute", collect_and_execute)
    return executed


async def test_a_turn_takes_four_round_trips(store: SqlStore, database_url: str, monkeypatch: pytest.MonkeyPatch):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has no round trips")
    # Notifications are sent later, with those of other transactions.
    monkeypatch.setattr(Notifications, "publish", lambda *_: None)
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2)))
    executed = collect_statements(monkeypatch)
    await store.record_reply("c", make_turn(*make_messages(2))._replace(cost=0.25))
    begin, lock, write, commit = executed
    assert begin.startswith("BEGIN")
    assert lock.endswith("FOR UPDATE")
    assert write.count(b"INSERT INTO") >= 6
    assert commit.endswith("COMMIT")


async def record_expected(store: SqlStore, branch: Branch, *messages: Message) -> list[Entry]:
    """Records a turn on a branch as it was read."""
    record = make_turn(*messages)._replace(expected_branch=branch)
    return await store.record_reply("c", record, after=branch.head_path)


async def test_a_turn_on_a_known_branch_takes_one_round_trip(
    store: SqlStore, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has no round trips")
    from psycopg import AsyncConnection

    monkeypatch.setattr(Notifications, "publish", lambda *_: None)
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2)))
    branch = await store.get_branch("c")
    executed, pipelines = collect_statements(monkeypatch), list[object]()
    pipeline = AsyncConnection[Any].pipeline

    def count_and_begin(self: Any) -> Any:
        pipelines.append(self)
        return pipeline(self)

    monkeypatch.setattr(AsyncConnection, "pipeline", count_and_begin)
    await record_expected(store, branch, *make_messages(2))
    settings, write = executed
    assert len(pipelines) == 1
    assert settings.startswith(b"SELECT set_config('quire.tenant'")
    assert write.count(b"INSERT INTO") >= 6


async def test_a_turn_on_a_known_branch_stores_what_a_locked_one_does(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quire.log.append.now", lambda: 1)
    rows: list[object] = []
    for is_expected in (True, False):
        tenant = store.for_tenant(f"tenant {is_expected}")
        await tenant.create_conversation("c")
        # More rows than a statement has as single values: an agent's tools, and the results of parallel calls.
        tools = tuple(Blob("text/plain", f"tool {number}".encode()) for number in range(9))
        for number in range(3):
            branch, record = await tenant.get_branch("c"), make_turn(*make_messages(8), blobs=tools)
            record = record._replace(expected_branch=branch if is_expected else None)
            await tenant.record_reply("c", record, after=branch.head_path)
            if number == 0:
                await tenant.append("c", Message.user("between"))
        branch = await tenant.get_branch("c")
        manifests = [
            (seq, each.model_copy(update={"conversation": "c"})) for seq, each in await tenant.list_manifests("c")
        ]
        branch = branch._replace(created_at=0, updated_at=0)
        rows.append((await tenant.read_range("c"), manifests, branch, await tenant.get_conversation_cost("c")))
        assert await tenant.verify_conversation("c") == []
    assert rows[0] == rows[1]


async def test_a_branch_that_changed_is_read_again(store: SqlStore):
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2)))
    branch = await store.get_branch("c")
    # A pin is no message: the turn follows it.
    await store.append("c", Pin(message=1))
    stored = await record_expected(store, branch, *make_messages(2))
    assert [each.seq for each in stored] == [4, 5]
    # A retry finds the turn stored, with one manifest and one cost.
    again = await record_expected(store, branch, *make_messages(2))
    assert again == stored
    # Another turn has followed: this one belongs on a fork.
    with pytest.raises(StaleHead):
        await record_expected(store, branch, Message.user("other"), Message.assistant("other"))
    assert [each.kind for each in await store.read_range("c")] == ["message"] * 2 + ["pin"] + ["message"] * 2
    assert await store.get_conversation_cost("c") == 0.5


async def test_concurrent_turns_on_a_known_branch_are_stored_once(store: SqlStore):
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2)))
    branch = await store.get_branch("c")
    turns = [(Message.user(f"question {number}"), Message.assistant("answer")) for number in range(4)]
    outcomes = await asyncio.gather(*(record_expected(store, branch, *each) for each in turns), return_exceptions=True)
    assert sorted(type(each).__name__ for each in outcomes) == ["StaleHead"] * 3 + ["list"]
    assert (await store.get_branch("c")).head_seq == 4
    assert await store.verify_conversation("c") == []


async def test_a_turn_does_not_undo_a_change_of_its_branch(store: SqlStore):
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2)))
    branch = await store.get_branch("c")
    await store.run(write, overwrite_branch, branch._replace(name="renamed"))
    await record_expected(store, branch, *make_messages(2))
    assert (await store.get_branch("c")).name == "renamed"
