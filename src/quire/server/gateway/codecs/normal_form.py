"""The form of a message by which the gateway recognises a conversation.

Clients send a reply back changed: without its thinking, with reformatted call arguments, with texts trimmed, split or
moved before the calls, without the fields of a provider. The normal form has none of that, so that the same
conversation always has the same path (hash chain over its messages), whatever format it arrives in.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, TypeGuard

from quire.model import FilePart, ImagePart, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.model.messages import Part, ToolResultContent
from quire.view.wire_formats.fields import dump_json
from quire.view.wire_formats.openai_chat import PROVIDER as CHAT_PROVIDER
from quire.view.wire_formats.openai_responses_parse import PROVIDER as RESPONSES_PROVIDER
from quire.view.wire_formats.openai_responses_parse import TEXT_TYPES

_CONTENT_SUBSTITUTES = ("refusal", "audio", "function_call")
"""Fields of an assistant message in chat completions that replace its content."""


def normalize_message(message: Message) -> Message:
    """Returns the message without what clients drop or reformat when they send it back."""
    if message.role == "assistant":
        return _normalize_reply(message)
    parts = tuple(_normalize_part(part) for part in message.parts if not _is_empty(part))
    return Message(role=message.role, parts=parts, name=message.name)


def extend_path(path: bytes, messages: Sequence[Message]) -> bytes:
    """Computes the path after `messages` that follow `path`."""
    for message in messages:
        path = sha256(path + message.canonical_json().encode()).digest()
    return path


def _normalize_reply(message: Message) -> Message:
    """One text, then all other parts in order."""
    text = "".join(part.text for part in message.parts if _is_own_text(part)).strip()
    others = tuple(
        _normalize_part(part)
        for part in message.parts
        if not _is_own_text(part) and not isinstance(part, ThinkingPart) and not _is_empty(part)
    )
    substitutes = get_content_substitutes(message)
    return Message(
        role="assistant",
        parts=((TextPart(text=text), *others) if text else others),
        provider_fields={CHAT_PROVIDER: substitutes} if substitutes else None,
    )


def get_content_substitutes(message: Message) -> dict[str, Any]:
    """Fields of a reply in chat completions that replace its content."""
    fields = message.provider_fields.get(CHAT_PROVIDER) if message.provider_fields is not None else None
    return {name: fields[name] for name in _CONTENT_SUBSTITUTES if name in fields} if isinstance(fields, dict) else {}


def _is_own_text(part: Part) -> TypeGuard[TextPart]:
    return isinstance(part, TextPart) and get_placeholder_type(part) is None


def get_placeholder_type(part: TextPart) -> str | None:
    """The type of content that Quire has no part for, if the text only names it; it is in the provider's fields."""
    for provider, fields in (part.provider_fields or {}).items():
        if not isinstance(fields, dict):
            continue
        content, text_types = fields.get("content"), TEXT_TYPES if provider == RESPONSES_PROVIDER else ("text",)
        kind = content.get("type") if isinstance(content, dict) else fields.get("type")
        if isinstance(kind, str) and kind not in text_types:
            return kind
    return None


def _is_empty(part: Part) -> bool:
    return isinstance(part, TextPart) and not part.text.strip()


def _normalize_part(part: Part) -> Part:
    match part:
        case ToolCallPart():
            return ToolCallPart(id=part.id, name=part.name, arguments=_normalize_arguments(part.arguments))
        case ToolResultPart():
            content = tuple(_normalize_content(piece) for piece in part.content if not _is_empty(piece))
            return ToolResultPart(call_id=part.call_id, content=content, is_error=part.is_error)
        case TextPart() | ImagePart() | FilePart():
            return _normalize_content(part)
        case ThinkingPart():
            return part


def _normalize_content(part: ToolResultContent) -> ToolResultContent:
    match part:
        case TextPart():
            return part if get_placeholder_type(part) is not None else TextPart(text=part.text)
        case ImagePart() | FilePart():
            return part.model_copy(update={"provider_fields": None})


def _normalize_arguments(arguments: str) -> str:
    try:
        return dump_json(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments
