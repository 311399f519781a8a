"""OpenAI's Responses wire format: renders messages as items, and counts their tokens.

`openai_responses_check` checks payloads, `openai_responses_parse` parses them and describes the provider fields. Tokens
are charged by item with the recipe of `openai_chat`, so that the sum does not depend on which items form a message.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from quire.model import FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolDefinition
from quire.model.base import replace_lone_surrogates
from quire.model.json_values import get_object, parse_object
from quire.model.messages import ToolResultContent, ToolResultPart
from quire.model.policy import WireFormatName
from quire.wire.base import BlobLoader, Reply, WireMessage
from quire.wire.chat.render import TOKENS_PER_MESSAGE, TOKENS_PER_REQUEST, TOKENS_PER_ROLE
from quire.wire.fields import (
    build_parameters_schema,
    get_provider_fields,
    get_raw_provider_fields,
    merge_fields,
    to_safe_name,
)
from quire.wire.media import PDF_MEDIA_TYPE, URL_SCHEMES, describe_media, resolve_url, split_data_url
from quire.wire.responses import FORMAT
from quire.wire.responses import (
    check as openai_responses_check,
)
from quire.wire.responses import (
    count as openai_responses_count,
)
from quire.wire.responses import (
    parse as openai_responses_parse,
)
from quire.wire.responses.parse import NAMESPACE_SEPARATOR, TEXT_TYPES
from quire.wire.tokens import TokenCounter

MAX_CALL_ID_CHARS = 64
"""The API rejects longer call ids; any shorter one passes through unchanged."""
_PART_FIELDS = ("message", "continues", "content", "type", "text", "refusal")
"""Fields of a stored text that describe its place, and fields that only Quire writes."""
_OUTPUT_TYPES = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}


@dataclass(slots=True)
class OpenAIResponsesFormat:
    """Implements `WireFormat`. `model` matters only for the token cost of images."""

    model: str = ""
    name: WireFormatName = FORMAT
    request_overhead: int = TOKENS_PER_REQUEST
    text_overhead: int = TOKENS_PER_MESSAGE + TOKENS_PER_ROLE

    def render_message(self, message: Message, *, load_blob: BlobLoader | None = None) -> list[WireMessage]:
        """Renders a message as items; an assistant message of which nothing can be sent gives none."""
        match message.role:
            case "tool":
                return [_render_result(part, load_blob) for part in message.tool_results]
            case "assistant":
                return _render_assistant(message)
            case "user" | "system":
                return _render_input(message, load_blob)

    def render_tool(self, definition: ToolDefinition) -> WireMessage:
        tool: WireMessage = {"type": "function", "name": to_safe_name(definition.name)}
        if definition.description:
            tool["description"] = definition.description
        # Without `strict`, the API would make every parameter required, which the chat API does not.
        return {**tool, "parameters": build_parameters_schema(definition), "strict": False}

    def count_messages(self, messages: Sequence[WireMessage], counter: TokenCounter) -> int:
        return sum(openai_responses_count.count_item(item, counter, model=self.model) for item in messages)

    def count_tools(self, tools: Sequence[WireMessage], counter: TokenCounter) -> int:
        return openai_responses_count.count_tools(tools, counter)

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
        """Builds the request body. `store` is false: the log has the history, and the request repeats it."""
        body: dict[str, Any] = {"model": model.removeprefix("openai:").removeprefix("openai-responses:")}
        if system:
            body["instructions"] = system
        if tools:
            body["tools"] = list(tools)
        body["input"] = _match_output_types(messages)
        if max_tokens is not None:
            body["max_output_tokens"] = max_tokens
        return {**body, "store": False}

    def check(self, payload: Mapping[str, Any]) -> list[str]:
        return openai_responses_check.find_problems(payload)

    def parse_reply(self, response: object) -> Reply:
        return openai_responses_parse.parse_reply(response)

    def parse_messages(self, messages: Sequence[object], *, system: object = None) -> list[Message]:
        """Parses the items of a request; its `input` may also be a plain string."""
        return openai_responses_parse.parse_messages(messages, system=system)


def _match_output_types(items: Sequence[WireMessage]) -> list[WireMessage]:
    """Gives each output the type of its call: a result may come from a client that knows no custom tools."""
    output_types: dict[object, str] = {}
    matched: list[WireMessage] = []
    for item in items:
        type_ = item.get("type")
        if type_ in _OUTPUT_TYPES:
            output_types[item.get("call_id")] = _OUTPUT_TYPES[type_]
        elif type_ in _OUTPUT_TYPES.values() and output_types.get(item.get("call_id"), type_) != type_:
            item = {**item, "type": output_types[item["call_id"]]}
        matched.append(item)
    return matched


def _get_stored_item(part: Part) -> WireMessage | None:
    """The item of another type for which the text is only a placeholder."""
    fields = get_raw_provider_fields(part.provider_fields, FORMAT)
    is_item = isinstance(part, TextPart) and isinstance(fields.get("type"), str)
    return fields if is_item and fields["type"] not in TEXT_TYPES else None


def _render_input(message: Message, load_blob: BlobLoader | None) -> list[WireMessage]:
    """Renders a message of the user or the system; stored items split it."""
    fields = get_provider_fields(message.provider_fields, FORMAT)
    is_developer = message.role == "system" and fields.get("role") == "developer"
    head: WireMessage = {"type": "message", "role": "developer" if is_developer else message.role}
    kinds = (TextPart, ImagePart, FilePart) if message.role == "user" else (TextPart,)
    items: list[WireMessage] = []
    for is_item, group in groupby(message.parts, lambda part: _get_stored_item(part) is not None):
        if is_item:
            items += [item for part in group if (item := _get_stored_item(part)) is not None]
        elif pieces := [_render_content(part, load_blob) for part in group if isinstance(part, kinds)]:
            items.append(merge_fields({**head, "content": _join_content(pieces)}, fields))
    return items or [merge_fields({**head, "content": ""}, fields)]


def _render_content(part: ToolResultContent, load_blob: BlobLoader | None) -> WireMessage:
    match part:
        case TextPart():
            return _render_text(part, "input_text")
        case ImagePart():
            return _render_image(part, load_blob)
        case FilePart():
            return _render_file(part, load_blob)


def _render_text(part: TextPart, type_: str) -> WireMessage:
    """Renders a text, a refusal, or the stored content for which the text is only a placeholder."""
    fields = get_provider_fields(part.provider_fields, FORMAT)
    content = get_object(fields, "content")
    if isinstance(content.get("type"), str):
        return content
    is_refusal = type_ == "output_text" and fields.get("type") == "refusal"
    piece = {"type": "refusal", "refusal": part.text} if is_refusal else {"type": type_, "text": part.text}
    return merge_fields(piece, {key: value for key, value in fields.items() if key not in _PART_FIELDS})


def _join_content(pieces: list[WireMessage]) -> str | list[WireMessage]:
    """A single plain text becomes a string; anything else is a list."""
    if not pieces:
        return ""
    return pieces[0]["text"] if len(pieces) == 1 and pieces[0].keys() == {"type", "text"} else pieces


def _render_image(part: ImagePart, load_blob: BlobLoader | None) -> WireMessage:
    url = resolve_url(part, load_blob, media_type="image/png")
    if url is None or not url.startswith(URL_SCHEMES):
        return {"type": "input_text", "text": describe_media(part)}
    fields = get_provider_fields(part.provider_fields, FORMAT)
    detail = part.detail or fields.get("detail")
    piece = {"type": "input_image", "image_url": url, "detail": detail if isinstance(detail, str) else "auto"}
    return merge_fields(piece, fields)


def _render_file(part: FilePart, load_blob: BlobLoader | None) -> WireMessage:
    url = resolve_url(part, load_blob, media_type=PDF_MEDIA_TYPE)
    if url is None or not url.startswith(URL_SCHEMES):
        return {"type": "input_text", "text": describe_media(part)}
    if split_data_url(url) is None:
        piece = {"type": "input_file", "file_url": url}
    else:
        piece = {"type": "input_file", "filename": part.name or "file", "file_data": url}
    return merge_fields(piece, get_provider_fields(part.provider_fields, FORMAT))


def _render_assistant(message: Message) -> list[WireMessage]:
    """Renders reasoning, texts and calls in their order.

    The API rejects reasoning without an item after it. It looks up the ids of other items, and rejects those whose
    reasoning is missing from the request: without reasoning, ids are not sent.
    """
    items: list[WireMessage] = []
    for part in message.parts:
        if isinstance(part, TextPart) and _get_stored_item(part) is None:
            _add_text(items, part)
        else:
            items += _render_assistant_item(part)
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    has_reasoning = any(item["type"] == "reasoning" for item in items)
    return [_finish_item(item, keep_id=has_reasoning) for item in items]


def _add_text(items: list[WireMessage], part: TextPart) -> None:
    """Adds a text to the message that it continues, else as a message of its own."""
    fields = get_provider_fields(part.provider_fields, FORMAT)
    piece = _render_text(part, "output_text")
    if fields.get("continues") is True and items and _is_assistant_message(items[-1]):
        items[-1]["content"].append(piece)
    else:
        item: WireMessage = {"type": "message", "role": "assistant", "content": [piece]}
        items.append(merge_fields(item, get_object(fields, "message")))


def _is_assistant_message(item: WireMessage) -> bool:
    return item["type"] == "message" and item.get("role") == "assistant" and isinstance(item.get("content"), list)


def _render_assistant_item(part: Part) -> Iterator[WireMessage]:
    fields = get_raw_provider_fields(part.provider_fields, FORMAT)
    if isinstance(part, ThinkingPart):
        # Without encrypted or open content the item is only an id, which a request with `store: false` cannot use.
        if fields.get("type") == "reasoning" and (fields.get("encrypted_content") or fields.get("content")):
            yield merge_fields(fields, {"summary": []})
    elif isinstance(part, ToolCallPart):
        yield _render_call(part)
    elif (item := _get_stored_item(part)) is not None:
        yield item


def _finish_item(item: WireMessage, *, keep_id: bool) -> WireMessage:
    """Drops ids that must not be sent, and writes a single plain text as a string where the API allows one."""
    if not keep_id and item["type"] in ("message", *_OUTPUT_TYPES):
        item = {key: value for key, value in item.items() if key not in ("id", "status")}
    if not _is_assistant_message(item):
        return item
    content = _join_content(item["content"])
    if isinstance(content, str) and "id" not in item:
        return {**item, "content": content}
    return {**item, "content": [_add_annotations(piece) for piece in item["content"]]}


def _add_annotations(piece: WireMessage) -> WireMessage:
    """Adds the list of annotations that every output text has."""
    return {"annotations": [], **piece} if piece["type"] == "output_text" else piece


def _to_call_id(id_: str) -> str:
    return id_ if 0 < len(id_) <= MAX_CALL_ID_CHARS else to_safe_name(id_)


def _render_call(part: ToolCallPart) -> WireMessage:
    fields = get_provider_fields(part.provider_fields, FORMAT)
    name, namespace = part.name, fields.pop("namespace", None)
    if isinstance(namespace, str) and name.startswith(prefix := f"{namespace}{NAMESPACE_SEPARATOR}"):
        name = name.removeprefix(prefix)
        fields["namespace"] = namespace
    call: WireMessage = {"type": "function_call", "call_id": _to_call_id(part.id), "name": to_safe_name(name)}
    if fields.get("type") == "custom_tool_call":
        call |= {"type": "custom_tool_call", "input": _get_custom_input(part)}
    else:
        call["arguments"] = part.arguments
    return merge_fields(call, fields)


def _get_custom_input(part: ToolCallPart) -> str:
    """Text of a custom call, which its arguments wrap; the arguments themselves if they were edited."""
    arguments = parse_object(part.arguments) or {}
    text = arguments.get("input")
    return replace_lone_surrogates(text) if isinstance(text, str) and len(arguments) == 1 else part.arguments


def _render_result(part: ToolResultPart, load_blob: BlobLoader | None) -> WireMessage:
    fields = get_provider_fields(part.provider_fields, FORMAT)
    is_custom = fields.get("type") == "custom_tool_call_output"
    result: WireMessage = {
        "type": "custom_tool_call_output" if is_custom else "function_call_output",
        "call_id": _to_call_id(part.call_id),
        "output": _join_content([_render_content(piece, load_blob) for piece in part.content]),
    }
    return merge_fields(result, fields)
