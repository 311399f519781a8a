"""OpenAI's Chat Completions wire format: renders messages and tools, and counts their tokens.

`chat.check` checks payloads, `chat.parse` parses them. Arguments of calls pass through byte for byte. Thinking is sent
only if its part names the field in which a server of this format sent it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from quire.model import FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolDefinition
from quire.model.json_values import dump_json, get_object, is_object
from quire.model.messages import ToolResultContent
from quire.model.policy import WireFormatName
from quire.wire.base import BlobLoader, Reply, WireMessage
from quire.wire.chat import FORMAT, check, parse
from quire.wire.fields import (
    build_parameters_schema,
    count_other_fields,
    get_provider_fields,
    merge_fields,
    render_text_part,
    to_safe_name,
    to_speaker_name,
)
from quire.wire.media import (
    PDF_MEDIA_TYPE,
    URL_SCHEMES,
    count_file,
    count_openai_image,
    describe_media,
    read_encoded_size,
    resolve_url,
    split_data_url,
)
from quire.wire.tokens import TokenCounter

# The recipe of OpenAI's cookbook, "How to count tokens with tiktoken".
TOKENS_PER_REQUEST = 3
"""Tokens that prime the reply."""
TOKENS_PER_MESSAGE = 3
TOKENS_PER_ROLE = 1
"""Every role is one token in OpenAI's vocabularies."""
TOKENS_PER_NAME = 1
TOOL_LIST_TOKENS = 12
_TOKENS_PER_FUNCTION = {"o200k_base": 7, "cl100k_base": 10}
"""Tokens of each function, by vocabulary. Other vocabularies belong to servers that render a tool as JSON."""
TOKENS_PER_PARAMETER_LIST = 3
TOKENS_PER_PARAMETER = 3
TOKENS_PER_ENUM = -3
TOKENS_PER_ENUM_VALUE = 3

# OpenAI publishes nothing for these: at or slightly above what its API reports, so that a sum errs upward.
TOKENS_PER_CALL = 8
TOKENS_PER_PARALLEL_CALLS = 16
"""Tokens of a message with two or more calls, once: such a message is rendered differently from one with one call."""
TOKENS_PER_RESULT = 4
TOKENS_PER_JSON_TOOL = 8

_CONTENT_SUBSTITUTES = {"refusal", "audio", "function_call"}
"""Fields that an assistant message may have instead of content."""
REASONING_FIELD_KEY = "reasoning_field"
"""Key of a thinking part's provider fields with the name of the message's field in which it arrived."""
_UNSENT_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "annotations")
"""Fields that only Quire writes, and fields of responses that requests reject."""


@dataclass(slots=True)
class OpenAIChatFormat:
    """Implements `WireFormat`. `model` matters only for the token cost of images."""

    model: str = ""
    name: WireFormatName = FORMAT
    request_overhead: int = TOKENS_PER_REQUEST
    text_overhead: int = TOKENS_PER_MESSAGE + TOKENS_PER_ROLE

    def render_message(self, message: Message, *, load_blob: BlobLoader | None = None) -> list[WireMessage]:
        if message.role == "tool":
            return [
                _merge_sendable(
                    {
                        "role": "tool",
                        "tool_call_id": _call_id(part.call_id),
                        "content": _join_content([_render_as_text(piece) for piece in part.content]),
                    },
                    get_provider_fields(part.provider_fields, FORMAT),
                )
                for part in message.tool_results
            ]
        fields = get_provider_fields(message.provider_fields, FORMAT)
        content = [piece for part in message.parts for piece in _render_part(message, part, load_blob)]
        rendered: WireMessage = {"role": message.role, "content": _join_content(content)}
        fields.pop("name", None)  # `Message.name` is the speaker.
        if message.name:
            rendered["name"] = to_speaker_name(message.name)
        if message.role == "system" and fields.get("role") == "developer":
            rendered["role"] = "developer"
        if message.role == "assistant":
            calls: list[WireMessage] = []
            for part in message.tool_calls:
                name, call_fields = to_safe_name(part.name), get_provider_fields(part.provider_fields, FORMAT)
                call: WireMessage = {"id": _call_id(part.id), "type": "function"}
                if call_fields.get("type") == "custom":
                    call |= {"type": "custom", "custom": {"name": name, "input": part.arguments}}
                else:
                    call |= {"function": {"name": name, "arguments": part.arguments}}
                others = {key: value for key, value in call_fields.items() if key not in ("function", "custom")}
                calls.append(merge_fields(call, others))
            if calls:
                rendered["tool_calls"] = calls
            for part in message.parts:
                field = get_provider_fields(part.provider_fields, FORMAT).get(REASONING_FIELD_KEY)
                if isinstance(part, ThinkingPart) and field in parse.REASONING_FIELDS:
                    rendered[field] = rendered.get(field, "") + part.text
            if not content and (calls or fields.keys() & _CONTENT_SUBSTITUTES):
                rendered["content"] = None
        return [_merge_sendable(rendered, fields)]

    def render_tool(self, definition: ToolDefinition) -> WireMessage:
        function: WireMessage = {"name": to_safe_name(definition.name)}
        if definition.description:
            function["description"] = definition.description
        return {"type": "function", "function": {**function, "parameters": build_parameters_schema(definition)}}

    def count_messages(self, messages: Sequence[WireMessage], counter: TokenCounter) -> int:
        total = 0
        for message in messages:
            content: object = message.get("content")
            known = ["role", "tool_calls", "tool_call_id"]
            tokens = TOKENS_PER_MESSAGE + TOKENS_PER_ROLE
            if isinstance(content, str):
                tokens += counter.count(content)
            elif isinstance(content, list):
                pieces = cast("list[WireMessage]", content)
                tokens += sum(_count_piece(piece, counter, self.model) for piece in pieces)
            # Another type, which only a provider's own field can have, counts like any other field.
            known += ["content"] if content is None or isinstance(content, str | list) else []
            calls: list[WireMessage] = message.get("tool_calls") or []
            tokens += TOKENS_PER_PARALLEL_CALLS if len(calls) > 1 else 0
            for call in calls:
                tokens += TOKENS_PER_CALL
                match call:
                    case {"function": {"name": str(name), "arguments": str(text)}} | {
                        "custom": {"name": str(name), "input": str(text)}
                    }:
                        tokens += counter.count(name) + counter.count(text)
                    case _:
                        tokens += counter.count(dump_json(call))
                tokens += count_other_fields(call, ("id", "type", "function", "custom"), counter)
            tokens += TOKENS_PER_RESULT if message["role"] == "tool" else 0
            if isinstance(speaker := message.get("name"), str):
                known.append("name")
                tokens += TOKENS_PER_NAME + counter.count(speaker)
            total += tokens + count_other_fields(message, known, counter)
        return total

    def count_tools(self, tools: Sequence[WireMessage], counter: TokenCounter) -> int:
        tokens = TOOL_LIST_TOKENS if tools else 0
        tokens_per_function = _TOKENS_PER_FUNCTION.get(counter.name)
        for tool in tools:
            function = get_object(tool, "function")
            if tokens_per_function is None:
                texts = (str(function.get("name", "")), str(function.get("description", "")))
                tokens += TOKENS_PER_JSON_TOOL + sum(map(counter.count, texts))
                tokens += counter.count(dump_json(function.get("parameters")))
            else:
                tokens += tokens_per_function + _count_function(function, counter)
            tokens += count_other_fields(function, ("name", "description", "parameters"), counter)
            tokens += count_other_fields(tool, ("type", "function"), counter)
        return tokens

    def count_system(self, text: str | None, counter: TokenCounter) -> int:
        return self.text_overhead + counter.count(text) if text else 0

    def build_payload(
        self,
        *,
        model: str,
        system: str | None,
        tools: Sequence[WireMessage],
        messages: Sequence[WireMessage],
        max_tokens: int | None,
    ) -> dict[str, Any]:
        first: list[WireMessage] = [{"role": "system", "content": system}] if system else []
        body: dict[str, Any] = {"model": model.removeprefix("openai:"), "messages": [*first, *messages]}
        if tools:
            body["tools"] = list(tools)
        if max_tokens is not None:
            body["max_completion_tokens"] = max_tokens
        return body

    def check(self, payload: Mapping[str, Any]) -> list[str]:
        return check.find_problems(payload)

    def parse_reply(self, response: object) -> Reply:
        return parse.parse_reply(response)

    def parse_messages(self, messages: Sequence[object], *, system: object = None) -> list[Message]:
        return parse.parse_messages(messages, system=system)


def _render_part(message: Message, part: Part, load_blob: BlobLoader | None) -> list[WireMessage]:
    """Renders the content of a part. Only user messages may contain images and files."""
    if message.role != "user":
        return [_render_as_text(part)] if isinstance(part, TextPart) else []
    if isinstance(part, TextPart):
        return [render_text_part(part, FORMAT)]
    if isinstance(part, ImagePart):
        url = resolve_url(part, load_blob, media_type="image/png")
        if url is None or not url.startswith(URL_SCHEMES):
            return [{"type": "text", "text": describe_media(part)}]
        image: WireMessage = {"url": url} if part.detail is None else {"url": url, "detail": part.detail}
        piece: WireMessage = {"type": "image_url", "image_url": image}
    elif isinstance(part, FilePart):
        url = resolve_url(part, load_blob, media_type=PDF_MEDIA_TYPE)
        if url is None or split_data_url(url) is None:
            return [{"type": "text", "text": describe_media(part)}]
        piece = {"type": "file", "file": {"filename": part.name or "file", "file_data": url}}
    else:
        return []
    return [merge_fields(piece, get_provider_fields(part.provider_fields, FORMAT))]


def _join_content(pieces: list[WireMessage]) -> str | list[WireMessage]:
    """A single plain text becomes a string, which every server accepts. Anything else is a list."""
    if not pieces:
        return ""
    return pieces[0]["text"] if len(pieces) == 1 and pieces[0].keys() == {"type", "text"} else pieces


def _render_as_text(part: ToolResultContent) -> WireMessage:
    """Renders a part where only text is allowed."""
    if not isinstance(part, TextPart):
        return {"type": "text", "text": describe_media(part)}
    piece = render_text_part(part, FORMAT)
    return piece if piece["type"] in ("text", "refusal") else {"type": "text", "text": part.text}


def _call_id(id_: str) -> str:
    """Ids pass through unchanged, because servers encode state in them. Only an empty id is replaced."""
    return id_ or to_safe_name(id_)


def _merge_sendable(wire_message: WireMessage, fields: WireMessage) -> WireMessage:
    return merge_fields(wire_message, {key: value for key, value in fields.items() if key not in _UNSENT_FIELDS})


def _count_piece(piece: WireMessage, counter: TokenCounter, model: str) -> int:
    match piece:
        case {"type": "text", "text": str(text)}:
            return counter.count(text) + count_other_fields(piece, ("type", "text"), counter)
        case {"type": "image_url", "image_url": {"url": str(url), **more}}:
            split = split_data_url(url)
            tokens = count_openai_image(read_encoded_size(split[1] if split else None), more.get("detail"), model=model)
            return tokens + count_other_fields(piece, ("type", "image_url"), counter)
        case {"type": "file", "file": {"filename": str(name), "file_data": str(url)}}:
            split = split_data_url(url)
            tokens = counter.count(name) + count_file(split[1] if split else None)
            return tokens + count_other_fields(piece, ("type", "file"), counter)
        case _:
            return counter.count(dump_json(piece))


def _count_function(function: WireMessage, counter: TokenCounter) -> int:
    """Counts by OpenAI's recipe, and by its JSON text what the recipe does not name."""
    schema = get_object(function, "parameters")
    parameters = get_object(schema, "properties")
    description = str(function.get("description", "")).removesuffix(".")
    tokens = counter.count(f"{function.get('name', '')}:{description}")
    tokens += TOKENS_PER_PARAMETER_LIST if parameters else 0
    for name, parameter in parameters.items():
        tokens += TOKENS_PER_PARAMETER
        if not is_object(parameter):
            tokens += counter.count(f"{name}:{dump_json(parameter)}")
            continue
        kind, values = parameter.get("type", ""), parameter.get("enum")
        description = str(parameter.get("description", "")).removesuffix(".")
        tokens += counter.count(f"{name}:{kind if isinstance(kind, str) else dump_json(kind)}:{description}")
        known = ["type", "description"]
        if isinstance(values, list):
            known.append("enum")
            tokens += TOKENS_PER_ENUM
            for value in cast("list[object]", values):
                tokens += TOKENS_PER_ENUM_VALUE
                tokens += counter.count(value if isinstance(value, str) else dump_json(value))
        tokens += count_other_fields(parameter, known, counter)
    return tokens + count_other_fields(schema, ("type", "properties", "required"), counter)
