"""The response object of OpenAI's Responses, its items and its usage.

All functions are pure: a stream, its last event, and a later read of the recorded reply give the same items and IDs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from quire.model import Message, TextPart, ThinkingPart, ToolCallPart, Usage
from quire.model.finish_reasons import FinishReason
from quire.model.json_values import filter_objects, get_object, is_object
from quire.wire import WireMessage
from quire.wire.fields import get_provider_fields
from quire.wire.responses import FORMAT
from quire.wire.responses.parse import TEXT_TYPES
from quire.wire.responses.tools import render_call

ItemStatus = Literal["in_progress", "completed", "incomplete"]

RESPONSE_ID_PREFIX = "resp_"
_ITEM_ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ECHOED_FIELDS: Mapping[str, object] = {
    "instructions": None,
    "previous_response_id": None,
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": True,
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
}
"""Fields of the request that its response repeats, and their defaults."""
_RECORDED_REQUEST_FIELDS = (
    *(name for name in _ECHOED_FIELDS if name != "previous_response_id"),
    "model", "tools", "text", "reasoning", "conversation",
)  # fmt: skip
"""Fields that are recorded together, since most requests of a conversation repeat all of them."""
_RECORDED_RESPONSE_FIELDS = (
    "id", "created_at", "completed_at", "status", "incomplete_details", "service_tier", "previous_response_id",
)  # fmt: skip
"""Fields of the response that differ from one to the next."""


def make_response_id(request_id: str) -> str:
    return f"{RESPONSE_ID_PREFIX}{request_id}"


def make_item_id(type_: str, request_id: str, output_index: int) -> str:
    return f"{_ITEM_ID_PREFIXES[type_]}_{request_id}_{output_index}"


def build_response_object(
    message: Message,
    *,
    request_id: str,
    request_fields: Mapping[str, Any],
    created_at: int,
    completed_at: int | None,
    finish_reason: FinishReason,
    usage: Usage | None,
    response_id: str | None = None,
) -> WireMessage:
    """Builds the response of a recorded reply. `request_fields` is the body of its request, or what is known of it.

    A reply that an upstream of this format has made has its own `response_id`.
    """
    output = build_items(message, request_id=request_id)
    if finish_reason in _INCOMPLETE_REASONS and output and "status" in output[-1]:
        output[-1]["status"] = "incomplete"
    started = build_started_response(request_fields, request_id=request_id, created_at=created_at)
    ended = end_response(started, output, completed_at=completed_at, finish_reason=finish_reason, usage=usage)
    return {**ended, "id": response_id or ended["id"]}


def build_started_response(request_fields: Mapping[str, Any], *, request_id: str, created_at: int) -> WireMessage:
    """Builds the response of a reply that has not started yet."""
    echoed = {
        name: default if (value := request_fields.get(name)) is None else value
        for name, default in _ECHOED_FIELDS.items()
    }
    reasoning = request_fields.get("reasoning")
    conversation = request_fields.get("conversation")
    conversation_id = conversation.get("id") if is_object(conversation) else conversation
    return {
        "id": make_response_id(request_id),
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "in_progress",
        "incomplete_details": None,
        "model": str(request_fields.get("model") or ""),
        "output": [],
        "error": None,
        **echoed,
        # A request may omit these fields of a function.
        "tools": [
            {"description": None, "parameters": None, "strict": None, **tool}
            if tool.get("type") == "function"
            else tool
            for tool in filter_objects(request_fields.get("tools"))
        ],
        "text": {"format": {"type": "text"}, **get_object(request_fields, "text")},
        "reasoning": {"effort": None, "summary": None, **reasoning} if is_object(reasoning) else None,
        "usage": None,
        "background": False,
        "service_tier": "default",
        **({"conversation": {"id": conversation_id}} if isinstance(conversation_id, str) else {}),
    }


def end_response(
    response: WireMessage,
    output: Sequence[WireMessage],
    *,
    completed_at: int | None,
    finish_reason: FinishReason,
    usage: Usage | None,
) -> WireMessage:
    """Completes a response. One that a limit or a filter has cut off is incomplete."""
    reason = _INCOMPLETE_REASONS.get(finish_reason)
    return {
        **response,
        "status": "incomplete" if reason else "completed",
        "completed_at": None if reason else completed_at,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": list(output),
        "usage": build_usage(usage) if usage is not None else None,
    }


def select_request_fields(body: Mapping[str, Any]) -> WireMessage:
    return {name: body[name] for name in _RECORDED_REQUEST_FIELDS if body.get(name) is not None}


def select_response_fields(response: Mapping[str, Any]) -> WireMessage:
    return {name: response[name] for name in _RECORDED_RESPONSE_FIELDS if response.get(name) is not None}


def build_recorded_response(
    output: Sequence[WireMessage],
    *,
    request_fields: Mapping[str, Any],
    response_fields: Mapping[str, Any],
    usage: Usage | None,
    is_cut_off: bool,
) -> WireMessage:
    """Builds the response again from what `select_request_fields` and `select_response_fields` have recorded of it.

    A stream that was cut off has failed for its client. What came of it is the output.
    """
    items = list(output)
    response: WireMessage = {
        **build_started_response(request_fields, request_id="", created_at=0),
        "status": "completed",
        **select_response_fields(response_fields),
        "usage": build_usage(usage) if usage is not None else None,
    }
    if is_cut_off:
        error = {"code": "server_error", "message": "The reply was interrupted."}
        response |= {"status": "failed", "completed_at": None, "error": error}
    elif response["status"] == "incomplete" and items and "status" in items[-1]:
        items[-1] = {**items[-1], "status": "incomplete"}
    return {**response, "output": items}


def build_usage(usage: Usage) -> WireMessage:
    fields = usage.provider_fields or {}
    details = get_object(fields, "output_tokens_details", "completion_tokens_details")
    cached, written = usage.cache_read_tokens, usage.cache_write_tokens
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens") or 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def build_items(message: Message, *, request_id: str) -> list[WireMessage]:
    """Builds the items of a reply. Those that came from an upstream of this format have their own IDs."""
    items: list[WireMessage] = []
    for part in message.parts:
        match part:
            case TextPart():
                _add_text(items, part, request_id)
            case ThinkingPart():
                fields = get_provider_fields(part.provider_fields, FORMAT)
                if fields.get("type") == "reasoning":
                    items.append({"summary": [], **fields})
                elif items and items[-1]["type"] == "reasoning" and items[-1]["summary"] and part.text:
                    items[-1]["summary"][-1]["text"] += part.text
                elif part.text:
                    items.append(build_reasoning_item(part.text, id=make_item_id("reasoning", request_id, len(items))))
            case ToolCallPart():
                type_ = render_call(part)["type"]
                items.append(build_call_item(part, id=make_item_id(type_, request_id, len(items))))
            case _:
                pass
    return items


def build_message_item(text: str, *, id: str, status: ItemStatus = "completed") -> WireMessage:
    content = [build_text_piece(text)] if text else []
    return {"id": id, "type": "message", "role": "assistant", "status": status, "content": content}


def build_text_piece(text: str) -> WireMessage:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def build_reasoning_item(text: str, *, id: str) -> WireMessage:
    """The reasoning of another format is a summary: clients show summaries, and hide what they take for raw text."""
    summary = [{"type": "summary_text", "text": text}] if text else []
    return {"id": id, "type": "reasoning", "summary": summary, "encrypted_content": None}


def build_call_item(call: ToolCallPart, *, id: str, status: ItemStatus = "completed") -> WireMessage:
    fields = get_provider_fields(call.provider_fields, FORMAT)
    own = {name: fields[name] for name in ("id", "status") if name in fields}
    return {"id": id, "status": status, **render_call(call), **own}


def _add_text(items: list[WireMessage], part: TextPart, request_id: str) -> None:
    """Adds a text to the message before it, or as a new message; or the item that the text only names."""
    fields = get_provider_fields(part.provider_fields, FORMAT)
    if fields.get("type", "text") not in TEXT_TYPES:
        items.append(fields)
        return
    if is_object(content := fields.get("content")):
        piece = content
    elif fields.get("type") == "refusal":
        piece = {"type": "refusal", "refusal": part.text}
    else:
        own = {name: value for name, value in fields.items() if name in ("annotations", "logprobs")}
        piece = {**build_text_piece(part.text), **own}
    last = items[-1]["content"] if items and items[-1]["type"] == "message" else None
    if last and fields.get("continues") is True:
        last.append(piece)
    elif last and not fields and last[-1]["type"] == "output_text":
        last[-1]["text"] += part.text
    elif part.text or fields:
        head = {"id": make_item_id("message", request_id, len(items)), "type": "message", "role": "assistant"}
        own = {name: value for name, value in get_object(fields, "message").items() if name not in head or name == "id"}
        items.append({**head, "status": "completed", **own, "content": [piece]})
