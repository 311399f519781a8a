"""Anthropic's messages, of requests and of responses, as Quire's.

A user's message that begins with results becomes a tool's message and a user's. What Quire has no part for is kept as
a text part that names it, with the block itself among its fields, so that it goes back as it came.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from quire.errors import InvalidEntry
from quire.model import FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.parts import ResultPart
from quire.view.shapes.base import Provider, Reply
from quire.view.shapes.fields import compact, is_object, objects, plain, text_in, unknown_fields
from quire.view.shapes.media import PDF, data_url

NAME: Provider = "anthropic"

_ENVELOPE = ("type", "role", "content", "usage", "model", "stop_reason")
_COUNTED = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def reply(response: object) -> Reply:
    """`usage.input_tokens` is the whole prompt: Anthropic reports cached tokens apart, and here they are added."""
    body = plain(response)
    if not is_object(body) or not isinstance(body.get("content"), list):
        raise InvalidEntry("The response has no content, so there is no reply in it; look at the provider's error.")
    return Reply(
        Message(role="assistant", parts=tuple(_parts(body["content"]))), _usage(body), text_in(body, "stop_reason")
    )


def messages(given: Sequence[object], *, system: object = None) -> list[Message]:
    first = [Message(role="system", parts=tuple(_shown(block) for block in _blocks(plain(system))))] if system else []
    return [*first, *(found for place, raw in enumerate(given) for found in _messages(place, plain(raw)))]


def _messages(place: int, raw: Any) -> Iterator[Message]:
    role = raw.get("role") if is_object(raw) else None
    if role == "assistant":
        yield Message(role="assistant", parts=tuple(_parts(raw.get("content"))))
    elif role == "user":
        for is_result, blocks in groupby(_blocks(raw.get("content")), lambda block: block.get("type") == "tool_result"):
            parts = tuple(_part(block) for block in blocks)
            yield Message(role="tool" if is_result else "user", parts=parts)
    else:
        raise InvalidEntry(f"Message {place} has the role {role!r}; use user or assistant.")


def _blocks(content: object) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def _parts(content: object) -> list[Part]:
    return [_part(block) for block in _blocks(content)]


def _part(block: dict[str, Any]) -> Part:
    match block:
        case {"type": "thinking", "thinking": str(text)}:
            kept = unknown_fields(block, ("type", "thinking", "signature"), NAME)
            return ThinkingPart(text=text, signature=text_in(block, "signature"), provider=kept)
        case {"type": "redacted_thinking", "data": str(data)}:
            return ThinkingPart(redacted=data, provider=unknown_fields(block, ("type", "data"), NAME))
        case {"type": "tool_use", "id": str(id_), "name": str(name)}:
            kept = unknown_fields(block, ("type", "id", "name", "input"), NAME)
            return ToolCallPart(id=id_, name=name, arguments=compact(block.get("input") or {}), provider=kept)
        case {"type": "tool_result", "tool_use_id": str(id_)}:
            kept = unknown_fields(block, ("type", "tool_use_id", "content", "is_error"), NAME)
            content = tuple(_shown(inner) for inner in _blocks(block.get("content")))
            return ToolResultPart(call_id=id_, content=content, is_error=block.get("is_error") is True, provider=kept)
        case _:
            return _shown(block)


def _shown(block: dict[str, Any]) -> ResultPart:
    """A text, a picture or a file, if Quire's parts can hold all that is said of it."""
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text, provider=unknown_fields(block, ("type", "text"), NAME))
        case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            kept = unknown_fields(block, ("type", "source"), NAME)
            return ImagePart(url=data_url(kind, data), media_type=kind, provider=kept)
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return ImagePart(url=url, provider=unknown_fields(block, ("type", "source"), NAME))
        case {"type": "document", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            kept = unknown_fields(block, ("type", "source", "title"), NAME)
            return FilePart(url=data_url(kind, data), media_type=kind, name=text_in(block, "title"), provider=kept)
        case {"type": "document", "source": {"type": "url", "url": str(url)}}:
            kept = unknown_fields(block, ("type", "source", "title"), NAME)
            return FilePart(url=url, media_type=PDF, name=text_in(block, "title"), provider=kept)
        case _:
            return TextPart(text=f"[{block.get('type')}]", provider={NAME: block})


def _usage(body: dict[str, Any]) -> Usage | None:
    usage = body.get("usage")
    if not is_object(usage):
        return None
    fresh, output, read, written = (usage.get(field) or 0 for field in _COUNTED)
    about = {key: value for key, value in body.items() if key not in _ENVELOPE and value is not None}
    return Usage(
        model=text_in(body, "model"),
        input_tokens=fresh + read + written,
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=written,
        provider={**{key: value for key, value in usage.items() if key not in _COUNTED}, "response": about},
    )
