"""Reads the conversations of LM Studio: one JSON file each, in which a message may have several versions."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.importers.message_trees import MessageLinks, order_tree
from quire.importers.places import find_home
from quire.importers.readers import read_json_object
from quire.importers.source_fields import add_usage, parse_time, read_count, read_id, read_title
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import dump_json, filter_objects, get_object, get_text
from quire.sources.base import SourceConversation, SourceError, SourceMessage, StoredSource

_SUFFIX = ".conversation.json"
_POINTER_FILE = ".lmstudio-home-pointer"


class LmStudioSource(StoredSource):
    name = "lm-studio"
    title = "LM Studio"
    patterns = (f"**/*{_SUFFIX}",)
    is_experimental = True
    not_stored = ("sub-agents", "times", "cached tokens", "cost")

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        home = find_home(env)
        with suppress(OSError, UnicodeDecodeError):
            yield Path((home / _POINTER_FILE).read_text(encoding="utf-8").strip()) / "conversations"
        yield home / ".lmstudio" / "conversations"
        yield home / ".cache" / "lm-studio" / "conversations"

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        chat = read_json_object(path)
        id_ = path.name.removesuffix(_SUFFIX)
        model = get_text(get_object(chat, "lastUsedModel"), "identifier")
        # The folders below `conversations` are the user's own.
        folder = next((each for each in path.parents if each.name == "conversations"), path.parent)
        project = str(path.parent.relative_to(folder)) if path.parent != folder else None
        yield SourceConversation(
            id=id_,
            messages=self._read_messages(chat, model),
            title=read_title(chat.get("name")),
            origin=ConversationOrigin(client=self.name, session=id_, project=project),
            created_at=parse_time(chat.get("createdAt")),
        )

    def _read_messages(self, chat: dict[str, Any], model: str | None) -> Iterator[SourceMessage | SourceError]:
        links, after = MessageLinks(), None
        messages: list[SourceMessage] = []
        if system := get_text(chat, "systemPrompt"):
            messages += links.add("system:0", [Message.system(system)], after=None)
            after = "system:0"
        for index, raw in enumerate(filter_objects(chat.get("messages"))):
            versions = filter_objects(raw.get("versions"))
            selected = min(read_count(raw.get("currentlySelected")), max(len(versions) - 1, 0))
            for number, version in enumerate(versions):
                messages += links.add(
                    f"message:{index}:{number}",
                    self._build_messages(version, index),
                    after=after,
                    usage=_read_usage(version, model),
                )
            after = f"message:{index}:{selected}" if versions else after
        yield from order_tree(messages, leaf=links.get_end(after))

    def _build_messages(self, version: dict[str, Any], index: int) -> list[Message]:
        parts: list[Part] = []
        results: list[ToolResultPart] = []
        is_reply = version.get("role") == "assistant"
        steps = filter_objects(version.get("steps")) or [version]
        for step in steps:
            is_thinking = get_object(step, "style").get("type") == "thinking"
            for raw in filter_objects(step.get("content")):
                match raw:
                    case {"type": "text", "text": str(text)}:
                        parts.append(ThinkingPart(text=text) if is_thinking else TextPart(text=text))
                    case {"type": "toolCallRequest", "name": str(name)}:
                        call_id = read_id(raw.get("toolCallRequestId") or raw.get("callId")) or f"call:{index}"
                        arguments = dump_json(raw.get("parameters") or raw.get("arguments") or {})
                        parts.append(ToolCallPart(id=call_id, name=name, arguments=arguments))
                    case {"type": "toolCallResult"}:
                        call_id = read_id(raw.get("toolCallRequestId") or raw.get("callId")) or f"call:{index}"
                        content = raw.get("content")
                        text = content if isinstance(content, str) else dump_json(content)
                        results.append(ToolResultPart(call_id=call_id, content=(TextPart(text=text),)))
                    case _:
                        # Files are on the disk of LM Studio; newer kinds are stored whole.
                        name = get_text(raw, "fileIdentifier") or raw.get("type")
                        parts.append(TextPart(text=f"[{name}]", provider_fields={self.name: raw}))
        role = "assistant" if is_reply else "system" if version.get("role") == "system" else "user"
        messages = [Message(role=role, parts=tuple(parts))] if parts else []
        return messages + [Message(role="tool", parts=(result,)) for result in results]


def _read_usage(version: dict[str, Any], model: str | None) -> Usage | None:
    """Tokens of all generations of a reply. Several blocks of it may name the same one."""
    generations = {
        dump_json(info): info for step in filter_objects(version.get("steps")) if (info := get_object(step, "genInfo"))
    }
    stats = [get_object(info, "stats") for info in generations.values()]
    named = (get_text(info, "identifier") or get_text(info, "indexedModelIdentifier") for info in generations.values())
    return add_usage(
        next((name for name in named if name), model),
        uncached=sum(read_count(each.get("promptTokensCount")) for each in stats),
        cache_read=0,
        output=sum(read_count(each.get("predictedTokensCount")) for each in stats),
    )
