"""Parses Anthropic's Messages format, requests and responses, into Quire messages.

A user message that begins with tool results becomes a tool message and a user message. A system message within the
conversation has its role in its provider fields, so that it is sent back with that role. A block without a matching
Quire part becomes a text part that shows or names it, with the block in its provider fields, so that it is sent back
unchanged. Cache markers belong to the request and are dropped.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from quire.errors import InvalidEntry
from quire.model import FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import dump_json, filter_objects, get_text, is_object, to_plain_json
from quire.model.messages import ToolResultContent
from quire.wire.base import Reply
from quire.wire.fields import collect_unknown_fields, join_content_texts
from quire.wire.labels import label_text
from quire.wire.media import PDF_MEDIA_TYPE, build_data_url
from quire.wire.messages import FORMAT
from quire.wire.messages.cache_markers import drop_cache_markers

_ENVELOPE_FIELDS = ("type", "role", "content", "usage", "model", "stop_reason")
_USAGE_FIELDS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def parse_reply(response: object) -> Reply:
    """Parses a response. `usage.input_tokens` is the whole prompt: Anthropic reports cached tokens separately."""
    body = to_plain_json(response)
    if not is_object(body) or not isinstance(body.get("content"), list):
        raise InvalidEntry("The response has no content, so it contains no reply; see the provider's error.")
    message = Message(role="assistant", parts=tuple(_parse_parts(body["content"])))
    return Reply(message, parse_usage(body), get_text(body, "stop_reason"))


def parse_usage(body: dict[str, Any]) -> Usage | None:
    """The usage of a response; `input_tokens` is the whole prompt."""
    if not is_object(counts := body.get("usage")):
        return None
    uncached, output, read, written = (counts.get(field) or 0 for field in _USAGE_FIELDS)
    others = {key: value for key, value in body.items() if key not in _ENVELOPE_FIELDS and value is not None}
    return Usage(
        model=get_text(body, "model"),
        input_tokens=uncached + read + written,
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=written,
        provider_fields={
            **{key: value for key, value in counts.items() if key not in _USAGE_FIELDS},
            "response": others,
        },
    )


def parse_messages(
    raw_messages: Sequence[object], *, system: object = None, split_results: bool = False
) -> list[Message]:
    """Parses the messages of a request. With `split_results`, each tool result becomes a separate tool message."""
    messages = [_parse_system({"content": to_plain_json(system)})] if system else []
    for index, raw in enumerate(map(to_plain_json, raw_messages)):
        role = raw.get("role") if is_object(raw) else None
        if role == "assistant":
            messages.append(Message(role="assistant", parts=tuple(_parse_parts(raw.get("content")))))
        elif role == "system":
            messages.append(_parse_system(raw))
        elif role == "user":
            blocks = _content_blocks(raw.get("content"))
            for is_result, group in groupby(blocks, lambda block: block.get("type") == "tool_result"):
                parts = tuple(map(_parse_part, group))
                if is_result and split_results:
                    messages += [Message(role="tool", parts=(part,)) for part in parts]
                else:
                    messages.append(Message(role="tool" if is_result else "user", parts=parts))
        else:
            raise InvalidEntry(f"Message {index} has the role {role!r}; use user, assistant or system.")
    return messages


def _parse_system(raw: dict[str, Any]) -> Message:
    """Parses a system text, or a system message within the conversation, whose role is one of its provider fields."""
    parts = tuple(_parse_content(block) for block in _content_blocks(raw.get("content")))
    fields = collect_unknown_fields(raw, ("content", "cache_control"), FORMAT)
    return Message(role="system", parts=parts, provider_fields=fields)


def _content_blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [drop_cache_markers(block) for block in filter_objects(content)]


def _parse_parts(content: object) -> list[Part]:
    return [_parse_part(block) for block in _content_blocks(content)]


def _parse_part(block: dict[str, Any]) -> Part:
    match block:
        case {"type": "thinking", "thinking": str(text)}:
            unknown_fields = collect_unknown_fields(block, ("type", "thinking", "signature"), FORMAT)
            return ThinkingPart(text=text, signature=get_text(block, "signature"), provider_fields=unknown_fields)
        case {"type": "redacted_thinking", "data": str(data)}:
            return ThinkingPart(redacted=data, provider_fields=collect_unknown_fields(block, ("type", "data"), FORMAT))
        case {"type": "tool_use", "id": str(id_), "name": str(name)}:
            unknown_fields = collect_unknown_fields(block, ("type", "id", "name", "input"), FORMAT)
            return ToolCallPart(
                id=id_, name=name, arguments=dump_json(block.get("input") or {}), provider_fields=unknown_fields
            )
        case {"type": "tool_result", "tool_use_id": str(id_)}:
            unknown_fields = collect_unknown_fields(block, ("type", "tool_use_id", "content", "is_error"), FORMAT)
            content = tuple(_parse_content(inner) for inner in _content_blocks(block.get("content")))
            return ToolResultPart(
                call_id=id_, content=content, is_error=block.get("is_error") is True, provider_fields=unknown_fields
            )
        case _:
            return _parse_content(block)


def _parse_content(block: dict[str, Any]) -> ToolResultContent:
    """Parses a text, an image or a file, if Quire's parts can hold all its fields."""
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text, provider_fields=collect_unknown_fields(block, ("type", "text"), FORMAT))
        case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            unknown_fields = collect_unknown_fields(block, ("type", "source"), FORMAT)
            return ImagePart(url=build_data_url(kind, data), media_type=kind, provider_fields=unknown_fields)
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return ImagePart(url=url, provider_fields=collect_unknown_fields(block, ("type", "source"), FORMAT))
        case {"type": "document", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            unknown_fields = collect_unknown_fields(block, ("type", "source", "title"), FORMAT)
            return FilePart(
                url=build_data_url(kind, data),
                media_type=kind,
                name=get_text(block, "title"),
                provider_fields=unknown_fields,
            )
        case {"type": "document", "source": {"type": "url", "url": str(url)}}:
            unknown_fields = collect_unknown_fields(block, ("type", "source", "title"), FORMAT)
            return FilePart(
                url=url, media_type=PDF_MEDIA_TYPE, name=get_text(block, "title"), provider_fields=unknown_fields
            )
        case _:
            return TextPart(text=_describe_block(block), provider_fields={FORMAT: block})


def _describe_block(block: dict[str, Any]) -> str:
    """Text that other providers get in place of a block: what the model would read of it, or its type."""
    match block:
        case {"type": "compaction", "content": str(text)}:
            description = label_text("summary", text)
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            description = label_text("document", text, name=block.get("title"))
        case {"type": "document", "source": {"type": "content", "content": content}}:
            description = label_text("document", join_content_texts(content), name=block.get("title"))
        case {"type": "search_result", "content": content}:
            description = label_text(
                "document", join_content_texts(content), title=block.get("title"), link=block.get("source")
            )
        case {"type": "tool_reference", "tool_name": str(name)}:
            description = f"[tool_reference: {name}]"
        case _:
            description = f"[{block.get('type')}]"
    return description
