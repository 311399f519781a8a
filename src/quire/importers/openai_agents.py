"""Reads sessions of the OpenAI Agents SDK: a SQLite database with one item of the Responses format a row."""

import sqlite3
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from quire.errors import InvalidEntry
from quire.importers.base import SourceConversation, SourceError, SourceMessage
from quire.importers.json_lines import parse_json
from quire.importers.source_fields import read_id, read_title
from quire.importers.sqlite_reader import SqliteReader, open_sqlite
from quire.importers.times import parse_time
from quire.log.types import ConversationOrigin
from quire.model import Message
from quire.view.wire_formats.openai_responses_parse import parse_messages


class _Item(NamedTuple):
    row: int
    at: int | None
    raw: dict[str, Any]
    message: Message


class OpenAiAgentsSource:
    name = "openai-agents"
    title = "OpenAI Agents SDK"

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
                    conversation = _read_session(database, row, since=since)
                    if conversation is not None:
                        yield conversation
        except (sqlite3.Error, OSError) as error:
            yield SourceError.of(path.name, f"The database cannot be read: {error}.")


def _read_session(database: SqliteReader, row: dict[str, Any], *, since: int | None) -> SourceConversation | None:
    session, updated_at = row.get("session_id"), parse_time(row.get("updated_at"))
    id_ = read_id(session)
    if id_ is None or (since is not None and updated_at is not None and updated_at < since):
        return None
    return SourceConversation(
        id=id_,
        messages=_read_messages(database, session),
        title=read_title(session),
        origin=ConversationOrigin(client=OpenAiAgentsSource.name, session=id_),
        created_at=parse_time(row.get("created_at")),
    )


def _read_messages(database: SqliteReader, session: object) -> Iterator[SourceMessage | SourceError]:
    """Messages in the order of their rows: what the assistant did in one step is one message."""
    items: list[_Item] = []
    errors: list[SourceError] = []
    try:
        rows = database.query(
            "SELECT id, message_data, created_at FROM agent_messages WHERE session_id = ? ORDER BY id", (session,)
        )
        for row in rows:
            item = _read_item(row)
            (errors if isinstance(item, SourceError) else items).append(item)  # type: ignore[arg-type]
    except sqlite3.Error as error:
        errors.append(SourceError.of(session, f"The session cannot be read to its end: {error}."))
    yield from errors
    parent: str | None = None
    for is_assistant, group in groupby(items, lambda item: item.message.role == "assistant"):
        step = list(group)
        for part in [step] if is_assistant else [[item] for item in step]:
            id_ = f"row:{part[0].row}"
            message = parse_messages([item.raw for item in part])[0]
            yield SourceMessage(id=id_, parent=parent, message=message, at=part[0].at)
            parent = id_


def _read_item(row: dict[str, Any]) -> _Item | SourceError:
    name, data = f"row:{row['id']}", row["message_data"]
    try:
        raw = parse_json(data.encode() if isinstance(data, str) else bytes(data or b""))
        messages = parse_messages([raw])
    except (ValueError, TypeError, InvalidEntry) as error:
        return SourceError.of(name, f"The item cannot be read: {error}")
    return _Item(int(row["id"]), parse_time(row["created_at"]), raw, messages[0])
