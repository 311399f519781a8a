"""Parses OpenAI's Responses format, requests and responses, into Quire messages.

Adjacent items of the assistant become one message with their parts in order; each output becomes a tool
message. What Quire's parts cannot hold is stored in their fields of this provider, and is sent to no other:

- a text: the other fields of its content; of an assistant's message item in `message` (first text of the item), and
  `continues` in the texts after it; content of another type in `content`;
- reasoning: the whole item. Its encrypted content is not a `signature`, which is Anthropic's alone;
- a call or an output: the other fields of the item, with `type` if it is a custom one, and the `namespace` of its name;
- an item of another type: the whole item, in a text part that names the type.

The `id` and `status` of an item say nothing to a model. Only reasoning needs its id, and messages and calls may omit
both: clients send them or not, so two messages that differ in nothing else are the same.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from quire.errors import InvalidEntry
from quire.model import FilePart, ImagePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from quire.model.base import JsonObject
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object, to_plain_json
from quire.model.messages import ToolResultContent
from quire.wire.base import Reply
from quire.wire.billed_calls import FILE_SEARCHES_FIELD, SERVER_TOOLS_FIELD, WEB_SEARCHES_FIELD
from quire.wire.fields import collect_unknown_fields
from quire.wire.media import URL_SCHEMES, split_data_url
from quire.wire.responses import FORMAT

NAMESPACE_SEPARATOR = "__"
"""Between the namespace and the name of a tool: a call of `read` in `files` is stored as `files__read`."""
TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})
"""Types of content that a text part holds."""

_CLIENT_ITEM_TYPES = frozenset(
    {
        "additional_tools",
        "apply_patch_call_output",
        "compaction_trigger",
        "computer_call_output",
        "configuration_update",
        "local_shell_call_output",
        "mcp_approval_response",
        "shell_call_output",
    }
)
"""Items that only clients write. Items of all other types are the assistant's."""
_RESULT_TYPES = ("function_call_output", "custom_tool_call_output")
_ENVELOPE_FIELDS = (
    "id", "created_at", "completed_at", "status", "incomplete_details", "service_tier", "previous_response_id",
)  # fmt: skip
"""Fields of a response that are stored; the others repeat the request."""
_USAGE_FIELDS = ("input_tokens", "output_tokens", "total_tokens")
_IMAGE_DETAILS = ("low", "high", "auto")


def parse_reply(response: object) -> Reply:
    """Parses a response. `usage.input_tokens` is the whole prompt, including cached tokens, as OpenAI reports it."""
    body = to_plain_json(response)
    if not is_object(body) or not isinstance(body.get("output"), list):
        raise InvalidEntry("The response has no output, so it contains no reply; see the provider's error.")
    items = [_drop_nulls(item) for item in filter_objects(body["output"])]
    parts = tuple(part for item in items for part in _parse_assistant_item(item))
    incomplete_reason = get_text(get_object(body, "incomplete_details"), "reason")
    finish_reason = incomplete_reason or get_text(body, "status")
    return Reply(Message(role="assistant", parts=parts), parse_usage(body), finish_reason)


def parse_usage(body: dict[str, Any]) -> Usage | None:
    """The usage of a response, with the searches among its items, which OpenAI bills by the call."""
    if not is_object(counts := body.get("usage")):
        return None
    details = get_object(counts, "input_tokens_details")
    others = {key: body[key] for key in _ENVELOPE_FIELDS if body.get(key) is not None}
    items = filter_objects(body.get("output"))
    # Opening a page that a search found is free.
    actions = [get_object(item, "action") for item in items if item.get("type") == "web_search_call"]
    searches: JsonObject = {
        WEB_SEARCHES_FIELD: sum(action.get("type", "search") == "search" for action in actions),
        FILE_SEARCHES_FIELD: sum(item.get("type") == "file_search_call" for item in items),
    }
    fields: JsonObject = {key: value for key, value in counts.items() if key not in _USAGE_FIELDS}
    if any(searches.values()):
        fields[SERVER_TOOLS_FIELD] = searches
    fields["response"] = others
    return Usage(
        model=get_text(body, "model"),
        input_tokens=counts.get("input_tokens") or 0,
        output_tokens=counts.get("output_tokens") or 0,
        cache_read_tokens=details.get("cached_tokens") or 0,
        cache_write_tokens=details.get("cache_write_tokens") or 0,
        provider_fields=fields,
    )


def parse_messages(raw_items: Sequence[object], *, system: object = None) -> list[Message]:
    messages = [Message(role="system", parts=tuple(_parse_content(to_plain_json(system))))] if system else []
    if isinstance(raw_items, str):
        return [*messages, Message.user(raw_items)]
    items: list[dict[str, Any]] = []
    for index, raw in enumerate(map(to_plain_json, raw_items)):
        item = _drop_nulls(raw) if is_object(raw) else {}
        role = item.get("role")
        if "type" not in item and "role" in item:
            item["type"] = "message"
        if not isinstance(item.get("type"), str):
            raise InvalidEntry(f"Item {index} of the input has neither a type nor a role.")
        if item["type"] == "message" and role not in ("user", "assistant", "system", "developer"):
            raise InvalidEntry(f"Item {index} has the role {role!r}; use system, developer, user or assistant.")
        items.append(item)
    for is_assistant, group in groupby(items, is_assistant_item):
        if is_assistant:
            parts = tuple(part for item in group for part in _parse_assistant_item(item))
            messages.append(Message(role="assistant", parts=parts))
        else:
            messages += map(_parse_client_item, group)
    return messages


def _drop_nulls(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if value is not None}


def is_assistant_item(item: dict[str, Any]) -> bool:
    """Whether an item with a type is part of the assistant's message."""
    if item["type"] == "message":
        return item["role"] == "assistant"
    if item["type"] == "tool_search_output":
        return item.get("execution") != "client"
    return item["type"] not in _RESULT_TYPES and item["type"] not in _CLIENT_ITEM_TYPES


def _parse_client_item(item: dict[str, Any]) -> Message:
    if item["type"] in _RESULT_TYPES:
        is_custom = item["type"] == "custom_tool_call_output"
        known = ("call_id", "output") if is_custom else ("type", "call_id", "output")
        result = ToolResultPart(
            call_id=str(item.get("call_id") or ""),
            content=tuple(_parse_content(item.get("output"))),
            provider_fields=collect_unknown_fields(item, known, FORMAT),
        )
        return Message(role="tool", parts=(result,))
    if item["type"] != "message":
        return Message(role="user", parts=(_make_placeholder(item),))
    is_developer = item["role"] == "developer"
    known = ("type", "content") if is_developer else ("type", "content", "role")
    return Message(
        role="user" if item["role"] == "user" else "system",
        parts=tuple(_parse_content(item.get("content"))),
        provider_fields=collect_unknown_fields(item, known, FORMAT),
    )


def _make_placeholder(item: dict[str, Any]) -> TextPart:
    return TextPart(text=f"[{item.get('type')}]", provider_fields={FORMAT: item})


def _parse_content(content: object) -> list[ToolResultContent]:
    if isinstance(content, str):
        return [TextPart(text=content)]
    return [_parse_piece(_drop_nulls(piece)) for piece in filter_objects(content)]


def _parse_piece(piece: dict[str, Any]) -> ToolResultContent:
    """Parses a text, an image or a file, if Quire's parts can hold all its fields."""
    match piece:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return TextPart(text=text, provider_fields=collect_unknown_fields(piece, ("type", "text"), FORMAT))
        case {"type": "refusal", "refusal": str(text)}:
            return TextPart(text=text, provider_fields=collect_unknown_fields(piece, ("refusal",), FORMAT))
        case {"type": "input_image", "image_url": str(url)} if url.startswith(URL_SCHEMES):
            detail = piece.get("detail") if piece.get("detail") in _IMAGE_DETAILS else None
            known = ("type", "image_url", "detail") if detail else ("type", "image_url")
            return ImagePart(url=url, detail=detail, provider_fields=collect_unknown_fields(piece, known, FORMAT))
        case {"type": "input_file", "file_data": str(url), "filename": str(name)} if split_data_url(url):
            unknown_fields = collect_unknown_fields(piece, ("type", "file_data", "filename"), FORMAT)
            return FilePart(url=url, name=name, provider_fields=unknown_fields)
        case {"type": "input_file", "file_url": str(url)} if url.startswith(URL_SCHEMES) and not split_data_url(url):
            unknown_fields = collect_unknown_fields(piece, ("type", "file_url"), FORMAT)
            return FilePart(url=url, name=get_text(piece, "filename"), provider_fields=unknown_fields)
        case _:
            return TextPart(text=f"[{piece.get('type')}]", provider_fields={FORMAT: {"content": piece}})


def _parse_assistant_item(item: dict[str, Any]) -> Iterator[Part]:
    match item:
        case {"type": "message"}:
            yield from _parse_assistant_message(item)
        case {"type": "reasoning"}:
            pieces = filter_objects(item.get("summary")) or filter_objects(item.get("content"))
            text = "\n\n".join(get_text(piece, "text") or "" for piece in pieces)
            yield ThinkingPart(text=text, provider_fields={FORMAT: item})
        case {"type": "function_call", "call_id": str(id_), "name": str(name)}:
            text = item.get("arguments")
            unknown_fields = collect_unknown_fields(item, ("type", "call_id", "name", "arguments"), FORMAT)
            yield ToolCallPart(
                id=id_,
                name=_add_namespace(item, name),
                arguments=text if isinstance(text, str) else dump_json(text or {}),
                provider_fields=unknown_fields,
            )
        case {"type": "custom_tool_call", "call_id": str(id_), "name": str(name), "input": str(text)}:
            unknown_fields = collect_unknown_fields(item, ("call_id", "name", "input"), FORMAT)
            arguments = dump_json({"input": text})
            yield ToolCallPart(
                id=id_, name=_add_namespace(item, name), arguments=arguments, provider_fields=unknown_fields
            )
        case _:
            yield _make_placeholder(item)


def _add_namespace(item: dict[str, Any], name: str) -> str:
    namespace = get_text(item, "namespace")
    return f"{namespace}{NAMESPACE_SEPARATOR}{name}" if namespace else name


def _parse_assistant_message(item: dict[str, Any]) -> Iterator[Part]:
    """Parses the content of one message item. The first part has the item's fields, and the others continue it."""
    fields: JsonObject | None = collect_unknown_fields(item, ("type", "role", "content"), FORMAT)
    place: JsonObject = {"message": fields[FORMAT]} if fields else {}
    content: object = item.get("content")
    pieces: list[dict[str, Any]] = [{"type": "output_text"}] if isinstance(content, str) else filter_objects(content)
    for piece, part in zip(pieces, _parse_content(content), strict=True):
        if not isinstance(part, TextPart):
            # The assistant's content has only texts; anything else becomes a placeholder.
            part = TextPart(text=f"[{piece.get('type')}]", provider_fields={FORMAT: {"content": piece}})
        own = get_object(part.provider_fields or {}, FORMAT)
        merged: JsonObject | None = {FORMAT: {**own, **place}} if own or place else None
        yield part.model_copy(update={"provider_fields": merged})
        place = {"continues": True}
