"""Reads the chat sessions of GitHub Copilot in VS Code: a log of changes to a JSON document, or the document."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from quire.importers.message_trees import MessageLinks
from quire.importers.places import list_editor_folders
from quire.importers.readers import read_json_lines, read_json_object
from quire.importers.source_fields import list_values, parse_time, read_id, read_title
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.sources.base import SourceConversation, SourceError, SourceMessage, StoredSource, is_growing

_STATE, _SET, _APPEND, _DELETE = range(4)
"""Kinds of lines: the whole state, a value, what an array is cut to and extended by, and a deletion."""


class CopilotChatSource(StoredSource):
    name = "copilot-chat"
    title = "Copilot chat (VS Code)"
    patterns = ("*/chatSessions/*.jsonl", "*/chatSessions/*.json", "*.jsonl", "*.json")
    is_experimental = True
    not_stored = ("sub-agents", "tokens", "cost")

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        for folder in list_editor_folders(env):
            yield folder / "workspaceStorage"
            yield folder / "globalStorage" / "emptyWindowChatSessions"

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        if path.suffix == ".json":
            state = read_json_object(path)
        else:
            state = {}
            for line in read_json_lines(path):
                if isinstance(line, SourceError):
                    yield line
                else:
                    state = _apply(state, line.value)
        requests = filter_objects(state.get("requests"))
        if not requests:
            return
        id_ = read_id(state.get("sessionId")) or path.stem
        project: str | None = None
        workspace = path.parent.parent / "workspace.json"
        with suppress(OSError, ValueError):
            folder = get_text(read_json_object(workspace), "folder") or ""
            project = unquote(urlsplit(folder).path) or None
        if is_growing(path):
            # The last response may be incomplete.
            requests = requests[:-1]
        yield SourceConversation(
            id=id_,
            messages=self._read_messages(requests),
            title=read_title(state.get("customTitle")),
            origin=ConversationOrigin(client=self.name, session=id_, project=project),
            created_at=parse_time(state.get("creationDate")),
        )

    def _read_messages(self, requests: list[dict[str, Any]]) -> Iterator[SourceMessage | SourceError]:
        links = MessageLinks()
        for index, raw in enumerate(requests):
            id_, at = read_id(raw.get("requestId")) or f"request:{index}", parse_time(raw.get("timestamp"))
            prompt = get_text(get_object(raw, "message"), "text")
            dropped = ("variableData",) if get_object(raw, "variableData").get("variables") else ()
            yield from links.add(
                id_, [Message.user(prompt)] if prompt else [], after=links.last, at=at, dropped=dropped
            )
            model = get_text(raw, "modelId")
            usage = Usage(model=model, estimated=True) if model else None
            yield from links.add(
                read_id(raw.get("responseId")) or f"response:{index}",
                self._read_rounds(raw) or self._read_response(raw),
                after=id_,
                at=at,
                usage=usage,
            )

    def _read_rounds(self, raw: dict[str, Any]) -> list[Message]:
        """The steps of a response with tools. Empty if the session does not have them."""
        metadata = get_object(get_object(raw, "result"), "metadata")
        results, messages = get_object(metadata, "toolCallResults"), list[Message]()
        for step in filter_objects(metadata.get("toolCallRounds")):
            parts: list[Part] = []
            if thinking := get_text(get_object(step, "thinking"), "text"):
                parts.append(ThinkingPart(text=thinking))
            if text := get_text(step, "response"):
                parts.append(TextPart(text=text))
            answers: list[Message] = []
            for call in filter_objects(step.get("toolCalls")):
                call_id, name = read_id(call.get("id")) or f"call:{len(messages)}", get_text(call, "name") or "tool"
                arguments = call.get("arguments")
                text = arguments if isinstance(arguments, str) else dump_json(arguments or {})
                parts.append(ToolCallPart(id=call_id, name=name, arguments=text))
                if call_id in results:
                    pieces = filter_objects(get_object(results, call_id).get("content"))
                    values = (each.get("value") for each in pieces)
                    texts = [value if isinstance(value, str) else dump_json(value) for value in values]
                    content = tuple(TextPart(text=text) for text in texts)
                    answers.append(Message(role="tool", parts=(ToolResultPart(call_id=call_id, content=content),)))
            messages += [Message(role="assistant", parts=tuple(parts))] if parts else []
            messages += answers
        return messages

    def _read_response(self, raw: dict[str, Any]) -> list[Message]:
        """What the user saw of a response, as one message. A tool is described by a sentence."""
        parts: list[Part] = []
        for piece in filter_objects(raw.get("response")):
            value = piece.get("value")
            match piece.get("kind"):
                case None | "markdownContent" if isinstance(value, str):
                    parts.append(TextPart(text=value))
                case "thinking" if isinstance(value, str):
                    parts.append(ThinkingPart(text=value))
                case "toolInvocationSerialized":
                    said = piece.get("pastTenseMessage") or piece.get("invocationMessage")
                    text = said if isinstance(said, str) else get_text(get_object({"said": said}, "said"), "value")
                    parts.append(TextPart(text=f"[{text or piece.get('toolId')}]", provider_fields={self.name: piece}))
                case kind:
                    # A newer kind of piece is named in the text and stored whole.
                    parts.append(TextPart(text=f"[{kind}]", provider_fields={self.name: piece}))
        return [Message(role="assistant", parts=tuple(parts))] if parts else []


def _apply(state: dict[str, Any], line: dict[str, Any]) -> dict[str, Any]:
    """The state after one line. A line that does not fit the state changes nothing."""
    kind, value = line.get("kind"), line.get("v")
    keys = list_values(line.get("k"))
    if kind == _STATE:
        return value if is_object(value) else state
    if not keys:
        return state
    target: Any = state
    with suppress(KeyError, IndexError, TypeError):
        for key in keys[:-1]:
            target = target[key]
        match kind:
            case _ if kind == _SET:
                target[keys[-1]] = value
            case _ if kind == _APPEND:
                if is_object(target):
                    target.setdefault(keys[-1], [])
                if isinstance(line.get("i"), int):
                    del target[keys[-1]][line["i"] :]
                target[keys[-1]].extend(list_values(value))
            case _ if kind == _DELETE:
                del target[keys[-1]]
            case _:
                pass
    return state
