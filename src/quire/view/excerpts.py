"""Excerpts of messages that are too large: head and tail, the omitted size, and the number to read the message by."""

import json
from collections.abc import Callable, Sequence
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

MIN_CLEARED_CHARS = 400
"""Tool results of up to this length stay whole when old results are cleared: a stub would save little."""
MAX_CLEARED_CALL_CHARS = 300
"""Characters of each text and of the arguments in a message whose tool results are cleared."""
MAX_STUB_ARGUMENT_CHARS = 100
"""Characters of the call's arguments in the stub of its result."""
MIN_EXCERPT_CHARS = 200
"""Length below which excerpts of many results say less than a few of the results."""
MAX_CHARS_PER_TOKEN = 100
"""A text that is longer than this for each available token certainly exceeds them."""
_MIN_MEDIA_CHARS = 500
"""Below this limit of characters, images and files are omitted."""


def excerpt_message(message: Message, max_chars: int, *, seq: int | None, summary: str | None = None) -> Message:
    """Truncates each text of a message to about `max_chars` characters.

    A text stays unchanged if it is shorter, or if the note of what was left out would make it longer.
    A `summary` of the message is between the beginning and the end of its longest text.
    """
    texts = [part for part in message.parts if isinstance(part, TextPart)] if summary is not None else []
    longest = max(texts, key=lambda part: len(part.text), default=None)
    parts = [
        excerpt
        for part in message.parts
        if (excerpt := _excerpt_part(part, max_chars, seq, summary if part is longest else None)) is not None
    ]
    if tuple(parts) == message.parts:
        return message
    return Message(role=message.role, parts=tuple(parts), name=message.name)


def clear_message(message: Message, *, seq: int | None, calls: Sequence[ToolCallPart]) -> Message:
    """Replaces long tool results by stubs, and shortens the message that called the tools.

    `calls` are the calls that the results may answer. Thinking is dropped, because a signature covers every byte of it.
    """
    if message.role == "tool":
        parts = [
            _clear_result(part, seq, calls) if isinstance(part, ToolResultPart) else part for part in message.parts
        ]
    elif message.tool_calls:
        without_thinking = [part for part in message.parts if not isinstance(part, ThinkingPart)]
        parts = [_excerpt_part(part, MAX_CLEARED_CALL_CHARS, seq) or part for part in without_thinking]
    else:
        return message
    return message if tuple(parts) == message.parts else message.model_copy(update={"parts": tuple(parts)})


def _clear_result(result: ToolResultPart, seq: int | None, calls: Sequence[ToolCallPart]) -> ToolResultPart:
    texts = [piece.text for piece in result.content if isinstance(piece, TextPart)]
    chars, media = sum(map(len, texts)), len(result.content) - len(texts)
    if chars <= MIN_CLEARED_CHARS and not media:
        return result
    call = next((call for call in calls if call.id == result.call_id), None)
    source = "a tool"
    if call is not None:
        arguments = " ".join(call.arguments[: 2 * MAX_STUB_ARGUMENT_CHARS].split())
        if len(arguments) > MAX_STUB_ARGUMENT_CHARS:
            arguments = f"{arguments[: MAX_STUB_ARGUMENT_CHARS - 1]}…"
        source = f"{call.name}({arguments})"
    size = f"{chars:,} characters" + (f" and {media} files" if media else "")
    reference = f"; read #{seq}" if seq is not None else ""
    stub = TextPart(text=f"[cleared: {source} returned {size}{reference}]")
    return result.model_copy(update={"content": (stub,)})


def find_largest_limit(count_tokens: Callable[[int], int], *, max_chars: int, max_tokens: int) -> int | None:
    """Largest limit up to `max_chars` whose tokens fit into `max_tokens`, or None if even 0 does not fit.

    By bisection, after the limit was doubled until it does not fit: no text is counted that is much longer than the
    result.
    """
    if count_tokens(0) > max_tokens:
        return None
    low, high = 0, min(max_chars, max_tokens * MAX_CHARS_PER_TOKEN)
    limit = max(1, max_tokens)
    while limit < high:
        if count_tokens(limit) > max_tokens:
            high = limit - 1
        else:
            low, limit = limit, 2 * limit
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(middle) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return low


def measure_longest_text(message: Message) -> int:
    texts: list[str] = []
    for part in message.parts:
        match part:
            case TextPart(text=text) | ThinkingPart(text=text):
                texts.append(text)
            case ToolCallPart(arguments=arguments):
                texts.append(arguments)
            case ToolResultPart(content=content):
                texts += [piece.text for piece in content if isinstance(piece, TextPart)]
            case ImagePart() | FilePart():
                pass
    return max(map(len, texts), default=0)


def _excerpt_part(part: Part, max_chars: int, seq: int | None, summary: str | None = None) -> Part | None:
    match part:
        case TextPart(text=text):
            return part if len(text) <= max_chars else TextPart(text=_truncate_middle(text, max_chars, seq, summary))
        case ThinkingPart(text=text):
            # A signature covers every byte, so thinking is never truncated: it is included whole or dropped.
            return part if len(text) <= max_chars else None
        case ToolCallPart(id=id_, name=name, arguments=arguments):
            if len(arguments) <= max_chars:
                return part
            shorter = json.dumps({"excerpt": _truncate_middle(arguments, max_chars, seq)}, ensure_ascii=False)
            return ToolCallPart(id=id_, name=name, arguments=shorter) if len(shorter) < len(arguments) else part
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


def _truncate_middle(text: str, max_chars: int, seq: int | None, summary: str | None = None) -> str:
    verbatim_chars = max(0, max_chars - len(summary or ""))
    head, tail = verbatim_chars - verbatim_chars // 3, verbatim_chars // 3
    ending = text[len(text) - tail :] if tail else ""
    note = _omission_note(f"{len(text) - head - tail} of {len(text)} characters left out", seq, summary)
    excerpt = f"{text[:head]}{note}{ending}"
    return excerpt if len(excerpt) < len(text) or summary else text


def _omission_note(omitted: str, seq: int | None, summary: str | None = None) -> str:
    in_summary = f"; in summary: {summary}" if summary else ""
    return f"[… {omitted}{f'; read #{seq}' if seq is not None else ''}{in_summary} …]"
