"""Imports generated transcripts of Claude Code and Codex, and compares with a bare insert of the same rows.

The transcripts have the shapes of real ones: a reply is several lines, results have their structured form, and most
lines of a file are bookkeeping. The bare insert writes the rows that the import wrote, in batches of the same size, by
the driver alone. Both run without indexing. Then everything is indexed, and searches for numbers that occur once must
find their messages.
"""

import argparse
import asyncio
import json
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

from infra.postgres import Cluster
from quire.db import migrate
from quire.db.schema import metadata
from quire.db.sqlite import _PRAGMAS
from quire.engine import Engine
from quire.engine.background_jobs import EngineJobKind, Work
from quire.engine.config import EngineConfig
from quire.engine.file_import import BATCH_MESSAGES, ImportOptions, ImportReport, import_files
from quire.engine.message_index import BULK_BATCH_ENTRIES, index_messages
from quire.engine.search import search_messages
from quire.llm.embeddings import load_local_embedder
from quire.settings import Settings
from quire.sources.registry import SOURCES
from quire.store import SqlStore
from support import Report

TRANSCRIPTS = 10_000
QUICK_TRANSCRIPTS = 200
MESSAGES_PER_TRANSCRIPT = 100
SEARCHES = 100
MAX_BARE_RATIOS = {"sqlite": 1 / 0.6, "postgres": 1 / 0.75}
"""Goals: time of an import, divided by the bare insert's."""
WORDS = [
    "the",
    "river",
    "carries",
    "more",
    "water",
    "in",
    "spring",
    "than",
    "in",
    "autumn",
    "and",
    "the",
    "mill",
    "runs",
    "day",
    "and",
    "night",
    "with",
    "a",
    "test",
]
TABLES = ("conversations", "branches", "entries", "paths", "imports")
ROW_ORDER = {
    "conversations": "conversation",
    "entries": "branch, seq",
    "paths": "branch, seq",
    "imports": "branch, seq",
}
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class NoJobs:
    """Drops all jobs, so that the import is measured alone."""

    def enqueue(
        self, kind: EngineJobKind, conversation: str, branch: int, work: Work, *, delay_seconds: float = 0.0
    ) -> None:
        pass

    async def wait(self) -> None:
        pass


class TranscriptWriter:
    """Writes transcripts with random texts; the same seed gives the same files."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._random, self._count = folder, random.Random(17), 0
        self._texts: dict[int, list[str]] = {}
        self.questions: list[str] = []
        """The text of every question, which ends with a number that occurs once."""

    def _id(self) -> str:
        self._count += 1
        return f"{self._count:08x}-0000-4000-8000-000000000000"

    def _text(self, words: int) -> str:
        """One of a hundred texts of that length, with a number that makes it unique."""
        if words not in self._texts:
            self._texts[words] = [" ".join(self._random.choices(WORDS, k=words)) for _ in range(100)]
        self._count += 1
        return f"{self._texts[words][self._count % 100]} {self._count}"

    def write_claude(self, number: int, messages: int) -> None:
        session, parent, lines = self._id(), None, list[dict[str, Any]]()

        def add(kind: str, **fields: Any) -> None:
            nonlocal parent
            uuid = self._id()
            lines.append(
                {
                    "parentUuid": parent, "isSidechain": False, "type": kind, **fields, "uuid": uuid,
                    "timestamp": f"2026-03-0{1 + number % 9}T10:{len(lines) // 60 % 60:02}:{len(lines) % 60:02}.120Z",
                    "userType": "external", "cwd": f"/home/dev/project{number % 40}", "sessionId": session,
                    "version": "2.1.325", "gitBranch": "main",
                }
            )  # fmt: skip
            parent = uuid

        written = 0
        while written < messages:
            self.questions.append(self._text(40))
            add("user", message={"role": "user", "content": self.questions[-1]})
            written += 1
            for _ in range(8):
                if written + 2 > messages:
                    break
                id_, call = f"msg_{self._id()}", f"toolu_{self._id()}"
                blocks = [
                    {"type": "thinking", "thinking": self._text(30), "signature": self._id() * 6},
                    {"type": "text", "text": self._text(25)},
                    {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": self._text(12)}},
                ]
                usage = {"input_tokens": 3, "cache_read_input_tokens": 9000, "output_tokens": 200, "service_tier": "s"}
                for block in blocks:
                    message = {"id": id_, "type": "message", "role": "assistant", "model": "claude-sonnet-5-5"}
                    add("assistant", message={**message, "content": [block], "stop_reason": "tool_use", "usage": usage})
                output = self._text(120)
                result = {"tool_use_id": call, "type": "tool_result", "content": output, "is_error": False}
                add(
                    "user",
                    message={"role": "user", "content": [result]},
                    toolUseResult={"stdout": output, "stderr": "", "interrupted": False},
                )
                lines.append({"type": "last-prompt", "lastPrompt": "…", "leafUuid": parent, "sessionId": session})
                written += 2
        self._write(self._folder / "projects" / f"-home-dev-project{number % 40}" / f"{session}.jsonl", lines)

    def write_codex(self, number: int, messages: int) -> None:
        thread, lines = self._id(), list[dict[str, Any]]()

        def add(kind: str, payload: dict[str, Any]) -> None:
            at = f"2026-03-0{1 + number % 9}T10:{len(lines) // 60 % 60:02}:{len(lines) % 60:02}.120Z"
            lines.append({"timestamp": at, "ordinal": len(lines), "type": kind, "payload": payload})

        add("session_meta", {"session_id": thread, "id": thread, "cwd": f"/home/dev/project{number % 40}"})
        add("turn_context", {"model": "gpt-5", "cwd": "/home/dev"})
        written = 0
        while written < messages:
            self.questions.append(self._text(40))
            content = [{"type": "input_text", "text": self.questions[-1]}]
            add("response_item", {"type": "message", "id": f"msg_{self._id()}", "role": "user", "content": content})
            written += 1
            for _ in range(8):
                if written + 2 > messages:
                    break
                call = f"call_{self._id()}"
                summary = [{"type": "summary_text", "text": self._text(30)}]
                add("response_item", {"type": "reasoning", "id": f"rs_{self._id()}", "summary": summary})
                output = [{"type": "output_text", "text": self._text(25)}]
                add(
                    "response_item",
                    {"type": "message", "id": f"msg_{self._id()}", "role": "assistant", "content": output},
                )
                arguments = json.dumps({"cmd": self._text(12)})
                names = {"type": "function_call", "id": f"fc_{self._id()}", "name": "exec_command", "call_id": call}
                add("response_item", {**names, "arguments": arguments})
                add("token_usage_record", {"usage": {"input_tokens": 9000, "output_tokens": 200, "total_tokens": 9200}})
                add("event_msg", {"type": "item_completed", "item": {"output": self._text(60)}})
                result = {"type": "function_call_output", "id": f"fco_{self._id()}", "call_id": call}
                add("response_item", {**result, "output": self._text(120)})
                written += 2
        self._write(self._folder / "sessions" / "2026" / f"{number % 12 + 1:02}" / f"rollout-x-{thread}.jsonl", lines)

    def _write(self, path: Path, lines: list[dict[str, Any]]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        os.utime(path, (1_780_000_000, 1_780_000_000))


def write_transcripts(folder: Path, count: int) -> list[str]:
    """Writes the transcripts; returns the text of all questions."""
    writer = TranscriptWriter(folder)
    for number in range(count):
        (writer.write_codex if number % 2 else writer.write_claude)(number, MESSAGES_PER_TRANSCRIPT)
    return writer.questions


def read_resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 1e6


async def import_all(url: str, folder: Path) -> tuple[int, float, list[float]]:
    """Imports both sources; returns the messages, the seconds, and the resident memory after each batch."""
    memory: list[float] = []
    messages, started = 0, time.perf_counter()
    async with SqlStore.open(url) as store:
        engine = Engine(store, EngineConfig.create(Settings()))
        engine.runtime.jobs = NoJobs()

        def sample(_: ImportReport) -> None:
            memory.append(read_resident_megabytes())

        for name in ("claude-code", "codex"):
            source = SOURCES[name]
            root = folder / ("projects" if name == "claude-code" else "sessions")
            options = ImportOptions(processes=os.cpu_count() or 1)
            report = await import_files(engine, source, list(source.find_files(root)), options, on_progress=sample)
            assert not report.error_count, report.errors[:3]
            messages += report.messages
    return messages, time.perf_counter() - started, memory


async def index_and_search(url: str, questions: list[str]) -> tuple[float, list[float], int]:
    """Indexes all messages; returns its seconds, the milliseconds of searches, and how many missed their message."""
    async with SqlStore.open(url) as store:
        engine = Engine(store, EngineConfig.create(Settings(), embedder=load_local_embedder()))
        engine.runtime.jobs = NoJobs()
        started = time.perf_counter()
        await index_messages(engine, batch_entries=BULK_BATCH_ENTRIES)
        indexing, taken, missed = time.perf_counter() - started, list[float](), 0
        sought = random.Random(5).sample(questions, min(SEARCHES, len(questions)))
        await search_messages(engine, sought[0])
        for question in sought:
            started = time.perf_counter()
            result = await search_messages(engine, question.rsplit(" ", 1)[1], limit=1)
            taken.append((time.perf_counter() - started) * 1_000)
            missed += [each.entry.message.text for each in result.messages] != [question]
    return indexing, taken, missed


class RowReader:
    """The rows that the import wrote, in as many batches as it had."""

    def __init__(self, execute: Callable[[str], Any], open_cursor: Callable[[str], Any]) -> None:
        counts = {table: execute(f"SELECT count(*) FROM quire_{table}").fetchone()[0] for table in TABLES}
        batches = -(-counts["entries"] // BATCH_MESSAGES)
        self._sizes = {table: -(-count // batches) for table, count in counts.items()}
        # By conversation, as the import wrote them: rows in the order of another key would be inserted faster.
        self._cursors = {
            table: open_cursor(f"SELECT * FROM quire_{table} ORDER BY conversation, {ROW_ORDER.get(table, 'branch')}")
            for table in TABLES
        }

    def read_batches(self) -> Iterator[dict[str, list[tuple[Any, ...]]]]:
        while True:
            batch = {table: cursor.fetchmany(self._sizes[table]) for table, cursor in self._cursors.items()}
            batch = {table: rows for table, rows in batch.items() if rows}
            if not batch:
                return
            yield batch


def insert_bare_sqlite(source: Path, target: Path) -> float:
    """Inserts with `executemany`, a transaction per batch; returns the seconds of the inserts."""
    migrate.upgrade(f"sqlite:///{target}")
    reader, writer = sqlite3.connect(source), sqlite3.connect(target, isolation_level=None)
    for pragma in _PRAGMAS:
        writer.execute(f"PRAGMA {pragma}")
    seconds = 0.0
    for batch in RowReader(reader.execute, lambda query: reader.cursor().execute(query)).read_batches():
        started = time.perf_counter()
        writer.execute("BEGIN IMMEDIATE")
        for table, rows in batch.items():
            writer.executemany(f"INSERT INTO quire_{table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        writer.execute("COMMIT")
        seconds += time.perf_counter() - started
    reader.close()
    writer.close()
    return seconds


def insert_bare_postgres(source: str, target: str) -> float:
    """Inserts each batch with one statement per table, its columns as arrays; returns the seconds of the inserts."""
    migrate.upgrade(target)
    seconds = 0.0
    reader: Any = psycopg.connect(source)
    writer: Any = psycopg.connect(target, autocommit=True)
    with reader, writer:

        def open_cursor(query: str) -> Any:
            cursor = reader.cursor(name=f"rows{time.monotonic_ns()}")
            return cursor.execute(query)

        for batch in RowReader(reader.execute, open_cursor).read_batches():
            started = time.perf_counter()
            with writer.transaction():
                for table, rows in batch.items():
                    writer.execute(build_array_insert(table), [list(column) for column in zip(*rows, strict=True)])
            seconds += time.perf_counter() - started
    return seconds


@cache
def build_array_insert(table: str) -> str:
    types = {"TEXT": "text[]", "BIGINT": "bigint[]", "INTEGER": "integer[]", "BLOB": "bytea[]"}
    arrays = ", ".join(f"%s::{types[str(column.type)]}" for column in metadata.tables[f"quire_{table}"].columns)
    return f"INSERT INTO quire_{table} SELECT * FROM unnest({arrays})"


def add_result(report: Report, backend: str, messages: int, taken: tuple[float, list[float]], bare: float) -> None:
    seconds, memory = taken
    early, late = max(memory[: max(1, len(memory) // 10)]), max(memory)
    report.print_table(
        f"{backend}: {messages:,} messages",
        ("", "seconds", "messages/s", "MB after a tenth", "MB at most"),
        [
            ("quire import", seconds, messages / seconds, early, late),
            ("bare insert", bare, messages / bare, "", ""),
        ],
    )
    report.require_at_most(f"{backend}_seconds_per_bare_second", seconds / bare, MAX_BARE_RATIOS[backend])
    report.require_at_most(f"{backend}_memory_growth", late / early, 1.2)


def add_searches(report: Report, backend: str, messages: int, measured: tuple[float, list[float], int]) -> None:
    indexing, taken, missed = measured
    report.print_table(
        f"{backend}: search of what was imported",
        ("indexed messages/s", "search p50 ms", "search p95 ms", "missed"),
        [(messages / indexing, statistics.median(taken), statistics.quantiles(taken, n=20)[-1], missed)],
    )
    report.require_at_most(f"{backend}_missed", float(missed), 0.0)


async def measure_sqlite(report: Report, folder: Path, questions: list[str]) -> None:
    path = folder / "quire.db"
    url = f"sqlite:///{path}"
    messages, seconds, memory = await import_all(url, folder)
    add_result(report, "sqlite", messages, (seconds, memory), insert_bare_sqlite(path, folder / "bare.db"))
    add_searches(report, "sqlite", messages, await index_and_search(url, questions))


async def measure_postgres(report: Report, folder: Path, questions: list[str]) -> None:
    with Cluster.start(18, fsync=True) as server:
        for each in ("imported", "bare"):
            server.create_database(each)
        url = server.url("imported")
        migrate.upgrade(url)
        messages, seconds, memory = await import_all(url, folder)
        add_result(report, "postgres", messages, (seconds, memory), insert_bare_postgres(url, server.url("bare")))
        add_searches(report, "postgres", messages, await index_and_search(url, questions))


MEASUREMENTS = {"sqlite": measure_sqlite, "postgres": measure_postgres}


async def run(databases: Sequence[str], *, transcripts: int) -> Report:
    report = Report("import")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        questions = write_transcripts(folder, transcripts)
        print(f"{transcripts:,} transcripts of {MESSAGES_PER_TRANSCRIPT} messages", flush=True)
        for database in databases:
            await MEASUREMENTS[database](report, folder, questions)
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TRANSCRIPTS} transcripts, under a minute")
    parser.add_argument("--transcripts", type=int, default=TRANSCRIPTS, help="default: %(default)s")
    parser.add_argument("--database", choices=tuple(MEASUREMENTS), action="append", help="default: both")
    options = parser.parse_args()
    count = QUICK_TRANSCRIPTS if options.quick else options.transcripts
    asyncio.run(run(options.database or tuple(MEASUREMENTS), transcripts=count)).print_goals_and_exit()
