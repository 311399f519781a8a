"""Backtests that run as jobs: what to simulate, in shards for several workers, and the totals of the finished shards.

A shard is deleted in the transaction that adds its totals, so that it counts once, however often its job runs. The rows
hold ids, names and numbers, no content. A sample of conversations is drawn by an index instead of a pass over all.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    delete,
    func,
    insert,
    select,
    update,
)

from quire.db.schema import backtest_shards, backtests, conversations, entries, paths
from quire.db.store_part import StorePart, read, read_bulk, write
from quire.errors import Conflict, NotFound
from quire.log.reads import check_in_database
from quire.model.ids import new_id, now

MAX_STORED_BACKTESTS = 20
"""Backtests of a tenant; a new one replaces the oldest."""


class BacktestRecord(NamedTuple):
    id: str
    created_at: int
    updated_at: int
    """Time of the last progress."""
    spec: str
    """What to simulate, as JSON."""
    conversations: int
    finished: int
    """Conversations in finished shards."""
    in_progress: float
    """Simulated conversations in other shards, the current one of each as a fraction."""
    failure: str | None
    totals: str | None = None
    """Totals of the finished shards, as JSON; None in a list."""

    @property
    def is_running(self) -> bool:
        return self.failure is None and self.finished < self.conversations


class NewBacktestShard(NamedTuple):
    selection: str
    """Its conversations, as JSON."""
    conversations: int


class BacktestShard(NamedTuple):
    """A shard that a job starts."""

    spec: str
    selection: str
    attempts: int
    """Starts of this shard, this one included."""


MergeTotals = Callable[[str | None], str]
"""Adds the totals of a shard to the sum of the shards before it."""


def create_backtest(
    connection: Connection, tenant: str, spec: str, shards: Sequence[NewBacktestShard]
) -> BacktestRecord:
    """Stores a backtest with its shards. Raises `Conflict` while another one of the tenant runs."""
    stored = list_backtests(connection, tenant)
    if any(each.is_running for each in stored):
        raise Conflict("Another backtest is in progress; wait until it is done, or delete it.")
    delete_backtests(connection, tenant, [each.id for each in stored[MAX_STORED_BACKTESTS - 1 :]])
    at, total = now(), sum(shard.conversations for shard in shards)
    record = BacktestRecord(new_id(), at, at, spec, total, 0, 0.0, None)
    own = {"tenant": tenant, "backtest": record.id}
    row = {**own, "created_at": at, "updated_at": at, "spec": spec, "conversations": total, "finished": 0}
    connection.execute(insert(backtests), row)
    rows = [
        {**own, "shard": number, "selection": shard.selection, "attempts": 0, "done": 0.0}
        for number, shard in enumerate(shards)
    ]
    connection.execute(insert(backtest_shards), rows)
    return record


_RECORD_COLUMNS = (
    backtests.c.backtest,
    backtests.c.created_at,
    backtests.c.updated_at,
    backtests.c.spec,
    backtests.c.conversations,
    backtests.c.finished,
    select(func.coalesce(func.sum(backtest_shards.c.done), 0.0))
    .where(backtest_shards.c.tenant == backtests.c.tenant, backtest_shards.c.backtest == backtests.c.backtest)
    .scalar_subquery(),
    backtests.c.failure,
)


def get_backtest(connection: Connection, tenant: str, id: str) -> BacktestRecord:
    row = connection.execute(select(*_RECORD_COLUMNS, backtests.c.totals).where(*_own(backtests, tenant, id))).first()
    if row is None:
        raise NotFound(f"There is no backtest {id!r}; only the newest {MAX_STORED_BACKTESTS} are stored.")
    return BacktestRecord._make(row)


def list_backtests(connection: Connection, tenant: str) -> list[BacktestRecord]:
    """The newest first, without totals."""
    query = select(*_RECORD_COLUMNS).where(backtests.c.tenant == tenant).order_by(backtests.c.backtest.desc())
    return [BacktestRecord(*row) for row in connection.execute(query)]


def list_shards(connection: Connection, tenant: str, id: str) -> list[int]:
    """Numbers of the shards that are not finished."""
    query = select(backtest_shards.c.shard).where(*_own(backtest_shards, tenant, id)).order_by(backtest_shards.c.shard)
    return list(connection.execute(query).scalars())


def start_shard(connection: Connection, tenant: str, id: str, shard: int) -> BacktestShard | None:
    """Counts a start of a shard, or None if it is finished, or its backtest failed or was deleted."""
    own = _own_shard(tenant, id, shard)
    started = update(backtest_shards).where(*own).values(attempts=backtest_shards.c.attempts + 1, done=0.0)
    if not connection.execute(started).rowcount:
        return None
    spec = connection.execute(select(backtests.c.spec).where(*_own(backtests, tenant, id))).scalar_one()
    row = connection.execute(select(backtest_shards.c.selection, backtest_shards.c.attempts).where(*own)).one()
    return BacktestShard(spec, *row)


def update_shard(connection: Connection, tenant: str, id: str, shard: int, *, done: float) -> bool:
    """Stores the progress of a shard. Returns whether it is still needed."""
    # The backtest is locked before its shard, as in `finish_shard`, so that the two do not deadlock.
    connection.execute(update(backtests).where(*_own(backtests, tenant, id)).values(updated_at=now()))
    updated = connection.execute(update(backtest_shards).where(*_own_shard(tenant, id, shard)).values(done=done))
    return updated.rowcount > 0


def finish_shard(
    connection: Connection, tenant: str, id: str, shard: int, *, conversations: int, merge: MergeTotals
) -> bool:
    """Adds the totals of a shard, or False if it is no longer needed."""
    own = _own(backtests, tenant, id)
    row = connection.execute(select(backtests.c.totals).where(*own).with_for_update()).first()
    if row is None or not connection.execute(delete(backtest_shards).where(*_own_shard(tenant, id, shard))).rowcount:
        return False
    values = {"finished": backtests.c.finished + conversations, "totals": merge(row.totals), "updated_at": now()}
    connection.execute(update(backtests).where(*own).values(values))
    return True


def fail_backtest(connection: Connection, tenant: str, id: str, failure: str) -> None:
    """Ends a backtest with an error; jobs of its other shards stop at their next progress."""
    connection.execute(update(backtests).where(*_own(backtests, tenant, id)).values(failure=failure, updated_at=now()))
    connection.execute(delete(backtest_shards).where(*_own(backtest_shards, tenant, id)))


def delete_backtest(connection: Connection, tenant: str, id: str) -> None:
    """Deletes a backtest; its jobs stop at their next progress."""
    get_backtest(connection, tenant, id)
    delete_backtests(connection, tenant, [id])


def delete_backtests(connection: Connection, tenant: str, ids: Collection[str]) -> None:
    for table in (backtests, backtest_shards):
        connection.execute(delete(table).where(table.c.tenant == tenant, table.c.backtest.in_(ids)))


def _own(table: Table, tenant: str, id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return table.c.tenant == tenant, table.c.backtest == id


def _own_shard(tenant: str, id: str, shard: int) -> tuple[ColumnElement[bool], ...]:
    return *_own(backtest_shards, tenant, id), backtest_shards.c.shard == shard


def list_sample_frame(connection: Connection, tenant: str, *, limit: int) -> list[str]:
    """Ids of up to `limit` conversations that are not purged."""
    query = select(conversations.c.conversation).where(conversations.c.tenant == tenant)
    return list(connection.execute(query.where(conversations.c.purged_at.is_(None)).limit(limit)).scalars())


def draw_messages(connection: Connection, tenant: str, random_paths: Sequence[bytes]) -> list[str]:
    """The conversation of the message after each of these paths. Empty if the tenant has no message.

    The path of a message is a hash, so the message whose path follows a random one is a random message. A conversation
    is drawn with a probability proportional to the number of its messages, and may be repeated.
    """
    query = select(paths.c.conversation).where(paths.c.tenant == tenant).order_by(paths.c.path).limit(1)
    drawn: list[str] = []
    for path in random_paths:
        # After the last path comes the first.
        for start in (path, bytes(32)):
            found = connection.execute(query.where(paths.c.path >= start)).scalar()
            if found is not None:
                drawn.append(found)
                break
    return drawn


def count_messages(connection: Connection, tenant: str, conversation: str) -> int:
    """Number of messages on all branches of a conversation."""
    check_in_database(connection, tenant, [conversation])
    query = select(func.count()).select_from(entries)
    own = (entries.c.tenant == tenant, entries.c.conversation == conversation, entries.c.kind == "message")
    return connection.execute(query.where(*own)).scalar_one()


class Backtests(StorePart):
    """Backtests that run as jobs, and the random samples of conversations that they simulate."""

    list_sample_frame = read(list_sample_frame)
    draw_messages = read_bulk(draw_messages)
    count_messages = read(count_messages)

    create = write(create_backtest)
    get = read(get_backtest)
    list = read(list_backtests)
    list_shards = read(list_shards)
    start_shard = write(start_shard)
    update_shard = write(update_shard)
    finish_shard = write(finish_shard)
    fail = write(fail_backtest)
    delete = write(delete_backtest)
