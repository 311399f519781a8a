"""Reads chats that Open WebUI exported: a JSON array, or one chat a line as its API streams them.

A chat is a tree of messages with a current leaf. Newer versions store a reply as items of the Responses format
(`output`). Older ones write thinking and tool calls as HTML into its text.
"""

import re
from html import unescape
from typing import Any

from quire.errors import InvalidEntry
from quire.importers.exports import ExportFiles, ExportSource
from quire.importers.message_trees import MessageNode, ToolTurn, mark_missing, order_nodes
from quire.importers.source_fields import make_url_part, parse_time, read_id, read_title, read_usage
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart
from quire.model.json_values import filter_objects, get_object, get_text, is_object
from quire.sources.base import NotStored, SourceConversation
from quire.wire.labels import label_text
from quire.wire.responses import parse as openai_responses_parse

_DETAILS = "<details "
_DETAILS_END = "</details>"
_SUMMARY_END = "</summary>"
_ATTRIBUTE = re.compile(r'([a-z_]{1,40})="([^"]*)"')


class OpenWebUiSource(ExportSource):
    name = "open-webui"
    title = "Open WebUI export"
    not_stored: tuple[NotStored, ...] = ("cost",)
    pattern = re.compile(r"[^/\\]{1,200}\.(?:json|jsonl|ndjson)")

    def read_conversation(self, raw: dict[str, Any], files: ExportFiles) -> SourceConversation:
        chat = get_object(raw, "chat")
        history = get_object(chat, "history")
        id_ = read_id(raw.get("id")) or read_id(chat.get("id"))
        is_tree = is_object(history.get("messages"))
        if id_ is None or not (is_tree or isinstance(chat.get("messages"), list)):
            raise ValueError("it has no id or no messages")
        nodes: list[MessageNode] = []
        if is_tree:
            for key, message in history["messages"].items():
                if (node_id := read_id(key)) is not None and is_object(message):
                    nodes.append(_read_node(node_id, read_id(message.get("parentId")), message))
        else:
            # A list without a tree: each message follows the one before it.
            for index, message in enumerate(filter_objects(chat["messages"])):
                previous = nodes[-1].id if nodes else None
                nodes.append(_read_node(read_id(message.get("id")) or f"message:{index}", previous, message))
        if system := get_text(chat, "system"):
            first = MessageNode("system", None, (Message.system(system),))
            nodes = [first, *(node._replace(parent=first.id) if node.parent is None else node for node in nodes)]
        leaf = read_id(raw.get("current_message_id")) or read_id(history.get("currentId"))
        return SourceConversation(
            id=id_,
            messages=order_nodes(nodes, leaf=leaf or (nodes[-1].id if nodes else None)),
            title=read_title(raw.get("title") or chat.get("title")),
            origin=ConversationOrigin(client=self.name, session=id_, project=get_text(raw, "folder_id")),
            created_at=parse_time(raw.get("created_at")) or parse_time(chat.get("timestamp")),
            dropped=tuple(name for name in ("params", "files") if chat.get(name)),
        )


def _read_node(id_: str, parent: str | None, raw: dict[str, Any]) -> MessageNode:
    dropped = [name for name in ("error", "sources", "code_executions", "annotation") if raw.get(name)]
    role = raw.get("role")
    files: list[Part] = []
    """Images with their data, and the text that Open WebUI extracted from documents."""
    for file in filter_objects(raw.get("files")):
        inner = get_object(file, "file")
        name = get_text(file, "name") or get_text(inner, "filename")
        part = make_url_part(file.get("url"), name=name) if file.get("type") == "image" else None
        if part is not None:
            files.append(part)
        elif text := get_text(get_object(inner, "data"), "content"):
            files.append(TextPart(text=label_text("document", text, name=name)))
        else:
            dropped.append(f"file {name or file.get('id') or file.get('type')}")
    if role == "assistant":
        try:
            messages = tuple(openai_responses_parse.parse_messages(filter_objects(raw.get("output"))))
        except InvalidEntry:
            messages = ()
        if messages and files:
            messages = (*messages, Message(role="assistant", parts=tuple(files)))
        if not messages:
            turn = ToolTurn(id_)
            turn.add(*files)
            # The text in pieces: each `<details>` element, and what is between them.
            text = get_text(raw, "content") or ""
            position = 0
            while (start := text.find(_DETAILS, position)) >= 0 and (end := text.find(_DETAILS_END, start)) >= 0:
                _add_piece(turn, text[position:start])
                position = end + len(_DETAILS_END)
                _add_piece(turn, text[start:position])
            _add_piece(turn, text[position:])
            messages = tuple(turn.finish())
    else:
        text = get_text(raw, "content")
        parts = (*files, *((TextPart(text=text),) if text else ()))
        messages = (Message(role="system" if role == "system" else "user", parts=parts),) if parts else ()
    usage = {**get_object(raw, "info"), **get_object(raw, "usage")}
    return MessageNode(
        id_,
        parent,
        mark_missing(messages, role="assistant" if role == "assistant" else "user", dropped=dropped),
        at=parse_time(raw.get("timestamp")),
        usage=read_usage(usage, model=raw.get("model")) if role == "assistant" else None,
        dropped=tuple(dropped),
    )


def _add_piece(turn: ToolTurn, piece: str) -> None:
    """Adds a text, or the thinking or the tool call that a `<details>` element of Open WebUI shows."""
    head, closing, body = piece.removesuffix(_DETAILS_END).partition(">")
    attributes = {name: unescape(value) for name, value in _ATTRIBUTE.findall(head)} if closing else {}
    is_details = piece.startswith(_DETAILS) and piece.endswith(_DETAILS_END)
    match attributes.get("type") if is_details else None:
        case "reasoning":
            _, _, quoted = body.rpartition(_SUMMARY_END)
            lines = (line.removeprefix(">").removeprefix(" ") for line in unescape(quoted).strip().split("\n"))
            turn.add(ThinkingPart(text="\n".join(lines)))
        case "tool_calls":
            call_id = read_id(attributes.get("id"))
            turn.call(attributes.get("name") or "tool", attributes.get("arguments") or "{}", call_id=call_id)
            if "result" in attributes:
                turn.answer([TextPart(text=attributes["result"])], call_id=call_id)
        case _:
            if text := piece.strip("\n"):
                turn.add(TextPart(text=text))
