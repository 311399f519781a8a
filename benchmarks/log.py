"""The log beside the bare driver: loading a window, reading a tail, appending; and how each grows with the history.

The bare driver runs the same statements, in the same kind of transaction, and reads the same rows.
"""

import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from quire.log import SqlStore, branches, driver, migrate, reading
from quire.log.schema import entries, paths
from quire.model import Compaction, Draft, Message, Span, TokenCount
from quire.testing.postgres import Cluster
from support import Report, main, medians, ratio

SENTENCE = "The river carries more water in spring than in autumn, and the mill runs day and night. "
ACTIVE = 100
BATCH = 2_000
ROUNDS = 300
OPENING = "BEGIN; SELECT set_config('quire.tenant', 'default', true)"
READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT set_config('quire.tenant', 'default', true)"


def message(number: int) -> Draft:
    """About sixty tokens."""
    body = (Message.assistant, Message.user)[number % 2](f"{number}: {SENTENCE * 3}")
    return Draft(body=body, tokens=TokenCount(60, "o200k"))


async def fill(store: SqlStore, size: int) -> str:
    """A conversation of so many messages, all but the newest hundred covered by a compaction."""
    conversation = (await store.create_conversation(f"{size:09}")).id
    for start in range(0, size, BATCH):
        await store.append(conversation, *map(message, range(start, min(start + BATCH, size))))
    covers = Span(first=1, last=size - ACTIVE)
    await store.append(conversation, Compaction(number=1, covers=covers, summary=SENTENCE * 10))
    return conversation


def statements(backend: str) -> dict[str, str]:
    compiled = {
        "branch": branches.BRANCH,
        "range": reading.RANGE,
        "tail": reading.NEWEST_FIRST.limit(ACTIVE),
        "lock": branches.BRANCH.with_for_update(),
        "entry": entries.insert(),
        "path": paths.insert(),
        "head": branches.MOVE_HEAD,
    }
    return {name: driver.compiled(statement, backend) for name, statement in compiled.items()}


class Bare:
    """The driver alone. Rows are those that the store's own last append left, with a new number."""

    def __init__(self, backend: str, conversation: str, size: int) -> None:
        self.sql = statements(backend)
        place = {"tenant": "default", "conversation": conversation, "branch": 0}
        limits = {"first": size - ACTIVE + 1, "last": size + 1, "param_1": ACTIVE, "param_2": 0}
        self.known: dict[str, Any] = place | limits | {f"of_{name}": value for name, value in place.items()}
        self.tail_known = self.known | {"first": 1}

    def entry(self, row: dict[str, Any]) -> dict[str, Any]:
        seq = row["head_seq"] + 1
        moved = {"seq": seq, "head_seq": seq, "path": seq.to_bytes(32, "big"), "head_path": seq.to_bytes(32, "big")}
        return self.known | {"name": ""} | row | moved


class BareSqlite(Bare):
    def __init__(self, path: Path, conversation: str, size: int) -> None:
        super().__init__("sqlite", conversation, size)
        self.connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("synchronous = FULL", "foreign_keys = ON", "cache_size = -16000"):
            self.connection.execute(f"PRAGMA {pragma}")

    def window(self) -> list[Any]:
        self.connection.execute(self.sql["branch"], self.known).fetchone()
        return self.connection.execute(self.sql["range"], self.known).fetchall()

    def tail(self) -> list[Any]:
        self.connection.execute(self.sql["branch"], self.tail_known).fetchone()
        return self.connection.execute(self.sql["tail"], self.tail_known).fetchall()

    def append(self) -> None:
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        cursor = execute(self.sql["lock"], self.known)
        branch = dict(zip((column[0] for column in cursor.description), cursor.fetchone(), strict=True))
        row = self.entry(_sample | branch)
        for name in ("entry", "path", "head"):
            execute(self.sql[name], row)
        execute("COMMIT")


class BarePostgres(Bare):
    def __init__(self, connection: psycopg.AsyncConnection[Any], conversation: str, size: int) -> None:
        super().__init__("postgresql", conversation, size)
        self.connection = connection

    async def window(self) -> list[Any]:
        execute = self.connection.execute
        await execute(READING)
        await (await execute(self.sql["branch"], self.known)).fetchone()
        found = await (await execute(self.sql["range"], self.known)).fetchall()
        await execute("COMMIT")
        return found

    async def tail(self) -> list[Any]:
        execute = self.connection.execute
        await execute(READING)
        await (await execute(self.sql["branch"], self.tail_known)).fetchone()
        found = await (await execute(self.sql["tail"], self.tail_known)).fetchall()
        await execute("COMMIT")
        return found

    async def append(self) -> None:
        execute = self.connection.execute
        await execute(OPENING)
        cursor = await execute(self.sql["lock"], self.known)
        names = [column.name for column in cursor.description or ()]
        branch = dict(zip(names, await cursor.fetchone() or (), strict=True))
        row = self.entry(_sample | branch)
        for name in ("entry", "path", "head"):
            await execute(self.sql[name], row)
        await execute("COMMIT")


_sample: dict[str, Any] = {}


async def measure(
    report: Report, backend: str, store: SqlStore, sizes: list[int], bare_for: Callable[[str, int], Bare]
) -> None:
    filled = {size: await fill(store, size) for size in sizes}
    smallest, largest = sizes[0], sizes[-1]
    windows = await medians(*(lambda name=name: store.window(name) for name in filled.values()), rounds=ROUNDS)
    tails = await medians(*(lambda name=name: store.tail(name, ACTIVE) for name in filled.values()), rounds=ROUNDS)
    rows: list[tuple[object, ...]] = []
    for size, ours, ours_tail in zip(sizes, windows, tails, strict=True):
        name = filled[size]
        bare: Any = bare_for(name, size)
        assert len((await store.window(name)).messages) == ACTIVE
        _, window = await ratio(lambda name=name: store.window(name), bare.window, rounds=ROUNDS)
        _, tail = await ratio(lambda name=name: store.tail(name, ACTIVE), bare.tail, rounds=ROUNDS)
        sample = (await store.tail(name, 1, kinds=["message"]))[0]._asdict()
        _sample.update(sample, body=sample["raw"], notes=None)
        append, appended = await ratio(
            lambda name=name: store.append(name, message(0)), bare.append, rounds=ROUNDS // 3
        )
        rows.append((size, ours, window, ours_tail, tail, append, appended))
        if size in (smallest, largest):
            report.at_most(f"window_vs_bare_{backend}_{size}", window, 2.0)
    report.table(
        f"{backend}: milliseconds, and times the bare driver",
        ("messages", "window", "x bare", "tail", "x bare", "append", "x bare"),
        rows,
    )
    report.at_most(f"window_growth_{backend}", windows[-1] / windows[0], 1.3)


async def run(*, quick: bool) -> Report:
    report = Report("log")
    sizes = [1_000, 10_000, 50_000] if quick else [1_000, 10_000, 100_000, 1_000_000]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quire.db"
        async with SqlStore.open(f"sqlite:///{path}") as store:
            await measure(report, "sqlite", store, sizes, lambda name, size: BareSqlite(path, name, size))
    with Cluster.start(18, fsync=True) as cluster:
        cluster.create_database("quire")
        cluster.create_role("quire_app")
        migrate.upgrade(cluster.url("quire"))
        migrate.grant(cluster.url("quire"), "quire_app")
        url = cluster.url("quire", user="quire_app")
        async with SqlStore.open(url) as store, await psycopg.AsyncConnection.connect(url, autocommit=True) as driver:
            await measure(report, "postgres", store, sizes, lambda name, size: BarePostgres(driver, name, size))
    return report


if __name__ == "__main__":
    main(run)
