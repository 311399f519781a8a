"""Anthropic's Messages wire format: renders content blocks and tools, and counts their tokens.

`anthropic_messages_check` checks payloads, `anthropic_messages_parse` parses them. Thinking passes through unchanged.
Tokens are charged by block and never by message, so that merging adjacent messages of one role does not change the sum.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from quire.model import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultPart,
)
from quire.model.messages import ToolResultContent
from quire.view.labels import label_text
from quire.view.tokens import TokenCounter
from quire.view.wire_formats import anthropic_messages_check, anthropic_messages_parse
from quire.view.wire_formats.base import BlobLoader, Provider, Reply, WireMessage
from quire.view.wire_formats.fields import (
    build_parameters_schema,
    count_other_fields,
    dump_json,
    get_provider_fields,
    merge_fields,
    parse_object,
    render_text_part,
    to_safe_name,
)
from quire.view.wire_formats.media import (
    PDF_MEDIA_TYPE,
    count_file,
    count_image,
    describe_media,
    resolve_url,
    split_data_url,
)

PROVIDER: Provider = "anthropic"

DEFAULT_MAX_TOKENS = 4_096
"""Reply tokens. The API requires a limit, and every Claude model accepts this one."""
EMPTY_TEXT = "[empty]"
"""Placeholder: the API rejects empty and blank texts, and thinking as the last block."""
OPENER_TEXT = "[conversation continues]"
"""User message before a leading assistant message, which the API rejects. A plain string, unlike the content of any
rendered message, so that a recount can recognize it; its tokens are always charged, as part of the overhead."""

# At or above what Anthropic's token counting API reports, so that a sum errs upward.
TOKENS_PER_REQUEST = 4
OPENER_TOKENS = 12
TOKENS_PER_BLOCK = 4
TOKENS_PER_CALL = 12
TOKENS_PER_RESULT = 12
TOKENS_PER_TOOL = 12
TOOL_LIST_TOKENS = 346
"""Instructions that Anthropic adds if the request has any tool."""
SIGNATURE_CHARS_PER_TOKEN = 5
"""Characters of a signature, or of redacted thinking, for each token of the thinking encrypted in it."""

IMAGE_MEDIA_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


@dataclass(slots=True)
class AnthropicMessagesFormat:
    """Implements `WireFormat`. `model` matters only for the token cost of images."""

    model: str = ""
    name: Provider = PROVIDER
    request_overhead: int = TOKENS_PER_REQUEST + OPENER_TOKENS
    text_overhead: int = TOKENS_PER_BLOCK

    def render_message(self, message: Message, *, load_blob: BlobLoader | None = None) -> list[WireMessage]:
        """An empty message gets one `[empty]` block; a tool message without results is dropped."""
        blocks = [block for part in message.parts if (block := _render_part(message, part, load_blob)) is not None]
        if message.role == "tool" and not blocks:
            return []
        if not blocks or blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            blocks.append({"type": "text", "text": EMPTY_TEXT})
        return [{"role": "assistant" if message.role == "assistant" else "user", "content": blocks}]

    def render_tool(self, definition: ToolDefinition) -> WireMessage:
        tool: WireMessage = {"name": to_safe_name(definition.name)}
        if definition.description:
            tool["description"] = definition.description
        return {**tool, "input_schema": build_parameters_schema(definition)}

    def count_messages(self, messages: Sequence[WireMessage], counter: TokenCounter) -> int:
        return sum(
            _count_block(block, counter, self.model) for message in messages for block in _content_blocks(message)
        )

    def count_tools(self, tools: Sequence[WireMessage], counter: TokenCounter) -> int:
        return TOOL_LIST_TOKENS + sum(_count_tool(tool, counter) for tool in tools) if tools else 0

    def count_system(self, text: str | None, counter: TokenCounter) -> int:
        return TOKENS_PER_BLOCK + counter.count(text) if text and text.strip() else 0

    def build_payload(
        self,
        *,
        model: str,
        system: str | None,
        tools: Sequence[WireMessage],
        messages: Sequence[WireMessage],
        max_tokens: int | None,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model.removeprefix("anthropic:"),
            "max_tokens": DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
        }
        if system and system.strip():
            body["system"] = system
        if tools:
            body["tools"] = list(tools)
        return {**body, "messages": _merge_messages(messages)}

    def check(self, payload: Mapping[str, Any]) -> list[str]:
        return anthropic_messages_check.find_problems(payload)

    def parse_reply(self, response: object) -> Reply:
        return anthropic_messages_parse.parse_reply(response)

    def parse_messages(self, messages: Sequence[object], *, system: object = None) -> list[Message]:
        return anthropic_messages_parse.parse_messages(messages, system=system)


def _content_blocks(wire_message: WireMessage) -> list[WireMessage]:
    content: str | list[WireMessage] = wire_message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _merge_messages(wire_messages: Sequence[WireMessage]) -> list[WireMessage]:
    """Merges adjacent messages of one role; the first must be the user's. Copies the lists, since inputs are cached."""
    messages: list[WireMessage] = []
    if wire_messages and wire_messages[0]["role"] == "assistant":
        messages.append({"role": "user", "content": OPENER_TEXT})
    for message in wire_messages:
        if messages and messages[-1]["role"] == message["role"]:
            messages[-1]["content"].extend(message["content"])
        else:
            messages.append({"role": message["role"], "content": [*message["content"]]})
    return messages


def _render_part(message: Message, part: Part, load_blob: BlobLoader | None) -> WireMessage | None:
    """Renders a part as a block; None if its role cannot carry it or the API would reject it."""
    match message.role:
        case "system":
            return _render_system(part) if isinstance(part, TextPart) else None
        case "user":
            return _render_content(part, load_blob) if isinstance(part, TextPart | ImagePart | FilePart) else None
        case "assistant":
            return _render_assistant_part(part)
        case "tool":
            return _render_result(part, load_blob) if isinstance(part, ToolResultPart) else None
    assert_never(message.role)


def _render_system(part: TextPart) -> WireMessage | None:
    """Renders a system message as a labelled user text: the API has no system role within a conversation."""
    return {"type": "text", "text": label_text("system", part.text)} if part.text.strip() else None


def _render_content(part: ToolResultContent, load_blob: BlobLoader | None) -> WireMessage | None:
    match part:
        case TextPart():
            return _render_text(part)
        case ImagePart():
            return _render_image(part, load_blob)
        case FilePart():
            return _render_file(part, load_blob)
    assert_never(part)


def _render_assistant_part(part: Part) -> WireMessage | None:
    match part:
        case TextPart():
            return _render_text(part)
        case ThinkingPart():
            return _render_thinking(part)
        case ToolCallPart():
            call = {
                "type": "tool_use",
                "id": to_safe_name(part.id),
                "name": to_safe_name(part.name),
                "input": _parse_input(part),
            }
            return merge_fields(call, get_provider_fields(part.provider_fields, PROVIDER))
        case _:
            return None


def _render_text(part: TextPart) -> WireMessage | None:
    block = render_text_part(part, PROVIDER)
    return None if block["type"] == "text" and not part.text.strip() else block


def _render_thinking(part: ThinkingPart) -> WireMessage | None:
    """Renders thinking unchanged. Without a signature it is from another provider, and the API rejects it."""
    if part.redacted:
        block = {"type": "redacted_thinking", "data": part.redacted}
    elif part.signature:
        block = {"type": "thinking", "thinking": part.text, "signature": part.signature}
    else:
        return None
    return merge_fields(block, get_provider_fields(part.provider_fields, PROVIDER))


def _parse_input(part: ToolCallPart) -> WireMessage:
    """Arguments of a call as an object; as raw text if they are not an object or not valid UTF-8 JSON."""
    value = parse_object(part.arguments)
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        value = None
    return {"_raw": part.arguments} if value is None else value


def _render_image(part: ImagePart, load_blob: BlobLoader | None) -> WireMessage:
    url = resolve_url(part, load_blob, media_type="image/png")
    split = split_data_url(url) if url else None
    if split is not None and split[0] in IMAGE_MEDIA_TYPES:
        source = {"type": "base64", "media_type": split[0], "data": split[1]}
    elif url is not None and url.startswith("https://"):
        source = {"type": "url", "url": url}
    else:
        return {"type": "text", "text": describe_media(part)}
    return merge_fields({"type": "image", "source": source}, get_provider_fields(part.provider_fields, PROVIDER))


def _render_file(part: FilePart, load_blob: BlobLoader | None) -> WireMessage:
    url = resolve_url(part, load_blob, media_type=PDF_MEDIA_TYPE)
    split = split_data_url(url) if url else None
    if split is not None and split[0] == PDF_MEDIA_TYPE:
        source = {"type": "base64", "media_type": PDF_MEDIA_TYPE, "data": split[1]}
    elif url is not None and url.startswith("https://") and _is_pdf(part, url):
        source = {"type": "url", "url": url}
    else:
        return {"type": "text", "text": describe_media(part)}
    title = {"title": part.name} if part.name else {}
    return merge_fields(
        {"type": "document", "source": source, **title}, get_provider_fields(part.provider_fields, PROVIDER)
    )


def _is_pdf(part: FilePart, url: str) -> bool:
    return part.media_type == PDF_MEDIA_TYPE or (
        part.media_type is None and url.partition("?")[0].lower().endswith(".pdf")
    )


def _render_result(part: ToolResultPart, load_blob: BlobLoader | None) -> WireMessage:
    """Renders a tool result. The API accepts errors only as text, and not empty."""
    blocks = [_render_error(piece) if part.is_error else _render_content(piece, load_blob) for piece in part.content]
    content = [block for block in blocks if block is not None] or [{"type": "text", "text": EMPTY_TEXT}]
    result: WireMessage = {"type": "tool_result", "tool_use_id": to_safe_name(part.call_id), "content": content}
    fields = get_provider_fields(part.provider_fields, PROVIDER)
    fields.pop("is_error", None)
    return merge_fields({**result, "is_error": True} if part.is_error else result, fields)


def _render_error(piece: ToolResultContent) -> WireMessage | None:
    text = piece.text if isinstance(piece, TextPart) else describe_media(piece)
    return {"type": "text", "text": text} if text.strip() else None


def _count_block(block: WireMessage, counter: TokenCounter, model: str) -> int:
    match block:
        case {"type": "text", "text": str(text)}:
            known, tokens = ("type", "text"), counter.count(text)
        case {"type": "thinking", "thinking": str(text), "signature": str(seal)}:
            known, tokens = (
                ("type", "thinking", "signature"),
                max(counter.count(text), 1 + len(seal) // SIGNATURE_CHARS_PER_TOKEN),
            )
        case {"type": "redacted_thinking", "data": str(seal)}:
            known, tokens = ("type", "data"), 1 + len(seal) // SIGNATURE_CHARS_PER_TOKEN
        case {"type": "tool_use", "name": str(name), "input": input_}:
            known, tokens = ("type", "id", "name", "input"), counter.count(name) + counter.count(dump_json(input_))
            tokens += TOKENS_PER_CALL
        case {"type": "tool_result", "content": list()}:
            content: list[WireMessage] = block["content"]
            known, tokens = ("type", "tool_use_id", "content", "is_error"), TOKENS_PER_RESULT
            tokens += sum(_count_block(inner, counter, model) for inner in content)
        case {"type": "image", "source": {"type": str(), **source}}:
            known, tokens = ("type", "source"), count_image(PROVIDER, data=source.get("data"), detail=None, model=model)
        case {"type": "document", "source": {"type": "base64" | "url", **source}}:
            known, tokens = ("type", "source"), count_file(source.get("data"))
        case _:
            known, tokens = (), 0
    return TOKENS_PER_BLOCK + tokens + count_other_fields(block, known, counter)


def _count_tool(tool: WireMessage, counter: TokenCounter) -> int:
    texts = (str(tool.get("name", "")), str(tool.get("description", "")), dump_json(tool.get("input_schema")))
    return (
        TOKENS_PER_TOOL
        + sum(map(counter.count, texts))
        + count_other_fields(tool, ("name", "description", "input_schema"), counter)
    )
