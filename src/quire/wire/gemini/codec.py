"""Codec of Google's Gemini API.

The URL has the name of the model and says whether the reply is streamed. The gateway adds both to the fields of a body,
and `encode_body` leaves them out of what is sent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast
from urllib.parse import quote

from pydantic_core import to_json

from quire.errors import ContextOverflow, InvalidEntry, QuireError
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
    RequestLimitExceeded,
    RequestOptions,
    TranslatedFields,
    UnreadableBody,
    encode_body,
    get_token_limit,
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
from quire.wire.gemini.stream import MAX_CANDIDATES, GeminiStreamDecoder, build_status, join_chunks
from quire.wire.http_errors import ErrorResponse
from quire.wire.item_edits import ItemEditor
from quire.wire.replies import encode_event

PATH_FIELDS = ("model", "stream")
"""Fields that the URL has, not the body."""
JSON_MEDIA_TYPE = "application/json"
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

    def encode_error_event(self, detail: str, *, code: str) -> bytes:
        return encode_event({"error": build_status(502, detail, code=code)})

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
    return RequestOptions(
        stream=body.get("stream") is True,
        max_tokens=get_token_limit(get_object(body, "generationConfig"), "maxOutputTokens"),
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
