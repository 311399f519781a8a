"""Anthropic's Messages wire format: renders content blocks and tools, builds requests of them, and counts their tokens.

`messages.check` checks payloads, `messages.parse` parses them. Thinking passes through unchanged. A system message that
came from this format renders with its role, and `build_payload` changes it to labelled text of the user where the API
would reject the role. Tokens are charged by block and never by message, so that merging adjacent messages of one role
does not change the sum.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

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
from quire.wire.fields import (
    build_parameters_schema,
    count_other_fields,
    get_provider_fields,
    merge_fields,
    render_text_part,
    to_safe_name,
)
from quire.wire.labels import label_text
from quire.wire.media import (
    PDF_MEDIA_TYPE,
    count_claude_image,
    count_file,
    describe_media,
    read_encoded_size,
    resolve_url,
    split_data_url,
)
from quire.wire.messages import FORMAT, check, parse
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
rendered message, so that a recount can recognize it. Its tokens are always charged, as part of the overhead."""

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
    name: WireFormatName = FORMAT
    request_overhead: int = TOKENS_PER_REQUEST + OPENER_TOKENS
    text_overhead: int = TOKENS_PER_BLOCK

    def render_message(self, message: Message, *, load_blob: BlobLoader | None = None) -> list[WireMessage]:
        """An empty message gets one `[empty]` block. A tool message without results is dropped."""
        if message.role == "system":
            fields = get_provider_fields(message.provider_fields, FORMAT)
            texts = [block for part in message.parts if isinstance(part, TextPart) and (block := _render_text(part))]
            if fields.get("role") == "system" and (texts or fields.get("output_config")):
                # It came from this format, within a conversation.
                return [merge_fields({"role": "system", "content": texts}, fields)]
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
            _count_block(block, counter, self.model)
            for message in messages
            for block in _content_blocks(_label_message(message) if message["role"] == "system" else message)
        )

    def count_tools(self, tools: Sequence[WireMessage], counter: TokenCounter) -> int:
        tokens = TOOL_LIST_TOKENS if tools else 0
        for tool in tools:
            texts = (str(tool.get("name", "")), str(tool.get("description", "")), dump_json(tool.get("input_schema")))
            tokens += TOKENS_PER_TOOL + sum(map(counter.count, texts))
            tokens += count_other_fields(tool, ("name", "description", "input_schema", "cache_control"), counter)
        return tokens

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
        # Merges adjacent messages of one role. Preserves the order and the number of the blocks, and copies the lists,
        # since inputs are cached.
        merged: list[WireMessage] = []
        for message, following in zip_longest(messages, messages[1:]):
            if message["role"] == "system":
                if check.accepts_system_message(merged[-1] if merged else None, following):
                    merged.append(message)
                    continue
                message = _label_message(message)
            if merged and merged[-1]["role"] == message["role"]:
                merged[-1]["content"].extend(message["content"])
            elif message["content"]:
                merged.append({"role": message["role"], "content": [*message["content"]]})
        # The first message must be the user's, or begin with a compaction of the provider.
        if merged and merged[0]["role"] == "assistant" and not check.begins_with_compaction(merged[0]):
            merged.insert(0, {"role": "user", "content": OPENER_TEXT})
        return {**body, "messages": merged}

    def check(self, payload: Mapping[str, Any]) -> list[str]:
        return check.find_problems(payload)

    def parse_reply(self, response: object) -> Reply:
        return parse.parse_reply(response)

    def parse_messages(self, messages: Sequence[object], *, system: object = None) -> list[Message]:
        return parse.parse_messages(messages, system=system)


def _content_blocks(wire_message: WireMessage) -> list[WireMessage]:
    content: str | list[WireMessage] = wire_message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _label_message(system_message: WireMessage) -> WireMessage:
    """The system message as one of the user's: its texts in labels, and its change of tools as JSON."""
    blocks: list[WireMessage] = []
    for block in _content_blocks(system_message):
        match block:
            case {"type": "text", "text": str(text)}:
                blocks.append({**block, "text": label_text("system", text)})
            case _:
                blocks.append({"type": "text", "text": label_text("system", dump_json(block))})
    return {"role": "user", "content": blocks}


def _render_part(message: Message, part: Part, load_blob: BlobLoader | None) -> WireMessage | None:
    """Renders a part as a block, or None if its role cannot carry it or the API would reject it."""
    match message.role, part:
        case "system", TextPart(text=text) if text.strip():
            # Labelled text of the user: not every model has a system role within a conversation.
            return {"type": "text", "text": label_text("system", text)}
        case "user", TextPart() | ImagePart() | FilePart():
            return _render_content(part, load_blob)
        case "assistant", TextPart():
            return _render_text(part)
        case "assistant", ThinkingPart() if _is_signed_by_anthropic(part):
            # Thinking that Anthropic did not sign is dropped, because the API rejects it.
            if part.redacted:
                block = {"type": "redacted_thinking", "data": part.redacted}
            else:
                block = {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case "assistant", ToolCallPart():
            name, input_ = to_safe_name(part.name), _parse_input(part)
            block = {"type": "tool_use", "id": to_safe_name(part.id), "name": name, "input": input_}
        case "tool", ToolResultPart():
            return _render_result(part, load_blob)
        case _:
            return None
    return merge_fields(block, get_provider_fields(part.provider_fields, FORMAT))


def _render_content(part: ToolResultContent, load_blob: BlobLoader | None) -> WireMessage | None:
    if isinstance(part, TextPart):
        return _render_text(part)
    is_image = isinstance(part, ImagePart)
    url = resolve_url(part, load_blob, media_type="image/png" if is_image else PDF_MEDIA_TYPE)
    split = split_data_url(url) if url else None
    if split is not None and split[0] in (IMAGE_MEDIA_TYPES if is_image else (PDF_MEDIA_TYPE,)):
        source = {"type": "base64", "media_type": split[0], "data": split[1]}
    elif url is not None and url.startswith("https://") and (is_image or _is_pdf(part, url)):
        source = {"type": "url", "url": url}
    else:
        return {"type": "text", "text": describe_media(part)}
    block: WireMessage = {"type": "image" if is_image else "document", "source": source}
    if isinstance(part, FilePart) and part.name:
        block["title"] = part.name
    return merge_fields(block, get_provider_fields(part.provider_fields, FORMAT))


def _render_text(part: TextPart) -> WireMessage | None:
    block = render_text_part(part, FORMAT)
    return None if block["type"] == "text" and not part.text.strip() else block


def _is_signed_by_anthropic(part: ThinkingPart) -> bool:
    """Whether a signature is Anthropic's: other wire formats store none, and pydantic-ai names the provider."""
    fields = part.provider_fields or {}
    signer = get_object(fields, "pydantic_ai").get("provider_name", SIGNER)
    is_signed = bool(part.redacted) or part.signature not in (None, "", UNSIGNED_SIGNATURE)
    return is_signed and signer == SIGNER and "responses" not in fields


def _parse_input(part: ToolCallPart) -> WireMessage:
    """Arguments of a call as an object. As raw text if they are not an object or not valid UTF-8 JSON."""
    value = parse_object(part.arguments)
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        value = None
    return {"_raw": part.arguments} if value is None else value


def _is_pdf(part: FilePart, url: str) -> bool:
    return part.media_type == PDF_MEDIA_TYPE or (
        part.media_type is None and url.partition("?")[0].lower().endswith(".pdf")
    )


def _render_result(part: ToolResultPart, load_blob: BlobLoader | None) -> WireMessage:
    """Renders a tool result. The API accepts errors only as text, and not empty."""
    if part.is_error:
        texts = [piece.text if isinstance(piece, TextPart) else describe_media(piece) for piece in part.content]
        content: list[WireMessage] = [{"type": "text", "text": text} for text in texts if text.strip()]
    else:
        content = [block for piece in part.content if (block := _render_content(piece, load_blob)) is not None]
    result: WireMessage = {
        "type": "tool_result",
        "tool_use_id": to_safe_name(part.call_id),
        "content": content or [{"type": "text", "text": EMPTY_TEXT}],
    }
    fields = get_provider_fields(part.provider_fields, FORMAT)
    fields.pop("is_error", None)
    return merge_fields({**result, "is_error": True} if part.is_error else result, fields)


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
            known, tokens = (
                ("type", "source"),
                count_claude_image(read_encoded_size(source.get("data")), model=model),
            )
        case {"type": "document", "source": {"type": "base64" | "url", **source}}:
            known, tokens = ("type", "source"), count_file(source.get("data"))
        case _:
            known, tokens = (), 0
    return TOKENS_PER_BLOCK + tokens + count_other_fields(block, (*known, "cache_control"), counter)
