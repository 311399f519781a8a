"""The log compared with the bare driver: loading a window, reading a tail, appending; and growth with the history.

The bare driver runs the same statements, in the same kind of transaction, and reads the same rows.
"""

import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.dialects import registry

from infra.postgres import Cluster
from quire.db import migrate
from quire.db.schema import entries, paths
from quire.log import conversations, reads
from quire.model import Compaction, Draft, Message, Span, TokenCount
from quire.store import SqlStore
from support import Report, run_benchmark, time_medians, time_ratio

SENTENCE = "The river carries more water in spring than in autumn, and the mill runs day and night. "
ACTIVE_MESSAGES = 100
BATCH_SIZE = 2_000
ROUNDS = 300
MAX_APPEND_RATIO = 2.5
"""Goal: time of an append, divided by the bare insert's."""
BEGIN_WRITE = "BEGIN; SELECT set_config('quire.tenant', 'default', true)"
BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT set_config('quire.tenant', 'default', true)"


def make_draft(number: int) -> Draft:
    """About sixty tokens."""
    body = (Message.assistant, Message.user)[number % 2](f"{number}: {SENTENCE * 3}")
    return Draft(body=body, tokens=TokenCount(60, "o200k"))


async def create_conversation(store: SqlStore, size: int) -> str:
    """Creates a conversation of `size` messages, all but the newest hundred covered by a compaction."""
    conversation = (await store.create_conversation(f"{size:09}")).id
    for start in range(0, size, BATCH_SIZE):
        await store.append(conversation, *map(make_draft, range(start, min(start + BATCH_SIZE, size))))
    covers = Span(first=1, last=size - ACTIVE_MESSAGES)
    await store.append(conversation, Compaction(number=1, covers=covers, summary=SENTENCE * 10))
    return conversation


def compile_statements(backend: str) -> dict[str, str]:
    compiled = {
        "branch": conversations.BRANCH,
        "range": reads.RANGE,
        "tail": reads.NEWEST_FIRST.limit(ACTIVE_MESSAGES),
        "lock": conversations.BRANCH.with_for_update(),
        "entry": entries.insert(),
        "path": paths.insert(),
        "head": conversations.OVERWRITE_BRANCH,
    }
    driver = {"sqlite": "sqlite.pysqlite", "postgresql": "postgresql.psycopg"}[backend]
    paramstyle = {"sqlite": "named", "postgresql": "pyformat"}[backend]
    dialect = registry.load(driver)(paramstyle=paramstyle)
    return {name: str(statement.compile(dialect=dialect)) for name, statement in compiled.items()}


class BareDriver:
    """The driver alone. It inserts the row of the store's last append, with a new number, into its own conversation."""

    def __init__(self, backend: str, conversation: str, size: int) -> None:
        self.sql = compile_statements(backend)
        place = {"tenant": "default", "conversation": conversation, "branch": 0}
        limits = {"first": size - ACTIVE_MESSAGES + 1, "last": size + 1, "param_1": ACTIVE_MESSAGES, "param_2": 0}
        self.parameters: dict[str, Any] = place | limits | {f"of_{name}": value for name, value in place.items()}
        self.tail_parameters = self.parameters | {"first": 1}
        own = {"conversation": f"{conversation}-bare"}
        self.append_parameters = self.parameters | own | {f"of_{name}": value for name, value in own.items()}

    def build_row(self, row: dict[str, Any]) -> dict[str, Any]:
        seq, conversation = row["head_seq"] + 1, self.append_parameters["conversation"]
        path = f"{conversation}-{seq}".encode().ljust(32)
        moved = {"conversation": conversation, "seq": seq, "head_seq": seq, "path": path, "head_path": path}
        return self.append_parameters | {"name": ""} | row | moved


class BareSqlite(BareDriver):
    def __init__(self, path: Path, conversation: str, size: int) -> None:
        super().__init__("sqlite", conversation, size)
        self.connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("synchronous = FULL", "foreign_keys = ON", "cache_size = -16000"):
            self.connection.execute(f"PRAGMA {pragma}")

    def window(self) -> list[Any]:
        self.connection.execute(self.sql["branch"], self.parameters).fetchone()
        return self.connection.execute(self.sql["range"], self.parameters).fetchall()

    def tail(self) -> list[Any]:
        self.connection.execute(self.sql["branch"], self.tail_parameters).fetchone()
        return self.connection.execute(self.sql["tail"], self.tail_parameters).fetchall()

    def append(self) -> None:
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        cursor = execute(self.sql["lock"], self.append_parameters)
        branch = dict(zip((column[0] for column in cursor.description), cursor.fetchone(), strict=True))
        row = self.build_row(_sample_row | branch)
        for name in ("entry", "path", "head"):
            execute(self.sql[name], row)
        execute("COMMIT")


class BarePostgres(BareDriver):
    def __init__(self, connection: psycopg.AsyncConnection[Any], conversation: str, size: int) -> None:
        super().__init__("postgresql", conversation, size)
        self.connection = connection

    async def window(self) -> list[Any]:
        execute = self.connection.execute
        await execute(BEGIN_READ)
        await (await execute(self.sql["branch"], self.parameters)).fetchone()
        found = await (await execute(self.sql["range"], self.parameters)).fetchall()
        await execute("COMMIT")
        return found

    async def tail(self) -> list[Any]:
        execute = self.connection.execute
        await execute(BEGIN_READ)
        await (await execute(self.sql["branch"], self.tail_parameters)).fetchone()
        found = await (await execute(self.sql["tail"], self.tail_parameters)).fetchall()
        await execute("COMMIT")
        return found

    async def append(self) -> None:
        execute = self.connection.execute
        await execute(BEGIN_WRITE)
        cursor = await execute(self.sql["lock"], self.append_parameters)
        names = [column.name for column in cursor.description or ()]
        branch = dict(zip(names, await cursor.fetchone() or (), strict=True))
        row = self.build_row(_sample_row | branch)
        for name in ("entry", "path", "head"):
            await execute(self.sql[name], row)
        await execute("COMMIT")


_sample_row: dict[str, Any] = {}


async def measure_backend(
    report: Report, backend: str, store: SqlStore, sizes: list[int], bare_for: Callable[[str, int], BareDriver]
) -> None:
    conversations_by_size = {size: await create_conversation(store, size) for size in sizes}
    smallest, largest = sizes[0], sizes[-1]
    windows = await time_medians(
        *(lambda name=name: store.read_window(name) for name in conversations_by_size.values()), rounds=ROUNDS
    )
    tails = await time_medians(
        *(lambda name=name: store.read_tail(name, ACTIVE_MESSAGES) for name in conversations_by_size.values()),
        rounds=ROUNDS,
    )
    rows: list[tuple[object, ...]] = []
    for size, ours, ours_tail in zip(sizes, windows, tails, strict=True):
        name = conversations_by_size[size]
        bare: Any = bare_for(name, size)
        assert len((await store.read_window(name)).messages) == ACTIVE_MESSAGES
        _, window = await time_ratio(lambda name=name: store.read_window(name), bare.window, rounds=ROUNDS)
        _, tail = await time_ratio(lambda name=name: store.read_tail(name, ACTIVE_MESSAGES), bare.tail, rounds=ROUNDS)
        sample = (await store.read_tail(name, 1, kinds=["message"]))[0]._asdict()
        _sample_row.update(sample, at=sample["created_at"], body=sample["raw"], notes=None)
        # The bare driver computes no row digests, which the store would check in a conversation of its own.
        await store.create_conversation(f"{name}-bare")
        await store.append(f"{name}-bare", make_draft(0))
        append, appended = await time_ratio(
            lambda name=name: store.append(name, make_draft(0)), bare.append, rounds=ROUNDS // 3
        )
        rows.append((size, ours, window, ours_tail, tail, append, appended))
        if size in (smallest, largest):
            report.require_at_most(f"window_vs_bare_{backend}_{size}", window, 2.0)
            report.require_at_most(f"append_vs_bare_{backend}_{size}", appended, MAX_APPEND_RATIO)
    report.print_table(
        f"{backend}: milliseconds, and times the bare driver",
        ("messages", "window", "x bare", "tail", "x bare", "append", "x bare"),
        rows,
    )
    report.require_at_most(f"window_growth_{backend}", windows[-1] / windows[0], 1.3)


async def run(*, quick: bool) -> Report:
    report = Report("log")
    sizes = [1_000, 10_000, 50_000] if quick else [1_000, 10_000, 100_000, 1_000_000]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quire.db"
        async with SqlStore.open(f"sqlite:///{path}") as store:
            await measure_backend(report, "sqlite", store, sizes, lambda name, size: BareSqlite(path, name, size))
    with Cluster.start(18, fsync=True) as cluster:
        cluster.create_database("quire")
        cluster.create_role("quire_app")
        migrate.upgrade(cluster.url("quire"))
        migrate.grant_access(cluster.url("quire"), "quire_app")
        url = cluster.url("quire", user="quire_app")
        async with SqlStore.open(url) as store, await psycopg.AsyncConnection.connect(url, autocommit=True) as driver:
            await measure_backend(report, "postgres", store, sizes, lambda name, size: BarePostgres(driver, name, size))
    return report


if __name__ == "__main__":
    run_benchmark(run)
