"""Reads the log of simonw/llm: `logs.db`, in both of its schemas.

Until version 0.35 a row of `responses` is a prompt with its reply. From 0.36 on, messages are a tree of content hashes;
a thread points at its last message, and a turn is one model call. An upgraded database has both.
"""

import sqlite3
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.importers.base import SourceConversation, SourceError
from quire.importers.llm_messages import read_thread_nodes
from quire.importers.llm_responses import read_response_nodes
from quire.importers.message_nodes import MessageNode, order_nodes
from quire.importers.source_fields import read_id, read_title
from quire.importers.sqlite_reader import SqliteReader, open_sqlite
from quire.importers.times import parse_time
from quire.log.types import ConversationOrigin

_APPLICATION = "io.datasette.llm"
_FILE_NAME = "logs.db"


class LlmSource:
    name = "llm"
    title = "llm (simonw/llm)"

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        candidates = [_find_user_directory(env, platform=sys.platform)]
        return [path for each in candidates if each is not None and (path := each / _FILE_NAME).is_file()]

    def find_files(self, path: Path) -> Iterator[Path]:
        yield path / _FILE_NAME if path.is_dir() else path

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        try:
            with open_sqlite(path) as database:
                has_responses = database.has_tables("conversations", "responses")
                has_threads = database.has_tables("threads", "turns", "messages", "parts")
                if not has_responses and not has_threads:
                    yield SourceError.of(path.name, "The database is not a log of llm.")
                if has_responses:
                    yield from _read_conversations(database, since=since)
                if has_threads:
                    yield from _read_threads(database, since=since)
        except (sqlite3.Error, OSError) as error:
            yield SourceError.of(path.name, f"The database cannot be read: {error}.")


def _find_user_directory(env: Mapping[str, str], *, platform: str) -> Path | None:
    """Where llm stores its log: as `click` does it for each platform."""
    if own := env.get("LLM_USER_PATH"):
        return Path(own)
    if platform == "win32":
        return Path(roaming, _APPLICATION) if (roaming := env.get("APPDATA")) else None
    home = env.get("HOME")
    if home is None:
        return None
    if platform == "darwin":
        return Path(home, "Library", "Application Support", _APPLICATION)
    return Path(env.get("XDG_CONFIG_HOME") or Path(home, ".config"), _APPLICATION)


def _read_conversations(database: SqliteReader, *, since: int | None) -> Iterator[SourceConversation]:
    rows = database.query(
        "SELECT c.id, c.name, min(r.datetime_utc) AS first_at, max(r.datetime_utc) AS last_at FROM conversations c "
        "JOIN responses r ON r.conversation_id = c.id GROUP BY c.id ORDER BY c.id"
    )
    for row in rows:
        nodes = read_response_nodes(database, row["id"])
        if (read := _make_conversation(row, nodes, since=since)) is not None:
            yield read


_FAMILIES = """WITH RECURSIVE family(id, root) AS (
    SELECT id, id FROM threads WHERE forked_from IS NULL OR forked_from NOT IN (SELECT id FROM threads)
    UNION SELECT t.id, f.root FROM threads t JOIN family f ON t.forked_from = f.id
)"""
"""Every thread with the one that it was forked from, directly or over other forks."""
_THREADS = f"""{_FAMILIES} SELECT r.id, r.name, r.tip_message_hash AS leaf,
    min(t.datetime_utc) AS first_at, max(t.datetime_utc) AS last_at
FROM family f JOIN threads r ON r.id = f.root LEFT JOIN turns t ON t.thread_id = f.id
GROUP BY r.id ORDER BY r.id"""  # noqa: S608 (constants)
_OWN_FORKS = f"{_FAMILIES} SELECT id FROM threads WHERE id NOT IN (SELECT id FROM family)"  # noqa: S608 (constants)


def _read_threads(database: SqliteReader, *, since: int | None) -> Iterator[SourceConversation | SourceError]:
    """Threads with their forks, which are branches of the thread that they were forked from."""
    for row in database.query(_THREADS):
        nodes = read_thread_nodes(database, row["id"])
        if (read := _make_conversation(row, nodes, since=since, leaf=read_id(row["leaf"]))) is not None:
            yield read
    for row in database.query(_OWN_FORKS):
        yield SourceError.of(row["id"], "The thread is a fork of itself.")


def _make_conversation(
    row: dict[str, Any], nodes: Iterator[MessageNode], *, since: int | None, leaf: str | None = None
) -> SourceConversation | None:
    id_, last_at = read_id(row["id"]), parse_time(row["last_at"])
    if id_ is None or (since is not None and last_at is not None and last_at < since):
        return None
    return SourceConversation(
        id=id_,
        messages=order_nodes(nodes, leaf=leaf),
        title=read_title(row["name"]),
        origin=ConversationOrigin(client=LlmSource.name, session=id_),
        created_at=parse_time(row["first_at"]),
    )
