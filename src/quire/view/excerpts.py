"""Excerpts: of a message too large for any request its head, its tail, its size, and a number to read it by."""

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


def excerpt(message: Message, limit: int, *, number: int | None) -> Message:
    """The message with each of its texts shortened to about `limit` characters. What is short enough stays as it is."""
    parts = [shortened for part in message.parts if (shortened := _part(part, limit, number)) is not None]
    if tuple(parts) == message.parts:
        return message
    return Message(role=message.role, parts=tuple(parts), name=message.name)


def largest_that_fits(message_tokens: Callable[[int], int], *, longest: int, room: int) -> int | None:
    """The largest limit, up to `longest` characters, whose tokens fit into `room`; None if not even 0 does."""
    if message_tokens(0) > room:
        return None
    low, high = 0, longest
    while low < high:
        middle = (low + high + 1) // 2
        if message_tokens(middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def longest_text(message: Message) -> int:
    return max((len(text) for part in message.parts for text in _texts(part)), default=0)


def _texts(part: Part) -> list[str]:
    match part:
        case TextPart(text=text) | ThinkingPart(text=text):
            return [text]
        case ToolCallPart(arguments=arguments):
            return [arguments]
        case ToolResultPart(content=content):
            return [piece.text for piece in content if isinstance(piece, TextPart)]
        case ImagePart() | FilePart():
            return []


def _part(part: Part, limit: int, number: int | None) -> Part | None:
    match part:
        case TextPart(text=text):
            return part if len(text) <= limit else TextPart(text=_shorten(text, limit, number))
        case ThinkingPart(text=text):
            # A signature covers every byte, so a thought is kept whole or not at all.
            return part if len(text) <= limit else None
        case ToolCallPart(id=id_, name=name, arguments=arguments):
            if len(arguments) <= limit:
                return part
            shorter = json.dumps({"excerpt": _shorten(arguments, limit, number)}, ensure_ascii=False)
            return ToolCallPart(id=id_, name=name, arguments=shorter)
        case ToolResultPart(call_id=call_id, content=content, is_error=is_error):
            pieces: list[Any] = [_part(piece, limit, number) for piece in content]
            if tuple(pieces) == content:
                return part
            return ToolResultPart(call_id=call_id, content=tuple(pieces), is_error=is_error)
        case ImagePart() | FilePart():
            what = "image" if isinstance(part, ImagePart) else "file"
            return part if limit >= _PICTURES else TextPart(text=_note(f"{what} left out", number))


_PICTURES = 500
"""Where there is room for fewer characters than this, there is none for pictures."""


def _shorten(text: str, limit: int, number: int | None) -> str:
    head, tail = limit - limit // 3, limit // 3
    ending = text[len(text) - tail :] if tail else ""
    return f"{text[:head]}{_note(f'{len(text) - head - tail} of {len(text)} characters left out', number)}{ending}"


def _note(what: str, number: int | None) -> str:
    return f"[… {what}{f'; read #{number}' if number is not None else ''} …]"
