"""Reads conversations that LibreChat exported: one JSON file for each, with its messages as a list or as a tree."""

import re
from collections.abc import Iterator
from typing import Any

from quire.importers.exports import ExportFiles, ExportSource
from quire.importers.message_trees import MessageNode, ToolTurn, mark_missing, order_nodes
from quire.importers.source_fields import make_url_part, parse_time, read_id, read_title, read_usage
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart
from quire.model.json_values import filter_objects, get_object, get_text, is_object
from quire.sources.base import NotStored, SourceConversation

ROOT_PARENT = "00000000-0000-0000-0000-000000000000"
"""Parent of a first message."""


class LibreChatSource(ExportSource):
    name = "librechat"
    title = "LibreChat export"
    not_stored: tuple[NotStored, ...] = ("cached tokens", "cost")
    pattern = re.compile(r"[^/\\]{1,200}\.json")

    def find_updated_at(self, raw: dict[str, Any]) -> int | None:
        times = [parse_time(each.get("createdAt")) for _, each in _list_messages(raw)]
        return max((at for at in times if at is not None), default=None)

    def read_conversation(self, raw: dict[str, Any], files: ExportFiles) -> SourceConversation:
        id_ = read_id(raw.get("conversationId"))
        if id_ is None or not isinstance(raw.get("messagesTree") or raw.get("messages"), list):
            raise ValueError("it has no conversationId or no messages")
        model = raw.get("model") or get_object(raw, "options").get("model")
        nodes: list[MessageNode] = []
        for index, (parent, each) in enumerate(_list_messages(raw)):
            node_id = read_id(each.get("messageId")) or f"message:{index}"
            is_user = each.get("isCreatedByUser") is True
            dropped = [name for name in ("error", "feedback") if each.get(name)]
            attachments: list[Part] = []
            """Files are on the server of LibreChat. The export has only images with their data or their address."""
            for file in [*filter_objects(each.get("files")), *filter_objects(each.get("attachments"))]:
                part = make_url_part(file.get("filepath"), name=file.get("filename"))
                if part is None:
                    dropped.append(f"file {get_text(file, 'filename') or get_text(file, 'file_id')}")
                else:
                    attachments.append(part)
            turn = ToolTurn(node_id)
            if not is_user:
                turn.add(*attachments)
            blocks = filter_objects(each.get("content"))
            for block in blocks:
                _add_block(turn, block, dropped)
            text = get_text(each, "text")
            if not blocks and text:
                turn.add(TextPart(text=text))
            messages = tuple(turn.finish())
            if is_user:
                parts = (*attachments, *(part for message in messages for part in message.parts))
                messages = (Message(role="user", parts=parts),) if parts else ()
            # LibreChat counts the tokens of each message, not of the whole prompt.
            usage = {"output_tokens": each.get("tokenCount"), **get_object(each, "usage")}
            node = MessageNode(
                node_id,
                None if parent == ROOT_PARENT else parent,
                mark_missing(messages, role="user" if is_user else "assistant", dropped=dropped),
                at=parse_time(each.get("createdAt")),
                usage=None if is_user else read_usage(usage, model=each.get("model") or model),
                dropped=tuple(dropped),
            )
            nodes.append(node)
        newest = max((node for node in nodes if node.at is not None), key=lambda node: node.at or 0, default=None)
        return SourceConversation(
            id=id_,
            messages=order_nodes(nodes, leaf=newest.id if newest else nodes[-1].id if nodes else None),
            title=read_title(raw.get("title")),
            origin=ConversationOrigin(client=self.name, session=id_),
            created_at=parse_time(raw.get("createdAt")),
            dropped=("options",) if raw.get("options") else (),
        )


def _list_messages(raw: dict[str, Any]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Messages with the id of the message before them. Messages of a tree come after their parents."""
    roots = filter_objects(raw.get("messagesTree") or raw.get("messages"))
    pending: list[tuple[str | None, dict[str, Any]]] = [(None, root) for root in reversed(roots)]
    while pending:
        parent, message = pending.pop()
        yield parent or read_id(message.get("parentMessageId")), message
        id_ = read_id(message.get("messageId"))
        pending += [(id_, child) for child in reversed(filter_objects(message.get("children")))]


def _add_block(turn: ToolTurn, block: dict[str, Any], dropped: list[str]) -> None:
    kind = block.get("type")
    match kind:
        case "text" | "think":
            # Older versions wrote the text as an object with a `value`.
            text = get_text(value, "value") if is_object(value := block.get(kind)) else get_text(block, kind)
            if text:
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
