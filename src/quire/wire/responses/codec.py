"""Codec of OpenAI's Responses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from quire.errors import ContextOverflow, NotFound, QuireError, ResponseNotFound
from quire.model import Message, ToolDefinition
from quire.model.json_values import filter_objects, get_object, get_text, is_object
from quire.model.policy import WireFormatName
from quire.wire import Reply, WireMessage
from quire.wire.chat.codec import build_error_object, encode_problem
from quire.wire.client_messages import ParsedMessage
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
    split_instructions,
)
from quire.wire.compaction_blocks import COMPACTION_TYPES
from quire.wire.fields import join_content_texts
from quire.wire.http_errors import ErrorResponse
from quire.wire.item_edits import ItemEditor
from quire.wire.responses import FORMAT
from quire.wire.responses.item_edits import ResponsesItemEditor
from quire.wire.responses.object import select_request_fields
from quire.wire.responses.parse import parse_messages
from quire.wire.responses.stream import ResponsesEncoder, ResponsesStreamDecoder, encode_error_event, parse_response
from quire.wire.responses.tools import join_name, translate_tools

_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_ERROR_PARAMS = {"context_length_exceeded": "input", "previous_response_not_found": "previous_response_id"}
"""The field of the request that an error is about, by the error's code."""
REFERENCE_FIELDS = ("previous_response_id", "conversation")
"""Fields that name what a request continues."""
CONVERSATION_ID_PREFIX = "conv_"
SEAL_PREFIX = "quire1."
"""Prefix of the content of a compaction item that Quire made."""
_ITEM_FIELDS_WITHOUT_MEANING = frozenset({"id", "status", "annotations", "logprobs"})


ADDITIONAL_TOOLS_TYPE = "additional_tools"
"""Type of an item that offers tools from its place in the input on."""
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


class ResponsesCodec(Codec):
    name: ClassVar[WireFormatName] = FORMAT
    item_editor: ClassVar[ItemEditor] = ResponsesItemEditor()
    create_path: ClassVar[str] = "responses"
    media_types: ClassVar[tuple[str, ...]] = ("input_image", "input_file")
    thinking_types: ClassVar[tuple[str, ...]] = ("reasoning",)
    item_field: ClassVar[str] = "input"
    joins_replies: ClassVar[bool] = True
    count_path: ClassVar[str | None] = "responses/input_tokens"
    prefix_fields: ClassVar[tuple[str, ...]] = ("tools", "instructions")
    prefix_parameters: ClassVar[tuple[str, ...]] = ("reasoning.effort", "text.format", "prompt_cache_key")

    def parse_request(self, raw: bytes, body: dict[str, Any]) -> ClientRequest:
        _, history = _split_history(body)
        text = get_text(body, "instructions")
        field: list[WireMessage] = [{"type": "message", "role": "system", "content": text}] if text else []
        # Codex sends all of its tools in items of the input to some models.
        tool_items = [item for item in filter_objects(body.get("input")) if item.get("type") == ADDITIONAL_TOOLS_TYPE]
        additional_tools = [tool for item in tool_items for tool in filter_objects(item.get("tools"))]
        return ClientRequest(
            codec=self,
            raw=raw,
            body=body,
            instructions=(*field, *_list_instructions(body)),
            messages=tuple(ParsedMessage(message) for message in _parse_items(history)),
            tools=(*filter_objects(body.get("tools")), *additional_tools),
            options=_parse_options(body),
            previous_reply=get_text(body, "previous_response_id"),
            conversation=_read_conversation(body),
            is_stored=body.get("store") is not False,
            overflow="fit" if body.get("truncation") == "auto" else None,
        )

    def parse_items(self, items: list[WireMessage]) -> list[Message]:
        """Parses items that are added to a conversation."""
        self.check_limits({"input": items})
        leading, others = _split_items({"input": items})
        return _parse_items((*leading, *others))

    def list_identifiers(self, body: Mapping[str, Any]) -> Iterator[tuple[str, object, int]]:
        for tool in filter_objects(body.get("tools")):
            for definition in (tool, *filter_objects(tool.get("tools"))):
                yield "The name of a tool", definition.get("name"), MAX_NAME_CHARS
        for item in filter_objects(body.get("input")):
            yield "`id` of an item", item.get("id"), MAX_CALL_ID_CHARS
            yield "`call_id` of an item", item.get("call_id"), MAX_CALL_ID_CHARS
            yield "`name` of an item", item.get("name"), MAX_NAME_CHARS
            yield "`namespace` of an item", item.get("namespace"), MAX_NAME_CHARS

    def count_tools(self, body: Mapping[str, Any]) -> int:
        return sum(max(1, len(filter_objects(tool.get("tools")))) for tool in filter_objects(body.get("tools")))

    def join_instructions(self, request: ClientRequest, *, is_translated: bool = False) -> str | None:
        texts = (join_content_texts(item.get("content")) for item in request.instructions)
        return "\n\n".join(filter(None, texts)) or None

    def is_plain_system(self, request: ClientRequest, system: str | None) -> bool:
        return not _list_leading(request.body)

    def to_tool_definition(self, tool: WireMessage) -> ToolDefinition:
        parameters: dict[str, Any] = (
            get_object(tool, "parameters") if tool.get("type") == "function" else {"tool": tool}
        )
        name = get_text(tool, "name") or get_text(tool, "type") or "tool"
        return ToolDefinition(name=name, description=get_text(tool, "description") or "", parameters=parameters)

    def translate_tools(self, request: ClientRequest) -> TranslatedTools:
        return translate_tools(request.tools)

    def encode_fitted(
        self,
        request: ClientRequest,
        payload: dict[str, Any],
        *,
        stable_prefix: Sequence[WireMessage],
        model: str | None,
    ) -> bytes:
        # The messages are the whole history, so the upstream must not add what it has of it.
        body = {name: value for name, value in request.body.items() if name not in REFERENCE_FIELDS}
        if request.continues_recorded:
            body["store"] = False
        items = [*request.carried_items, *_list_leading(request.body), *payload["input"]]
        return encode_body({**body, "input": items, **({"model": model} if model else {})})

    def list_sent(self, request: ClientRequest, *, start: int) -> Sequence[WireMessage] | None:
        return _split_history(request.body)[1] if start == 0 else None

    def is_equivalent(self, rendered: Sequence[WireMessage], sent: Sequence[WireMessage]) -> bool:
        return _normalize_items(rendered) == _normalize_items(sent)

    def make_encoder(self, context: ReplyContext) -> ReplyEncoder:
        return ResponsesEncoder(context)

    def build_error(
        self, status: int, detail: str, *, code: str, headers: Mapping[str, str] | None = None
    ) -> ErrorResponse:
        """Builds a problem document (RFC 9457) with OpenAI's `error` object inside."""
        error = {**build_error_object(detail, code, status), "param": _ERROR_PARAMS.get(code)}
        return encode_problem(status, detail, code=code, headers=headers, error=error)

    def list_item_references(self, body: Mapping[str, Any]) -> Sequence[str]:
        return [id_ for item in filter_objects(body.get("input")) if (id_ := _read_item_reference(item)) is not None]

    def refers_to_log(self, body: Mapping[str, Any]) -> bool:
        return super().refers_to_log(body) or any(body.get(name) for name in REFERENCE_FIELDS)

    def find_untranslatable(self, body: Mapping[str, Any]) -> str | None:
        items = filter_objects(body.get("input"))
        if any(item.get("type") in COMPACTION_TYPES and _read_item_reference(item) is None for item in items):
            return (
                "The input has a compaction item of another provider, which only that provider can read; send the "
                "messages that it stands for."
            )
        return None

    def insert_items(self, body: dict[str, Any], items: Mapping[str, Sequence[WireMessage]]) -> dict[str, Any]:
        inserted = list[WireMessage]()
        for item in filter_objects(body.get("input")):
            inserted += items.get(_read_item_reference(item) or "", [item])
        return {**body, "input": inserted}

    def build_request_record(self, request: ClientRequest) -> dict[str, Any] | None:
        leading = [*request.carried_items, *_list_leading(request.body)]
        return {"fields": select_request_fields(request.body), "leading": leading}

    def carry_over(self, request: ClientRequest, record: Mapping[str, Any]) -> ClientRequest:
        """Adds messages of the system and the developer. The field `instructions` is not inherited."""
        carried = tuple(filter_objects(record.get("leading")))
        own = len(request.instructions) - len(_list_instructions(request.body))
        instructions = (*request.instructions[:own], *carried, *request.instructions[own:])
        return replace(request, carried_items=carried, instructions=instructions)

    def is_unknown_reference(self, body: bytes) -> bool:
        """Also true of a server that stores no responses, and says so."""
        return any(name in body for name in (b"previous_response_not_found", b"previous_response_id"))

    def build_unknown_reference(self, error: NotFound) -> ErrorResponse:
        if not isinstance(error, ResponseNotFound):
            return super().build_unknown_reference(error)
        detail = f"Previous response with id '{error.response_id}' not found."
        return self.build_error(400, detail, code="previous_response_not_found")

    def build_overflow(self, error: ContextOverflow) -> ErrorResponse:
        return self.build_error(400, str(error), code="context_length_exceeded")

    def encode_error_event(self, detail: str, *, code: str) -> bytes:
        return encode_error_event(detail, code=code)

    def build_token_count(self, tokens: int) -> dict[str, Any]:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def translate_options(self, options: RequestOptions) -> TranslatedFields:
        """The upstream stores nothing, so that reasoning must be in the reply to be sent back."""
        tool_choice: object = options.tool_choice
        if options.required_tool is not None:
            tool_choice = {"type": "function", "name": options.required_tool}
        text_options = None
        if (response_format := options.response_format) is not None:
            schema = get_object(response_format, "json_schema")
            text_options = {"format": {"type": response_format.get("type"), **schema}}
        fields = {
            "stream": options.stream or None,
            "max_output_tokens": options.max_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "tool_choice": tool_choice,
            "parallel_tool_calls": options.parallel_tool_calls,
            "text": text_options,
            "reasoning": {"effort": options.reasoning_effort} if options.reasoning_effort else None,
            "include": ["reasoning.encrypted_content"] if options.reasoning_effort else None,
            "user": options.user,
            "store": False,
        }
        return TranslatedFields(
            {name: value for name, value in fields.items() if value is not None},
            (*(["top_k"] if options.top_k is not None else []), *(["stop"] if options.stop else [])),
        )

    def make_decoder(self, *, choice_count: int = 1, is_translated: bool) -> ResponsesStreamDecoder:
        return ResponsesStreamDecoder(is_translated=is_translated)

    def parse_response(self, response: object) -> list[Reply]:
        if not is_object(response) or response.get("status") == "failed":
            return []
        if _is_compaction(response):
            # Its other items are the user's messages, which the request has.
            items = [item for item in filter_objects(response.get("output")) if item.get("type") in COMPACTION_TYPES]
            response = {**response, "output": items}
        return parse_response(response)

    def read_response_id(self, response: object) -> str | None:
        """The ID by which later requests may continue the response."""
        return get_text(response, "id") if is_object(response) and not _is_compaction(response) else None


def _is_compaction(response: Mapping[str, Any]) -> bool:
    """Whether this answers a request to compact."""
    return response.get("object") == "response.compaction"


def _read_conversation(body: Mapping[str, Any]) -> str | None:
    conversation = body.get("conversation")
    id_ = get_text(conversation, "id") if is_object(conversation) else get_text(body, "conversation")
    return id_.removeprefix(CONVERSATION_ID_PREFIX) if id_ else None


def _read_item_reference(item: WireMessage) -> str | None:
    """The ID that an item refers to, or Quire's own reference to a compaction. The type may be missing."""
    sealed = get_text(item, "encrypted_content") if item.get("type") in COMPACTION_TYPES else None
    if sealed is not None and sealed.startswith(SEAL_PREFIX):
        return sealed
    is_reference = item.get("type") == "item_reference" or not (item.get("type") or item.get("role"))
    return get_text(item, "id") if is_reference else None


def _list_leading(body: Mapping[str, Any]) -> Sequence[WireMessage]:
    """The items before the history: instructions, and tools among them."""
    return _split_history(body)[0]


def _list_instructions(body: Mapping[str, Any]) -> list[WireMessage]:
    return [item for item in _list_leading(body) if item.get("type") != ADDITIONAL_TOOLS_TYPE]


def _split_history(body: Mapping[str, Any]) -> tuple[Sequence[WireMessage], Sequence[WireMessage]]:
    """Splits leading instructions from the history. In a conversation they are part of it: no request repeats them."""
    leading, others = _split_items(body)
    return ((), (*leading, *others)) if _read_conversation(body) is not None else (leading, others)


def _split_items(body: Mapping[str, Any]) -> tuple[Sequence[WireMessage], Sequence[WireMessage]]:
    """Splits leading instructions from the other items of the input."""
    items: object = body.get("input")
    if isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise UnreadableBody("`input` is missing, empty, or neither a text nor a list.")
    for index, item in enumerate(cast("list[object]", items)):
        if not is_object(item):
            raise UnreadableBody(f"Item {index} of the input is not an object.")
        if (reference := _read_item_reference(item)) is not None:
            raise UnreadableBody(f"Item with id '{reference}' not found; send it whole.")
    typed = [item if "type" in item else {"type": "message", **item} for item in cast("list[WireMessage]", items)]
    return split_instructions(typed, roles=_INSTRUCTION_ROLES)


def _parse_items(items: Sequence[WireMessage]) -> list[Message]:
    sendable: list[WireMessage] = []
    for item in items:
        is_message = item.get("type") == "message" and item.get("role") != "assistant"
        if is_message or item.get("type") in ("function_call_output", "custom_tool_call_output"):
            # The client made its ID and status. The ones in a reply belong to its reasoning, and stay.
            item = {name: value for name, value in item.items() if name not in ("id", "status")}
        sendable.append(item)
    try:
        return parse_messages(sendable)
    except (QuireError, ValueError, TypeError, AttributeError) as error:
        # A client may put anything into an item; the upstream decides whether it is valid.
        raise UnreadableBody(f"The input cannot be parsed: {error}.") from error


def _normalize_items(items: Sequence[WireMessage]) -> list[WireMessage]:
    """Merges adjacent messages of the user, writes texts as lists, and drops nulls, empty lists, IDs and states."""
    merged: list[WireMessage] = []
    for item in items:
        fields = _drop_meaningless(item)
        for name in ("content", "output"):
            if name in fields and item.get("type") != "reasoning":
                content = fields[name]
                pieces = [{"type": "text", "text": content}] if isinstance(content, str) else filter_objects(content)
                is_text = [piece.get("type") in ("input_text", "output_text") for piece in pieces]
                fields[name] = [
                    {**_drop_meaningless(piece), **({"type": "text"} if is_text_piece else {})}
                    for piece, is_text_piece in zip(pieces, is_text, strict=True)
                ]
        if merged and fields.get("role") == merged[-1].get("role") == "user":
            merged[-1]["content"] += fields["content"]
        else:
            merged.append(fields)
    return merged


def _drop_meaningless(fields: WireMessage) -> WireMessage:
    is_reasoning = fields.get("type") == "reasoning"
    return {
        name: value
        for name, value in fields.items()
        if value is not None and value != [] and (is_reasoning or name not in _ITEM_FIELDS_WITHOUT_MEANING)
    }


def _parse_options(body: dict[str, Any]) -> RequestOptions:
    text, reasoning, raw_choice = get_object(body, "text"), get_object(body, "reasoning"), body.get("tool_choice")
    # Fields without a place in other formats, except those with a value that has no effect.
    other_fields = [
        name
        for name in list_other_fields(body, (*_TRANSLATED_FIELDS, *_ECHOED_FIELDS))
        if name not in _DEFAULTS or body[name] != _DEFAULTS[name]
    ]
    mode, required_tool = raw_choice, None
    if is_object(raw_choice):
        # A choice among allowed tools says at least whether the model may or must call one of them.
        mode = raw_choice.get("mode") if raw_choice.get("type") == "allowed_tools" else None
        if raw_choice.get("type") in ("function", "custom"):
            required_tool = join_name(get_text(raw_choice, "namespace"), get_text(raw_choice, "name") or "") or None
        else:
            other_fields.append(f"tool_choice[{get_text(raw_choice, 'type') or 'unknown'}]")
    elif raw_choice is not None and raw_choice not in _TOOL_CHOICES:
        other_fields.append("tool_choice")
    other_fields += (f"text.{name}" for name in list_other_fields(text, ("format",)))
    other_fields += (f"reasoning.{name}" for name in list_other_fields(reasoning, ("effort",)))
    # The form of the reply as in chat completions.
    format_ = get_object(text, "format")
    response_format: dict[str, Any] | None = None
    if format_.get("type") == "json_schema":
        schema = {name: value for name, value in format_.items() if name != "type"}
        response_format = {"type": "json_schema", "json_schema": schema}
    elif format_.get("type") == "json_object":
        response_format = {"type": "json_object"}
    return RequestOptions(
        stream=body.get("stream") is True,
        max_tokens=get_token_limit(body, "max_output_tokens"),
        temperature=get_number(body, "temperature"),
        top_p=get_number(body, "top_p"),
        tool_choice=cast(Any, mode) if mode in _TOOL_CHOICES else None,
        required_tool=required_tool,
        parallel_tool_calls=value if isinstance(value := body.get("parallel_tool_calls"), bool) else None,
        response_format=response_format,
        reasoning_effort=get_text(reasoning, "effort"),
        user=get_text(body, "safety_identifier") or get_text(body, "user"),
        other_fields=tuple(other_fields),
    )
