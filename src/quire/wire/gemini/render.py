"""Google's Gemini wire format: renders contents and tools, builds requests of them, and counts their tokens.

`gemini.check` checks payloads, `gemini.parse` parses them. Thoughts are never sent, but their signatures are, on the
part that they came with. A result is rendered with the ID of its call; `build_payload` adds the name of the function,
which a result must have, and removes IDs that no provider gave. Tokens are charged by part, so that joining adjacent
contents of one role does not change the sum.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from quire.model import FilePart, ImagePart, Message, Part, TextPart, ToolCallPart, ToolDefinition, ToolResultPart
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object, parse_object
from quire.model.messages import ToolResultContent
from quire.model.policy import WireFormatName
from quire.wire.base import BlobLoader, Reply, WireMessage
from quire.wire.fields import (
    MADE_ID_PREFIX,
    build_parameters_schema,
    count_other_fields,
    get_provider_fields,
    get_raw_provider_fields,
    merge_fields,
    to_safe_name,
)
from quire.wire.gemini import FORMAT, check, parse
from quire.wire.labels import label_text
from quire.wire.media import count_file, describe_media, read_encoded_size, resolve_url, split_data_url
from quire.wire.tokens import TokenCounter

EMPTY_TEXT = "[empty]"
"""Placeholder: the API rejects a content without parts."""
OPENER_TEXT = "[conversation continues]"
"""Content of the user before a leading one of the model."""
UNSIGNED_SIGNATURE = "skip_thought_signature_validator"
"""Documented signature for a call that another model made: newer models reject a call without one."""
UNKNOWN_FUNCTION = "tool"
"""Name of the function in a result whose call is not in the request."""

# At or above what Google's `countTokens` reports, so that a sum errs upward.
TOKENS_PER_REQUEST = 16
"""With a content of the user before a leading one of the model."""
TOKENS_PER_PART = 4
TOKENS_PER_CALL = 12
TOKENS_PER_RESULT = 24
"""With the name of the function."""
TOKENS_PER_TOOL = 12
IMAGE_TILE_TOKENS = 258
IMAGE_TILE_PIXELS, MAX_SMALL_IMAGE_PIXELS = 768, 384
MAX_IMAGE_TILES = 16
HIGH_RESOLUTION_IMAGE_TOKENS = 1_120
"""Tokens of any image for models that read it in high resolution by default."""
_HIGH_RESOLUTION_MODELS = re.compile(r"gemini-[3-9]")


@dataclass(slots=True)
class GeminiFormat:
    """Implements `WireFormat`. `model` matters for the token cost of images."""

    model: str = ""
    name: WireFormatName = FORMAT
    request_overhead: int = TOKENS_PER_REQUEST
    text_overhead: int = TOKENS_PER_PART

    def render_message(self, message: Message, *, load_blob: BlobLoader | None = None) -> list[WireMessage]:
        """A message without parts that can be sent gets one `[empty]` text. A tool message without results is
        dropped."""
        parts = [wire for part in message.parts for wire in _render_part(message, part, load_blob)]
        if not parts:
            if message.role == "tool":
                return []
            parts = [{"text": EMPTY_TEXT}]
        return [{"role": "model" if message.role == "assistant" else "user", "parts": parts}]

    def render_tool(self, definition: ToolDefinition) -> WireMessage:
        if is_object(raw := definition.parameters.get("tool")):
            return raw
        declaration: WireMessage = {"name": to_safe_name(definition.name)}
        if definition.description:
            declaration["description"] = definition.description
        return {**declaration, "parametersJsonSchema": build_parameters_schema(definition)}

    def count_messages(self, messages: Sequence[WireMessage], counter: TokenCounter) -> int:
        return sum(
            _count_part(part, counter, self.model)
            for message in messages
            for part in filter_objects(message.get("parts"))
        )

    def count_tools(self, tools: Sequence[WireMessage], counter: TokenCounter) -> int:
        return sum(TOKENS_PER_TOOL + counter.count(dump_json(tool)) for tool in tools)

    def count_system(self, text: str | None, counter: TokenCounter) -> int:
        return TOKENS_PER_PART + counter.count(text) if text else 0

    def build_payload(
        self,
        *,
        model: str,
        system: str | None,
        tools: Sequence[WireMessage],
        messages: Sequence[WireMessage],
        max_tokens: int | None,
    ) -> dict[str, Any]:
        """The body has no model: its name is in the URL."""
        body: dict[str, Any] = {"contents": _join_contents(messages)}
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        functions = [tool for tool in tools if "name" in tool]
        others = [tool for tool in tools if "name" not in tool]
        if tools:
            body["tools"] = [*([{"functionDeclarations": functions}] if functions else []), *others]
        if max_tokens is not None:
            body["generationConfig"] = {"maxOutputTokens": max_tokens}
        return body

    def check(self, payload: Mapping[str, Any]) -> list[str]:
        return check.find_problems(payload)

    def parse_reply(self, response: object) -> Reply:
        return parse.parse_reply(response)

    def parse_messages(self, messages: Sequence[object], *, system: object = None) -> list[Message]:
        return parse.parse_messages(messages, system=system)


def _render_part(message: Message, part: Part, load_blob: BlobLoader | None) -> list[WireMessage]:
    match message.role, part:
        case "system", TextPart(text=text) if text.strip():
            # The API has no system role within a conversation.
            return [{"text": label_text("system", text)}]
        case "user", TextPart() | ImagePart() | FilePart():
            return _render_content(part, load_blob)
        case "assistant", TextPart():
            return _render_content(part, load_blob)
        case "assistant", ToolCallPart():
            name, args = to_safe_name(part.name), _parse_arguments(part)
            call = {"functionCall": {"id": part.id or to_safe_name(part.id), "name": name, "args": args}}
            return [merge_fields(call, get_provider_fields(part.provider_fields, FORMAT))]
        case "tool", ToolResultPart():
            return _render_result(part, load_blob)
        case _:
            # Thoughts among them, which the API does not read.
            return []


def _render_content(part: ToolResultContent, load_blob: BlobLoader | None) -> list[WireMessage]:
    fields = get_provider_fields(part.provider_fields, FORMAT)
    if isinstance(part, TextPart):
        if isinstance(fields.pop("type", None), str):
            # A part of this format for which the text is only a placeholder.
            return [{name: value for name, value in get_raw_provider_fields(part.provider_fields, FORMAT).items()
                     if name != "type"}]  # fmt: skip
        return [merge_fields({"text": part.text}, fields)] if part.text or fields else []
    url = resolve_url(part, load_blob, media_type="image/png" if isinstance(part, ImagePart) else "application/pdf")
    split = split_data_url(url) if url else None
    name = part.name if isinstance(part, FilePart) else None
    named = {"displayName": name} if name else {}
    if split is not None:
        return [merge_fields({"inlineData": {"mimeType": split[0], "data": split[1], **named}}, fields)]
    if url is not None and url.startswith(("https://", "gs://")):
        media_type = part.media_type or ("image/png" if isinstance(part, ImagePart) else None)
        kind = {"mimeType": media_type} if media_type else {}
        return [merge_fields({"fileData": {"fileUri": url, **kind, **named}}, fields)]
    return [{"text": describe_media(part)}]


def _render_result(part: ToolResultPart, load_blob: BlobLoader | None) -> list[WireMessage]:
    """A result with its texts. Images and files follow it, because older models accept none in a result."""
    fields = get_provider_fields(part.provider_fields, FORMAT)
    form, own_name = fields.pop(parse.RESULT_FORM, None), fields.pop("name", None)
    pieces = [wire for piece in part.content for wire in _render_content(piece, load_blob)]
    text = "\n".join(str(piece["text"]) for piece in pieces if "text" in piece)
    response: dict[str, Any] = {parse.ERROR_FIELD if part.is_error else parse.RESULT_FIELD: text}
    if form == parse.JSON_FORM:
        # Not an object any more if the text was shortened.
        parsed = parse_object(text)
        response = parsed if parsed is not None else response
    elif isinstance(form, str):
        response = {form: text}
    named = {"name": to_safe_name(own_name)} if isinstance(own_name, str) and own_name else {}
    result = merge_fields({"id": part.call_id or to_safe_name(part.call_id), **named, "response": response}, fields)
    return [{"functionResponse": result}, *(piece for piece in pieces if "text" not in piece)]


def _parse_arguments(part: ToolCallPart) -> WireMessage:
    """Arguments of a call as an object. As raw text if they are not an object or not valid UTF-8 JSON."""
    value = parse_object(part.arguments)
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        value = None
    return {"_raw": part.arguments} if value is None else value


def _join_contents(messages: Sequence[WireMessage]) -> list[WireMessage]:
    """The contents of a request: adjacent ones of one role joined, calls signed, and results with their names.

    Results are a content of their own, in the order of their calls. Copies what it changes, since inputs are cached.
    """
    joined: list[WireMessage] = []
    has_results = False
    names: dict[object, str] = {}
    for message in messages:
        parts = filter_objects(message.get("parts"))
        are_results = any("functionResponse" in part for part in parts)
        if message["role"] == "model":
            calls = [get_object(part, "functionCall") for part in parts]
            names |= {call["id"]: str(call["name"]) for call in calls if "id" in call}
        if joined and joined[-1]["role"] == message["role"] and has_results == are_results:
            joined[-1]["parts"].extend(parts)
        else:
            joined.append({"role": message["role"], "parts": [*parts]})
        has_results = are_results
    for content in joined:
        if any("functionCall" in part or "functionResponse" in part for part in content["parts"]):
            content["parts"] = _finish_calls(content["parts"], names)
    if joined and joined[0]["role"] == "model":
        joined.insert(0, {"role": "user", "parts": [{"text": OPENER_TEXT}]})
    return joined


def _finish_calls(parts: Sequence[WireMessage], names: Mapping[object, str]) -> list[WireMessage]:
    finished: list[WireMessage] = []
    is_signed = False
    for part in parts:
        field = next((name for name in ("functionCall", "functionResponse") if name in part), None)
        if field is None:
            finished.append(part)
            continue
        body, id_ = part[field], part[field].get("id")
        if field == "functionResponse" and "name" not in body:
            rest = {name: value for name, value in body.items() if name != "id"}
            body = {"id": id_, "name": names.get(id_, UNKNOWN_FUNCTION), **rest}
        if isinstance(id_, str) and id_.startswith(MADE_ID_PREFIX):
            body = {name: value for name, value in body.items() if name != "id"}
        part = {**part, field: body}
        if field == "functionCall":
            # Of parallel calls the provider signs the first.
            part = part if is_signed or "thoughtSignature" in part else {**part, "thoughtSignature": UNSIGNED_SIGNATURE}
            is_signed = True
        finished.append(part)
    return finished


def _count_part(part: WireMessage, counter: TokenCounter, model: str) -> int:
    known: tuple[str, ...] = ("thoughtSignature", "thought")
    match part:
        case {"text": str(text)}:
            tokens, known = counter.count(text), (*known, "text")
        case {"functionCall": {"name": str(name), "args": args}}:
            tokens, known = (
                TOKENS_PER_CALL + counter.count(name) + counter.count(dump_json(args)),
                (*known, "functionCall"),
            )
        case {"functionResponse": {"response": response}}:
            result = get_object(part, "functionResponse")
            known = (*known, "functionResponse")
            tokens = (
                TOKENS_PER_RESULT + counter.count(dump_json(response)) + counter.count(get_text(result, "name") or "")
            )
            tokens += sum(_count_part(each, counter, model) for each in filter_objects(result.get("parts")))
        case {"inlineData": {"mimeType": str(kind), "data": str(data)}}:
            known = (*known, "inlineData")
            tokens = _count_image(data, model) if kind.startswith("image/") else count_file(data)
        case {"fileData": {"fileUri": str()}}:
            kind = get_text(get_object(part, "fileData"), "mimeType") or ""
            known = (*known, "fileData")
            tokens = _count_image(None, model) if kind.startswith("image/") else count_file(None)
        case _:
            tokens = 0
    return TOKENS_PER_PART + tokens + count_other_fields(part, known, counter)


def _count_image(data: str | None, model: str) -> int:
    """Tokens of an image: tiles of 768 pixels, or a fixed number for newer models."""
    if _HIGH_RESOLUTION_MODELS.search(model.lower()):
        return HIGH_RESOLUTION_IMAGE_TOKENS
    size = read_encoded_size(data)
    if size is None:
        return IMAGE_TILE_TOKENS * MAX_IMAGE_TILES
    if max(size) <= MAX_SMALL_IMAGE_PIXELS:
        return IMAGE_TILE_TOKENS
    tiles = ceil(size[0] / IMAGE_TILE_PIXELS) * ceil(size[1] / IMAGE_TILE_PIXELS)
    return IMAGE_TILE_TOKENS * min(tiles, MAX_IMAGE_TILES)
