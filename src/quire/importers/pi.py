"""Reads the sessions of pi, and of its fork Oh My Pi: JSON Lines, in which `parentId` links the entries to a tree.

In the first version of the format, each entry follows the one before it. A compaction names the first entry that
remains in the context by its id, or by its number among the entries of the file.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_home
from quire.importers.readers import JsonLine, read_json_lines
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
from quire.sources.base import SourceCompaction, SourceConversation, SourceError, SourceMessage, StoredSource
from quire.wire.media import build_data_url

_STATE_TYPES = frozenset({"session", "model_change", "thinking_level_change", "label", "session_info", "title"})
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "timestamp", "model", "usage", "toolCallId", "toolName", "isError", "api", "provider",
     "command", "output"}
)  # fmt: skip


class PiSource(StoredSource):
    name = "pi"
    title = "pi"
    patterns = ("*/*.jsonl", "*.jsonl")
    not_stored = ("sub-agents",)
    reads = 2

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield Path(env.get("PI_CODING_AGENT_DIR") or find_home(env) / ".pi" / "agent") / "sessions"
        yield find_home(env) / ".omp" / "agent" / "sessions"

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        # Oh My Pi writes the title before the session.
        heads = [line.value for line in islice(read_json_lines(path), 2) if isinstance(line, JsonLine)]
        session = next((head for head in heads if head.get("type") == "session"), None)
        if session is None:
            yield SourceError.of(path.name, "The file does not begin with a session of pi.")
            return
        id_ = read_id(session.get("id")) or path.stem
        yield SourceConversation(
            id=id_,
            messages=self._read_messages(path),
            title=next((title for head in heads if (title := read_title(head.get("title")))), ""),
            origin=ConversationOrigin(client=self.name, session=id_, project=get_text(session, "cwd")),
            created_at=parse_time(session.get("timestamp")),
        )

    def _read_messages(self, path: Path) -> Iterator[SourceMessage | SourceError]:
        links, entries = MessageLinks(), list[str]()
        for line in read_json_lines(path):
            if isinstance(line, SourceError):
                yield line
                continue
            value = line.value
            id_ = read_id(value.get("id")) or f"line:{line.number}"
            if entries and entries[-1] == id_:
                # A line with two entries.
                id_ += ":b"
            entries.append(id_)
            after = read_id(value.get("parentId")) if "parentId" in value else links.last
            message, raw, dropped = None, get_object(value, "message"), tuple[str, ...]()
            compaction: SourceCompaction | None = None
            match value.get("type"):
                case "message":
                    message = self._build_message(raw)
                case "compaction" if summary := get_text(value, "summary"):
                    message = Message.user(summary)
                    # Without a number, the one of this compaction: nothing is preserved.
                    index = value.get("firstKeptEntryIndex", len(entries) - 1)
                    first = get_text(value, "firstKeptEntryId") or entries[min(read_count(index), len(entries) - 1)]
                    tokens_before = read_count(value.get("tokensBefore"))
                    preserved = links.list_messages(first)
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
        content = raw.get("content") if raw.get("role") != "bashExecution" else _describe_command(raw)
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


def _describe_command(raw: dict[str, Any]) -> str:
    """A command that the user ran, in the words in which pi reports it to the model."""
    output = get_text(raw, "output")
    pieces = [f"Ran `{get_text(raw, 'command')}`\n" + (f"```\n{output}\n```" if output else "(no output)")]
    if raw.get("cancelled") is True:
        pieces.append("(command cancelled)")
    elif raw.get("exitCode"):
        pieces.append(f"Command exited with code {raw['exitCode']}")
    if raw.get("truncated") is True and (path := get_text(raw, "fullOutputPath")):
        pieces.append(f"[Output truncated. Full output: {path}]")
    return "\n\n".join(pieces)
