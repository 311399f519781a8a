"""Many conversations in one PostgreSQL: loading a context and appending, beside the same in an empty database.

The crowd is written by the server itself, as rows like those that the store writes, but for their digests, which no
read or append looks at; the conversations that are measured are picked anywhere in it, each time another. In the
empty database they are always at hand, in the crowd hardly ever.
"""

import random
import statistics
from itertools import cycle
from typing import Any

import psycopg

from quire.log import SqlStore, migrate
from quire.model import BranchState, Coverage, Draft, Message, Span, TokenCount
from quire.testing.postgres import Cluster
from support import Report, main, rounds_of

EACH = 500
FEW = 20
"""An empty database has so many conversations: something must be there to be loaded."""
ACTIVE = 100
SENTENCE = "The river carries more water in spring than in autumn, and the mill runs day and night. "
STATE = BranchState(
    active=Coverage(seq=EACH + 1, number=1, covers=Span(first=1, last=EACH - ACTIVE)), compactions=1
).canonical()

_CROWD = (
    """INSERT INTO quire_conversations (tenant, conversation, title, created_at, used_at)
       SELECT 'default', 'crowd-' || number, '', number, number
       FROM generate_series(%(first)s::int, %(last)s::int) AS number""",
    """INSERT INTO quire_branches
           (tenant, conversation, branch, name, created_at, lineage, head_seq, head_digest, head_path, state, used_at)
       SELECT 'default', 'crowd-' || number, 0, 'main', number, '[]', %(each)s::int + 1, sha256('digest'),
           sha256(convert_to(number || ':' || %(each)s::int, 'UTF8')), %(state)s::text, number
       FROM generate_series(%(first)s::int, %(last)s::int) AS number""",
    """INSERT INTO quire_entries
           (tenant, conversation, branch, seq, kind, role, author, at, digest, path, tokens, counter, body)
       SELECT 'default', 'crowd-' || number, 0, seq, 'message', CASE seq %% 2 WHEN 1 THEN 'user' ELSE 'assistant' END,
           CASE seq %% 2 WHEN 1 THEN 'user' ELSE 'assistant' END, number, path, path, 60, 'o200k',
           '{"role":"' || CASE seq %% 2 WHEN 1 THEN 'user' ELSE 'assistant' END
               || '","parts":[{"type":"text","text":"' || number || '.' || seq || ': ' || %(text)s::text || '"}]}'
       FROM generate_series(%(first)s::int, %(last)s::int) AS number, generate_series(1, %(each)s::int) AS seq,
           LATERAL (SELECT sha256(convert_to(number || ':' || seq, 'UTF8'))) AS made (path)""",
    """INSERT INTO quire_entries
           (tenant, conversation, branch, seq, kind, author, at, digest, path, body)
       SELECT 'default', 'crowd-' || number, 0, %(each)s::int + 1, 'compaction', 'engine', number, sha256('digest'),
           sha256(convert_to(number || ':' || %(each)s::int, 'UTF8')),
           '{"number":1,"covers":{"first":1,"last":' || %(each)s::int - %(active)s::int
               || '},"summary":"' || %(text)s::text || '"}'
       FROM generate_series(%(first)s::int, %(last)s::int) AS number""",
    """INSERT INTO quire_paths (tenant, path, conversation, branch, seq)
       SELECT tenant, path, conversation, branch, seq FROM quire_entries
       WHERE kind = 'message' AND conversation IN (
           SELECT 'crowd-' || number FROM generate_series(%(first)s::int, %(last)s::int) AS number)""",
)


def fill(url: str, conversations: int, *, batch: int = 250) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for first in range(1, conversations + 1, batch):
            known: dict[str, Any] = {
                "first": first,
                "last": min(first + batch - 1, conversations),
                "each": EACH,
                "active": ACTIVE,
                "state": STATE,
                "text": SENTENCE * 3,
            }
            for statement in _CROWD:
                connection.execute(statement, known)
        connection.execute("VACUUM ANALYZE")


def size(url: str) -> tuple[int, int]:
    """Messages, and bytes on the disk with all indexes."""
    with psycopg.connect(url) as connection:
        counted = connection.execute("SELECT count(*) FROM quire_entries WHERE kind = 'message'").fetchone()
        bytes_ = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return (counted or [0])[0], (bytes_ or [0])[0]


def question() -> Draft:
    return Draft(body=Message.user(f"What of the mill? {SENTENCE * 3}"), tokens=TokenCount(60, "o200k"))


class Asking:
    """Loads and appends, each time in another conversation, in no order; where there are few, again and again."""

    def __init__(self, store: SqlStore, conversations: int) -> None:
        self._store = store
        names = [f"crowd-{number}" for number in range(1, conversations + 1)]
        random.Random(7).shuffle(names)
        self._names = cycle(names)

    async def load(self) -> None:
        window = await self._store.window(next(self._names))
        assert len(window.messages) == ACTIVE

    async def append(self) -> None:
        await self._store.append(next(self._names), question())


def percentile(times: list[float], part: int) -> float:
    return statistics.quantiles(times, n=100)[part - 1]


async def run(*, quick: bool) -> Report:
    report = Report("crowd")
    many, rounds = (1_000, 250) if quick else (10_000, 2_000)
    with Cluster.start(18, fsync=True, settings={"shared_buffers": "1GB", "max_wal_size": "8GB"}) as cluster:
        cluster.create_role("quire_app")
        urls: dict[str, str] = {}
        for name, conversations in (("few", FEW), ("many", many)):
            cluster.create_database(name)
            migrate.upgrade(cluster.url(name))
            migrate.grant(cluster.url(name), "quire_app")
            fill(cluster.url(name), conversations)
            urls[name] = cluster.url(name, user="quire_app")
        messages, bytes_ = size(cluster.url("many"))
        async with SqlStore.open(urls["few"]) as empty, SqlStore.open(urls["many"]) as full:
            beside, crowd = Asking(empty, FEW), Asking(full, many)
            taken = {
                "load": await rounds_of(beside.load, crowd.load, rounds=rounds),
                "append": await rounds_of(beside.append, crowd.append, rounds=rounds),
            }
    report.table(
        f"{many:,} conversations, {messages:,} messages, {bytes_ / messages:,.0f} bytes a message with all indexes",
        ("milliseconds", "p50", "p99", "beside p50", "beside p99"),
        [
            (name, *(percentile(times, part) for times in (large, small) for part in (50, 99)))
            for name, (small, large) in taken.items()
        ],
    )
    for name, (small, large) in taken.items():
        report.at_most(f"{name}_p50_growth", percentile(large, 50) / percentile(small, 50), 1.5)
        report.at_most(f"{name}_p99_growth", percentile(large, 99) / percentile(small, 99), 3.0)
    return report


if __name__ == "__main__":
    main(run)
