"""Reads the database of Goose: sessions and their messages.

A compaction hides messages from the agent (`agentVisible`), and its summary from the user (`userVisible`).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_data_folder, list_application_folders
from quire.importers.readers import SqliteReader, open_sqlite, parse_json
from quire.importers.source_fields import make_url_part, parse_time, read_id, read_title
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.sources.base import (
    SourceCompaction,
    SourceConversation,
    SourceError,
    SourceMessage,
    StoredSource,
    is_before,
    make_origin,
)
from quire.wire.media import build_data_url

_MESSAGES = "SELECT * FROM messages WHERE session_id = ? ORDER BY created_timestamp, id"


class GooseSource(StoredSource):
    name = "goose"
    title = "Goose"
    patterns = ("sessions.db",)
    is_experimental = True
    not_stored = ("models", "tokens of a message", "cached tokens", "cost")

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield find_data_folder(env) / "goose" / "sessions"
        yield from (folder / "Block" / "goose" / "data" / "sessions" for folder in list_application_folders(env))

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        with open_sqlite(path) as database:
            if not database.has_tables("sessions", "messages"):
                yield SourceError.of(path.name, "The database has no sessions of Goose.")
                return
            for row in database.query("SELECT * FROM sessions ORDER BY created_at, id"):
                id_ = read_id(row["id"])
                if id_ is None or is_before(parse_time(row.get("updated_at")), since):
                    continue
                agent = id_ if row.get("session_type") == "sub_agent" else None
                project = read_title(row.get("working_dir")) or None
                yield SourceConversation(
                    id=id_,
                    messages=self._read_messages(database, row["id"]),
                    title=read_title(row.get("name") or row.get("description")),
                    origin=make_origin(self.name, id_, project, agent=agent, parent=None),
                    created_at=parse_time(row.get("created_at")),
                )

    def _read_messages(self, database: SqliteReader, session: object) -> Iterator[SourceMessage | SourceError]:
        links = MessageLinks()
        visible: list[str] = []
        """Earlier messages that the agent still sees."""
        was_hidden = False
        for row in database.query(_MESSAGES, (session,)):
            id_ = read_id(row.get("message_id")) or f"row:{row['id']}"
            metadata, content = _parse_json(row.get("metadata_json")), _parse_json(row.get("content_json"))
            metadata = metadata if is_object(metadata) else {}
            messages = self._build_messages(str(row.get("role")), filter_objects(content))
            compaction: SourceCompaction | None = None
            is_agent_visible = metadata.get("agentVisible") is not False
            if was_hidden and is_agent_visible and metadata.get("userVisible") is False and messages:
                preserved = (links.get_end(each) for each in visible)
                compaction = SourceCompaction(messages[0].text, preserved=tuple(filter(None, preserved)))
                visible = []
                was_hidden = False
            elif not is_agent_visible:
                was_hidden = True
            yield from links.add(
                id_,
                messages,
                after=links.last,
                at=parse_time(row.get("created_timestamp")),
                compaction=compaction,
            )
            visible += [id_] if is_agent_visible else []

    def _build_messages(self, role: str, content: list[dict[str, Any]]) -> list[Message]:
        parts: list[Part] = []
        results: list[ToolResultPart] = []
        for raw in content:
            match raw:
                case {"type": "text", "text": str(text)}:
                    parts.append(TextPart(text=text))
                case {"type": "thinking", "thinking": str(text)}:
                    parts.append(ThinkingPart(text=text, signature=get_text(raw, "signature")))
                case {"type": "redactedThinking", "data": str(data)}:
                    parts.append(ThinkingPart(redacted=data))
                case {"type": "image", "data": str(data), "mimeType": str(kind)}:
                    image = make_url_part(build_data_url(kind, data))
                    parts += [image] if image is not None else []
                case {"type": "toolRequest", "id": str(id_)}:
                    call = get_object(get_object(raw, "toolCall"), "value")
                    arguments = dump_json(call.get("arguments") or {})
                    parts.append(ToolCallPart(id=id_, name=get_text(call, "name") or "tool", arguments=arguments))
                case {"type": "toolResponse", "id": str(id_)}:
                    result = get_object(raw, "toolResult")
                    value = result.get("value")
                    pieces = filter_objects(get_object(result, "value").get("content") or value)
                    texts = [text for piece in pieces if (text := get_text(piece, "text")) is not None]
                    is_error = result.get("status") == "error" or get_object(result, "value").get("isError") is True
                    texts = texts or ([error] if (error := get_text(result, "error")) else [])
                    pieces = tuple(TextPart(text=text) for text in texts)
                    results.append(ToolResultPart(call_id=id_, content=pieces, is_error=is_error))
                case _:
                    # Notifications and newer kinds are named in the text and stored whole.
                    text = get_text(raw, "msg") or f"[{raw.get('type')}]"
                    parts.append(TextPart(text=text, provider_fields={self.name: raw}))
        messages = [Message(role="tool", parts=(result,)) for result in results]
        if parts:
            messages.append(Message(role="assistant" if role == "assistant" else "user", parts=tuple(parts)))
        return messages


def _parse_json(text: object) -> Any:
    try:
        return parse_json(text.encode()) if isinstance(text, str) else None
    except ValueError:
        return None
