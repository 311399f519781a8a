"""Codec of OpenAI's chat completions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

from pydantic_core import to_json

from quire.errors import ContextOverflow, QuireError
from quire.model import Message, ToolDefinition
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.model.messages import Role
from quire.model.policy import WireFormatName
from quire.wire import Reply, WireMessage
from quire.wire.chat import FORMAT
from quire.wire.chat.item_edits import ChatItemEditor
from quire.wire.chat.parse import parse_messages
from quire.wire.chat.stream import MAX_REQUEST_CHOICES, ChatEncoder, ChatStreamDecoder, parse_choice
from quire.wire.client_messages import ClientMessage
from quire.wire.codec import (
    MAX_CALL_ID_CHARS,
    MAX_NAME_CHARS,
    ClientRequest,
    Codec,
    ReplyContext,
    ReplyEncoder,
    RequestLimitExceeded,
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
from quire.wire.fields import join_content_texts
from quire.wire.http_errors import PROBLEM_MEDIA_TYPE, ErrorResponse, build_problem
from quire.wire.item_edits import ItemEditor
from quire.wire.replies import encode_event

_KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_TRANSLATED_FIELDS = (
    "model", "messages", "tools", "functions", "stream", "stream_options", "max_tokens", "max_completion_tokens",
    "temperature", "top_p", "stop", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort", "user",
)  # fmt: skip
_DEFAULTS: Mapping[str, object] = {
    "n": 1,
    "store": False,
    "logprobs": False,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "service_tier": "auto",
    "modalities": ["text"],
    "logit_bias": {},
}
"""Values that have no effect."""
_PLAIN_TEXT_PREFIXES = {
    "user": (b'{"role":"user","parts":[{"type":"text","text":', b'[{"role":"user","content":'),
    "assistant": (b'{"role":"assistant","parts":[{"type":"text","text":', b'[{"role":"assistant","content":'),
}
"""JSON prefixes of a plain text message by role: canonical JSON of the log, and wire format."""


class ChatMessage(ClientMessage):
    """A message of chat completions. Most are plain text, and are then matched and digested without being parsed."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        text = raw.get("content")
        # Nulls and empty lists carry no meaning.
        has_other_fields = len(raw) != 2 and any(
            value is not None and value != [] for name, value in raw.items() if name not in ("role", "content")
        )
        stripped = text.strip() if isinstance(text, str) else ""
        # The normal form of a reply has no space around its text.
        normal = stripped if raw["role"] == "assistant" else text
        self._json_prefixes = _PLAIN_TEXT_PREFIXES.get(raw["role"]) if stripped and not has_other_fields else None
        self._text_json = to_json(normal) if self._json_prefixes is not None else b""
        self.is_plain_text = self._json_prefixes is not None and normal == text

    @property
    def is_text(self) -> bool:
        """Whether it has text alone, and its JSON for matching is known without parsing it."""
        return self._json_prefixes is not None

    @property
    def role(self) -> Role:
        return self.raw["role"] if self.is_text else self.message.role

    def parse(self) -> Message:
        if self.raw["role"] != "function":
            return parse_messages([self.raw])[0]
        # A result of the deprecated function calling has no call ID to belong to, so it is stored as a user message.
        message = parse_messages([{**self.raw, "role": "user"}])[0]
        return message.model_copy(update={"provider_fields": {FORMAT: {"role": "function"}}})

    @property
    def match_key(self) -> bytes:
        if self._json_prefixes is not None:
            return b"%b%b}]}" % (self._json_prefixes[0], self._text_json)
        return super().match_key

    @property
    def wire_json(self) -> bytes:
        return b"%b%b}]" % (self._json_prefixes[1] if self._json_prefixes is not None else b"", self._text_json)


class ChatCodec(Codec):
    leading_roles: ClassVar[frozenset[str] | None] = _INSTRUCTION_ROLES
    name: ClassVar[WireFormatName] = FORMAT
    item_editor: ClassVar[ItemEditor] = ChatItemEditor()
    create_path: ClassVar[str] = "chat/completions"
    media_types: ClassVar[tuple[str, ...]] = ("image_url", "file")
    has_author_names: ClassVar[bool] = True
    default_overflow: ClassVar[Literal["fit", "refuse"]] = "fit"
    prefix_parameters: ClassVar[tuple[str, ...]] = ("reasoning_effort", "response_format", "prompt_cache_key")

    def parse_request(self, raw: bytes, body: dict[str, Any]) -> ClientRequest:
        raw_messages: object = body.get("messages")
        if not isinstance(raw_messages, list) or not raw_messages:
            raise UnreadableBody("`messages` is missing, empty, or not a list.")
        for index, message in enumerate(cast("list[object]", raw_messages)):
            if not is_object(message) or message.get("role") not in _KNOWN_ROLES:
                raise UnreadableBody(f"Message {index} has no known role.")
        instructions, others = split_instructions(cast("list[dict[str, Any]]", raw_messages), roles=_INSTRUCTION_ROLES)
        messages = tuple(map(ChatMessage, others))
        for message in messages:
            if not message.is_text:
                try:
                    _ = message.message
                except (QuireError, ValueError, TypeError, AttributeError) as error:
                    # A client may put anything into a message; the upstream decides whether it is valid.
                    raise UnreadableBody(f"A message cannot be parsed: {error}.") from error
        functions = [{"type": "function", "function": each} for each in filter_objects(body.get("functions"))]
        count = body.get("n")
        return ClientRequest(
            codec=self,
            raw=raw,
            body=body,
            instructions=tuple(instructions),
            messages=messages,
            tools=(*filter_objects(body.get("tools")), *functions),
            options=_parse_options(body),
            choice_count=count if isinstance(count, int) and count > 1 else 1,
        )

    def check_limits(self, body: Mapping[str, Any]) -> None:
        super().check_limits(body)
        choices = body.get("n")
        if isinstance(choices, int) and choices > MAX_REQUEST_CHOICES:
            raise RequestLimitExceeded(f"`n` is above {MAX_REQUEST_CHOICES}, the maximum number of choices.")

    def list_identifiers(self, body: Mapping[str, Any]) -> Iterator[tuple[str, object, int]]:
        for tool in filter_objects(body.get("tools")):
            for definition in (tool, get_object(tool, "function", "custom")):
                yield "The name of a tool", definition.get("name"), MAX_NAME_CHARS
        for function in filter_objects(body.get("functions")):
            yield "The name of a function", function.get("name"), MAX_NAME_CHARS
        for message in filter_objects(body.get("messages")):
            yield "`name` of a message", message.get("name"), MAX_NAME_CHARS
            yield "`tool_call_id` of a message", message.get("tool_call_id"), MAX_CALL_ID_CHARS
            for call in filter_objects(message.get("tool_calls")):
                yield "`id` of a tool call", call.get("id"), MAX_CALL_ID_CHARS
                yield "The name in a tool call", get_object(call, "function", "custom").get("name"), MAX_NAME_CHARS

    def join_instructions(self, request: ClientRequest, *, is_translated: bool = False) -> str | None:
        return "\n\n".join(join_content_texts(each.get("content")) for each in request.instructions) or None

    def is_plain_system(self, request: ClientRequest, system: str | None) -> bool:
        rendered = [[("role", "system"), ("content", system)]] if system else []
        return not request.body.get("functions") and rendered == [list(each.items()) for each in request.instructions]

    def to_tool_definition(self, tool: WireMessage) -> ToolDefinition:
        function = get_object(tool, "function", "custom")
        name = get_text(function, "name") or get_text(tool, "name") or get_text(tool, "type") or "tool"
        is_function = "function" in tool and is_object(function.get("parameters", {}))
        parameters: dict[str, Any] = function.get("parameters", {}) if is_function else {"tool": tool}
        return ToolDefinition(name=name, description=get_text(function, "description") or "", parameters=parameters)

    def translate_tools(self, request: ClientRequest) -> TranslatedTools:
        functions = [tool for tool in request.tools if "function" in tool]
        others = [tool for tool in request.tools if "function" not in tool]
        return TranslatedTools(
            tuple(self.to_tool_definition(tool) for tool in functions),
            (
                *(f"tools[{get_text(tool, 'type') or 'unknown'}]" for tool in others),
                *(
                    ["tools.strict"]
                    if any(get_object(tool, "function").get("strict") is True for tool in functions)
                    else []
                ),
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
        renamed = {"model": model} if model else {}
        return encode_body({**request.body, "messages": [*request.instructions, *payload["messages"]], **renamed})

    def list_sent(self, request: ClientRequest, *, start: int) -> Sequence[WireMessage]:
        return [cast(ChatMessage, each).raw for each in request.messages[start:]]

    def is_equivalent(self, rendered: Sequence[WireMessage], sent: Sequence[WireMessage]) -> bool:
        return len(rendered) == len(sent) and all(
            ours == theirs or _normalize_wire_message(ours) == _normalize_wire_message(theirs)
            for ours, theirs in zip(rendered, sent, strict=True)
        )

    def make_encoder(self, context: ReplyContext) -> ReplyEncoder:
        return ChatEncoder(context)

    def build_error(
        self, status: int, detail: str, *, code: str, headers: Mapping[str, str] | None = None
    ) -> ErrorResponse:
        """Builds a problem document (RFC 9457) with OpenAI's `error` object inside."""
        return encode_problem(
            status, detail, code=code, headers=headers, error=build_error_object(detail, code, status)
        )

    def build_overflow(self, error: ContextOverflow) -> ErrorResponse:
        return self.build_error(400, str(error), code="context_length_exceeded")

    def encode_error_event(self, detail: str, *, code: str) -> bytes:
        return encode_event({"error": build_error_object(detail, code, 502)})

    def translate_options(self, options: RequestOptions) -> TranslatedFields:
        tool_choice: object = options.tool_choice
        if options.required_tool is not None:
            tool_choice = {"type": "function", "function": {"name": options.required_tool}}
        fields = {
            "stream": options.stream or None,
            "stream_options": {"include_usage": True} if options.stream else None,
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "stop": list(options.stop) or None,
            "tool_choice": tool_choice,
            "parallel_tool_calls": options.parallel_tool_calls,
            "response_format": options.response_format,
            "reasoning_effort": options.reasoning_effort,
            "user": options.user,
        }
        return TranslatedFields(
            {name: value for name, value in fields.items() if value is not None},
            ("top_k",) if options.top_k is not None else (),
        )

    def make_decoder(self, *, choice_count: int = 1, is_translated: bool) -> ChatStreamDecoder:
        return ChatStreamDecoder(choice_count, is_translated=is_translated)

    def parse_response(self, response: object) -> list[Reply]:
        if not is_object(response):
            return []
        choices = filter_objects(response.get("choices"))
        replies = [parse_choice({**response, "choices": [choice]}) for choice in choices]
        return [reply for reply in replies if reply is not None]


def encode_problem(
    status: int, detail: str, *, code: str, headers: Mapping[str, str] | None, error: dict[str, object]
) -> ErrorResponse:
    """A problem document with OpenAI's `error` object inside, which its clients read."""
    body = dump_json({**build_problem(status, detail=detail, code=code), "error": error}).encode()
    return ErrorResponse(status, body, {**(headers or {}), "content-type": PROBLEM_MEDIA_TYPE})


def build_error_object(detail: str, code: str, status: int) -> dict[str, object]:
    """OpenAI's `error` object, of chat completions and of responses."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": detail, "type": kind, "param": None, "code": code}


def _parse_options(body: dict[str, Any]) -> RequestOptions:
    choice, stop, response_format = body.get("tool_choice"), body.get("stop"), body.get("response_format")
    stops = [stop] if isinstance(stop, str) else cast("list[object]", stop) if isinstance(stop, list) else []
    # Options that only this format has, except those with a value that has no effect.
    other_fields = [
        name
        for name in list_other_fields(body, _TRANSLATED_FIELDS)
        if name not in _DEFAULTS or body[name] != _DEFAULTS[name]
    ]
    if is_object(choice) and choice.get("type") != "function":
        other_fields.append(f"tool_choice[{get_text(choice, 'type') or 'unknown'}]")
    return RequestOptions(
        stream=body.get("stream") is True,
        max_tokens=get_token_limit(body, "max_completion_tokens", "max_tokens"),
        temperature=get_number(body, "temperature"),
        top_p=get_number(body, "top_p"),
        stop=tuple(each for each in stops if isinstance(each, str)),
        tool_choice=choice if choice in ("auto", "required", "none") else None,
        required_tool=get_text(get_object(choice, "function"), "name") if is_object(choice) else None,
        parallel_tool_calls=value if isinstance(value := body.get("parallel_tool_calls"), bool) else None,
        response_format=response_format if is_object(response_format) else None,
        reasoning_effort=get_text(body, "reasoning_effort"),
        user=get_text(body, "user"),
        other_fields=tuple(other_fields),
    )


def _normalize_wire_message(message: WireMessage) -> WireMessage:
    """Drops nulls and empty lists, which carry no meaning, and turns a content list of one text into that text."""
    fields = {name: value for name, value in message.items() if value is not None and value != []}
    pieces = filter_objects(fields.get("content"))
    if len(pieces) == 1 and pieces[0].keys() == {"type", "text"}:
        fields["content"] = pieces[0]["text"]
    return fields
