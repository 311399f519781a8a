"""Anthropic's Messages wire format: renders content blocks and tools, and builds requests of them.

`anthropic_messages_check` checks payloads, `anthropic_messages_parse` parses them, `anthropic_messages_count` counts
their tokens. Thinking passes through unchanged. A system message that came from this format renders with its role, and
`build_payload` changes it to labelled text of the user where the API would reject the role.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
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
from quire.model.json_values import dump_json, get_object, parse_object
from quire.model.messages import ToolResultContent
from quire.model.policy import WireFormatName
from quire.wire.base import BlobLoader, Reply, WireMessage
from quire.wire.fields import build_parameters_schema, get_provider_fields, merge_fields, render_text_part, to_safe_name
from quire.wire.labels import label_text
from quire.wire.media import PDF_MEDIA_TYPE, describe_media, resolve_url, split_data_url
from quire.wire.messages import FORMAT
from quire.wire.messages import check as anthropic_messages_check
from quire.wire.messages import parse as anthropic_messages_parse
from quire.wire.messages.check import accepts_system_message, begins_with_compaction
from quire.wire.messages.count import (
    OPENER_TOKENS,
    TOKENS_PER_BLOCK,
    TOKENS_PER_REQUEST,
    TOOL_LIST_TOKENS,
    count_block,
    count_tool,
)
from quire.wire.tokens import TokenCounter

SIGNER = "anthropic"
"""Name of the provider whose signatures this format carries."""

DEFAULT_MAX_TOKENS = 4_096
"""Reply tokens. The API requires a limit, and every Claude model accepts this one."""
UNSIGNED_SIGNATURE = "quire-unsigned"
"""Signature of thinking that Quire sends to a client of the Messages API for a model that signs none."""
EMPTY_TEXT = "[empty]"
"""Placeholder: the API rejects empty and blank texts, and thinking as the last block."""
OPENER_TEXT = "[conversation continues]"
"""User message before a leading assistant message, which the API rejects. A plain string, unlike the content of any
rendered message, so that a recount can recognize it; its tokens are always charged, as part of the overhead."""

IMAGE_MEDIA_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


@dataclass(slots=True)
class AnthropicMessagesFormat:
    """Implements `WireFormat`. `model` matters only for the token cost of images."""

    model: str = ""
    name: WireFormatName = FORMAT
    request_overhead: int = TOKENS_PER_REQUEST + OPENER_TOKENS
    text_overhead: int = TOKENS_PER_BLOCK

    def render_message(self, message: Message, *, load_blob: BlobLoader | None = None) -> list[WireMessage]:
        """An empty message gets one `[empty]` block; a tool message without results is dropped."""
        if (system_message := _render_system_message(message)) is not None:
            return [system_message]
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
        """Sums up the blocks. A system message counts as the labelled text that `build_payload` may make of it."""
        return sum(
            count_block(block, counter, self.model)
            for message in messages
            for block in _content_blocks(_label_message(message) if message["role"] == "system" else message)
        )

    def count_tools(self, tools: Sequence[WireMessage], counter: TokenCounter) -> int:
        return TOOL_LIST_TOKENS + sum(count_tool(tool, counter) for tool in tools) if tools else 0

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
    """Merges adjacent messages of one role; the first must be the user's, or begin with a compaction of the provider.

    Preserves the order and the number of the blocks. Copies the lists, since inputs are cached.
    """
    messages: list[WireMessage] = []
    for message, following in zip_longest(wire_messages, wire_messages[1:]):
        if message["role"] == "system":
            if accepts_system_message(messages[-1] if messages else None, following):
                messages.append(message)
                continue
            message = _label_message(message)
        if messages and messages[-1]["role"] == message["role"]:
            messages[-1]["content"].extend(message["content"])
        elif message["content"]:
            messages.append({"role": message["role"], "content": [*message["content"]]})
    if messages and messages[0]["role"] == "assistant" and not begins_with_compaction(messages[0]):
        messages.insert(0, {"role": "user", "content": OPENER_TEXT})
    return messages


def _label_message(system_message: WireMessage) -> WireMessage:
    """The system message as one of the user's."""
    return {"role": "user", "content": [_label_block(block) for block in _content_blocks(system_message)]}


def _label_block(block: WireMessage) -> WireMessage:
    """A text of a system message in labels, or its change of tools, as JSON."""
    match block:
        case {"type": "text", "text": str(text)}:
            return {**block, "text": label_text("system", text)}
        case _:
            return {"type": "text", "text": label_text("system", dump_json(block))}


def _render_system_message(message: Message) -> WireMessage | None:
    """A system message that came from this format within a conversation; None for any other message."""
    fields = get_provider_fields(message.provider_fields, FORMAT)
    if message.role != "system" or fields.get("role") != "system":
        return None
    blocks = [
        block for part in message.parts if isinstance(part, TextPart) and (block := _render_text(part)) is not None
    ]
    has_content = blocks or fields.get("output_config")
    return merge_fields({"role": "system", "content": blocks}, fields) if has_content else None


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
    """Renders a system message as a labelled user text: not every model has a system role within a conversation."""
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
            return merge_fields(call, get_provider_fields(part.provider_fields, FORMAT))
        case _:
            return None


def _render_text(part: TextPart) -> WireMessage | None:
    block = render_text_part(part, FORMAT)
    return None if block["type"] == "text" and not part.text.strip() else block


def _render_thinking(part: ThinkingPart) -> WireMessage | None:
    """Renders thinking unchanged. Thinking that Anthropic did not sign is dropped, because the API rejects it."""
    if not _is_signed_by_anthropic(part):
        return None
    if part.redacted:
        block = {"type": "redacted_thinking", "data": part.redacted}
    else:
        block = {"type": "thinking", "thinking": part.text, "signature": part.signature}
    return merge_fields(block, get_provider_fields(part.provider_fields, FORMAT))


def _is_signed_by_anthropic(part: ThinkingPart) -> bool:
    """Whether a signature is Anthropic's: other wire formats store none, and pydantic-ai names the provider."""
    fields = part.provider_fields or {}
    signer = get_object(fields, "pydantic_ai").get("provider_name", SIGNER)
    is_signed = bool(part.redacted) or part.signature not in (None, "", UNSIGNED_SIGNATURE)
    return is_signed and signer == SIGNER and "responses" not in fields


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
    return merge_fields({"type": "image", "source": source}, get_provider_fields(part.provider_fields, FORMAT))


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
        {"type": "document", "source": source, **title}, get_provider_fields(part.provider_fields, FORMAT)
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
    fields = get_provider_fields(part.provider_fields, FORMAT)
    fields.pop("is_error", None)
    return merge_fields({**result, "is_error": True} if part.is_error else result, fields)


def _render_error(piece: ToolResultContent) -> WireMessage | None:
    text = piece.text if isinstance(piece, TextPart) else describe_media(piece)
    return {"type": "text", "text": text} if text.strip() else None
