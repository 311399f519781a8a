"""Codec of Anthropic's Messages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar, cast

from quire.errors import (
    ContextOverflow,
    InvalidEntry,
    ModelContextOverflow,
    ModelError,
    NotFound,
    QuireError,
    error_detail,
)
from quire.model import ToolDefinition
from quire.model.ids import new_id
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.model.policy import WireFormatName
from quire.wire import Reply, WireMessage
from quire.wire.client_messages import ParsedMessage, merge_user_messages
from quire.wire.codec import (
    MAX_CALL_ID_CHARS,
    MAX_NAME_CHARS,
    ClientRequest,
    Codec,
    ReplyContext,
    ReplyEncoder,
    RequestOptions,
    TranslatedFields,
    TranslatedTools,
    UnreadableBody,
    encode_body,
    get_number,
    get_token_limit,
    list_other_fields,
)
from quire.wire.http_errors import ErrorResponse
from quire.wire.item_edits import ItemEditor
from quire.wire.messages import FORMAT
from quire.wire.messages.cache_markers import add_cache_markers
from quire.wire.messages.item_edits import MessagesItemEditor
from quire.wire.messages.parse import parse_messages, parse_reply
from quire.wire.messages.render import UNSIGNED_SIGNATURE, AnthropicMessagesFormat
from quire.wire.messages.stream import MessagesEncoder, MessagesStreamDecoder
from quire.wire.replies import encode_event

BILLING_PREFIX = "x-anthropic-billing-header:"
"""Start of a system block that only Anthropic reads. It may change with every request."""
_TOOL_FIELDS = ("name", "description", "input_schema", "type", "cache_control", "defer_loading")
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OVERFLOW_CODES = ("context_length_exceeded", "model_context_overflow")
_EVENT_ERROR_TYPES = {
    **dict.fromkeys(_OVERFLOW_CODES, "invalid_request_error"),
    "invalid_prompt": "invalid_request_error",
    "rate_limit_exceeded": "rate_limit_error",
    "model_rate_limited": "rate_limit_error",
    "server_is_overloaded": "overloaded_error",
    "store_unavailable": "overloaded_error",
    "model_timeout": "timeout_error",
}
"""Types of errors within a stream, by the codes of Quire and of OpenAI's formats."""
_MESSAGE_FIELDS_WITHOUT_MEANING = frozenset({"cache_control", "citations", "caller"})
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
"""Reasoning effort in OpenAI's formats by Anthropic's effort."""
_TARGET_EFFORTS = {**{name: name for name in _EFFORTS}, "minimal": "low"}
"""The reverse."""


class MessagesCodec(Codec):
    leading_roles: ClassVar[frozenset[str] | None] = frozenset()
    name: ClassVar[WireFormatName] = FORMAT
    item_editor: ClassVar[ItemEditor] = MessagesItemEditor()
    create_path: ClassVar[str] = "messages"
    media_types: ClassVar[tuple[str, ...]] = ("image", "document")
    thinking_types: ClassVar[tuple[str, ...]] = ("thinking", "redacted_thinking")
    translated_headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
    requires_reply_limit: ClassVar[bool] = True
    carries_envelope: ClassVar[bool] = True
    count_path: ClassVar[str | None] = "messages/count_tokens"
    prefix_fields: ClassVar[tuple[str, ...]] = ("tools", "system")
    prefix_parameters: ClassVar[tuple[str, ...]] = (
        "tool_choice", "thinking.type", "thinking.budget_tokens", "output_config.effort", "speed",
    )  # fmt: skip

    def parse_request(self, raw: bytes, body: dict[str, Any]) -> ClientRequest:
        system = body.get("system")
        blocks = [{"type": "text", "text": system}] if isinstance(system, str) else filter_objects(system)
        instructions = [block for block in blocks if block.get("text")]
        thread = get_object(body, "thread")
        messages: object = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise UnreadableBody("`messages` is missing, empty, or not a list.")
        try:
            parsed = parse_messages(cast("list[object]", messages), split_results=True)
        except (QuireError, ValueError, TypeError, AttributeError) as error:
            # A client may put anything into a message; the upstream decides whether it is valid.
            raise UnreadableBody(f"A message cannot be parsed: {error}.") from error
        return ClientRequest(
            codec=self,
            raw=raw,
            body=body,
            instructions=({"role": "system", "content": instructions},) if instructions else (),
            messages=tuple(map(ParsedMessage, merge_user_messages(each for each in parsed if each.parts))),
            tools=tuple(filter_objects(body.get("tools"))),
            options=_parse_options(body),
            previous_reply=get_text(thread, "previous_message_id") if thread.get("type") == "continue" else None,
        )

    def get_cache_seconds(self, raw: bytes) -> int:
        return 3_600 if b'"1h"' in raw else 300

    def has_unsendable(self, request: ClientRequest) -> bool:
        return UNSIGNED_SIGNATURE.encode() in request.raw

    def drop_unsendable(self, request: ClientRequest) -> ClientRequest:
        # Drops thinking that Quire gave the client for a model that signs none: the provider rejects it.
        messages = [
            {
                **message,
                "content": [
                    block
                    for block in cast("list[object]", content)
                    if not (is_object(block) and block.get("signature") == UNSIGNED_SIGNATURE)
                ],
            }
            if isinstance(content := cast("object", message.get("content")), list)
            else message
            for message in filter_objects(request.body.get("messages"))
        ]
        body = {**request.body, "messages": messages}
        return replace(request, body=body, raw=encode_body(body), raw_digest=None, dropped=("messages[thinking]",))

    def list_identifiers(self, body: Mapping[str, Any]) -> Iterator[tuple[str, object, int]]:
        for tool in filter_objects(body.get("tools")):
            yield "The name of a tool", tool.get("name"), MAX_NAME_CHARS
        for message in filter_objects(body.get("messages")):
            for block in filter_objects(message.get("content")):
                yield "The name in a tool call", block.get("name"), MAX_NAME_CHARS
                yield "`id` of a block", block.get("id"), MAX_CALL_ID_CHARS
                yield "`tool_use_id` of a block", block.get("tool_use_id"), MAX_CALL_ID_CHARS

    def join_instructions(self, request: ClientRequest, *, is_translated: bool = False) -> str | None:
        texts = [str(block.get("text", "")) for each in request.instructions for block in each["content"]]
        if is_translated:
            texts = [text for text in texts if not text.startswith(BILLING_PREFIX)]
        return "\n\n".join(texts) or None

    def is_plain_system(self, request: ClientRequest, system: str | None) -> bool:
        blocks = [block for each in request.instructions for block in each["content"]]
        return len(blocks) <= 1 and all(block.keys() <= {"type", "text", "cache_control"} for block in blocks)

    def to_tool_definition(self, tool: WireMessage) -> ToolDefinition:
        schema = tool.get("input_schema")
        parameters: dict[str, Any] = schema if is_object(schema) else {"tool": tool}
        name = get_text(tool, "name") or get_text(tool, "type") or "tool"
        return ToolDefinition(name=name, description=get_text(tool, "description") or "", parameters=parameters)

    def translate_tools(self, request: ClientRequest) -> TranslatedTools:
        """Server tools stay out, and so do deferred tools that no message has loaded."""
        loaded = {
            reference.get("tool_name")
            for message in filter_objects(request.body.get("messages"))
            for block in filter_objects(message.get("content"))
            for reference in filter_objects(block.get("content"))
            if reference.get("type") == "tool_reference"
        }
        own = [tool for tool in request.tools if is_object(tool.get("input_schema"))]
        offered = [tool for tool in own if not tool.get("defer_loading") or tool.get("name") in loaded]
        set_fields = (
            name for tool in offered for name in list_other_fields(tool, _TOOL_FIELDS) if tool[name] is not False
        )
        server_tools = [tool for tool in request.tools if not is_object(tool.get("input_schema"))]
        return TranslatedTools(
            tuple(self.to_tool_definition(tool) for tool in offered),
            (
                *(f"tools[{get_text(tool, 'type') or 'unknown'}]" for tool in server_tools),
                *(["tools[defer_loading]"] if len(offered) < len(own) else []),
                *dict.fromkeys(f"tools.{name}" for name in set_fields),
            ),
        )

    def encode_fitted(
        self,
        request: ClientRequest,
        payload: dict[str, Any],
        *,
        stable_prefix: Sequence[WireMessage],
        model: str | None,
    ) -> bytes:
        body = {name: value for name, value in request.body.items() if name != "thread"}
        renamed = {"model": model} if model else {}
        # Of the client's cache markers, those on instructions and tools stay; its messages have others now.
        fitted = {**body, "messages": payload["messages"], **renamed}
        return encode_body(add_cache_markers(fitted, stable_prefix=stable_prefix))

    def list_sent(self, request: ClientRequest, *, start: int) -> Sequence[WireMessage] | None:
        return filter_objects(request.body.get("messages")) if start == 0 else None

    def is_equivalent(self, rendered: Sequence[WireMessage], sent: Sequence[WireMessage]) -> bool:
        return _normalize_wire_messages(rendered) == _normalize_wire_messages(sent)

    def build_envelope(self, system: str, tools: Sequence[ToolDefinition]) -> dict[str, Any]:
        rendered = [
            raw if is_object(raw := tool.parameters.get("tool")) else AnthropicMessagesFormat().render_tool(tool)
            for tool in tools
        ]
        return {**({"system": system} if system else {}), **({"tools": rendered} if rendered else {})}

    def is_unknown_reference(self, body: bytes) -> bool:
        return b"thread_not_found" in body

    def build_unknown_reference(self, error: NotFound) -> ErrorResponse:
        return self.build_error(404, error_detail(error), code="thread_not_found")

    def make_encoder(self, context: ReplyContext) -> ReplyEncoder:
        return MessagesEncoder(context)

    def build_error(
        self, status: int, detail: str, *, code: str, headers: Mapping[str, str] | None = None
    ) -> ErrorResponse:
        error = {
            "type": _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error"),
            "message": detail,
            "details": {"error_code": code},
        }
        request_id = f"req_{new_id()}"
        body = dump_json({"type": "error", "error": error, "request_id": request_id}).encode()
        own_headers = {**(headers or {}), "request-id": request_id, "content-type": "application/json"}
        return ErrorResponse(status, body, own_headers)

    def build_overflow(self, error: ContextOverflow) -> ErrorResponse:
        return self._build_too_long(error.needed_tokens, error.available_tokens, str(error))

    def _build_too_long(self, tokens: int, window: int, explanation: str) -> ErrorResponse:
        """Clients recognise these words, and then compact their conversation."""
        detail = f"prompt is too long: {tokens} tokens > {window} maximum. {explanation}".rstrip()
        return self.build_error(400, detail, code="prompt_too_long")

    def translate_error(self, status: int, error: ModelError) -> ErrorResponse:
        if isinstance(error, ModelContextOverflow):
            explanation = f"capability_rejected: prompt_too_long. {error_detail(error)}"
            window = error.window or 0
            return self._build_too_long(max(error.tokens or 0, window + 1), window, explanation)
        if status == 400:
            return self.build_error(400, f"capability_rejected: {error_detail(error)}", code="upstream_rejected")
        return super().translate_error(status, error)

    def encode_error_event(self, detail: str, *, code: str) -> bytes:
        if code in _OVERFLOW_CODES:
            detail = f"prompt is too long. capability_rejected: prompt_too_long. {detail}"
        error = {"type": _EVENT_ERROR_TYPES.get(code, "api_error"), "message": detail}
        return encode_event({"type": "error", "error": error}, name="error")

    def build_url(self, base_url: str, path: str) -> str:
        """Base URLs of Anthropic's API do not end in `/v1`, but some users add it."""
        return f"{base_url.rstrip('/').removesuffix('/v1')}/v1/{path}"

    def build_credentials(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def translate_options(self, options: RequestOptions) -> TranslatedFields:
        limit = options.max_tokens or MIN_THINKING_TOKENS
        single = {"disable_parallel_tool_use": True} if options.parallel_tool_calls is False else {}
        choice: dict[str, Any] | None = {"type": "auto", **single} if single else None
        if options.required_tool is not None:
            choice = {"type": "tool", "name": options.required_tool, **single}
        elif options.tool_choice == "none":
            choice = {"type": "none"}
        elif options.tool_choice is not None:
            choice = {"type": "any" if options.tool_choice == "required" else options.tool_choice, **single}
        schema = get_object(options.response_format or {}, "json_schema").get("schema")
        output_config: dict[str, Any] = (
            {"format": {"type": "json_schema", "schema": schema}} if is_object(schema) else {}
        )
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

    def make_decoder(self, *, choice_count: int = 1, is_translated: bool) -> MessagesStreamDecoder:
        return MessagesStreamDecoder(is_translated=is_translated)

    def parse_response(self, response: object) -> list[Reply]:
        try:
            return [parse_reply(response)]
        except (InvalidEntry, ValueError):
            return []

    def read_response_id(self, response: object) -> str | None:
        return get_text(response, "id") if is_object(response) else None


def _normalize_wire_messages(messages: Sequence[WireMessage]) -> list[WireMessage]:
    """Merges adjacent messages of one role, and drops what has no meaning: cache markers, nulls, `is_error: false`."""
    merged: list[WireMessage] = []
    for message in messages:
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else filter_objects(content)
        blocks = [_normalize_block(block) for block in blocks if block.get("type") != "text" or block.get("text")]
        if merged and merged[-1]["role"] == message.get("role"):
            merged[-1]["content"].extend(blocks)
        else:
            merged.append({"role": message.get("role"), "content": blocks})
    return merged


def _normalize_block(block: WireMessage) -> WireMessage:
    fields = {
        name: value
        for name, value in block.items()
        if name not in _MESSAGE_FIELDS_WITHOUT_MEANING and value is not None and (name, value) != ("is_error", False)
    }
    content = fields.get("content")
    if block.get("type") == "tool_result":
        pieces = [{"type": "text", "text": content}] if isinstance(content, str) else filter_objects(content)
        fields["content"] = [_normalize_block(piece) for piece in pieces]
    return fields


def _parse_options(body: dict[str, Any]) -> RequestOptions:
    choice, thinking, metadata = (get_object(body, name) for name in ("tool_choice", "thinking", "metadata"))
    output_config = get_object(body, "output_config")
    kind, effort, format_ = choice.get("type"), output_config.get("effort"), output_config.get("format")
    is_thinking = thinking.get("type") != "disabled"
    schema = get_object(output_config, "format").get("schema")
    user, stop = get_text(metadata, "user_id"), body.get("stop_sequences")
    # Names of options that only this format has.
    other_fields = [
        *list_other_fields(body, _TRANSLATED_FIELDS),
        *([] if is_thinking else ["thinking"]),
        *(f"thinking.{name}" for name in list_other_fields(thinking, ("type",))),
        *(f"output_config.{name}" for name in list_other_fields(output_config, ("effort", "format"))),
        *(["output_config.effort"] if effort is not None and effort not in _EFFORTS else []),
        *(["output_config.format"] if format_ is not None and not is_object(schema) else []),
        *(f"metadata.{name}" for name in list_other_fields(metadata, ("user_id",))),
        *(["tool_choice"] if kind is not None and kind not in (*_TOOL_CHOICES, "tool") else []),
    ]
    json_schema = {"name": "reply", "schema": schema, "strict": True}
    return RequestOptions(
        stream=body.get("stream") is True,
        max_tokens=get_token_limit(body, "max_tokens"),
        temperature=get_number(body, "temperature"),
        top_p=get_number(body, "top_p"),
        top_k=get_token_limit(body, "top_k"),
        stop=tuple(each for each in cast("list[object]", stop) if isinstance(each, str))
        if isinstance(stop, list)
        else (),
        tool_choice=cast(Any, _TOOL_CHOICES.get(get_text(choice, "type") or "")),
        required_tool=get_text(choice, "name") if kind == "tool" else None,
        parallel_tool_calls=False if choice.get("disable_parallel_tool_use") is True else None,
        response_format={"type": "json_schema", "json_schema": json_schema} if is_object(schema) else None,
        reasoning_effort=_EFFORTS.get(get_text(output_config, "effort") or "") if is_thinking else None,
        user=sha256(user.encode()).hexdigest()[:MAX_USER_CHARS] if user else None,
        other_fields=tuple(other_fields),
    )
