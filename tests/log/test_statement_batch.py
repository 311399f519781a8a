"""Statement batches: several writes are one statement on PostgreSQL, with the same rows as one by one."""

from typing import Any

import pytest
from sqlalchemy import Connection, select

from infra.builders import make_messages, make_turn
from quire.db.dialects import insert_rows, upsert
from quire.db.notifications import Notifications
from quire.db.raw_sql import batch_statements, combine_statements, execute
from quire.db.schema import calibrations, costs
from quire.db.store_part import read, write
from quire.errors import StoreError
from quire.store import SqlStore

pytestmark = pytest.mark.every_database


def test_parameters_are_numbered_over_all_statements():
    combined = combine_statements(("INSERT %(a)s, %(b)s, %(a)s", "UPDATE %(a)s LIKE '%%'"))
    assert combined.sql == b"WITH s1 AS (UPDATE $3 LIKE '%'), s0 AS (INSERT $1, $2, $1) SELECT 1"
    assert combined.parameters == ((0, "a"), (0, "b"), (1, "a"))


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


async def test_a_turn_takes_four_round_trips(store: SqlStore, database_url: str, monkeypatch: pytest.MonkeyPatch):
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has no round trips")
    from psycopg import AsyncCursor

    # Notifications are sent later, with those of other transactions.
    monkeypatch.setattr(Notifications, "publish", lambda *_: None)
    await store.create_conversation("c")
    await store.record_reply("c", make_turn(*make_messages(2)))
    executed: list[Any] = []
    execute = AsyncCursor[Any].execute

    async def collect_and_execute(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        executed.append(query)
        return await execute(self, query, *args, **kwargs)

    monkeypatch.setattr(AsyncCursor, "execute", collect_and_execute)
    await store.record_reply("c", make_turn(*make_messages(2))._replace(cost=0.25))
    begin, lock, write, commit = executed
    assert begin.startswith("BEGIN")
    assert lock.endswith("FOR UPDATE")
    assert write.count(b"INSERT INTO") >= 6
    assert commit.endswith("COMMIT")
