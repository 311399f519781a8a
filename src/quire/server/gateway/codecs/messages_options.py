"""Options of requests in the format messages: from a client, and to an upstream."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, cast

from quire.server.gateway.codecs.base import RequestOptions, TranslatedFields
from quire.server.gateway.codecs.bodies import get_number, get_token_limit, list_other_fields
from quire.view.wire_formats.fields import get_object, get_text, is_object

MAX_USER_CHARS = 64
"""Maximum length of a user ID in OpenAI's formats."""
MIN_THINKING_TOKENS = 1_024
"""Minimum budget of thinking that the API accepts."""
_TRANSLATED_FIELDS = (
    "model", "messages", "system", "tools", "stream", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences",
    "tool_choice", "metadata", "thinking", "output_config", "thread",
)  # fmt: skip
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Reasoning effort in OpenAI's formats by that of Anthropic's."""
_TARGET_EFFORTS = {**{name: name for name in _EFFORTS}, "minimal": "low"}
"""The reverse."""


def parse_options(body: dict[str, Any]) -> RequestOptions:
    choice, output_config = get_object(body, "tool_choice"), get_object(body, "output_config")
    kind, thinking = get_text(choice, "type") or "", get_text(get_object(body, "thinking"), "type")
    format_ = get_object(output_config, "format")
    user = get_text(get_object(body, "metadata"), "user_id")
    stop = body.get("stop_sequences")
    return RequestOptions(
        stream=body.get("stream") is True,
        max_tokens=get_token_limit(body, "max_tokens"),
        temperature=get_number(body, "temperature"),
        top_p=get_number(body, "top_p"),
        top_k=get_token_limit(body, "top_k"),
        stop=tuple(each for each in cast("list[object]", stop) if isinstance(each, str))
        if isinstance(stop, list)
        else (),
        tool_choice=cast(Any, _TOOL_CHOICES.get(kind)),
        required_tool=get_text(choice, "name") if kind == "tool" else None,
        parallel_tool_calls=False if choice.get("disable_parallel_tool_use") is True else None,
        response_format=_to_response_format(format_),
        reasoning_effort=_EFFORTS.get(get_text(output_config, "effort") or "") if thinking != "disabled" else None,
        user=sha256(user.encode()).hexdigest()[:MAX_USER_CHARS] if user else None,
        other_fields=(*list_other_fields(body, _TRANSLATED_FIELDS), *_list_other_options(body)),
    )


def translate_options(options: RequestOptions) -> TranslatedFields:
    limit = options.max_tokens or MIN_THINKING_TOKENS
    choice = _build_tool_choice(options)
    schema = get_object(options.response_format or {}, "json_schema").get("schema")
    output_config: dict[str, Any] = {"format": {"type": "json_schema", "schema": schema}} if is_object(schema) else {}
    if effort := _TARGET_EFFORTS.get(options.reasoning_effort or ""):
        output_config["effort"] = effort
    fields = {
        "max_tokens": limit,
        "stream": options.stream or None,
        "temperature": min(options.temperature, 1.0) if options.temperature is not None else None,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "stop_sequences": [text for text in options.stop if text.strip()] or None,
        "tool_choice": choice,
        "output_config": output_config or None,
        "metadata": {"user_id": options.user} if options.user else None,
    }
    has_other_format = options.response_format is not None and "format" not in output_config
    is_text = get_text(options.response_format or {}, "type") == "text"
    return TranslatedFields(
        {name: value for name, value in fields.items() if value is not None},
        (
            *(["response_format"] if has_other_format and not is_text else []),
            *(["reasoning_effort"] if options.reasoning_effort and "effort" not in output_config else []),
        ),
    )


def _list_other_options(body: Mapping[str, Any]) -> Iterator[str]:
    """Names of options within translated fields that only this format has."""
    thinking, output_config = get_object(body, "thinking"), get_object(body, "output_config")
    if thinking.get("type") == "disabled":
        yield "thinking"
    yield from (f"thinking.{name}" for name in list_other_fields(thinking, ("type",)))
    yield from (f"output_config.{name}" for name in list_other_fields(output_config, ("effort", "format")))
    if output_config.get("effort") is not None and output_config["effort"] not in _EFFORTS:
        yield "output_config.effort"
    if output_config.get("format") is not None and _to_response_format(get_object(output_config, "format")) is None:
        yield "output_config.format"
    yield from (f"metadata.{name}" for name in list_other_fields(get_object(body, "metadata"), ("user_id",)))
    kind = get_object(body, "tool_choice").get("type")
    if kind is not None and kind not in (*_TOOL_CHOICES, "tool"):
        yield "tool_choice"


def _to_response_format(format_: dict[str, Any]) -> dict[str, Any] | None:
    schema = format_.get("schema")
    if not is_object(schema):
        return None
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, "strict": True}}


def _build_tool_choice(options: RequestOptions) -> dict[str, Any] | None:
    single = {"disable_parallel_tool_use": True} if options.parallel_tool_calls is False else {}
    if options.required_tool is not None:
        return {"type": "tool", "name": options.required_tool, **single}
    if options.tool_choice is None:
        return {"type": "auto", **single} if single else None
    kind = "any" if options.tool_choice == "required" else options.tool_choice
    return {"type": kind, **(single if kind != "none" else {})}
