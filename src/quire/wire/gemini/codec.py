"""Codec of Google's Gemini API.

The URL has the name of the model and says whether the reply is streamed. The gateway adds both to the fields of a body,
and `encode_body` leaves them out of what is sent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast
from urllib.parse import quote

from pydantic_core import to_json

from quire.errors import ContextOverflow, InvalidEntry, ModelContextOverflow, ModelError, QuireError, error_detail
from quire.model import Message, TextPart, ToolDefinition
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, is_object
from quire.model.messages import Role
from quire.model.policy import WireFormatName
from quire.rows.boilerplate import SESSION_CONTEXT_OPENING
from quire.wire import Reply, WireMessage
from quire.wire.client_messages import ClientMessage, ParsedMessage
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
)
from quire.wire.gemini import FORMAT
from quire.wire.gemini.field_names import to_camel_case
from quire.wire.gemini.item_edits import GeminiItemEditor
from quire.wire.gemini.parse import (
    ContentParser,
    drop_repeated_results,
    group_contents,
    list_texts,
    parse_reply,
    to_standard_base64,
)
from quire.wire.gemini.schema import to_json_schema
from quire.wire.gemini.stream import MAX_CANDIDATES, GeminiEncoder, GeminiStreamDecoder, build_status, join_chunks
from quire.wire.http_errors import ErrorResponse
from quire.wire.item_edits import ItemEditor
from quire.wire.replies import encode_event

PATH_FIELDS = ("model", "stream", "alt")
"""Fields that the URL has, not the body."""
JSON_MEDIA_TYPE = "application/json"
_TRANSLATED_FIELDS = (*PATH_FIELDS, "contents", "systemInstruction", "tools", "toolConfig", "generationConfig")
_TRANSLATED_CONFIG = (
    "maxOutputTokens", "temperature", "topP", "topK", "stopSequences", "responseMimeType", "responseSchema",
    "responseJsonSchema", "thinkingConfig",
)  # fmt: skip
_CONFIG_DEFAULTS: Mapping[str, object] = {"candidateCount": 1, "responseModalities": ["TEXT"]}
"""Values that have no effect."""
_TOOL_CHOICES = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}
_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
_EFFORTS = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH", "xhigh": "HIGH", "max": "HIGH"}
_MODEL_KINDS = ("models/", "tunedModels/")
_TEXT_PREFIXES: dict[str, tuple[Role, bytes, bytes]] = {
    "user": (
        "user",
        b'{"role":"user","parts":[{"type":"text","text":',
        b'[{"role":"user","parts":[{"text":',
    ),
    "model": (
        "assistant",
        b'{"role":"assistant","parts":[{"type":"text","text":',
        b'[{"role":"model","parts":[{"text":',
    ),
}
"""By role: the role in the log, and the JSON before the text of a message, in the log and in this format."""


class GeminiTextMessage(ClientMessage):
    """A message of one text, which is matched and digested without being parsed."""

    is_plain_text = True

    def __init__(self, role: str, text: str) -> None:
        self._role, self._text = role, text
        self._text_json = to_json(text)

    @property
    def role(self) -> Role:
        return _TEXT_PREFIXES[self._role][0]

    def parse(self) -> Message:
        return Message(role=self.role, parts=(TextPart(text=self._text),))

    @property
    def match_key(self) -> bytes:
        return b"%b%b}]}" % (_TEXT_PREFIXES[self._role][1], self._text_json)

    @property
    def wire_json(self) -> bytes:
        return b"%b%b}]}]" % (_TEXT_PREFIXES[self._role][2], self._text_json)


class GeminiCodec(Codec):
    leading_roles: ClassVar[frozenset[str] | None] = frozenset()
    name: ClassVar[WireFormatName] = FORMAT
    item_editor: ClassVar[ItemEditor] = GeminiItemEditor()
    item_field: ClassVar[str] = "contents"
    joins_replies: ClassVar[bool] = True
    create_path: ClassVar[str] = "generateContent"
    count_path: ClassVar[str | None] = "countTokens"
    stream_query: ClassVar[str] = "alt=sse"
    media_types: ClassVar[tuple[str, ...]] = ("inlineData", "fileData")
    prefix_fields: ClassVar[tuple[str, ...]] = ("systemInstruction", "tools")
    prefix_parameters: ClassVar[tuple[str, ...]] = ("cachedContent", "generationConfig.thinkingConfig")

    def parse_request(self, raw: bytes, body: dict[str, Any]) -> ClientRequest:
        body = to_camel_case(raw, body)
        inner = body.get("generateContentRequest")
        if is_object(inner):
            # A request to count tokens.
            body = {**to_camel_case(raw, inner), **{name: body[name] for name in PATH_FIELDS if name in body}}
        contents: object = body.get("contents")
        if is_object(contents):
            contents = [contents]
        if not isinstance(contents, list) or not contents:
            raise UnreadableBody("`contents` is missing, empty, or not a list.")
        messages: list[ClientMessage] = []
        parser = ContentParser()
        try:
            for run in group_contents(cast("list[object]", contents)):
                text = run.parts[0].get("text") if len(run.parts) == 1 and run.parts[0].keys() == {"text"} else None
                # Whether the normal form has the same text.
                is_context = isinstance(text, str) and text.startswith(SESSION_CONTEXT_OPENING)
                is_normal = isinstance(text, str) and text.strip() and (run.role == "user" or text == text.strip())
                if isinstance(text, str) and is_normal and not is_context:
                    messages.append(GeminiTextMessage(run.role, text))
                else:
                    messages += map(ParsedMessage, parser.parse(run))
        except (QuireError, ValueError, TypeError, AttributeError) as error:
            # A client may put anything into a content; the upstream decides whether it is valid.
            raise UnreadableBody(f"A content cannot be parsed: {error}.") from error
        if not messages:
            raise UnreadableBody("`contents` has no parts.")
        instruction = get_object(body, "systemInstruction")
        count = get_object(body, "generationConfig").get("candidateCount")
        return ClientRequest(
            codec=self,
            raw=raw,
            body=body,
            instructions=({**instruction, "role": "system"},) if filter_objects(instruction.get("parts")) else (),
            messages=tuple(messages),
            tools=tuple(_list_tools(body)),
            options=_parse_options(body),
            choice_count=count if isinstance(count, int) and count > 1 else 1,
        )

    def encode_body(self, body: dict[str, Any]) -> bytes:
        return encode_body({name: value for name, value in body.items() if name not in PATH_FIELDS})

    def check_limits(self, body: Mapping[str, Any]) -> None:
        super().check_limits(body)
        count = get_object(body, "generationConfig").get("candidateCount")
        if isinstance(count, int) and count > MAX_CANDIDATES:
            raise RequestLimitExceeded(f"`candidateCount` is above {MAX_CANDIDATES}, the maximum number of candidates.")

    def count_tools(self, body: Mapping[str, Any]) -> int:
        return sum(1 for _ in _list_tools(body))

    def list_identifiers(self, body: Mapping[str, Any]) -> Iterator[tuple[str, object, int]]:
        for tool in _list_tools(body):
            yield "The name of a tool", tool.get("name"), MAX_NAME_CHARS
        for content in filter_objects(body.get("contents")):
            for part in filter_objects(content.get("parts")):
                call = get_object(part, "functionCall", "functionResponse", "function_call", "function_response")
                yield "The name in a function call", call.get("name"), MAX_NAME_CHARS
                yield "`id` of a function call", call.get("id"), MAX_CALL_ID_CHARS

    def join_instructions(self, request: ClientRequest, *, is_translated: bool = False) -> str | None:
        return "\n\n".join(text for each in request.instructions for text in list_texts(each)) or None

    def is_plain_system(self, request: ClientRequest, system: str | None) -> bool:
        parts = [part for each in request.instructions for part in filter_objects(each.get("parts"))]
        return len(parts) <= 1 and all(part.keys() == {"text"} for part in parts)

    def to_tool_definition(self, tool: WireMessage) -> ToolDefinition:
        schema = tool.get("parametersJsonSchema")
        is_plain = tool.keys() <= {"name", "description", "parametersJsonSchema"} and is_object(schema)
        parameters: dict[str, Any] = get_object(tool, "parametersJsonSchema") if is_plain else {"tool": tool}
        name = get_text(tool, "name") or next(iter(tool), "tool")
        return ToolDefinition(name=name, description=get_text(tool, "description") or "", parameters=parameters)

    def translate_tools(self, request: ClientRequest) -> TranslatedTools:
        functions = [tool for tool in request.tools if "name" in tool]
        others = [f"tools[{next(iter(tool), 'unknown')}]" for tool in request.tools if "name" not in tool]
        known = ("name", "description", "parameters", "parametersJsonSchema", "response", "responseJsonSchema")
        fields = (f"tools.{name}" for tool in functions for name in list_other_fields(tool, known))
        return TranslatedTools(
            tuple(
                ToolDefinition(
                    name=str(tool["name"]),
                    description=get_text(tool, "description") or "",
                    parameters=to_json_schema(tool.get("parametersJsonSchema") or tool.get("parameters")),
                )
                for tool in functions
            ),
            (*others, *dict.fromkeys(fields)),
        )

    def encode_fitted(
        self,
        request: ClientRequest,
        payload: dict[str, Any],
        *,
        stable_prefix: Sequence[WireMessage],
        model: str | None,
    ) -> bytes:
        return self.encode_body({**request.body, "contents": payload["contents"]})

    def list_sent(self, request: ClientRequest, *, start: int) -> Sequence[WireMessage] | None:
        return filter_objects(request.body.get("contents")) if start == 0 else None

    def is_equivalent(self, rendered: Sequence[WireMessage], sent: Sequence[WireMessage]) -> bool:
        return _normalize_contents(rendered) == _normalize_contents(sent)

    def find_untranslatable(self, body: Mapping[str, Any]) -> str | None:
        config = get_object(body, "generationConfig", "generation_config")
        modalities: object = config.get("responseModalities") or config.get("response_modalities")
        if isinstance(modalities, list) and "TEXT" not in cast("list[object]", modalities):
            return (
                "The reply would have no text, but images or audio, and an upstream of another format has none of them."
            )
        name = get_text(body, "cachedContent") or get_text(body, "cached_content")
        if name is None:
            return None
        return (
            f"The request continues {name!r}, which only Google can read; send its contents in the request, or use an "
            "upstream that speaks gemini."
        )

    def find_stored_id(self, raw: bytes, body: Mapping[str, Any]) -> str | None:
        if name := get_text(body, "cachedContent") or get_text(body, "cached_content"):
            return name
        if b"ile" not in raw or not any(mark in raw for mark in (b"fileUri", b"file_uri", b"\\u00")):
            return None
        for content in filter_objects(body.get("contents")):
            for part in filter_objects(content.get("parts")):
                result = get_object(part, "functionResponse", "function_response")
                for each in (part, *filter_objects(result.get("parts"))):
                    file = get_object(each, "fileData", "file_data")
                    uri = get_text(file, "fileUri") or get_text(file, "file_uri") or ""
                    if uri and ("/files/" in uri or not uri.startswith(("https://", "http://"))):
                        return uri
        return None

    def make_encoder(self, context: ReplyContext) -> ReplyEncoder:
        return GeminiEncoder(context)

    def build_error(
        self, status: int, detail: str, *, code: str, headers: Mapping[str, str] | None = None
    ) -> ErrorResponse:
        error = build_status(status, detail, code=code, retry_after=(headers or {}).get("Retry-After"))
        body = dump_json({"error": error}).encode()
        return ErrorResponse(status, body, {**(headers or {}), "content-type": JSON_MEDIA_TYPE})

    def build_overflow(self, error: ContextOverflow) -> ErrorResponse:
        return self._build_too_long(error.needed_tokens, error.available_tokens, str(error))

    def _build_too_long(self, tokens: int, window: int, explanation: str) -> ErrorResponse:
        """In the provider's own words, which clients recognize."""
        limit = f"The input token count ({tokens}) exceeds the maximum number of tokens allowed ({window})."
        return self.build_error(400, f"{limit} {explanation}", code="context_length_exceeded")

    def translate_error(self, status: int, error: ModelError) -> ErrorResponse:
        if isinstance(error, ModelContextOverflow):
            window = error.window or 0
            return self._build_too_long(max(error.tokens or 0, window + 1), window, error_detail(error))
        return super().translate_error(status, error)

    def encode_error_event(self, detail: str, *, code: str) -> bytes:
        return encode_event({"error": build_status(502, detail, code=code)})

    def build_token_count(self, tokens: int) -> dict[str, Any]:
        return {"totalTokens": tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]}

    # The upstream's side.

    def list_types(self, values: Iterable[WireMessage]) -> Iterator[object]:
        for content in values:
            for part in filter_objects(content.get("parts")):
                yield from part
                yield from (name for each in filter_objects(get_object(part, "functionResponse").get("parts"))
                            for name in each)  # fmt: skip

    def build_create_path(self, model: str, *, stream: bool) -> str:
        return _build_model_path(model, "streamGenerateContent" if stream else "generateContent")

    def build_count_path(self, model: str) -> str | None:
        return _build_model_path(model, "countTokens")

    def build_url(self, base_url: str, path: str) -> str:
        """Base URLs of Google's clients end before the version of the API, but some users add it."""
        base = base_url.rstrip("/")
        return f"{base}/{path}" if base.endswith(("/v1", "/v1beta", "/v1alpha")) else f"{base}/v1beta/{path}"

    def build_credentials(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key}

    def parse_models(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "id": name.removeprefix("models/"),
                "display_name": get_text(model, "displayName") or name.removeprefix("models/"),
                **({"max_input_tokens": limit} if isinstance(limit := model.get("inputTokenLimit"), int) else {}),
                **({"max_tokens": limit} if isinstance(limit := model.get("outputTokenLimit"), int) else {}),
            }
            for model in filter_objects(body.get("models"))
            if (name := get_text(model, "name"))
        ]

    def translate_options(self, options: RequestOptions) -> TranslatedFields:
        choice: dict[str, Any] = {"mode": _MODES[options.tool_choice]} if options.tool_choice is not None else {}
        if options.required_tool is not None:
            choice = {"mode": "ANY", "allowedFunctionNames": [options.required_tool]}
        response_format = options.response_format or {}
        schema = get_object(response_format, "json_schema").get("schema")
        is_json = response_format.get("type") in ("json_object", "json_schema")
        level = _EFFORTS.get(options.reasoning_effort or "")
        config: dict[str, Any] = {
            "maxOutputTokens": options.max_tokens,
            "temperature": options.temperature,
            "topP": options.top_p,
            "topK": options.top_k,
            "stopSequences": list(options.stop) or None,
            "responseMimeType": JSON_MEDIA_TYPE if is_json else None,
            "responseJsonSchema": schema if is_object(schema) else None,
            # Without it a reply has no thoughts.
            "thinkingConfig": {"thinkingLevel": level, "includeThoughts": True} if level else None,
        }
        config = {name: value for name, value in config.items() if value is not None}
        fields = {
            "generationConfig": config or None,
            "toolConfig": {"functionCallingConfig": choice} if choice else None,
            "stream": options.stream or None,
        }
        has_other_format = bool(response_format) and not is_json and response_format.get("type") != "text"
        return TranslatedFields(
            {name: value for name, value in fields.items() if value is not None},
            (
                *(["parallel_tool_calls"] if options.parallel_tool_calls is False else []),
                *(["response_format"] if has_other_format else []),
                *(["reasoning_effort"] if options.reasoning_effort and level is None else []),
                *(["user"] if options.user else []),
            ),
        )

    def make_decoder(self, *, choice_count: int = 1, is_translated: bool) -> GeminiStreamDecoder:
        return GeminiStreamDecoder(choice_count, is_translated=is_translated)

    def parse_response(self, response: object) -> list[Reply]:
        body = join_chunks(filter_objects(cast("object", response))) if isinstance(response, list) else response
        if not is_object(body):
            return []
        candidates = filter_objects(body.get("candidates"))
        replies: list[Reply] = []
        for each in [{**body, "candidates": [candidate]} for candidate in candidates] or [body]:
            try:
                replies.append(parse_reply(each))
            except (InvalidEntry, ValueError):
                continue
        return replies


def _build_model_path(model: str, method: str) -> str:
    name = model if model.startswith(_MODEL_KINDS) else f"models/{model}"
    return f"{quote(name, safe='/')}:{method}"


def _list_tools(body: Mapping[str, Any]) -> Iterator[WireMessage]:
    """The functions of all tools, and every tool of another kind."""
    for tool in filter_objects(body.get("tools")):
        yield from filter_objects(tool.get("functionDeclarations") or tool.get("function_declarations"))
        for name, value in tool.items():
            if name not in ("functionDeclarations", "function_declarations"):
                yield {name: value}


def _parse_options(body: dict[str, Any]) -> RequestOptions:
    config = get_object(body, "generationConfig")
    thinking, stop = get_object(config, "thinkingConfig"), config.get("stopSequences")
    tool_config = get_object(body, "toolConfig")
    calling = get_object(tool_config, "functionCallingConfig")
    mode, allowed = get_text(calling, "mode"), calling.get("allowedFunctionNames")
    names = (
        [each for each in cast("list[object]", allowed) if isinstance(each, str)] if isinstance(allowed, list) else []
    )
    level, budget = get_text(thinking, "thinkingLevel"), thinking.get("thinkingBudget")
    effort = (level or "").lower()
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    response_format: dict[str, Any] | None = None
    if is_object(schema):
        response_format = {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": to_json_schema(schema), "strict": False},
        }
    elif config.get("responseMimeType") == JSON_MEDIA_TYPE:
        response_format = {"type": "json_object"}
    required = names[0] if mode == "ANY" and len(names) == 1 else None
    # Options that only this format has, except those with a value that has no effect.
    other_fields = [
        *list_other_fields(body, _TRANSLATED_FIELDS),
        *(
            f"generationConfig.{name}"
            for name in list_other_fields(config, _TRANSLATED_CONFIG)
            if name not in _CONFIG_DEFAULTS or config[name] != _CONFIG_DEFAULTS[name]
        ),
        *(f"toolConfig.{name}" for name in list_other_fields(tool_config, ("functionCallingConfig",))),
        *(["toolConfig.allowedFunctionNames"] if names and required is None else []),
        *(["thinkingConfig.thinkingBudget"] if budget is not None and budget != -1 else []),
        *(["thinkingConfig.thinkingLevel"] if level is not None and effort not in _EFFORTS else []),
        *(f"thinkingConfig.{name}" for name in list_other_fields(
            thinking, ("thinkingLevel", "thinkingBudget", "includeThoughts"))),
    ]  # fmt: skip
    return RequestOptions(
        stream=body.get("stream") is True,
        max_tokens=get_token_limit(config, "maxOutputTokens"),
        temperature=get_number(config, "temperature"),
        top_p=get_number(config, "topP"),
        top_k=int(top_k) if (top_k := get_number(config, "topK")) is not None else None,
        stop=tuple(each for each in cast("list[object]", stop) if isinstance(each, str))
        if isinstance(stop, list)
        else (),
        tool_choice=cast(Literal["auto", "required", "none"] | None, _TOOL_CHOICES.get(mode or "")),
        required_tool=required,
        response_format=response_format,
        reasoning_effort=effort if effort in _EFFORTS else None,
        other_fields=tuple(other_fields),
    )


def _normalize_contents(contents: Sequence[WireMessage]) -> list[WireMessage]:
    """Joins adjacent contents of one role and adjacent texts. Drops thoughts, signatures, and IDs and names of calls.

    Clients add signatures and IDs where a reply had none, and the order of results says which call they belong to.
    """
    joined: list[WireMessage] = []
    for run in group_contents(contents):
        parts: list[WireMessage] = []
        for part in drop_repeated_results(run.parts):
            if part.get("thought") is True or part.get("text") == "":
                continue
            plain = {name: value for name, value in part.items() if name != "thoughtSignature" and value is not None}
            if is_object(blob := plain.get("inlineData")) and (data := get_text(blob, "data")):
                plain["inlineData"] = {**blob, "data": to_standard_base64(data)}
            for field in ("functionCall", "functionResponse"):
                if is_object(call := plain.get(field)):
                    ignored = ("id", "name") if field == "functionResponse" else ("id",)
                    plain[field] = {name: value for name, value in call.items() if name not in ignored and value}
            if run.role == "model" and parts and plain.keys() == parts[-1].keys() == {"text"}:
                parts[-1] = {"text": parts[-1]["text"] + plain["text"]}
            else:
                parts.append(plain)
        joined.append({"role": run.role, "parts": parts})
    return joined
