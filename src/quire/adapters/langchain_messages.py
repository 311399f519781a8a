"""Messages of LangChain as Quire's messages, and back."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from quire.errors import InvalidRequest
from quire.model import FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.json_values import dump_json, get_object, parse_object
from quire.model.messages import ToolResultContent
from quire.proxy.framework_requests import ConvertedMessage
from quire.wire import BlobLoader, Reply
from quire.wire.media import build_data_url, describe_media, resolve_url, split_data_url

_CALL_TYPES = ("tool_call", "tool_call_chunk", "invalid_tool_call")
_ROLES = {"human": "user", "ai": "assistant", "system": "system"}


def convert_message(source: BaseMessage) -> ConvertedMessage:
    """Converts one message. Equal messages give equal ones, whatever their ids and metadata."""
    message, dropped = _parse_message(source)
    return ConvertedMessage(message, dropped)


def parse_message(source: BaseMessage) -> Message:
    return _parse_message(source)[0]


def _parse_message(source: BaseMessage) -> tuple[Message, tuple[str, ...]]:
    content = [_parse_block(cast("dict[str, Any]", block)) for block in source.content_blocks]
    parts = [part for part, _ in content if part is not None]
    dropped = tuple(f"messages[{name}]" for _, name in content if name is not None)
    if isinstance(source, ToolMessage):
        pieces = tuple(part for part in parts if isinstance(part, TextPart | ImagePart | FilePart))
        result = ToolResultPart(call_id=source.tool_call_id, content=pieces, is_error=source.status == "error")
        return Message(role="tool", parts=(result,)), dropped
    if source.type not in _ROLES:
        raise InvalidRequest(f"A message of LangChain's type {source.type!r} has no place in a request.")
    calls = _parse_calls(source) if isinstance(source, AIMessage) else ()
    role = cast("Any", _ROLES[source.type])
    return Message(role=role, parts=(*parts, *calls), name=source.name), dropped


def parse_reply(source: AIMessage) -> Reply:
    return Reply(parse_message(source), _parse_usage(source), source.response_metadata.get("finish_reason"))


def to_langchain(messages: Sequence[Message], *, load_blob: BlobLoader | None) -> Iterator[list[BaseMessage]]:
    """Yields the messages of LangChain for each of Quire's messages."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    for message in messages:
        match message.role:
            case "user":
                content = _render_content(
                    [part for part in message.parts if isinstance(part, TextPart | ImagePart | FilePart)], load_blob
                )
                yield [HumanMessage(cast("Any", content), name=message.name)]
            case "system":
                yield [SystemMessage(message.text)]
            case "assistant":
                calls: list[Any] = [
                    {"name": call.name, "args": parse_object(call.arguments) or {}, "id": call.id, "type": "tool_call"}
                    for call in message.tool_calls
                ]
                yield [AIMessage(message.text, tool_calls=calls)]
            case "tool":
                yield [
                    ToolMessage(
                        cast("Any", _render_content(result.content, load_blob)),
                        tool_call_id=result.call_id,
                        name=names.get(result.call_id),
                        status="error" if result.is_error else "success",
                    )
                    for result in message.tool_results
                ]


def _parse_block(block: dict[str, Any]) -> tuple[Part | None, str | None]:
    """The part of a content block, or None for a call; and the block's type if only that is in the part."""
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text), "annotations" if block.get("annotations") else None
        case {"type": "reasoning"}:
            signature = get_object(block, "extras").get("signature")
            return ThinkingPart(text=str(block.get("reasoning") or ""), signature=signature), None
        case {"type": "image" | "file" as kind}:
            url = _find_url(block)
            media = ImagePart if kind == "image" else FilePart
            if url is not None:
                return media(url=url, media_type=block.get("mime_type")), None
            return TextPart(text=f"[{kind}]"), kind
        case _:
            kind = str(block.get("type"))
            return (None, None) if kind in _CALL_TYPES else (TextPart(text=f"[{kind}]"), kind)


def _find_url(block: dict[str, Any]) -> str | None:
    data, url = block.get("base64"), block.get("url")
    if isinstance(data, str):
        return build_data_url(str(block.get("mime_type") or "application/octet-stream"), data)
    return url if isinstance(url, str) else None


def _parse_calls(source: AIMessage) -> Iterator[ToolCallPart]:
    for call in source.tool_calls:
        yield ToolCallPart(id=call["id"] or "", name=call["name"], arguments=dump_json(call["args"]))
    for call in source.invalid_tool_calls:
        yield ToolCallPart(id=call["id"] or "", name=call["name"] or "", arguments=call["args"] or "")


def _parse_usage(source: AIMessage) -> Usage | None:
    usage = source.usage_metadata
    if usage is None:
        return None
    details = usage.get("input_token_details") or {}
    model = source.response_metadata.get("model_name")
    return Usage(
        model=model if isinstance(model, str) else None,
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        cache_read_tokens=details.get("cache_read") or 0,
        cache_write_tokens=details.get("cache_creation") or 0,
    )


def _render_content(parts: Iterable[ToolResultContent], load_blob: BlobLoader | None) -> str | list[dict[str, Any]]:
    blocks = [_render_block(part, load_blob) for part in parts]
    if all(block["type"] == "text" for block in blocks):
        return "".join(block["text"] for block in blocks)
    return blocks


def _render_block(part: ToolResultContent, load_blob: BlobLoader | None) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    url = resolve_url(part, load_blob, media_type=part.media_type or "application/octet-stream")
    if url is None:
        return {"type": "text", "text": describe_media(part)}
    data = split_data_url(url)
    return {"type": part.type, **({"base64": data[1], "mime_type": data[0]} if data is not None else {"url": url})}
