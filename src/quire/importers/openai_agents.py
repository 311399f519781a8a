"""Reads sessions of the OpenAI Agents SDK: a SQLite database with one item of the Responses format a row."""

import sqlite3
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from quire.errors import InvalidEntry
from quire.importers.readers import SqliteReader, open_sqlite, parse_json
from quire.importers.source_fields import parse_time, read_id, read_title
from quire.log.types import ConversationOrigin
from quire.sources.base import NotStored, SourceConversation, SourceError, SourceMessage, is_before
from quire.wire.responses.parse import parse_messages


class _Item(NamedTuple):
    id: str
    at: int | None
    raw: dict[str, Any]
    is_assistant: bool


class OpenAiAgentsSource:
    name = "openai-agents"
    title = "OpenAI Agents SDK"
    is_experimental = False
    reads: int = 1
    not_stored: tuple[NotStored, ...] = ("models", "tokens", "cost")

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        return []

    def find_files(self, path: Path) -> Iterator[Path]:
        if not path.is_dir():
            yield path
            return
        yield from (each for suffix in ("db", "sqlite", "sqlite3") for each in sorted(path.glob(f"*.{suffix}")))

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        try:
            with open_sqlite(path) as database:
                if not database.has_tables("agent_sessions", "agent_messages"):
                    yield SourceError.of(path.name, "The database has no sessions of the OpenAI Agents SDK.")
                    return
                for row in database.query("SELECT * FROM agent_sessions ORDER BY created_at, session_id"):
                    session = row.get("session_id")
                    id_ = read_id(session)
                    if id_ is None or is_before(parse_time(row.get("updated_at")), since):
                        continue
                    yield SourceConversation(
                        id=id_,
                        messages=_read_messages(database, session),
                        title=read_title(session),
                        origin=ConversationOrigin(client=self.name, session=id_),
                        created_at=parse_time(row.get("created_at")),
                    )
        except (sqlite3.Error, OSError) as error:
            yield SourceError.of(path.name, f"The database cannot be read: {error}.")


def _read_messages(database: SqliteReader, session: object) -> Iterator[SourceMessage | SourceError]:
    """Messages in the order of their rows: what the assistant did in one step is one message."""
    items: list[_Item] = []
    try:
        rows = database.query(
            "SELECT id, message_data, created_at FROM agent_messages WHERE session_id = ? ORDER BY id", (session,)
        )
        for row in rows:
            id_, data = f"row:{row['id']}", row["message_data"]
            try:
                raw = parse_json(data.encode() if isinstance(data, str) else bytes(data or b""))
                is_assistant = parse_messages([raw])[0].role == "assistant"
            except (ValueError, TypeError, InvalidEntry) as error:
                yield SourceError.of(id_, f"The item cannot be read: {error}")
            else:
                items.append(_Item(id_, parse_time(row["created_at"]), raw, is_assistant))
    except sqlite3.Error as error:
        yield SourceError.of(session, f"The session cannot be read to its end: {error}.")
    parent: str | None = None
    for is_assistant, group in groupby(items, lambda item: item.is_assistant):
        step = list(group)
        for part in [step] if is_assistant else [[item] for item in step]:
            message = parse_messages([item.raw for item in part])[0]
            yield SourceMessage(id=part[0].id, parent=parent, message=message, at=part[0].at)
            parent = part[0].id
