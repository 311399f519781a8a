"""OpenAI's Responses wire format: renders messages as items, and counts their tokens.

`responses.check` checks payloads, `responses.parse` parses them and describes the provider fields. Tokens are charged
by item with the recipe of `chat.render`, so that the sum does not depend on which items form a message.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

from quire.model import FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolDefinition
from quire.model.base import replace_lone_surrogates
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, parse_object
from quire.model.messages import ToolResultContent
from quire.model.policy import WireFormatName
from quire.wire.base import BlobLoader, Reply, WireMessage
from quire.wire.chat.render import (
    TOKENS_PER_MESSAGE,
    TOKENS_PER_PARALLEL_CALLS,
    TOKENS_PER_REQUEST,
    TOKENS_PER_ROLE,
    OpenAIChatFormat,
)
from quire.wire.fields import (
    build_parameters_schema,
    count_other_fields,
    get_provider_fields,
    get_raw_provider_fields,
    merge_fields,
    to_safe_name,
)
from quire.wire.media import PDF_MEDIA_TYPE, URL_SCHEMES, describe_media, resolve_url, split_data_url
from quire.wire.responses import FORMAT, check, parse
from quire.wire.responses.parse import NAMESPACE_SEPARATOR, TEXT_TYPES
from quire.wire.tokens import TokenCounter

MAX_CALL_ID_CHARS = 64
"""The API rejects longer call ids; any shorter one passes through unchanged."""
_PART_FIELDS = ("message", "continues", "content", "type", "text", "refusal")
"""Fields of a stored text that describe its place, and fields that only Quire writes."""
TOKENS_PER_CALL_ITEM = TOKENS_PER_PARALLEL_CALLS // 2
"""Added to each call: half of what two parallel calls cost together, because items are counted one by one."""
ENCRYPTED_CHARS_PER_TOKEN = 5
"""Base64 characters of encrypted reasoning for each token in it: four characters hold three bytes."""

_UNCOUNTED_FIELDS = ("type", "id", "status", "call_id")
"""Fields that the model does not read."""
_OUTPUT_TYPES = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}


@dataclass(slots=True)
class OpenAIResponsesFormat:
    """Implements `WireFormat`. `model` matters only for the token cost of images."""

    model: str = ""
    name: WireFormatName = FORMAT
    request_overhead: int = TOKENS_PER_REQUEST
    text_overhead: int = TOKENS_PER_MESSAGE + TOKENS_PER_ROLE

    def render_message(self, message: Message, *, load_blob: BlobLoader | None = None) -> list[WireMessage]:
        """Renders a message as items. An assistant message of which nothing can be sent gives none."""
        match message.role:
            case "tool":
                outputs: list[WireMessage] = []
                for part in message.tool_results:
                    fields = get_provider_fields(part.provider_fields, FORMAT)
                    is_custom = fields.get("type") == "custom_tool_call_output"
                    output: WireMessage = {
                        "type": "custom_tool_call_output" if is_custom else "function_call_output",
                        "call_id": _to_call_id(part.call_id),
                        "output": _join_content([_render_content(piece, load_blob) for piece in part.content]),
                    }
                    outputs.append(merge_fields(output, fields))
                return outputs
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
        return sum(_count_item(item, counter, self.model) for item in messages)

    def count_tools(self, tools: Sequence[WireMessage], counter: TokenCounter) -> int:
        chat_tools = [
            {
                "type": "function",
                "function": {key: value for key, value in tool.items() if key not in ("type", "strict")},
            }
            if tool.get("type") == "function"
            else tool
            for tool in tools
        ]
        return OpenAIChatFormat().count_tools(chat_tools, counter)

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
        # Gives each output the type of its call: a result may come from a client that knows no custom tools.
        output_types: dict[object, str] = {}
        matched: list[WireMessage] = []
        for item in messages:
            type_ = item.get("type")
            if type_ in _OUTPUT_TYPES:
                output_types[item.get("call_id")] = _OUTPUT_TYPES[type_]
            elif type_ in _OUTPUT_TYPES.values() and output_types.get(item.get("call_id"), type_) != type_:
                item = {**item, "type": output_types[item["call_id"]]}
            matched.append(item)
        body["input"] = matched
        if max_tokens is not None:
            body["max_output_tokens"] = max_tokens
        return {**body, "store": False}

    def check(self, payload: Mapping[str, Any]) -> list[str]:
        return check.find_problems(payload)

    def parse_reply(self, response: object) -> Reply:
        return parse.parse_reply(response)

    def parse_messages(self, messages: Sequence[object], *, system: object = None) -> list[Message]:
        """Parses the items of a request. Its `input` may also be a plain string."""
        return parse.parse_messages(messages, system=system)


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
    if isinstance(part, TextPart):
        return _render_text(part, "input_text")
    url = resolve_url(part, load_blob, media_type="image/png" if isinstance(part, ImagePart) else PDF_MEDIA_TYPE)
    if url is None or not url.startswith(URL_SCHEMES):
        return {"type": "input_text", "text": describe_media(part)}
    fields = get_provider_fields(part.provider_fields, FORMAT)
    if isinstance(part, ImagePart):
        detail = part.detail or fields.get("detail")
        piece = {"type": "input_image", "image_url": url, "detail": detail if isinstance(detail, str) else "auto"}
    elif split_data_url(url) is None:
        piece = {"type": "input_file", "file_url": url}
    else:
        piece = {"type": "input_file", "filename": part.name or "file", "file_data": url}
    return merge_fields(piece, fields)


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
    """A single plain text becomes a string. Anything else is a list."""
    if not pieces:
        return ""
    return pieces[0]["text"] if len(pieces) == 1 and pieces[0].keys() == {"type", "text"} else pieces


def _is_assistant_message(item: WireMessage) -> bool:
    return item["type"] == "message" and item.get("role") == "assistant" and isinstance(item.get("content"), list)


def _render_assistant(message: Message) -> list[WireMessage]:
    """Renders reasoning, texts and calls in their order."""
    items: list[WireMessage] = []
    for part in message.parts:
        fields = get_raw_provider_fields(part.provider_fields, FORMAT)
        if isinstance(part, ThinkingPart):
            # Without encrypted or open content the item is only an id, which a request with `store: false` cannot use.
            if fields.get("type") == "reasoning" and (fields.get("encrypted_content") or fields.get("content")):
                items.append(merge_fields(fields, {"summary": []}))
        elif isinstance(part, ToolCallPart):
            items.append(_render_call(part))
        elif (stored := _get_stored_item(part)) is not None:
            items.append(stored)
        elif isinstance(part, TextPart):
            piece = _render_text(part, "output_text")
            if fields.get("continues") is True and items and _is_assistant_message(items[-1]):
                items[-1]["content"].append(piece)
            else:
                item: WireMessage = {"type": "message", "role": "assistant", "content": [piece]}
                items.append(merge_fields(item, get_object(fields, "message")))
    # The API rejects reasoning without an item after it. It looks up the ids of other items, and rejects those whose
    # reasoning is missing from the request: without reasoning, ids are not sent.
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    has_reasoning = any(item["type"] == "reasoning" for item in items)
    return [_finish_item(item, keep_id=has_reasoning) for item in items]


def _finish_item(item: WireMessage, *, keep_id: bool) -> WireMessage:
    """Drops ids that must not be sent, and writes a single plain text as a string where the API allows one."""
    if not keep_id and item["type"] in ("message", *_OUTPUT_TYPES):
        item = {key: value for key, value in item.items() if key not in ("id", "status")}
    if not _is_assistant_message(item):
        return item
    content = _join_content(item["content"])
    if isinstance(content, str) and "id" not in item:
        return {**item, "content": content}
    # Every output text has a list of annotations.
    no_annotations: WireMessage = {"annotations": []}
    pieces = cast("list[WireMessage]", item["content"])
    return {
        **item,
        "content": [{**no_annotations, **each} if each["type"] == "output_text" else each for each in pieces],
    }


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
        # The arguments wrap the text of a custom call, unless they were edited.
        arguments = parse_object(part.arguments) or {}
        text = arguments.get("input")
        if not isinstance(text, str) or len(arguments) != 1:
            text = part.arguments
        call |= {"type": "custom_tool_call", "input": replace_lone_surrogates(text)}
    else:
        call["arguments"] = part.arguments
    return merge_fields(call, fields)


def _count_item(item: WireMessage, counter: TokenCounter, model: str) -> int:
    """Counts an item as the chat message that says the same, by the recipe of `chat.render`."""
    match item:
        case {"type": "reasoning"}:
            # What can be read is counted, and what is encrypted estimated; the larger of them counts.
            pieces = [*filter_objects(item.get("summary")), *filter_objects(item.get("content"))]
            readable = sum(counter.count(get_text(piece, "text") or "") for piece in pieces)
            encrypted = len(get_text(item, "encrypted_content") or "") // ENCRYPTED_CHARS_PER_TOKEN
            known = (*_UNCOUNTED_FIELDS, "summary", "content", "encrypted_content")
            tokens = max(readable, 1 + encrypted) + count_other_fields(item, known, counter)
            return TOKENS_PER_MESSAGE + TOKENS_PER_ROLE + tokens
        case {"type": "message", "role": str(role), "content": str() | list()}:
            chat = {
                "role": role,
                "content": _to_chat_content(item["content"]),
                **_other_fields(item, ("role", "content")),
            }
        case {"type": "function_call", "name": str(name), "arguments": str(arguments)}:
            call = {"function": {"name": name, "arguments": arguments}, **_other_fields(item, ("name", "arguments"))}
            chat = {"role": "assistant", "tool_calls": [call]}
        case {"type": "custom_tool_call", "name": str(name), "input": str(text)}:
            call = {"custom": {"name": name, "input": text}, **_other_fields(item, ("name", "input"))}
            chat = {"role": "assistant", "tool_calls": [call]}
        case {"type": "function_call_output" | "custom_tool_call_output", "output": str() | list()}:
            chat = {"role": "tool", "content": _to_chat_content(item["output"]), **_other_fields(item, ("output",))}
        case _:
            return TOKENS_PER_MESSAGE + TOKENS_PER_ROLE + counter.count(dump_json(item))
    extra = TOKENS_PER_CALL_ITEM if "tool_calls" in chat else 0
    return extra + OpenAIChatFormat(model).count_messages([chat], counter)


def _other_fields(item: Mapping[str, Any], known: Collection[str]) -> WireMessage:
    return {key: value for key, value in item.items() if key not in known and key not in _UNCOUNTED_FIELDS}


def _to_chat_content(content: str | list[Any]) -> str | list[WireMessage]:
    if isinstance(content, str):
        return content
    pieces: list[WireMessage] = []
    for piece in filter_objects(content):
        match piece:
            case {"type": "input_text" | "output_text", "text": str(text), **more}:
                if more.get("annotations") == []:
                    del more["annotations"]
                piece = {**more, "type": "text", "text": text}
            case {"type": "refusal", "refusal": str(text), **more}:
                piece = {**more, "type": "text", "text": text}
            case {"type": "input_image", "image_url": str(url), **more}:
                image = {"url": url, "detail": more.pop("detail", None)}
                piece = {**more, "type": "image_url", "image_url": image}
            case {"type": "input_file", "file_data": str(url), **more} | {
                "type": "input_file",
                "file_url": str(url),
                **more,
            }:
                file = {"filename": str(more.pop("filename", "")), "file_data": url}
                piece = {**more, "type": "file", "file": file}
            case _:
                pass
        pieces.append(piece)
    return pieces
