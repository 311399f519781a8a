"""Parses messages of Anthropic's format that other programs store, with their own variants of it."""

from typing import Any

from quire.model import Message
from quire.model.json_values import dump_json, filter_objects, get_text
from quire.wire.messages.parse import parse_messages


def parse_content(role: object, content: object) -> list[Message]:
    """The messages of one stored message. Each tool result is a separate message.

    Raises `InvalidEntry` for an unknown role.
    """
    blocks = content if isinstance(content, str) else [_normalize(block) for block in filter_objects(content)]
    parsed = parse_messages([{"role": role, "content": blocks}], split_results=True)
    return [message for message in parsed if message.parts]


def _normalize(block: dict[str, Any]) -> dict[str, Any]:
    """The block with what Cline writes into a result, `{query, result, success}`, as blocks of text."""
    if block.get("type") != "tool_result" or not isinstance(block.get("content"), list):
        return block
    pieces = [
        piece if "type" in piece else {"type": "text", "text": get_text(piece, "result") or dump_json(piece)}
        for piece in filter_objects(block["content"])
    ]
    return {**block, "content": pieces}
