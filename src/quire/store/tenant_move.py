"""Moves a tenant to another cell while it is served.

A pass compares every table in groups (a conversation, or a bucket of primary keys) by the digests of their rows, and
copies the groups that differ. Passes go on without a freeze until little changes between two of them. Then writes are
frozen, a last pass compares what changed since the one before, and one row of the source cell, which says where the
tenant went, ends the move. The directory follows that row.

Every step can be repeated, and what was copied is never trusted without a comparison, so a move that was killed is
resumed by another run of the same steps. Until the last step it can also be undone. Each run writes a token into both
cells, without which a run that was paused cannot go on. A freeze ends by itself, so a mover that dies stops writes for
seconds.

The mover is the owner of the tables. Row-level security applies to it too, so it reads and writes one tenant at a time:
the tenant itself, then each of its people.
"""

import secrets
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple, Self

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal
from sqlalchemy import Table

from quire.db.database_url import build_conninfo
from quire.db.migrate import VERSION_TABLE
from quire.db.schema import branches, conversations, metadata
from quire.errors import Conflict, IntegrityViolation, InvalidRequest, StoreBusy
from quire.model.ids import now
from quire.model.people import make_space
from quire.settings.schema import HOME_CELL

WRITERS_LOCK_CLASS = 0x71756972
"""First key of the advisory lock that `quire_enter_cell` shares among a tenant's writers."""
FREEZE_SECONDS = 15.0
"""Time after which a freeze ends by itself. A comparison that takes longer is given up, and tried again."""
CATCH_UP_SECONDS = 0.5
"""A pass that takes less is followed by the freeze; so is one that took about as long as the pass before."""
_CATCH_UP_RATIO = 0.7
_MAX_FREEZES = 3
_LOCK_WAIT_MILLISECONDS = 500
"""Wait for the writers that run when the freeze begins. New writes wait for as long."""
_MAX_LOCK_WAITS = 40
_LOCK_PAUSE_SECONDS = 0.5

TABLES = [table for table in metadata.tables.values() if "tenant" in table.c]
"""All tables of a tenant, each after those that it refers to."""

Connection = psycopg.Connection[tuple[Any, ...]]
Report = Callable[[str], object]


class Group(NamedTuple):
    """Rows that are compared and copied together."""

    tenant: str
    table: str
    name: str


GroupDigests = Mapping[Group, tuple[int, bytes]]
"""Number of rows and digest of each group."""


class MoveReport(NamedTuple):
    """What a move did."""

    tenant: str
    source: str
    target: str
    conversations: int
    rows: int
    passes: int
    seconds: float
    frozen_seconds: float


class _Move(NamedTuple):
    source: str
    target: str
    epoch: int
    """The epoch before the move."""
    token: str


class TenantMover:
    """Moves one tenant between the cells at these URLs, which name the owner of the tables."""

    def __init__(self, urls: Mapping[str, str], tenant: str, *, report: Report = lambda _: None) -> None:
        self._urls, self._team, self._report = urls, tenant, report
        self._connections: dict[str, Connection] = {}
        self._stack = ExitStack()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="quire-move")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        self._stack.close()

    def start(self, target: str, *, keep_source: bool = False) -> MoveReport:
        """Moves the tenant to this cell. Raises `Conflict` if a move of it has begun."""
        self._connect(target)
        home = self._connect(HOME_CELL)
        with home.transaction():
            row = self._read_directory(home)
            cell, epoch, state, peer = row or (HOME_CELL, 0, "live", None)
            if state != "live":
                raise Conflict(
                    f"A move of the tenant {self._team} ({cell}, {peer}) was begun and has not ended; end it with "
                    "--resume, or return with --undo."
                )
            if cell == target:
                raise InvalidRequest(f"The tenant {self._team} lives in the cell {target!r} already.")
            self._write_directory(home, cell, epoch, "moving", target)
        return self._run(keep_source=keep_source)

    def resume(self, *, keep_source: bool = False) -> MoveReport:
        """Continues a move that was interrupted, from wherever it was."""
        return self._run(keep_source=keep_source)

    def undo(self) -> str:
        """Returns from a move that was interrupted: the tenant stays in the cell that this names, and what was copied
        is deleted."""
        move = self._claim()
        if move is None:
            raise InvalidRequest(f"No move of the tenant {self._team} has begun.")
        source, target = self._connect(move.source), self._connect(move.target)
        if self._has_moved(move):
            raise InvalidRequest(
                f"The tenant {self._team} lives in the cell {move.target!r} already; end the move with --resume."
            )
        self._write_cell(target, "arriving", move.epoch + 1, move.token)
        with self._lock_out_writers(source):
            self._write_cell(source, "live", move.epoch, move.token)
        self._delete_rows(target, self._list_tenants(source), move.token, state="arriving")
        self._write_cell(target, "moved", move.epoch, move.token, moved_to=move.source)
        self._write_directory(self._connect(HOME_CELL), move.source, move.epoch, "live", None)
        return move.source

    def _run(self, *, keep_source: bool) -> MoveReport:
        started, frozen_seconds, passes = time.monotonic(), 0.0, 0
        move = self._claim()
        if move is None:
            raise InvalidRequest(f"No move of the tenant {self._team} has begun; begin one with --to CELL.")
        source, target = self._connect(move.source), self._connect(move.target)
        if not self._has_moved(move):
            _check_same_schema(source, target)
            self._write_cell(target, "arriving", move.epoch + 1, move.token)
            seen: _Pass | None = None
            for _ in range(_MAX_FREEZES):
                previous_seconds, pass_seconds = 0.0, 0.0
                # The first pass copies everything, and the second compares it. Others are worth their time while each
                # has much less to do than the one before.
                while passes < 2 or CATCH_UP_SECONDS < pass_seconds < _CATCH_UP_RATIO * previous_seconds:
                    passes += 1
                    self._report(f"pass {passes}")
                    begun, previous_seconds = time.monotonic(), pass_seconds
                    seen = self._run_pass(move, seen)
                    pass_seconds = time.monotonic() - begun
                self._report("frozen")
                self._freeze(source, move)
                begun = time.monotonic()
                try:
                    seen = self._run_pass(move, seen, is_last=True)
                    self._compare_heads(source, target)
                    if self._flip(source, target, move):
                        frozen_seconds += time.monotonic() - begun
                        break
                except BaseException:
                    if not self._has_moved(move):
                        self._write_cell(source, "live", move.epoch, move.token)
                    raise
                frozen_seconds += time.monotonic() - begun
            else:
                raise StoreBusy(
                    f"The tenant {self._team} could not be compared within {FREEZE_SECONDS:g} seconds of frozen "
                    "writes; try --resume at a quieter time."
                )
        tenants = self._list_tenants(target)
        self._finish(move, tenants, keep_source=keep_source)
        counts = self._count_rows(target, tenants)
        return MoveReport(
            self._team,
            move.source,
            move.target,
            conversations=counts[conversations.name],
            rows=sum(counts.values()),
            passes=passes,
            seconds=time.monotonic() - started,
            frozen_seconds=frozen_seconds,
        )

    def _finish(self, move: _Move, tenants: Sequence[str], *, keep_source: bool) -> None:
        """Lets the directory follow the tenant, and deletes the rows that it left."""
        home, source = self._connect(HOME_CELL), self._connect(move.source)
        epoch = move.epoch + 1
        if keep_source:
            self._write_directory(home, move.target, epoch, "live", None)
            return
        self._write_directory(home, move.target, epoch, "cleaning", move.source)
        self._report("deleting")
        self._delete_rows(source, tenants, move.token, state="moved")
        self._write_directory(home, move.target, epoch, "live", None)

    # Directory and cells

    def _connect(self, cell: str) -> Connection:
        if cell not in self._connections:
            if cell not in self._urls:
                names = ", ".join(sorted(self._urls))
                raise InvalidRequest(f"There is no cell {cell!r}; the settings name {names}.")
            opened = psycopg.connect(build_conninfo(self._urls[cell]), autocommit=True, prepare_threshold=None)
            self._connections[cell] = self._stack.enter_context(opened)
            [(may_delete,)] = opened.execute("SELECT has_table_privilege('quire_entries', 'DELETE')").fetchall()
            if not may_delete:
                raise InvalidRequest(
                    f"The role of the cell {cell!r} may not delete entries. Name the owner's database URLs, as for "
                    "`quire db upgrade`."
                )
        return self._connections[cell]

    def _read_directory(self, home: Connection) -> tuple[Any, ...] | None:
        query = "SELECT cell, epoch, state, peer FROM quire_tenant_cells WHERE team = %s FOR UPDATE"
        return home.execute(query, [self._team]).fetchone()

    def _write_directory(self, home: Connection, cell: str, epoch: int, state: str, peer: str | None) -> None:
        home.execute(
            "INSERT INTO quire_tenant_cells AS t (team, cell, epoch, state, peer, started_at) "
            "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (team) DO UPDATE "
            "SET cell = excluded.cell, epoch = excluded.epoch, state = excluded.state, peer = excluded.peer, "
            "started_at = excluded.started_at WHERE t.epoch <= excluded.epoch",
            [self._team, cell, epoch, state, peer, now()],
        )

    def _claim(self) -> _Move | None:
        """The move in progress, with a token that stops every other run of it."""
        home, token = self._connect(HOME_CELL), secrets.token_hex(8)
        with home.transaction():
            row = self._read_directory(home)
            if row is None or row[2] == "live":
                return None
            home.execute("UPDATE quire_tenant_cells SET move = %s WHERE team = %s", [token, self._team])
        cell, epoch, state, peer = row
        move = _Move(peer, cell, epoch - 1, token) if state == "cleaning" else _Move(cell, peer, epoch, token)
        new_rows = ((move.source, move.epoch, "live"), (move.target, move.epoch + 1, "arriving"))
        for name, new_epoch, new_state in new_rows:
            self._connect(name).execute(
                "INSERT INTO quire_cell_tenants (team, epoch, state, move) VALUES (%s, %s, %s, %s) "
                "ON CONFLICT (team) DO UPDATE SET move = excluded.move",
                [self._team, new_epoch, new_state, token],
            )
        return move

    def _has_moved(self, move: _Move) -> bool:
        """Whether the source cell has let the tenant go."""
        query = "SELECT epoch, state FROM quire_cell_tenants WHERE team = %s"
        return self._connect(move.source).execute(query, [self._team]).fetchone() == (move.epoch + 1, "moved")

    def _write_cell(
        self,
        connection: Connection,
        state: str,
        epoch: int,
        token: str,
        *,
        moved_to: str | None = None,
        frozen_until: int | None = None,
    ) -> None:
        """Changes what a cell knows of the tenant, unless another process has claimed the move since."""
        changed = connection.execute(
            "UPDATE quire_cell_tenants SET epoch = %s, state = %s, moved_to = %s, frozen_until = %s "
            "WHERE team = %s AND move = %s",
            [epoch, state, moved_to, frozen_until, self._team, token],
        ).rowcount
        if not changed:
            raise Conflict(_CLAIMED.format(self._team))

    @contextmanager
    def _lock_out_writers(self, connection: Connection) -> Generator[None]:
        """A transaction that waits for the running writers of the tenant, and that new ones wait for."""
        with connection.transaction():
            connection.execute(SQL("SET LOCAL lock_timeout = {}").format(_LOCK_WAIT_MILLISECONDS))
            connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [WRITERS_LOCK_CLASS, self._team])
            yield

    def _freeze(self, source: Connection, move: _Move) -> None:
        for _ in range(_MAX_LOCK_WAITS):
            try:
                with self._lock_out_writers(source):
                    [(time_now,)] = source.execute(_CLOCK).fetchall()
                    until = time_now + int(FREEZE_SECONDS * 1_000_000)
                    self._write_cell(source, "frozen", move.epoch, move.token, frozen_until=until)
                    return
            except psycopg.errors.LockNotAvailable:
                time.sleep(_LOCK_PAUSE_SECONDS)
        raise StoreBusy(f"A long write of the tenant {self._team} does not end; try --resume later.")

    def _flip(self, source: Connection, target: Connection, move: _Move) -> bool:
        """Ends the move. False if the freeze has ended before. The target is opened first: no process knows its epoch
        until the source cell names it."""
        self._write_cell(target, "live", move.epoch + 1, move.token)
        with self._lock_out_writers(source):
            moved = source.execute(
                SQL(
                    "UPDATE quire_cell_tenants SET state = 'moved', epoch = epoch + 1, moved_to = %s, "
                    "frozen_until = NULL WHERE team = %s AND state = 'frozen' AND move = %s AND frozen_until > ({})"
                ).format(SQL(_CLOCK)),
                [move.target, self._team, move.token],
            ).rowcount
        if not moved:
            self._write_cell(target, "arriving", move.epoch + 1, move.token)
        return bool(moved)

    def _list_tenants(self, connection: Connection) -> list[str]:
        """The tenant, and the part of it that each person has."""
        with connection.transaction():
            _set_tenant(connection, self._team)
            rows = connection.execute("SELECT id FROM quire_users WHERE tenant = %s ORDER BY id", [self._team])
            return [self._team, *(make_space(self._team, user) for (user,) in rows.fetchall())]

    # Copies

    def _run_pass(self, move: _Move, before: "_Pass | None", *, is_last: bool = False) -> "_Pass":
        """Makes the target equal to a snapshot of the source. After `before`, only what has changed since is compared,
        and what was copied, which the last pass compares itself."""
        source, target = self._connect(move.source), self._connect(move.target)
        with source.transaction():
            source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            source.execute(_DIGEST_SETTINGS)
            [(xmin,)] = source.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text").fetchall()
            tenants = self._list_tenants(source)
            counts, copied = dict[str, dict[Group, int]](), dict[str, set[Group]]()
            for tenant in tenants:
                candidates: dict[str, list[str]] | None = None
                if before is not None:
                    known = before.counts.get(tenant, {})
                    counts[tenant], changed = _count_groups(source, tenant, since=before.xmin)
                    groups = counts[tenant].keys() | known.keys()
                    changed |= {each for each in groups if counts[tenant].get(each) != known.get(each)}
                    candidates = _name_by_table(changed | before.copied.get(tenant, set()))
                differing = self._compare(source, target, tenant, candidates)
                if before is None:
                    counts[tenant] = {group: count for group, (count, _) in differing.source.items()}
                self._copy_groups(source, target, move, tenant, differing)
                copied[tenant] = differing.groups
            for tenant, groups in copied.items() if is_last else ():
                if wrong := self._compare(source, target, tenant, _name_by_table(groups)).groups:
                    raise IntegrityViolation(f"A copy differs from its source: {sorted(wrong)[:3]}.")
        return _Pass(xmin, counts, copied)

    def _compare(
        self, source: Connection, target: Connection, tenant: str, candidates: Mapping[str, Sequence[str]] | None
    ) -> "_Difference":
        """The groups that differ, of all tables or of these candidates."""
        there = self._threads.submit(_digest_groups, target, tenant, candidates)
        here = _digest_groups(source, tenant, candidates)
        found = there.result()
        groups = {each for each in here.keys() | found.keys() if here.get(each) != found.get(each)}
        return _Difference(here, found, groups, is_complete=candidates is None)

    def _copy_groups(
        self, source: Connection, target: Connection, move: _Move, tenant: str, difference: "_Difference"
    ) -> None:
        """Replaces the groups of the target that differ, one transaction for each table."""
        by_table = _name_by_table(difference.groups)
        stale = {(each.table, each.name) for each in difference.groups if each in difference.target}
        for table in reversed(TABLES):
            if names := [name for name in by_table.get(table.name, ()) if (table.name, name) in stale]:
                with target.transaction():
                    self._check_token(target, move.token, "arriving")
                    _set_tenant(target, tenant)
                    target.execute(
                        SQL("DELETE FROM {} WHERE tenant = {} AND {}").format(
                            Identifier(table.name), tenant, _in_groups(table, names)
                        )
                    )
        for table in TABLES:
            names = [
                name for name in by_table.get(table.name, ()) if Group(tenant, table.name, name) in difference.source
            ]
            if not names:
                continue
            self._report(f"copying {table.name}")
            is_whole = difference.is_complete and len(names) == sum(
                each.table == table.name for each in difference.source
            )
            rows = SQL("SELECT {} FROM {} WHERE tenant = {} AND {}").format(
                _columns(table), Identifier(table.name), tenant, SQL("true") if is_whole else _in_groups(table, names)
            )
            with target.transaction():
                self._check_token(target, move.token, "arriving")
                _set_tenant(target, tenant)
                # COPY cannot write to a table with row-level security.
                target.execute(
                    SQL("CREATE TEMPORARY TABLE quire_move (LIKE {}) ON COMMIT DROP").format(Identifier(table.name))
                )
                into = SQL("COPY quire_move ({}) FROM STDIN (FORMAT binary)").format(_columns(table))
                with (
                    source.cursor().copy(SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(rows)) as read,
                    target.cursor().copy(into) as write,
                ):
                    for block in read:
                        write.write(block)
                target.execute(
                    SQL("INSERT INTO {} ({}) SELECT {} FROM quire_move").format(
                        Identifier(table.name), _columns(table), _columns(table)
                    )
                )

    def _check_token(self, connection: Connection, token: str, state: str) -> None:
        """Holds the row of the cell until the end of the transaction, so that no other process claims the move."""
        query = "SELECT 1 FROM quire_cell_tenants WHERE team = %s AND move = %s AND state = %s FOR SHARE"
        if connection.execute(query, [self._team, token, state]).fetchone() is None:
            raise Conflict(_CLAIMED.format(self._team))

    def _compare_heads(self, source: Connection, target: Connection) -> None:
        """Raises unless both cells have the same number of rows in each table, and the same head of every branch."""
        tenants = self._list_tenants(source)
        for read in (self._count_rows, self._read_heads):
            there = self._threads.submit(read, target, tenants)
            if read(source, tenants) != there.result():
                raise IntegrityViolation(f"The copy of the tenant {self._team} differs from its source.")

    def _count_rows(self, connection: Connection, tenants: Iterable[str]) -> dict[str, int]:
        counts = dict.fromkeys((table.name for table in TABLES), 0)
        for tenant in tenants:
            with connection.transaction():
                _set_tenant(connection, tenant)
                for name, count in connection.execute(_count_query(tenant)):
                    counts[name] += count
        return counts

    def _read_heads(self, connection: Connection, tenants: Iterable[str]) -> list[tuple[Any, ...]]:
        heads: list[tuple[Any, ...]] = []
        for tenant in tenants:
            with connection.transaction():
                _set_tenant(connection, tenant)
                heads += connection.execute(
                    SQL(
                        "SELECT tenant, conversation, branch, head_seq, head_digest, head_path FROM {} "
                        "WHERE tenant = {} ORDER BY conversation, branch"
                    ).format(Identifier(branches.name), tenant)
                ).fetchall()
        return heads

    def _delete_rows(self, connection: Connection, tenants: Iterable[str], token: str, *, state: str) -> None:
        for tenant in tenants:
            with connection.transaction():
                self._check_token(connection, token, state)
                _set_tenant(connection, tenant)
                for table in reversed(TABLES):
                    connection.execute(SQL("DELETE FROM {} WHERE tenant = {}").format(Identifier(table.name), tenant))


class _Pass(NamedTuple):
    xmin: str
    """Transactions before this one were visible to the pass."""
    counts: dict[str, dict[Group, int]]
    """Rows of each group, by tenant."""
    copied: dict[str, set[Group]]
    """Groups that were copied, by tenant, and are to be compared again."""


class _Difference(NamedTuple):
    source: GroupDigests
    target: GroupDigests
    groups: set[Group]
    is_complete: bool
    """Whether all groups were compared."""


_CLAIMED = "Another process continues or undoes the move of the tenant {}."
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# Rows are compared as text, so the text must not depend on the settings of a role or a database.
_DIGEST_SETTINGS = (
    "SELECT set_config('bytea_output', 'hex', true), set_config('extra_float_digits', '1', true), "
    "set_config('statement_timeout', '0', true)"
)


def _name_by_table(groups: Iterable[Group]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for group in groups:
        names.setdefault(group.table, []).append(group.name)
    return names


def _set_tenant(connection: Connection, tenant: str) -> None:
    connection.execute(SQL("SELECT set_config('quire.tenant', {}, true)").format(tenant))
    connection.execute(_DIGEST_SETTINGS)


def _check_same_schema(source: Connection, target: Connection) -> None:
    vector_type = (
        "SELECT format_type(atttypid, NULL) FROM pg_attribute "
        "WHERE attrelid = 'quire_passages'::regclass AND attname = 'vector'"
    )
    for query, what in (
        (f"SELECT version_num FROM {VERSION_TABLE}", "schema; run `quire db upgrade`"),  # noqa: S608 (a constant)
        (vector_type, "type of vectors; install pgvector in both, and run `quire db upgrade`"),
    ):
        if source.execute(query.encode()).fetchone() != target.execute(query.encode()).fetchone():
            raise InvalidRequest(f"The two cells differ in their {what}.")


def _columns(table: Table) -> Composed:
    return SQL(", ").join(Identifier(column.name) for column in table.c)


@cache
def _group_expression(table: Table) -> Composed:
    """The conversation of a row, or one of 4,096 buckets of its primary key."""
    key = [column.name for column in table.primary_key if column.name != "tenant"]
    if "conversation" in key:
        return SQL("{}").format(Identifier("conversation"))
    if not key:
        return SQL("{}").format("")
    return SQL("left(encode(sha256(convert_to(ROW({})::text, 'UTF8')), 'hex'), 3)").format(
        SQL(", ").join(map(Identifier, key))
    )


def _in_groups(table: Table, names: Sequence[str]) -> Composed:
    return SQL("{} = ANY({}::text[])").format(_group_expression(table), Literal(list(names)))


def _digest_groups(
    connection: Connection, tenant: str, candidates: Mapping[str, Sequence[str]] | None
) -> dict[Group, tuple[int, bytes]]:
    """Number of rows and digest of each group, of all tables or of these groups."""
    found: dict[Group, tuple[int, bytes]] = {}
    with connection.transaction():
        _set_tenant(connection, tenant)
        for table in TABLES:
            if candidates is not None and table.name not in candidates:
                continue
            condition = SQL("true") if candidates is None else _in_groups(table, candidates[table.name])
            query = SQL(
                "SELECT name, count(*), sha256(string_agg(digest, ''::bytea ORDER BY digest)) FROM ("
                "SELECT {} AS name, sha256(convert_to(ROW({})::text, 'UTF8')) AS digest FROM {} "
                "WHERE tenant = {} AND {}) AS rows GROUP BY name"
            ).format(_group_expression(table), _columns(table), Identifier(table.name), tenant, condition)
            for name, count, digest in connection.execute(query):
                found[Group(tenant, table.name, name)] = (count, digest)
    return found


def _count_groups(connection: Connection, tenant: str, *, since: str) -> tuple[dict[Group, int], set[Group]]:
    """The number of rows of each group, and the groups with rows of transactions that a snapshot may not have seen.

    Reads neither texts nor bytes, so that it takes a fraction of the time of a digest."""
    connection.execute(SQL("SELECT set_config('quire.tenant', {}, true)").format(tenant))
    # The low half of the number is what a row has.
    first = SQL("age({}::xid)").format(str(int(since) % 2**32))
    query = SQL(" UNION ALL ").join(
        SQL(
            "SELECT {} AS relation, {} AS name, count(*), bool_or(age(xmin) <= {}) FROM {} WHERE tenant = {} GROUP BY 2"
        ).format(table.name, _group_expression(table), first, Identifier(table.name), tenant)
        for table in TABLES
    )
    counts, changed = dict[Group, int](), set[Group]()
    for relation, name, count, is_changed in connection.execute(query):
        group = Group(tenant, relation, name)
        counts[group] = count
        if is_changed:
            changed.add(group)
    return counts, changed


def _count_query(tenant: str) -> Composed:
    return SQL(" UNION ALL ").join(
        SQL("SELECT {}, count(*) FROM {} WHERE tenant = {}").format(table.name, Identifier(table.name), tenant)
        for table in TABLES
    )
