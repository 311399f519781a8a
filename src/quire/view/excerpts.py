"""Excerpts of messages that are too large: head and tail, the omitted size, and the number to read the message by."""

import json
from collections.abc import Callable
from typing import Any

from quire.model import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)


def excerpt_message(message: Message, max_chars: int, *, seq: int | None) -> Message:
    """Truncates each text of a message to about `max_chars` characters; shorter texts stay unchanged."""
    parts = [excerpt for part in message.parts if (excerpt := _excerpt_part(part, max_chars, seq)) is not None]
    if tuple(parts) == message.parts:
        return message
    return Message(role=message.role, parts=tuple(parts), name=message.name)


def find_largest_limit(count_tokens: Callable[[int], int], *, max_chars: int, max_tokens: int) -> int | None:
    """Largest limit up to `max_chars` whose tokens fit into `max_tokens`, by bisection; None if even 0 does not fit."""
    if count_tokens(0) > max_tokens:
        return None
    low, high = 0, max_chars
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(middle) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return low


def measure_longest_text(message: Message) -> int:
    return max((len(text) for part in message.parts for text in _part_texts(part)), default=0)


def _part_texts(part: Part) -> list[str]:
    match part:
        case TextPart(text=text) | ThinkingPart(text=text):
            return [text]
        case ToolCallPart(arguments=arguments):
            return [arguments]
        case ToolResultPart(content=content):
            return [piece.text for piece in content if isinstance(piece, TextPart)]
        case ImagePart() | FilePart():
            return []


def _excerpt_part(part: Part, max_chars: int, seq: int | None) -> Part | None:
    match part:
        case TextPart(text=text):
            return part if len(text) <= max_chars else TextPart(text=_truncate_middle(text, max_chars, seq))
        case ThinkingPart(text=text):
            # A signature covers every byte, so thinking is never truncated: it is included whole or dropped.
            return part if len(text) <= max_chars else None
        case ToolCallPart(id=id_, name=name, arguments=arguments):
            if len(arguments) <= max_chars:
                return part
            shorter = json.dumps({"excerpt": _truncate_middle(arguments, max_chars, seq)}, ensure_ascii=False)
            return ToolCallPart(id=id_, name=name, arguments=shorter)
        case ToolResultPart(call_id=call_id, content=content, is_error=is_error):
            pieces: list[Any] = [_excerpt_part(piece, max_chars, seq) for piece in content]
            if tuple(pieces) == content:
                return part
            return ToolResultPart(call_id=call_id, content=tuple(pieces), is_error=is_error)
        case ImagePart() | FilePart():
            media_kind = "image" if isinstance(part, ImagePart) else "file"
            return (
                part if max_chars >= _MIN_MEDIA_CHARS else TextPart(text=_omission_note(f"{media_kind} left out", seq))
            )


_MIN_MEDIA_CHARS = 500
"""Below this limit of characters, images and files are omitted."""


def _truncate_middle(text: str, max_chars: int, seq: int | None) -> str:
    head, tail = max_chars - max_chars // 3, max_chars // 3
    ending = text[len(text) - tail :] if tail else ""
    return (
        f"{text[:head]}{_omission_note(f'{len(text) - head - tail} of {len(text)} characters left out', seq)}{ending}"
    )


def _omission_note(omitted: str, seq: int | None) -> str:
    return f"[… {omitted}{f'; read #{seq}' if seq is not None else ''} …]"
