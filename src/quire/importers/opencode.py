"""Reads the database of opencode: sessions, their messages, and the parts of each message. A session that `opencode
export` wrote is one JSON object with the same.

A tool call and its result are one part. A compaction is a user message with a `compaction` part and the assistant's
summary after it; what is before stays in the database, and from `tail_start_id` on it remains in the context.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_data_folder
from quire.importers.readers import SqliteReader, open_sqlite, parse_json, read_json_object
from quire.importers.source_fields import (
    add_usage,
    make_url_part,
    parse_time,
    read_cost,
    read_id,
    read_title,
    retain_fields,
)
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.sources.base import (
    ABANDONED_SECONDS,
    SourceCompaction,
    SourceConversation,
    SourceError,
    SourceMessage,
    StoredSource,
    is_before,
    make_origin,
)

_HEAD_BYTES = 100
"""Bytes of a file in which its kind is searched."""
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
    reads = 2

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        folder = find_data_folder(env) / self.folder
        yield folder / env.get(f"{self.folder.upper()}_DB", ".")

    def find_files(self, path: Path) -> Iterator[Path]:
        # Exports may be in any folder, but the program's own has credentials in other JSON files.
        files = list(super().find_files(path))
        return iter(files or [file for file in sorted(path.glob("*.json")) if _is_export(file)])

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        if _is_export(path):
            document = read_json_object(path)
            info, raw = get_object(document, "info"), filter_objects(document.get("messages"))
            if read_id(info.get("id")) is None:
                raise ValueError("it has no session")
            row = {**info, "parent_id": info.get("parentID"), "time_created": get_object(info, "time").get("created")}
            listed = ((get_object(each, "info"), filter_objects(each.get("parts"))) for each in raw)
            messages = self._read_messages(((fields.get("id"), fields, parts) for fields, parts in listed), None)
            yield self._build_conversation(row, row["parent_id"] or row.get("id"), messages)
            return
        with open_sqlite(path) as database:
            if not database.has_tables("session", "message", "part"):
                yield SourceError.of(path.name, f"The database has no sessions of {self.title}.")
                return
            rows = list(database.query(_SESSIONS))
            parents = {row["id"]: row.get("parent_id") for row in rows}
            for row in rows:
                updated_at = parse_time(row.get("time_updated"))
                if read_id(row["id"]) is None or is_before(updated_at, since):
                    continue
                root = row["id"]
                for _ in parents:
                    root = parents.get(root) or root
                messages = self._read_messages(_query_messages(database, row["id"]), updated_at)
                yield self._build_conversation(row, root, messages)

    def _build_conversation(
        self, row: dict[str, Any], root: object, messages: Iterator[SourceMessage | SourceError]
    ) -> SourceConversation:
        id_, parent = read_id(row.get("id")) or "", read_id(row.get("parent_id"))
        project = read_title(row.get("directory")) or None
        return SourceConversation(
            id=id_,
            messages=messages,
            title=read_title(row.get("title")),
            origin=make_origin(self.name, read_id(root), project, agent=id_ if parent else None, parent=parent),
            created_at=parse_time(row.get("time_created")),
        )

    def _read_messages(
        self, listed: Iterable[tuple[object, object, list[dict[str, Any]]]], updated_at: int | None
    ) -> Iterator[SourceMessage | SourceError]:
        """The messages of a session, from their ids, fields and parts."""
        links, requested = MessageLinks(), dict[str, Any]()
        """`requested` is the compaction part of the last user message."""
        for raw_id, data, parts in listed:
            id_ = read_id(raw_id)
            if id_ is None or not is_object(data):
                yield SourceError.of(raw_id, "The message is no JSON object.")
                continue
            times, is_reply = get_object(data, "time"), data.get("role") == "assistant"
            is_finished = not is_reply or "completed" in times or "error" in data
            if not is_finished and time.time() - (updated_at or 0) / 1_000_000 < ABANDONED_SECONDS:
                return
            dropped: list[str] = []
            messages = list(self._build_messages(id_, parts, dropped, is_reply=is_reply))
            if messages and (fields := retain_fields(data, _MESSAGE_FIELDS, self.name)):
                messages[0] = messages[0].model_copy(update={"provider_fields": fields})
            compaction: SourceCompaction | None = None
            if is_reply and data.get("summary") is True and messages:
                compaction = SourceCompaction(
                    summary=messages[0].text,
                    trigger="manual" if requested.get("auto") is False else "threshold",
                    preserved=links.list_messages(str(requested.get("tail_start_id"))),
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


def _is_export(path: Path) -> bool:
    """Whether a file begins like an exported session."""
    with suppress(OSError), path.open("rb") as stream:
        return b'"info"' in stream.read(_HEAD_BYTES)
    return False


def _query_messages(database: SqliteReader, session: object) -> Iterator[tuple[object, object, list[dict[str, Any]]]]:
    for row in database.query(_MESSAGES, (session,)):
        parts = (_parse_object(each["data"]) for each in database.query(_PARTS, (row["id"],)))
        yield row["id"], _parse_object(row["data"]), [part for part in parts if part is not None]


def _parse_object(text: object) -> dict[str, Any] | None:
    try:
        value = parse_json(text.encode()) if isinstance(text, str) else None
    except ValueError:
        return None
    return value if is_object(value) else None
