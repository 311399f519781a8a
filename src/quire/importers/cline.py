"""Reads the sessions of Cline: of its command line (`<id>.messages.json`), and the tasks of its extension."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.errors import InvalidEntry
from quire.importers.anthropic_content import parse_content
from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_home
from quire.importers.readers import open_sqlite, read_json_object
from quire.importers.roo_code import HISTORY_FILE, list_task_folders, read_task
from quire.importers.source_fields import parse_time, read_count, read_id, read_title, retain_fields
from quire.model import Usage
from quire.model.json_values import filter_objects, get_object, get_text
from quire.sources.base import SourceConversation, SourceError, SourceMessage, StoredSource, make_origin

_SUFFIX = ".messages.json"
_MESSAGE_FIELDS = frozenset({"id", "role", "content", "ts", "modelInfo", "metrics"})


class ClineSource(StoredSource):
    name = "cline"
    title = "Cline"
    patterns = (f"*/*{_SUFFIX}", f"*/{HISTORY_FILE}")
    not_stored = ("cost of a message",)

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield Path(env.get("CLINE_DIR") or find_home(env) / ".cline") / "data" / "sessions"
        yield from list_task_folders(env, "saoudrizwan.claude-dev")

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        if path.name == HISTORY_FILE:
            yield from read_task(path, self.name)
            return
        session = read_json_object(path)
        id_ = read_id(session.get("sessionId")) or path.name.removesuffix(_SUFFIX)
        described = path.with_name(f"{path.name.removesuffix(_SUFFIX)}.json")
        info = read_json_object(described) if described.is_file() else {}
        row = _find_row(path.parents[2] / "db" / "sessions.db", id_) if len(path.parents) > 2 else {}
        project, agent = get_text(info, "cwd") or get_text(info, "workspace_root"), read_id(row.get("agent_id")) or id_
        parent = read_id(row.get("parent_session_id")) or read_id(info.get("parent_session_id"))
        yield SourceConversation(
            id=id_,
            messages=self._read_messages(session),
            title=read_title(get_object(info, "metadata").get("title") or info.get("prompt")),
            origin=make_origin(self.name, parent or id_, project, agent=agent if parent else None, parent=parent),
            created_at=parse_time(info.get("started_at")),
            dropped=("system_prompt",) if session.get("system_prompt") else (),
        )

    def _read_messages(self, session: dict[str, Any]) -> Iterator[SourceMessage | SourceError]:
        links = MessageLinks()
        for index, raw in enumerate(filter_objects(session.get("messages"))):
            id_ = read_id(raw.get("id")) or f"message:{index}"
            try:
                messages = parse_content(raw.get("role"), raw.get("content"))
            except (InvalidEntry, ValueError, TypeError) as error:
                yield SourceError.of(id_, error)
                continue
            if messages and (fields := retain_fields(raw, _MESSAGE_FIELDS, self.name)):
                messages[0] = messages[0].model_copy(update={"provider_fields": fields})
            yield from links.add(
                id_,
                messages,
                after=links.last,
                at=parse_time(raw.get("ts")),
                usage=_read_usage(get_object(raw, "metrics"), get_text(get_object(raw, "modelInfo"), "id")),
            )


def _read_usage(metrics: dict[str, Any], model: str | None) -> Usage | None:
    sent, replied, read, written = (
        read_count(metrics.get(name)) for name in ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
    )
    if not sent and not replied:
        return None
    return Usage(
        model=model,
        # The input includes the cached tokens, unless there are more of them.
        input_tokens=sent if read + written <= sent else sent + read + written,
        output_tokens=replied,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )


def _find_row(path: Path, session: str) -> dict[str, Any]:
    """What the index says about a session. Empty if there is none."""
    with suppress(sqlite3.Error, OSError), open_sqlite(path) as database:
        if database.has_tables("sessions"):
            return next(database.query("SELECT * FROM sessions WHERE session_id = ?", (session,)), dict[str, Any]())
    return {}
