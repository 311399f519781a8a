"""Reads the sessions of Continue, of its command line and of its extension: one JSON file each, which is rewritten.

Results of tools are in `toolCallStates` of the reply. Messages have neither ids nor times. A `conversationSummary`
replaces everything up to the message that has it.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quire.importers.message_trees import MessageLinks
from quire.importers.places import find_home
from quire.importers.readers import read_json_file, read_json_object
from quire.importers.source_fields import (
    make_url_part,
    parse_time,
    read_cost,
    read_id,
    read_title,
    read_usage,
    retain_fields,
)
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.model.json_values import dump_json, filter_objects, get_object, get_text
from quire.sources.base import SourceCompaction, SourceConversation, SourceError, SourceMessage, StoredSource

_INDEX_FILE = "sessions.json"
_ITEM_FIELDS = frozenset(
    {"message", "toolCallStates", "conversationSummary", "contextItems", "reasoning", "editorState"}
)
_MESSAGE_FIELDS = frozenset({"role", "content", "toolCalls", "usage", "id"})
_CENTS_PER_USD = 100


class ContinueSource(StoredSource):
    name = "continue"
    title = "Continue"
    patterns = ("*.json",)
    not_stored = ("sub-agents", "times")

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield Path(env.get("CONTINUE_GLOBAL_DIR") or find_home(env) / ".continue") / "sessions"

    def find_files(self, path: Path) -> Iterator[Path]:
        return (file for file in super().find_files(path) if file.name != _INDEX_FILE)

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        session = read_json_object(path)
        id_ = read_id(session.get("sessionId")) or path.stem
        index = path.with_name(_INDEX_FILE)
        known = filter_objects(read_json_file(index)) if index.is_file() else []
        created = next((each.get("dateCreated") for each in known if each.get("sessionId") == id_), None)
        yield SourceConversation(
            id=id_,
            messages=self._read_messages(session),
            title=read_title(session.get("title")),
            origin=ConversationOrigin(
                client=self.name, session=id_, project=get_text(session, "workspaceDirectory") or None
            ),
            # The index has the milliseconds as a text.
            created_at=parse_time(int(created) if isinstance(created, str) and created.isdecimal() else created),
        )

    def _read_messages(self, session: dict[str, Any]) -> Iterator[SourceMessage | SourceError]:
        links = MessageLinks()
        for index, item in enumerate(filter_objects(session.get("history"))):
            raw = get_object(item, "message")
            messages, id_ = self._build_messages(item, raw, index), f"message:{index}"
            counts = get_object(raw, "usage")
            cents = counts.get("cost_cents")
            is_reply = raw.get("role") == "assistant"
            yield from links.add(
                id_,
                messages,
                after=links.last,
                usage=read_usage(counts, model=counts.get("model")) if is_reply else None,
                cost_usd=read_cost(cents / _CENTS_PER_USD) if isinstance(cents, int | float) else None,
                dropped=("contextItems",) if item.get("contextItems") else (),
            )
            if summary := get_text(item, "conversationSummary"):
                yield from links.add(
                    f"summary:{index}",
                    [Message.user(summary)],
                    after=id_,
                    compaction=SourceCompaction(summary),
                )

    def _build_messages(self, item: dict[str, Any], raw: dict[str, Any], index: int) -> Iterator[Message]:
        fields = retain_fields(raw, _MESSAGE_FIELDS, self.name) or retain_fields(item, _ITEM_FIELDS, self.name)
        parts: list[Part] = []
        if thinking := get_text(get_object(item, "reasoning"), "text"):
            parts.append(ThinkingPart(text=thinking))
        content = raw.get("content")
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else filter_objects(content):
            if text := get_text(block, "text"):
                parts.append(TextPart(text=text))
            elif image := make_url_part(get_object(block, "imageUrl").get("url")):
                parts.append(image)
        if raw.get("role") == "thinking":
            thoughts = (ThinkingPart(text=part.text) for part in parts if isinstance(part, TextPart))
            yield Message(role="assistant", parts=tuple(thoughts), provider_fields=fields)
            return
        states = {str(each.get("toolCallId")): each for each in filter_objects(item.get("toolCallStates"))}
        results: list[ToolResultPart] = []
        for number, call in enumerate(filter_objects(raw.get("toolCalls"))):
            function, call_id = get_object(call, "function"), read_id(call.get("id")) or f"message:{index}:{number}"
            arguments = function.get("arguments")
            text = arguments if isinstance(arguments, str) else dump_json(arguments or {})
            parts.append(ToolCallPart(id=call_id, name=get_text(function, "name") or "tool", arguments=text))
            state = states.get(call_id, {})
            output = [text for each in filter_objects(state.get("output")) if (text := get_text(each, "content"))]
            if "output" in state:
                is_error = state.get("status") in ("errored", "canceled")
                content = tuple(TextPart(text=text) for text in output)
                results.append(ToolResultPart(call_id=call_id, content=content, is_error=is_error))
        role = raw.get("role")
        if parts:
            yield Message(
                role="assistant" if role == "assistant" else "system" if role == "system" else "user",
                parts=tuple(parts),
                provider_fields=fields,
            )
        yield from (Message(role="tool", parts=(result,)) for result in results)
