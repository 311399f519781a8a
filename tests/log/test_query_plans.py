"""Query plans: hot reads use an index and touch one partition.

The tests intercept statements in the driver, with their values, and EXPLAIN them in the store's own transaction.
"""

import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.sql import Literal

from quire.index.types import IndexedDocument, Passage, SegmentData, SegmentUpdate, VaultDocument
from quire.log import ConversationOrigin, MessageKey
from quire.log.imports import ImportBatch, ImportItem
from quire.log.types import ConversationRecord
from quire.model import Compaction, EntryMetadata, Message, Span, Usage, iter_paths
from quire.search.tokenizer import count_terms
from quire.store import SqlStore

NAME = "this one"
SESSION = "this session"
SCOPE = "vault:this vault"
MESSAGES = [Message.user(f"{'some words ' * 20}{number}") for number in range(50)]
PATHS = list(iter_paths(message.canonical_json().encode() for message in MESSAGES))
UNKNOWN = [Message.user(f"never stored {number}") for number in range(20)]
UNKNOWN_PATHS = list(iter_paths(message.canonical_json().encode() for message in UNKNOWN[:5]))

# Enough rows that the planner of PostgreSQL prefers an index without being forced.
COPIES = 400
COPY_SQL = f"""
    CREATE TEMPORARY VIEW copies AS SELECT CAST(n AS text) AS n FROM generate_series(1, {COPIES}) AS n;
    INSERT INTO quire_conversations SELECT tenant, n || conversation, title, created_at, updated_at, purged_at,
    client, n || session, project, agent, parent_agent, purpose, row_digest FROM quire_conversations, copies;
    INSERT INTO quire_branches SELECT tenant, n || conversation, branch, name, created_at, lineage, head_seq,
    head_digest, head_path, state, updated_at, row_digest FROM quire_branches, copies;
    INSERT INTO quire_entries SELECT tenant, n || conversation, branch, seq, kind, role, author, at, digest, path,
    tokens, counter, body, notes, purged_at, content_digest FROM quire_entries, copies;
    INSERT INTO quire_paths SELECT tenant, sha256(path || CAST(n AS bytea)), n || conversation, branch, seq
    FROM quire_paths, copies;
    INSERT INTO quire_passages SELECT tenant, n || scope, key, part, number, title, text, digest, at, embedder, vector
    FROM quire_passages, copies;
    INSERT INTO quire_terms SELECT tenant, n || scope, term, block, postings FROM quire_terms, copies;
    INSERT INTO quire_search_scopes SELECT tenant, n || scope, next_number, passage_count, revision, format
    FROM quire_search_scopes, copies;
    INSERT INTO quire_message_segments SELECT tenant, n || conversation, branch, next, number, revision, last_seq,
    erasures, format, embedder, columns, terms FROM quire_message_segments, copies, generate_series(0, 50) AS next;
    INSERT INTO quire_unindexed_branches SELECT tenant, n || conversation, branch, last_seq
    FROM quire_unindexed_branches, copies;
    INSERT INTO quire_uncounted_branches SELECT tenant, n || conversation, branch, last_seq
    FROM quire_uncounted_branches, copies;
    INSERT INTO quire_documents SELECT tenant, n || vault, path, digest, size, modified_ns, title, summary, aliases,
    headings, row_digest FROM quire_documents, copies;
    INSERT INTO quire_memories SELECT tenant, n || '-' || next || memory, n || namespace, text, conversation,
    branch, seq, source, created_at, retired_at, replaced_by, row_digest
    FROM quire_memories, copies, generate_series(0, 20) AS next;
    ANALYZE;
"""

Call = Callable[[SqlStore], Awaitable[object]]

PASSAGES = tuple(Passage(f"0:{seq}", message.text) for seq, message in enumerate(MESSAGES, start=1))
DOCUMENTS = [IndexedDocument(VaultDocument(f"{number}.md", b"digest", 1, 1), ()) for number in range(20)]

READS: dict[str, Call] = {
    "branch": lambda store: store.get_branch(NAME),
    "entry": lambda store: store.get_entry(NAME, 20),
    "range": lambda store: store.read_range(NAME, first=20, last=30),
    "window": lambda store: store.read_window(NAME),
    "tail": lambda store: store.read_tail(NAME, 10),
    "control entries": lambda store: store.fork(NAME, at=45),
    "append": lambda store: store.append(NAME, Message.user("the next")),
    "retried append": lambda store: store.append(NAME, MESSAGES[20], after=PATHS[19]),
    "segments": lambda store: store.message_index.list_segments(NAME),
    "read segments": lambda store: read_all_segments(store),
    "uncounted": lambda store: store.usage.has_uncounted(),
    "unindexed": lambda store: store.message_index.has_unindexed(conversations=[NAME]),
    "message index": lambda store: store.message_index.read_changes(["word", "20"], after_revision=1 << 60),
    "messages": lambda store: store.message_index.read_messages([MessageKey(NAME, 0, 20)]),
    "search": lambda store: store.passages.search("some words 20", scopes=[SCOPE]),
    "passages": lambda store: store.passages.get(SCOPE, "0:20"),
    "unembedded": lambda store: store.passages.list_unembedded(SCOPE, embedder="e", limit=5),
    "memories": lambda store: store.memories.list("agent"),
    "documents": lambda store: store.documents.list("vault"),
    "session": lambda store: store.list_session(SESSION),
}


async def read_all_segments(store: SqlStore) -> None:
    refs = await store.message_index.list_segments(NAME)
    assert await store.message_index.read_segments(NAME, refs) == [SegmentData(b"columns", b"terms")]


@pytest.fixture
async def filled_store(store: SqlStore, admin_url: str) -> SqlStore:
    await store.create_conversation(NAME, origin=ConversationOrigin(session=SESSION))
    await store.append(NAME, *MESSAGES)
    await store.append(NAME, Compaction(number=1, covers=Span(first=1, last=30), summary="short"))
    counts = tuple(enumerate((count_terms(message.text),) for message in MESSAGES))
    data = SegmentData(b"columns", b"terms")
    await store.message_index.put_segments([SegmentUpdate(NAME, 0, 0, 1, 50, None, 0, data, None, counts)])
    await store.passages.put(SCOPE, PASSAGES)
    await store.memories.add("agent", "some words", source="import")
    await store.documents.put("vault", DOCUMENTS)
    if admin_url.startswith("postgresql"):
        with psycopg.connect(admin_url) as owner:
            owner.execute(COPY_SQL)
    return store


class Scan(NamedTuple):
    node: str
    table: str
    index: str | None
    times: int


class ExplainedStatement(NamedTuple):
    statement: str
    scans: list[Scan]
    nodes: set[str]

    def executed(self, table: str) -> list[Scan]:
        return [scan for scan in self.scans if scan.table.startswith(table) and scan.times]


@pytest.fixture(params=["custom", "generic"])
def plans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[ExplainedStatement]:
    """The executed plan of each query, with both kinds of plan that a prepared statement may get."""
    collected: list[ExplainedStatement] = []
    original = psycopg.AsyncCursor.execute

    async def execute(self: Any, statement: Any, values: Any = None, **options: Any) -> Any:
        if "FROM quire_" in str(statement) and statement.lstrip().startswith(("SELECT", "WITH")):
            run = partial(original, self)
            settings, is_alone, query = statement.rpartition("; ")
            if is_alone:
                # The settings of a transaction and one query in a message, with its values as literals.
                await run(f"BEGIN; {settings}")
            await run(f"SET LOCAL plan_cache_mode = force_{request.param}_plan")
            await run(f"PREPARE probe AS {to_numbered_parameters(query)}")
            arguments = inline_literals(query, values or {})
            await run(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE probe {f'({arguments})' if arguments else ''}")
            [[[explained]]] = await self.fetchall()
            await run("DEALLOCATE probe")
            if is_alone:
                await run("COMMIT")
            nodes = list(walk_plan(explained["Plan"]))
            collected.append(
                ExplainedStatement(
                    statement, [to_scan(node) for node in nodes if "Relation Name" in node], collect_node_types(nodes)
                )
            )
        return await original(self, statement, values, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", execute)
    return collected


def find_parameters(statement: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))


def to_numbered_parameters(statement: str) -> str:
    numbered = {name: f"${number}" for number, name in enumerate(find_parameters(statement), start=1)}
    return re.sub(r"%\((\w+)\)s", lambda match: numbered[match[1]], statement)


def inline_literals(statement: str, values: Mapping[str, Any]) -> str:
    return ", ".join(to_literal(values[name]) for name in find_parameters(statement))


def to_literal(value: Any) -> str:
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(to_literal, value))}]"
    # psycopg's own literals corrupt bytes in arrays.
    return f"'\\x{value.hex()}'::bytea" if isinstance(value, bytes) else Literal(value).as_string()


def walk_plan(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from walk_plan(child)


def to_scan(node: dict[str, Any]) -> Scan:
    return Scan(node["Node Type"], node["Relation Name"], node.get("Index Name"), node["Actual Loops"])


def collect_node_types(nodes: list[dict[str, Any]]) -> set[str]:
    return {node["Node Type"] for node in nodes}


@pytest.mark.every_postgres
async def test_hot_reads_use_an_index_of_one_partition(filled_store: SqlStore, plans: list[ExplainedStatement]) -> None:
    touched = {name: await find_touched_tables(call, filled_store, plans) for name, call in READS.items()}
    branches, entries, paths = {"quire_branches"}, {"quire_branches", "quire_entries"}, "quire_paths"
    assert touched == {
        "branch": branches,
        "entry": entries,
        "range": entries,
        "window": entries,
        "tail": entries,
        "control entries": entries | {"quire_conversations"},
        "append": branches,
        "retried append": entries | {paths},
        "segments": branches | {"quire_message_segments"},
        "read segments": branches | {"quire_message_segments"},
        "uncounted": {"quire_uncounted_branches"},
        "unindexed": {"quire_unindexed_branches"},
        "message index": {"quire_search_scopes", "quire_terms"},
        "messages": {"quire_conversations", "quire_entries"},
        "search": {"quire_search_scopes", "quire_terms", "quire_passages"},
        "passages": {"quire_passages"},
        "unembedded": {"quire_passages"},
        "memories": {"quire_memories"},
        "documents": {"quire_documents"},
        "session": {"quire_conversations"},
    }


SMALL_TABLES = {"quire_continued_sessions"}
"""A tenant has a row for each session that Quire wrote for an agent, so that all of them may be read."""


async def find_touched_tables(call: Call, store: SqlStore, plans: list[ExplainedStatement]) -> set[str]:
    """The tables that a call reads; checks that each query uses an index and at most one partition."""
    plans.clear()
    await call(store)
    touched: set[str] = set()
    for plan in plans:
        executed = plan.executed("quire_")
        assert [scan.times for scan in executed] == [1], plan
        if executed[0].table in SMALL_TABLES:
            continue
        assert executed[0].node in ("Index Scan", "Bitmap Heap Scan"), plan
        assert "Sort" not in plan.nodes, plan
        touched |= {re.sub(r"_\d\d$", "", scan.table) for scan in executed}
    return touched


@pytest.mark.every_postgres
async def test_a_history_is_matched_by_one_statement_and_one_partition_for_each_path(
    filled_store: SqlStore, plans: list[ExplainedStatement]
) -> None:
    await check_control_entries(filled_store, plans)
    await check_longest_prefix(filled_store, plans)
    await check_session(filled_store, plans)


async def check_control_entries(filled_store: SqlStore, plans: list[ExplainedStatement]) -> None:
    """They have an index of their own."""
    plans.clear()
    await filled_store.fork(NAME, at=45)
    [plan] = [plan for plan in plans if "kind !=" in plan.statement]
    [scan] = plan.executed("quire_entries")
    assert scan.index is not None
    assert not scan.index.endswith("_pkey")


async def check_longest_prefix(filled_store: SqlStore, plans: list[ExplainedStatement]) -> None:
    for conversation in (None, NAME):
        for length in (10, 50):
            plans.clear()
            paths = [*PATHS[:length], *UNKNOWN_PATHS]
            match = await filled_store.match_history(paths, conversation=conversation)
            assert match is not None
            assert (match.branch.conversation, match.length, match.seq) == (NAME, length, length)
            [plan] = plans
            executed = plan.executed("quire_paths")
            assert {scan.node for scan in executed} <= {"Index Scan", "Index Only Scan"}
            # From the end of the list down to the stored path; shorter paths are not looked up.
            assert sum(scan.times for scan in executed) == len(UNKNOWN_PATHS) + 1


async def check_session(filled_store: SqlStore, plans: list[ExplainedStatement]) -> None:
    unknown = len(UNKNOWN_PATHS)
    # Each search goes from the end of the list down to the stored path. Without a match in the session, it looked up
    # every path, and a search in all conversations follows.
    expected_probes = {(SESSION, 10): unknown + 1, (SESSION, 0): 2 * unknown, ("another", 10): 10 + 2 * unknown + 1}
    for (session, length), probes in expected_probes.items():
        plans.clear()
        match = await filled_store.match_history([*PATHS[:length], *UNKNOWN_PATHS], session=session)
        assert (match.branch.conversation, match.length) == (NAME, length) if match else not length
        [plan] = plans
        # Planned, not executed: without a matching path, PostgreSQL 15 does not look for the session.
        indexes = {scan.index for scan in plan.scans if scan.table == "quire_conversations"}
        assert indexes == {"quire_conversations_by_session"}
        executed = plan.executed("quire_paths")
        assert {scan.node for scan in executed} <= {"Index Scan", "Index Only Scan"}
        assert sum(scan.times for scan in executed) == probes


class RecordingCursor(sqlite3.Cursor):
    """Adds the plan of each query to `plans` before running it, with its values bound."""

    plans: list[list[str]]

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        if "FROM quire_" in statement:
            explained = self.connection.cursor(sqlite3.Cursor).execute(f"EXPLAIN QUERY PLAN {statement}", values)
            self.plans.append([row[3] for row in explained])
        return super().execute(statement, values)


class RecordingConnection(sqlite3.Connection):
    def cursor(self, factory: type[sqlite3.Cursor] = RecordingCursor) -> Any:
        return super().cursor(factory)

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        return self.cursor().execute(statement, values)


@pytest.fixture
def sqlite_plans(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The plan of each query of a store that is opened after this fixture."""
    RecordingCursor.plans = []
    connect = partial(sqlite3.connect, factory=RecordingConnection)
    monkeypatch.setattr(sqlite3.dbapi2, "connect", connect)
    return RecordingCursor.plans


READS_AND_LOOKUPS: dict[str, Call] = READS | {
    "history": lambda store: store.match_history([*PATHS, *UNKNOWN_PATHS]),
    "history of a conversation": lambda store: store.match_history([*PATHS, *UNKNOWN_PATHS], conversation=NAME),
}


async def test_hot_reads_search_an_index_on_sqlite(sqlite_plans: list[list[str]], filled_store: SqlStore) -> None:
    for name, call in READS_AND_LOOKUPS.items():
        sqlite_plans.clear()
        await call(filled_store)
        assert sqlite_plans, name
        for steps in sqlite_plans:
            assert all(re.match(r"SEARCH quire_\w+ USING (INDEX|PRIMARY KEY)", step) for step in steps), (name, steps)


async def test_the_longest_prefix_stops_at_the_first_hit_on_sqlite(
    sqlite_plans: list[list[str]], filled_store: SqlStore
) -> None:
    sqlite_plans.clear()
    await filled_store.match_history([*PATHS, *UNKNOWN_PATHS])
    assert sum("quire_paths" in steps[0] for steps in sqlite_plans) == len(UNKNOWN_PATHS) + 1


async def test_the_control_entries_have_an_index_of_their_own_on_sqlite(
    sqlite_plans: list[list[str]], filled_store: SqlStore
) -> None:
    sqlite_plans.clear()
    await filled_store.fork(NAME, at=45)
    assert any("INDEX quire_entries_control" in step for steps in sqlite_plans for step in steps)


async def test_several_messages_are_looked_up_one_by_one_on_sqlite(
    sqlite_plans: list[list[str]], filled_store: SqlStore
) -> None:
    sqlite_plans.clear()
    entries, _ = await filled_store.message_index.read_messages([MessageKey(NAME, 0, seq) for seq in (3, 9, 27)])
    assert [entry and entry.seq for entry in entries] == [3, 9, 27]
    lookups = [step for steps in sqlite_plans for step in steps if "quire_entries" in step]
    assert len(lookups) == 3
    assert all(step.endswith("(tenant=? AND conversation=? AND branch=? AND seq=?)") for step in lookups), lookups


async def test_an_import_reads_no_more_of_the_ledger_than_its_own_items_on_sqlite(
    sqlite_plans: list[list[str]], filled_store: SqlStore
) -> None:
    usage = EntryMetadata(usage=Usage(model="m", input_tokens=5, output_tokens=1)).canonical_json()
    reply = ImportItem("reply-a", None, Message.assistant("Yes.").canonical_json(), "assistant", 1, b"1", usage)
    # A fork repeats a reply of another session, which the count looks up.
    for name in ("session", "fork"):
        await filled_store.imports.append([ImportBatch(ConversationRecord(name, "", 1, 1), [reply], {})])
    sqlite_plans.clear()
    while await filled_store.usage.count():
        pass
    tables = ("quire_imports", "quire_counted_requests")
    steps = [step for steps in sqlite_plans for step in steps if any(table in step for table in tables)]
    assert steps
    assert not [step for step in steps if step.endswith("(tenant=?)")], steps
