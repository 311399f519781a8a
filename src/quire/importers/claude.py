"""Reads the export of Claude.ai: `conversations.json` in a zip archive.

Messages name the message before them, so that branches are read too. A reply holds the calls and the results of its
tools in one list of blocks. It becomes several messages.
"""

import re
from collections.abc import Iterator
from typing import Any

from quire.importers.exports import AttachmentReader, ExportFiles, ExportSource
from quire.importers.message_trees import MessageNode, ToolTurn, mark_missing, order_nodes
from quire.importers.source_fields import make_media_part, parse_time, read_id, read_title, read_usage
from quire.log.types import ConversationOrigin
from quire.model import Message, Part, TextPart, ThinkingPart
from quire.model.json_values import filter_objects, get_object, get_text
from quire.model.messages import ToolResultContent
from quire.sources.base import NotStored, SourceConversation
from quire.wire.labels import label_text

ROOT_PARENT = "00000000-0000-4000-8000-000000000000"
"""Parent of a first message."""
NAME = "claude"
_SKIPPED_BLOCKS = frozenset({"token_budget", "flag"})
"""Blocks about the account or the window, not of the conversation."""


class ClaudeSource(ExportSource):
    name = NAME
    title = "Claude.ai export"
    not_stored: tuple[NotStored, ...] = ("tokens", "cost")
    pattern = re.compile(r"conversations[^/\\]{0,40}\.json")

    def read_conversation(self, raw: dict[str, Any], files: ExportFiles) -> SourceConversation:
        id_ = read_id(raw.get("uuid"))
        if id_ is None or not isinstance(raw.get("chat_messages"), list):
            raise ValueError("it has no uuid or no chat_messages")
        raw_messages = filter_objects(raw["chat_messages"])
        attachments = AttachmentReader(files)
        # In an export without parents, each message follows the one before it.
        is_tree = any(each.get("parent_message_uuid") for each in raw_messages)
        nodes: list[MessageNode] = []
        for index, each in enumerate(raw_messages):
            node_id = read_id(each.get("uuid")) or f"message:{index}"
            previous = nodes[-1].id if nodes else None
            parent = read_id(each.get("parent_message_uuid")) if is_tree else previous
            dropped: list[str] = []
            messages = tuple(_read_messages(node_id, each, attachments, dropped))
            is_reply = each.get("sender") == "assistant"
            node = MessageNode(
                node_id,
                None if parent == ROOT_PARENT else parent,
                mark_missing(messages, role="assistant" if is_reply else "user", dropped=dropped),
                at=parse_time(each.get("created_at")),
                usage=read_usage({}, model=each.get("model") or raw.get("model")) if is_reply else None,
                dropped=tuple(dropped),
            )
            nodes.append(node)
        leaf = read_id(raw.get("current_leaf_message_uuid")) or (nodes[-1].id if nodes else None)
        project = get_text(get_object(raw, "project"), "name") or get_text(raw, "project_uuid")
        return SourceConversation(
            id=id_,
            messages=order_nodes(nodes, leaf=leaf),
            title=read_title(raw.get("name")),
            origin=ConversationOrigin(client=NAME, session=id_, project=project),
            created_at=parse_time(raw.get("created_at")),
            dropped=("summary",) if raw.get("summary") else (),
        )


def _read_messages(
    id_: str, raw: dict[str, Any], attachments: AttachmentReader, dropped: list[str]
) -> Iterator[Message]:
    blocks = filter_objects(raw.get("content"))
    text = get_text(raw, "text")
    if not any(block.get("type") != "text" or block.get("text") for block in blocks) and text:
        blocks = [{"type": "text", "text": text}]
    if raw.get("sender") == "assistant":
        turn = ToolTurn(id_)
        for block in blocks:
            match block:
                case {"type": "text", "text": str(text)}:
                    if text:
                        turn.add(TextPart(text=text))
                case {"type": "thinking", "thinking": str(text)}:
                    turn.add(ThinkingPart(text=text, signature=get_text(block, "signature") or None))
                case {"type": "redacted_thinking", "data": str(data)}:
                    turn.add(ThinkingPart(redacted=data))
                case {"type": "tool_use", "name": str(name)}:
                    turn.call(name, block.get("input"), call_id=read_id(block.get("id")))
                case {"type": "tool_result"}:
                    result: list[ToolResultContent] = []
                    if (whole := get_text(block, "content")) is not None:
                        result = [TextPart(text=whole)]
                    for piece in filter_objects(block.get("content")):
                        if (text := get_text(piece, "text")) is not None:
                            result.append(TextPart(text=text))
                        else:
                            title = " ".join(part for name in ("title", "url") if (part := get_text(piece, name)))
                            result.append(
                                TextPart(text=title or f"[{piece.get('type')}]", provider_fields={NAME: piece})
                            )
                    is_error = block.get("is_error") is True
                    turn.answer(result, call_id=read_id(block.get("tool_use_id")), is_error=is_error)
                case {"type": str(kind)} if kind not in _SKIPPED_BLOCKS:
                    dropped.append(f"block {kind}")
                case _:
                    pass
        turn.add(*_read_files(raw, attachments, dropped))
        yield from turn.finish()
        return
    own = [TextPart(text=piece) for block in blocks if (piece := get_text(block, "text"))]
    dropped += [f"block {block.get('type')}" for block in blocks if get_text(block, "text") is None]
    parts = (*_read_files(raw, attachments, dropped), *own)
    if parts:
        yield Message(role="user", parts=parts)


def _read_files(raw: dict[str, Any], attachments: AttachmentReader, dropped: list[str]) -> Iterator[Part]:
    """The text of attachments, and the bytes of files if they are in the export."""
    for attachment in filter_objects(raw.get("attachments")):
        name = get_text(attachment, "file_name")
        if content := get_text(attachment, "extracted_content"):
            yield TextPart(text=label_text("document", content, name=name))
        else:
            dropped.append(f"attachment {name}")
    for file in [*filter_objects(raw.get("files")), *filter_objects(raw.get("files_v2"))]:
        name = get_text(file, "file_name")
        data = attachments.read(read_id(file.get("file_uuid")) or "")
        if data is None:
            dropped.append(f"file {name}")
        else:
            yield make_media_part(data, name=name)
