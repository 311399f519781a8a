"""Reads the export of ChatGPT: `conversations.json`, or several such files, in a zip archive with the attachments.

A conversation is a tree (`mapping`) with a current leaf. A message of the assistant to another recipient than the user
is a tool call, and the tool's message after it is the result.
"""

import re
from collections.abc import Iterator
from typing import Any, cast

from quire.importers.exports import AttachmentReader, ExportFiles, ExportSource
from quire.importers.message_trees import MISSING_CONTENT_TEXT, MessageNode, order_nodes
from quire.importers.source_fields import make_media_part, parse_time, read_id, read_title, read_usage
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.model.base import JsonObject
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object, parse_object
from quire.sources.base import NotStored, SourceConversation

NAME = "chatgpt"
_PROJECT_PREFIX = "g-p-"
"""Beginning of the id of a project. Other ids in the same field name custom GPTs."""
_CITATION_FIELDS = ("citations", "content_references")
_INSTRUCTION_FIELDS = ("user_profile", "user_instructions", "model_set_context")


class ChatGptSource(ExportSource):
    name = NAME
    title = "ChatGPT export"
    not_stored: tuple[NotStored, ...] = ("tokens", "cost")
    pattern = re.compile(r"conversations[^/\\]{0,40}\.json")

    def find_updated_at(self, raw: dict[str, Any]) -> int | None:
        return parse_time(raw.get("update_time"))

    def read_conversation(self, raw: dict[str, Any], files: ExportFiles) -> SourceConversation:
        id_ = read_id(raw.get("conversation_id")) or read_id(raw.get("id"))
        mapping = raw.get("mapping")
        if id_ is None or not is_object(mapping):
            raise ValueError("it has no conversation_id or no mapping")
        project = get_text(raw, "gizmo_id") or ""
        tree = _MessageMapping(mapping, AttachmentReader(files), default_model=raw.get("default_model_slug"))
        return SourceConversation(
            id=id_,
            messages=order_nodes(list(tree.read_nodes()), leaf=read_id(raw.get("current_node"))),
            title=read_title(raw.get("title")),
            origin=ConversationOrigin(
                client=NAME, session=id_, project=project if project.startswith(_PROJECT_PREFIX) else None
            ),
            created_at=parse_time(raw.get("create_time")),
        )


class _MessageMapping:
    """Nodes of one conversation as messages."""

    def __init__(self, mapping: dict[str, Any], attachments: AttachmentReader, *, default_model: object) -> None:
        self._raw_nodes = {
            id_: node for key, node in mapping.items() if (id_ := read_id(key)) is not None and is_object(node)
        }
        self._attachments = attachments
        self._default_model = default_model

    def read_nodes(self) -> Iterator[MessageNode]:
        for id_, node in self._raw_nodes.items():
            parent, raw = read_id(node.get("parent")), get_object(node, "message")
            dropped: list[str] = []
            parts = list(self._read_parts(raw, dropped))
            if not parts and not dropped:
                yield MessageNode(id_, parent)
                continue
            message = self._make_message(id_, parent, raw, parts or [TextPart(text=MISSING_CONTENT_TEXT)])
            model = get_object(raw, "metadata").get("model_slug") or self._default_model
            yield MessageNode(
                id_,
                parent,
                (message,),
                at=parse_time(raw.get("create_time")),
                usage=read_usage({}, model=model) if message.role == "assistant" else None,
                dropped=tuple(dropped),
            )

    def _make_message(self, id_: str, parent: str | None, raw: dict[str, Any], parts: list[Part]) -> Message:
        author, metadata = get_object(raw, "author"), get_object(raw, "metadata")
        role, recipient = author.get("role"), raw.get("recipient")
        content_type = get_object(raw, "content").get("content_type")
        match role:
            case "assistant" if isinstance(recipient, str) and recipient not in ("all", ""):
                text = "".join(part.text for part in parts if isinstance(part, TextPart))
                others = [part for part in parts if not isinstance(part, TextPart) or part.provider_fields]
                arguments = text if parse_object(text) is not None else dump_json({"input": text})
                return Message(
                    role="assistant", parts=(*others, ToolCallPart(id=id_, name=recipient, arguments=arguments))
                )
            case "assistant":
                citations: JsonObject = {name: metadata[name] for name in _CITATION_FIELDS if metadata.get(name)}
                provider_fields: JsonObject | None = {NAME: citations} if citations else None
                return Message(role="assistant", parts=tuple(parts), provider_fields=provider_fields)
            case "tool":
                call_id = self._find_call(parent) or id_
                content = tuple(
                    part for part in parts if not isinstance(part, ThinkingPart | ToolCallPart | ToolResultPart)
                )
                is_error = content_type == "system_error"
                result = ToolResultPart(call_id=call_id, content=content, is_error=is_error)
                return Message(role="tool", parts=(result,))
            case "system":
                return Message(role="system", parts=tuple(parts))
            case _:
                is_instruction = content_type in ("user_editable_context", "model_editable_context")
                return Message(role="system" if is_instruction else "user", parts=tuple(parts))

    def _find_call(self, id_: str | None) -> str | None:
        """Id of the tool call that a tool's message answers: the nearest message before it that is not a tool's."""
        seen: set[str] = set()
        while id_ is not None and id_ in self._raw_nodes and id_ not in seen:
            seen.add(id_)
            message = get_object(self._raw_nodes[id_], "message")
            role = get_object(message, "author").get("role")
            if role == "assistant":
                return id_ if message.get("recipient") not in (None, "", "all") else None
            if role == "user":
                return None
            id_ = read_id(self._raw_nodes[id_].get("parent"))
        return None

    def _read_parts(self, raw: dict[str, Any], dropped: list[str]) -> Iterator[Part]:
        """The content of a message, then the attachments that the content does not contain already."""
        content = get_object(raw, "content")
        match content:
            case {"content_type": "thoughts" | "reasoning_recap"}:
                for thought in [*filter_objects(content.get("thoughts")), {"content": content.get("content")}]:
                    if texts := _get_texts(thought, "summary", "content"):
                        yield ThinkingPart(text="\n".join(texts))
            case {"parts": list()}:
                for piece in cast("list[object]", content["parts"]):
                    if is_object(piece):
                        yield from self._read_piece(piece, dropped)
                    elif isinstance(piece, str) and piece:
                        yield TextPart(text=piece)
            case {"content_type": "user_editable_context" | "model_editable_context"}:
                if texts := _get_texts(content, *_INSTRUCTION_FIELDS):
                    yield TextPart(text="\n\n".join(texts))
            case {"text": str()} | {"result": str()}:
                if texts := _get_texts(content, "title", "url", "text", "result"):
                    yield TextPart(text="\n".join(texts))
            case {"content_type": str(kind)}:
                yield TextPart(text=f"[{kind}]", provider_fields={NAME: content})
            case _:
                pass
        pieces = filter_objects(content.get("parts"))
        contained = {_asset_id(pointer) for piece in pieces if (pointer := get_text(piece, "asset_pointer"))}
        for attachment in filter_objects(get_object(raw, "metadata").get("attachments")):
            id_, name = read_id(attachment.get("id")) or "", get_text(attachment, "name")
            if id_ in contained:
                continue
            data = self._attachments.read(id_)
            if data is None:
                dropped.append(f"attachment {name or id_}")
            else:
                yield make_media_part(data, media_type=attachment.get("mime_type"), name=name)

    def _read_piece(self, piece: dict[str, Any], dropped: list[str]) -> Iterator[Part]:
        match piece:
            case {"asset_pointer": str(pointer)}:
                data = self._attachments.read(_asset_id(pointer))
                if data is None:
                    dropped.append(f"{piece.get('content_type')} {_asset_id(pointer)}")
                else:
                    yield make_media_part(data)
            case {"audio_asset_pointer": {"asset_pointer": str()}}:
                yield from self._read_piece(get_object(piece, "audio_asset_pointer"), dropped)
            case {"text": str(text)}:
                if text:
                    yield TextPart(text=text)
            case {"content_type": str(kind)}:
                yield TextPart(text=f"[{kind}]", provider_fields={NAME: piece})
            case _:
                return


def _get_texts(fields: dict[str, Any], *names: str) -> list[str]:
    return [text for name in names if (text := get_text(fields, name))]


def _asset_id(pointer: str) -> str:
    """The file id in `file-service://file-abc` or `sediment://file_abc`."""
    return pointer.rpartition("://")[2].partition("#")[0]
