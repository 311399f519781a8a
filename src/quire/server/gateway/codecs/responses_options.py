"""Options of requests in the format responses: from a client, and to an upstream."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from quire.server.gateway.codecs.base import RequestOptions, TranslatedFields
from quire.server.gateway.codecs.bodies import get_number, get_token_limit, list_other_fields
from quire.server.gateway.codecs.responses_tools import join_name
from quire.view.wire_formats import WireMessage
from quire.view.wire_formats.fields import get_object, get_text, is_object

_TRANSLATED_FIELDS = (
    "model", "input", "instructions", "tools", "stream", "max_output_tokens", "temperature", "top_p", "tool_choice",
    "parallel_tool_calls", "text", "reasoning", "user", "safety_identifier", "previous_response_id", "conversation",
    "truncation",
)  # fmt: skip
_ECHOED_FIELDS = ("store", "metadata")
"""Fields that only the response repeats."""
_DEFAULTS: Mapping[str, object] = {
    "background": False,
    "top_logprobs": 0,
    "service_tier": "auto",
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "include": [],
}
"""Values that have no effect."""
_TOOL_CHOICES = ("auto", "required", "none")


def parse_options(body: dict[str, Any]) -> RequestOptions:
    choice, required_tool = _parse_tool_choice(body.get("tool_choice"))
    text, reasoning = get_object(body, "text"), get_object(body, "reasoning")
    return RequestOptions(
        stream=body.get("stream") is True,
        max_tokens=get_token_limit(body, "max_output_tokens"),
        temperature=get_number(body, "temperature"),
        top_p=get_number(body, "top_p"),
        tool_choice=choice,
        required_tool=required_tool,
        parallel_tool_calls=value if isinstance(value := body.get("parallel_tool_calls"), bool) else None,
        response_format=_to_response_format(get_object(text, "format")),
        reasoning_effort=get_text(reasoning, "effort"),
        user=get_text(body, "safety_identifier") or get_text(body, "user"),
        other_fields=(
            *_list_own_fields(body),
            *(f"text.{name}" for name in list_other_fields(text, ("format",))),
            *(f"reasoning.{name}" for name in list_other_fields(reasoning, ("effort",))),
        ),
    )


def translate_options(options: RequestOptions) -> TranslatedFields:
    """The upstream stores nothing, so that reasoning must be in the reply to be sent back."""
    tool_choice: object = options.tool_choice
    if options.required_tool is not None:
        tool_choice = {"type": "function", "name": options.required_tool}
    fields = {
        "stream": options.stream or None,
        "max_output_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "tool_choice": tool_choice,
        "parallel_tool_calls": options.parallel_tool_calls,
        "text": _to_text_options(options.response_format),
        "reasoning": {"effort": options.reasoning_effort} if options.reasoning_effort else None,
        "include": ["reasoning.encrypted_content"] if options.reasoning_effort else None,
        "user": options.user,
        "store": False,
    }
    return TranslatedFields(
        {name: value for name, value in fields.items() if value is not None},
        (*(["top_k"] if options.top_k is not None else []), *(["stop"] if options.stop else [])),
    )


def _parse_tool_choice(choice: object) -> tuple[Literal["auto", "required", "none"] | None, str | None]:
    """Parses which tools the model may or must call; also what a choice among allowed tools has in common with that."""
    if is_object(choice):
        mode = choice.get("mode") if choice.get("type") == "allowed_tools" else None
        is_named = choice.get("type") in ("function", "custom")
        name = join_name(get_text(choice, "namespace"), get_text(choice, "name") or "") if is_named else None
        return cast(Any, mode) if mode in _TOOL_CHOICES else None, name or None
    return cast(Any, choice) if choice in _TOOL_CHOICES else None, None


def _list_own_fields(body: Mapping[str, Any]) -> Iterator[str]:
    """Names of fields without a place in other formats, except those with a value that has no effect."""
    for name in list_other_fields(body, (*_TRANSLATED_FIELDS, *_ECHOED_FIELDS)):
        if name not in _DEFAULTS or body[name] != _DEFAULTS[name]:
            yield name
    choice = body.get("tool_choice")
    if is_object(choice) and choice.get("type") not in ("function", "custom"):
        yield f"tool_choice[{get_text(choice, 'type') or 'unknown'}]"
    elif choice is not None and not is_object(choice) and choice not in _TOOL_CHOICES:
        yield "tool_choice"


def _to_response_format(format_: WireMessage) -> dict[str, Any] | None:
    """The form of the reply as in chat completions."""
    match format_.get("type"):
        case "json_schema":
            schema = {name: value for name, value in format_.items() if name != "type"}
            return {"type": "json_schema", "json_schema": schema}
        case "json_object":
            return {"type": "json_object"}
        case _:
            return None


def _to_text_options(response_format: dict[str, Any] | None) -> dict[str, Any] | None:
    if response_format is None:
        return None
    schema = get_object(response_format, "json_schema")
    return {"format": {"type": response_format.get("type"), **schema}}
