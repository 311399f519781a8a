"""Many conversations in one PostgreSQL: loading a context and appending, compared with an almost empty database.

PostgreSQL generates the rows, like those of the store except for their digests, which no read or append uses. Each
measurement picks another random conversation. In the small database its pages are always cached, in the large one
rarely.
"""

import random
import statistics
from itertools import cycle
from typing import Any

import psycopg

from infra.postgres import Cluster
from quire.db import migrate
from quire.model import ActiveCompaction, BranchState, Draft, Message, Span, TokenCount
from quire.store import SqlStore
from support import Report, run_benchmark, time_rounds

MESSAGES_PER_CONVERSATION = 500
BASELINE_CONVERSATIONS = 20
"""Conversations of the almost empty database, which needs something to load."""
ACTIVE_MESSAGES = 100
SENTENCE = "The river carries more water in spring than in autumn, and the mill runs day and night. "
BRANCH_STATE = BranchState(
    active_compaction=ActiveCompaction(
        seq=MESSAGES_PER_CONVERSATION + 1,
        number=1,
        covers=Span(first=1, last=MESSAGES_PER_CONVERSATION - ACTIVE_MESSAGES),
    ),
    compaction_count=1,
).canonical_json()

_INSERT_STATEMENTS = (
    """INSERT INTO quire_conversations (tenant, conversation, title, created_at, updated_at, row_digest)
       SELECT 'default', 'many_conversations-' || number, '', number, number,
           sha256(convert_to('["many_conversations-' || number || '","",' || number || ',null]', 'UTF8'))
       FROM generate_series(%(first)s::int, %(last)s::int) AS number""",
    """INSERT INTO quire_branches
           (tenant, conversation, branch, name, created_at, lineage, head_seq, head_digest, head_path, state,
           updated_at, row_digest)
       SELECT 'default', 'many_conversations-' || number, 0, 'main', number, '[]', %(each)s::int + 1, sha256('digest'),
           path, %(state)s::text, number,
           sha256(convert_to(
               '["many_conversations-' || number || '",0,"main",' || number || ',"[]",' || %(each)s::int + 1 || ',"'
               || encode(sha256('digest'), 'hex') || '","' || encode(path, 'hex') || '",'
               || to_json(%(state)s::text) || ',' || number || ']', 'UTF8'))
       FROM generate_series(%(first)s::int, %(last)s::int) AS number,
           LATERAL (SELECT sha256(convert_to(number || ':' || %(each)s::int, 'UTF8'))) AS made (path)""",
    """INSERT INTO quire_entries
           (tenant, conversation, branch, seq, kind, role, author, at, digest, path, tokens, counter, body,
           content_digest)
       SELECT 'default', 'many_conversations-' || number, 0, seq, 'message', role, role, number, path, path, 60,
           'o200k', body,
           sha256(convert_to('message ' || role || ' ' || number || E' 60 o200k None\\n' || body, 'UTF8'))
       FROM generate_series(%(first)s::int, %(last)s::int) AS number, generate_series(1, %(each)s::int) AS seq,
           LATERAL (SELECT sha256(convert_to(number || ':' || seq, 'UTF8'))) AS made (path),
           LATERAL (SELECT CASE seq %% 2 WHEN 1 THEN 'user' ELSE 'assistant' END) AS speaker (role),
           LATERAL (
               SELECT '{"role":"' || role || '","parts":[{"type":"text","text":"'
                   || number || '.' || seq || ': ' || %(text)s::text || '"}]}'
           ) AS message (body)""",
    """INSERT INTO quire_entries
           (tenant, conversation, branch, seq, kind, author, at, digest, path, body, content_digest)
       SELECT 'default', 'many_conversations-' || number, 0, %(each)s::int + 1, 'compaction', 'engine', number,
           sha256('digest'),
           sha256(convert_to(number || ':' || %(each)s::int, 'UTF8')), body,
           sha256(convert_to('compaction engine ' || number || E' None None None\\n' || body, 'UTF8'))
       FROM generate_series(%(first)s::int, %(last)s::int) AS number,
           LATERAL (
               SELECT '{"number":1,"covers":{"first":1,"last":' || %(each)s::int - %(active)s::int
                   || '},"summary":"' || %(text)s::text || '"}'
           ) AS compaction (body)""",
    """INSERT INTO quire_paths (tenant, path, conversation, branch, seq)
       SELECT tenant, path, conversation, branch, seq FROM quire_entries
       WHERE kind = 'message' AND conversation IN (
           SELECT 'many_conversations-' || number FROM generate_series(%(first)s::int, %(last)s::int) AS number)""",
)


def insert_conversations(url: str, conversations: int, *, batch: int = 250) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for first in range(1, conversations + 1, batch):
            known: dict[str, Any] = {
                "first": first,
                "last": min(first + batch - 1, conversations),
                "each": MESSAGES_PER_CONVERSATION,
                "active": ACTIVE_MESSAGES,
                "state": BRANCH_STATE,
                "text": SENTENCE * 3,
            }
            for statement in _INSERT_STATEMENTS:
                connection.execute(statement, known)
        connection.execute("VACUUM ANALYZE")


def measure_size(url: str) -> tuple[int, int]:
    """Returns the message count, and the bytes on disk with all indexes."""
    with psycopg.connect(url) as connection:
        counted = connection.execute("SELECT count(*) FROM quire_entries WHERE kind = 'message'").fetchone()
        bytes_ = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return (counted or [0])[0], (bytes_ or [0])[0]


def make_question() -> Draft:
    return Draft(body=Message.user(f"What of the mill? {SENTENCE * 3}"), tokens=TokenCount(60, "o200k"))


class ConversationLoad:
    """Loads and appends in shuffled conversations, cycling through them."""

    def __init__(self, store: SqlStore, conversations: int) -> None:
        self._store = store
        names = [f"many_conversations-{number}" for number in range(1, conversations + 1)]
        random.Random(7).shuffle(names)
        self._names = cycle(names)

    async def load(self) -> None:
        window = await self._store.read_window(next(self._names))
        assert len(window.messages) == ACTIVE_MESSAGES

    async def append(self) -> None:
        await self._store.append(next(self._names), make_question())


def percentile(times: list[float], part: int) -> float:
    return statistics.quantiles(times, n=100)[part - 1]


async def run(*, quick: bool) -> Report:
    report = Report("many_conversations")
    many, rounds = (1_000, 250) if quick else (10_000, 2_000)
    with Cluster.start(18, fsync=True, settings={"shared_buffers": "1GB", "max_wal_size": "8GB"}) as cluster:
        cluster.create_role("quire_app")
        urls: dict[str, str] = {}
        for name, conversations in (("few", BASELINE_CONVERSATIONS), ("many", many)):
            cluster.create_database(name)
            migrate.upgrade(cluster.url(name))
            migrate.grant_access(cluster.url(name), "quire_app")
            insert_conversations(cluster.url(name), conversations)
            urls[name] = cluster.url(name, user="quire_app")
        messages, bytes_ = measure_size(cluster.url("many"))
        async with SqlStore.open(urls["few"]) as empty, SqlStore.open(urls["many"]) as full:
            small_load, large_load = ConversationLoad(empty, BASELINE_CONVERSATIONS), ConversationLoad(full, many)
            taken = {
                "load": await time_rounds(small_load.load, large_load.load, rounds=rounds),
                "append": await time_rounds(small_load.append, large_load.append, rounds=rounds),
            }
    report.print_table(
        f"{many:,} conversations, {messages:,} messages, {bytes_ / messages:,.0f} bytes a message with all indexes",
        ("milliseconds", "p50", "p99", "baseline p50", "baseline p99"),
        [
            (name, *(percentile(times, part) for times in (large, small) for part in (50, 99)))
            for name, (small, large) in taken.items()
        ],
    )
    for name, (small, large) in taken.items():
        report.require_at_most(f"{name}_p50_growth", percentile(large, 50) / percentile(small, 50), 1.5)
        report.require_at_most(f"{name}_p99_growth", percentile(large, 99) / percentile(small, 99), 3.0)
    return report


if __name__ == "__main__":
    run_benchmark(run)
