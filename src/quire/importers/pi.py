"""Reads the sessions of pi: JSON Lines, in which `parentId` links the entries to a tree.

A compaction names the first entry that remains in the context (`firstKeptEntryId`).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.importers.base import SourceCompaction, SourceConversation, SourceError, SourceMessage, StoredSource
from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_home
from quire.importers.readers import read_json_lines
from quire.importers.source_fields import (
    add_usage,
    make_url_part,
    parse_time,
    read_cost,
    read_count,
    read_id,
    read_title,
    retain_fields,
)
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.model.json_values import dump_json, filter_objects, get_object, get_text
from quire.model.messages import ToolResultContent
from quire.wire.media import build_data_url

_STATE_TYPES = frozenset({"session", "model_change", "thinking_level_change", "label", "session_info"})
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "timestamp", "model", "usage", "toolCallId", "toolName", "isError", "api", "provider"}
)


class PiSource(StoredSource):
    name = "pi"
    title = "pi"
    patterns = ("*/*.jsonl", "*.jsonl")
    not_stored = ("sub-agents",)

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield Path(env.get("PI_CODING_AGENT_DIR") or find_home(env) / ".pi" / "agent") / "sessions"

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        first = next(read_json_lines(path), None)
        if first is None or isinstance(first, SourceError) or first.value.get("type") != "session":
            yield SourceError.of(path.name, "The file does not begin with a session of pi.")
            return
        id_ = read_id(first.value.get("id")) or path.stem
        yield SourceConversation(
            id=id_,
            messages=self._read_messages(path),
            origin=ConversationOrigin(client=self.name, session=id_, project=get_text(first.value, "cwd")),
            created_at=parse_time(first.value.get("timestamp")),
        )

    def _read_messages(self, path: Path) -> Iterator[SourceMessage | SourceError]:
        links = MessageLinks()
        for line in read_json_lines(path):
            if isinstance(line, SourceError):
                yield line
                continue
            value = line.value
            id_ = read_id(value.get("id")) or f"line:{line.number}"
            after = read_id(value.get("parentId")) if "parentId" in value else links.last
            message, raw, dropped = None, get_object(value, "message"), tuple[str, ...]()
            compaction: SourceCompaction | None = None
            match value.get("type"):
                case "message":
                    message = self._build_message(raw)
                case "compaction" if summary := get_text(value, "summary"):
                    message = Message.user(summary)
                    first = get_text(value, "firstKeptEntryId")
                    tokens_before = read_count(value.get("tokensBefore"))
                    preserved = links.list_ends(first) if first else ()
                    compaction = SourceCompaction(summary, tokens_before=tokens_before, preserved=preserved)
                case "branch_summary" if summary := get_text(value, "summary"):
                    message = Message.user(summary)
                case "custom_message":
                    message = self._build_message({"role": "user", "content": value.get("content")})
                case str(kind) if kind not in _STATE_TYPES:
                    dropped = (kind,)
                case _:
                    pass
            usage = get_object(raw, "usage")
            yield from links.add(
                id_,
                [message] if message is not None else [],
                after=after,
                at=parse_time(value.get("timestamp")),
                usage=add_usage(
                    raw.get("model"),
                    uncached=usage.get("input"),
                    cache_read=usage.get("cacheRead"),
                    cache_write=usage.get("cacheWrite"),
                    output=usage.get("output"),
                ),
                cost_usd=read_cost(get_object(usage, "cost").get("total")),
                compaction=compaction,
                dropped=dropped,
            )

    def _build_message(self, raw: dict[str, Any]) -> Message | None:
        content = raw.get("content")
        parts: list[Part] = [TextPart(text=content)] if isinstance(content, str) else []
        contents: list[ToolResultContent] = []
        """The texts and images, which are all that a result may hold."""
        for block in filter_objects(content):
            match block:
                case {"type": "text", "text": str(text)}:
                    contents.append(TextPart(text=text))
                    parts.append(contents[-1])
                case {"type": "thinking", "thinking": str(text)}:
                    signature = get_text(block, "thinkingSignature")
                    parts.append(ThinkingPart(text=text, signature=signature))
                case {"type": "toolCall", "id": str(id_), "name": str(name)}:
                    parts.append(ToolCallPart(id=id_, name=name, arguments=dump_json(block.get("arguments") or {})))
                case {"type": "image", "data": str(data), "mimeType": str(kind)}:
                    image = make_url_part(build_data_url(kind, data))
                    contents += [image] if image is not None else []
                    parts += [image] if image is not None else []
                case _:
                    # A newer kind of block is named in the text and stored whole.
                    contents.append(TextPart(text=f"[{block.get('type')}]", provider_fields={self.name: block}))
                    parts.append(contents[-1])
        fields = retain_fields(raw, _MESSAGE_FIELDS, self.name)
        if raw.get("role") == "toolResult":
            call_id = read_id(raw.get("toolCallId")) or read_title(raw.get("toolName")) or "tool"
            is_error = raw.get("isError") is True
            result = ToolResultPart(call_id=call_id, content=tuple(contents), is_error=is_error)
            return Message(role="tool", parts=(result,), provider_fields=fields)
        role = "assistant" if raw.get("role") == "assistant" else "user"
        return Message(role=role, parts=tuple(parts), provider_fields=fields) if parts else None
