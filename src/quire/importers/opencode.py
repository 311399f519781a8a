"""Reads the database of opencode: sessions, their messages, and the parts of each message.

A tool call and its result are one part. A compaction is a user message with a `compaction` part and the assistant's
summary after it; what is before stays in the database, and from `tail_start_id` on it remains in the context.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.importers.base import (
    SourceCompaction,
    SourceConversation,
    SourceError,
    SourceMessage,
    StoredSource,
    is_before,
)
from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_data_folder
from quire.importers.readers import SqliteReader, open_sqlite, parse_json
from quire.importers.source_fields import (
    add_usage,
    make_url_part,
    parse_time,
    read_cost,
    read_id,
    read_title,
    retain_fields,
)
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object

ABANDONED_SECONDS = 600
"""A reply without an end in a session that was not changed for that long will not be finished."""
_SESSIONS = "SELECT * FROM session ORDER BY time_created, id"
_MESSAGES = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
_PARTS = "SELECT id, data FROM part WHERE message_id = ? ORDER BY id"
_STEP_PARTS = frozenset({"step-start", "step-finish", "snapshot", "patch", "compaction"})
"""Parts that hold no content, or repeat what the message says."""
_MESSAGE_FIELDS = frozenset(
    {"id", "sessionID", "role", "time", "parentID", "modelID", "providerID", "model", "mode", "agent", "path", "cost",
     "tokens", "finish", "summary", "tools", "system"}
)  # fmt: skip


class OpenCodeSource(StoredSource):
    name = "opencode"
    title = "opencode"
    folder = "opencode"
    patterns = ("opencode*.db",)

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        folder = find_data_folder(env) / self.folder
        yield folder / env.get(f"{self.folder.upper()}_DB", ".")

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        with open_sqlite(path) as database:
            if not database.has_tables("session", "message", "part"):
                yield SourceError.of(path.name, f"The database has no sessions of {self.title}.")
                return
            rows = list(database.query(_SESSIONS))
            parents = {row["id"]: row.get("parent_id") for row in rows}
            for row in rows:
                id_ = read_id(row["id"])
                updated_at = parse_time(row.get("time_updated"))
                if id_ is None or is_before(updated_at, since):
                    continue
                root, parent = row["id"], read_id(row.get("parent_id"))
                for _ in parents:
                    root = parents.get(root) or root
                yield SourceConversation(
                    id=id_,
                    messages=self._read_messages(database, row["id"], updated_at),
                    title=read_title(row.get("title")),
                    origin=ConversationOrigin(
                        client=self.name,
                        session=read_id(root),
                        project=read_title(row.get("directory")) or None,
                        agent=id_ if parent else None,
                        parent_agent=parent,
                        purpose="subagent" if parent else None,
                    ),
                    created_at=parse_time(row.get("time_created")),
                )

    def _read_messages(
        self, database: SqliteReader, session: object, updated_at: int | None
    ) -> Iterator[SourceMessage | SourceError]:
        links, requested = MessageLinks(), dict[str, Any]()
        """`requested` is the compaction part of the last user message."""
        for row in database.query(_MESSAGES, (session,)):
            id_, data = read_id(row["id"]), _parse_object(row["data"])
            if id_ is None or data is None:
                yield SourceError.of(row["id"], "The message is no JSON object.")
                continue
            times, is_reply = get_object(data, "time"), data.get("role") == "assistant"
            is_finished = not is_reply or "completed" in times or "error" in data
            if not is_finished and time.time() - (updated_at or 0) / 1_000_000 < ABANDONED_SECONDS:
                return
            parts = [
                part
                for each in database.query(_PARTS, (row["id"],))
                if (part := _parse_object(each["data"])) is not None
            ]
            dropped: list[str] = []
            messages = list(self._build_messages(id_, parts, dropped, is_reply=is_reply))
            if messages and (fields := retain_fields(data, _MESSAGE_FIELDS, self.name)):
                messages[0] = messages[0].model_copy(update={"provider_fields": fields})
            compaction: SourceCompaction | None = None
            if is_reply and data.get("summary") is True and messages:
                compaction = SourceCompaction(
                    summary=messages[0].text,
                    trigger="manual" if requested.get("auto") is False else "threshold",
                    preserved=links.list_ends(str(requested.get("tail_start_id"))),
                )
                messages = messages[:1]
            requested = next((part for part in parts if part.get("type") == "compaction"), dict[str, Any]())
            # The cost of a message of Kilo includes its sub-agents. The cost of a step does not.
            steps = [read_cost(part.get("cost")) or 0 for part in parts if part.get("type") == "step-finish"]
            tokens = get_object(data, "tokens")
            cache = get_object(tokens, "cache")
            yield from links.add(
                id_,
                messages,
                after=links.last,
                at=parse_time(times.get("created")),
                usage=add_usage(
                    data.get("modelID"),
                    uncached=tokens.get("input"),
                    cache_read=cache.get("read"),
                    cache_write=cache.get("write"),
                    output=tokens.get("output"),
                    reasoning=tokens.get("reasoning"),
                ),
                cost_usd=read_cost(sum(steps) if steps else data.get("cost")),
                compaction=compaction,
                dropped=tuple(dropped),
            )

    def _build_messages(
        self, id_: str, raw_parts: list[dict[str, Any]], dropped: list[str], *, is_reply: bool
    ) -> Iterator[Message]:
        """The message, and the results of its calls, which were made at once."""
        parts: list[Part] = []
        results: list[ToolResultPart] = []
        for raw in raw_parts:
            match raw:
                case {"type": "text", "text": str(text)}:
                    if text and raw.get("ignored") is not True:
                        parts.append(TextPart(text=text))
                case {"type": "reasoning", "text": str(text)}:
                    fields = retain_fields(raw, ("type", "text", "time"), self.name)
                    parts.append(ThinkingPart(text=text, provider_fields=fields))
                case {"type": "file"}:
                    part = make_url_part(raw.get("url"), name=raw.get("filename"))
                    if part is None:
                        dropped.append(f"file {raw.get('filename') or raw.get('mime')}")
                    else:
                        parts.append(part)
                case {"type": "tool", "tool": str(name)}:
                    state = get_object(raw, "state")
                    call_id = read_id(raw.get("callID")) or f"{id_}:{len(parts)}"
                    parts.append(ToolCallPart(id=call_id, name=name, arguments=dump_json(state.get("input") or {})))
                    is_error = state.get("status") == "error"
                    if (text := get_text(state, "error" if is_error else "output")) is not None:
                        files = (
                            make_url_part(each.get("url"), name=each.get("filename"))
                            for each in filter_objects(state.get("attachments"))
                        )
                        content = (TextPart(text=text), *(each for each in files if each is not None))
                        results.append(ToolResultPart(call_id=call_id, content=content, is_error=is_error))
                case {"type": str(kind)} if kind not in _STEP_PARTS:
                    # A newer kind of part is named in the text and stored whole.
                    parts.append(TextPart(text=f"[{kind}]", provider_fields={self.name: raw}))
                case _:
                    pass
        if parts:
            yield Message(role="assistant" if is_reply else "user", parts=tuple(parts))
        yield from (Message(role="tool", parts=(result,)) for result in results)


def _parse_object(text: object) -> dict[str, Any] | None:
    try:
        value = parse_json(text.encode()) if isinstance(text, str) else None
    except ValueError:
        return None
    return value if is_object(value) else None
