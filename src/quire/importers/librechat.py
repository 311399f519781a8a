"""Reads conversations that LibreChat exported: one JSON file for each, with its messages as a list or as a tree."""

import re
from collections.abc import Iterator
from typing import Any

from quire.importers.attachments import make_url_part
from quire.importers.base import SourceConversation
from quire.importers.export_files import ExportFiles
from quire.importers.exports import ExportSource
from quire.importers.message_nodes import MessageNode, mark_missing, order_nodes
from quire.importers.source_fields import read_id, read_title, read_usage
from quire.importers.times import parse_time
from quire.importers.tool_turns import ToolTurn
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart, Usage
from quire.view.wire_formats.fields import filter_objects, get_object, get_text, is_object

ROOT_PARENT = "00000000-0000-0000-0000-000000000000"
"""Parent of a first message."""
NAME = "librechat"
_FILES = re.compile(r"[^/\\]{1,200}\.json")


def _read_conversation(raw: dict[str, Any], files: ExportFiles) -> SourceConversation:
    id_ = read_id(raw.get("conversationId"))
    raw_messages: object = raw.get("messagesTree") or raw.get("messages")
    flat = _flatten(_list_messages(raw))
    if id_ is None or not isinstance(raw_messages, list):
        raise ValueError("it has no conversationId or no messages")
    model = raw.get("model") or get_object(raw, "options").get("model")
    nodes = [_read_node(index, parent, each, model) for index, (parent, each) in enumerate(flat)]
    newest = max((node for node in nodes if node.at is not None), key=lambda node: node.at or 0, default=None)
    return SourceConversation(
        id=id_,
        messages=order_nodes(nodes, leaf=newest.id if newest else nodes[-1].id if nodes else None),
        title=read_title(raw.get("title")),
        origin=ConversationOrigin(client=NAME, session=id_),
        created_at=parse_time(raw.get("createdAt")),
        dropped=("options",) if raw.get("options") else (),
    )


def _flatten(raw_messages: list[dict[str, Any]]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Messages with the id of the message before them; those of a tree after their parents."""
    pending: list[tuple[str | None, dict[str, Any]]] = [(None, raw) for raw in reversed(raw_messages)]
    while pending:
        parent, raw = pending.pop()
        yield parent or read_id(raw.get("parentMessageId")), raw
        id_ = read_id(raw.get("messageId"))
        pending += [(id_, child) for child in reversed(filter_objects(raw.get("children")))]


def _read_node(index: int, parent: str | None, raw: dict[str, Any], model: object) -> MessageNode:
    id_ = read_id(raw.get("messageId")) or f"message:{index}"
    is_user = raw.get("isCreatedByUser") is True
    dropped = [name for name in ("error", "feedback") if raw.get(name)]
    turn = ToolTurn(id_)
    if not is_user:
        turn.add(*_read_files(raw, dropped))
    blocks = filter_objects(raw.get("content"))
    for block in blocks:
        _add_block(turn, block, dropped)
    text = get_text(raw, "text")
    if not blocks and text:
        turn.add(TextPart(text=text))
    messages = tuple(turn.finish())
    if is_user:
        parts = (*_read_files(raw, dropped), *(part for message in messages for part in message.parts))
        messages = (Message(role="user", parts=parts),) if parts else ()
    return MessageNode(
        id_,
        None if parent == ROOT_PARENT else parent,
        mark_missing(messages, role="user" if is_user else "assistant", dropped=dropped),
        at=parse_time(raw.get("createdAt")),
        usage=None if is_user else _read_usage(raw, model),
        dropped=tuple(dropped),
    )


def _read_usage(raw: dict[str, Any], model: object) -> Usage | None:
    """LibreChat counts the tokens of each message, not of the whole prompt."""
    fields = {"output_tokens": raw.get("tokenCount"), **get_object(raw, "usage")}
    return read_usage(fields, model=raw.get("model") or model)


def _add_block(turn: ToolTurn, block: dict[str, Any], dropped: list[str]) -> None:
    kind = block.get("type")
    match kind:
        case "text" | "think":
            if text := _read_text(block.get(kind)):
                turn.add(TextPart(text=text) if kind == "text" else ThinkingPart(text=text))
        case "tool_call":
            call = get_object(block, "tool_call")
            function = get_object(call, "function")
            name = get_text(call, "name") or get_text(function, "name") or str(call.get("type") or "tool")
            arguments = call.get("args", function.get("arguments"))
            turn.call(name, arguments, call_id=read_id(call.get("id")))
            output = call.get("output", function.get("output"))
            if isinstance(output, str):
                turn.answer([TextPart(text=output)], call_id=read_id(call.get("id")))
        case "image_url":
            url = block.get("image_url")
            part = make_url_part(get_text(url, "url") if is_object(url) else url)
            if part is None:
                dropped.append("image_url")
            else:
                turn.add(part)
        case _:
            dropped.append(f"block {kind}")


def _read_text(value: object) -> str | None:
    """A text, which older versions wrote as an object with a `value`."""
    if is_object(value):
        return get_text(value, "value")
    return value if isinstance(value, str) else None


def _read_files(raw: dict[str, Any], dropped: list[str]) -> Iterator[Part]:
    """Files are stored on the server of LibreChat; only an image with its data or its address is in the export."""
    for file in [*filter_objects(raw.get("files")), *filter_objects(raw.get("attachments"))]:
        part = make_url_part(file.get("filepath"), name=file.get("filename"))
        if part is None:
            dropped.append(f"file {get_text(file, 'filename') or get_text(file, 'file_id')}")
        else:
            yield part


def _find_updated_at(raw: dict[str, Any]) -> int | None:
    times = [parse_time(each.get("createdAt")) for _, each in _flatten(_list_messages(raw))]
    return max((at for at in times if at is not None), default=None)


def _list_messages(raw: dict[str, Any]) -> list[dict[str, Any]]:
    return filter_objects(raw.get("messagesTree") or raw.get("messages"))


SOURCE = ExportSource(NAME, "LibreChat export", _FILES, _read_conversation, _find_updated_at)
