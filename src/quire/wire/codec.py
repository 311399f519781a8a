"""What the codecs of all wire formats share: parsed requests, their messages and options, and the `Codec` itself.

A codec works on both sides. For a client, it parses requests and encodes replies; for an upstream, it encodes requests
and decodes replies. Where client and upstream use the same format, bodies pass unchanged. Elsewhere, Quire's own
messages are between the two.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, ClassVar, Literal, NamedTuple, cast

from pydantic_core import from_json, to_json

from quire.errors import (
    ContextOverflow,
    ConversationNotFound,
    ModelContextOverflow,
    ModelError,
    ModelTimeout,
    NotFound,
    QuireError,
    ResponseNotFound,
    error_detail,
)
from quire.model import Message, ToolDefinition
from quire.model.base import JsonObject
from quire.model.finish_reasons import FinishReason
from quire.model.json_values import filter_objects, get_object, get_text, is_object
from quire.model.policy import MAX_MODEL_NAME_CHARS, WireFormatName
from quire.wire import Reply, WireMessage
from quire.wire.client_messages import ClientMessage, KnownStart
from quire.wire.http_errors import ErrorResponse, error_code, http_status, retry_headers
from quire.wire.item_edits import ItemEditor
from quire.wire.replies import ReplyDelta, StreamDecoder


class UnreadableBody(Exception):
    """Quire cannot parse the body. It is passed through to the upstream, and not recorded."""


class RequestLimitExceeded(Exception):
    """The request exceeds a limit of the gateway. It is refused, and not forwarded."""


def parse_body(raw: bytes) -> dict[str, Any]:
    try:
        body: object = from_json(raw)
    except ValueError as error:
        raise UnreadableBody(f"The body is not valid JSON: {error}.") from error
    if not is_object(body):
        raise UnreadableBody("The body is not a JSON object.")
    return body


def find_repeated_field(raw: bytes) -> str | None:
    """A field that the body's outermost object has twice, or in two spellings that differ only in case.

    Servers differ in which of two fields they use, and some ignore the case of names.
    """
    fields: list[tuple[str, object]] = []

    def collect(pairs: list[tuple[str, object]]) -> None:
        # Called for the outermost object last.
        nonlocal fields
        fields = pairs

    json.loads(raw, object_pairs_hook=collect)
    names = [name.casefold() for name, _ in fields]
    return next((name for index, name in enumerate(names) if name in names[:index]), None)


def encode_body(body: dict[str, Any]) -> bytes:
    return to_json(body, inf_nan_mode="constants")


def get_model_name(body: Mapping[str, Any]) -> str:
    model = body.get("model")
    return model if isinstance(model, str) else ""


def count_items(body: Mapping[str, Any], *names: str) -> int:
    return sum(len(cast("list[object]", value)) for name in names if isinstance(value := body.get(name), list))


def get_token_limit(body: Mapping[str, Any], *names: str) -> int | None:
    """The first of these fields that is a number of tokens."""
    limits = (body.get(name) for name in names)
    return next((each for each in limits if isinstance(each, int) and not isinstance(each, bool) and each >= 0), None)


def get_number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def list_other_fields(body: Mapping[str, Any], known: Iterable[str]) -> tuple[str, ...]:
    """Names of the fields that have a value and are not in `known`."""
    names = frozenset(known)
    return tuple(name for name, value in body.items() if name not in names and value is not None)


def split_instructions(
    messages: Sequence[WireMessage], *, roles: frozenset[str]
) -> tuple[Sequence[WireMessage], Sequence[WireMessage]]:
    """Splits instructions from history. If all messages are instructions, the last one is the history."""
    first = next((index for index, each in enumerate(messages) if each.get("role") not in roles), len(messages) - 1)
    return messages[:first], messages[first:]


_STORED_MARKS = (b"file_id", b"vector_store_ids", b"container", b'"audio"', b"\\u00")
"""Bytes that a body with the ID of something stored has: the name of its field, or an escape in that name."""


def find_stored_id(raw: bytes, body: Mapping[str, Any], item_field: str) -> str | None:
    """The first ID in a body of something that the provider stores: a file, a container, a vector store, audio."""
    if not any(mark in raw for mark in _STORED_MARKS):
        return None
    holders: list[Mapping[str, Any]] = []
    for tool in (body, *filter_objects(body.get("tools"))):
        container = get_object(tool, "container")
        stored = (tool.get("vector_store_ids"), tool.get("container"), container.get("id"), container.get("file_ids"))
        holders += [{"file_id": str(id_)} for id_ in stored if id_ and not is_object(id_)]
    for item in filter_objects(body.get(item_field)):
        parts = [*filter_objects(item.get("content")), *filter_objects(item.get("output")), get_object(item, "output")]
        parts += [inner for part in parts for inner in filter_objects(part.get("content"))]
        holders += [holder for part in parts for holder in (part, get_object(part, "file"), get_object(part, "source"))]
        holders.append({"file_id": get_object(item, "audio").get("id")})
    return next((id_ for holder in holders if (id_ := get_text(holder, "file_id"))), None)


MAX_REQUEST_MESSAGES = 10_000
"""Maximum messages of a request. Each one costs time and memory, however short it is."""
KNOWN_BYTE_DIVISOR = 32
"""How many bytes of known messages make about as much work as one new byte: they are only counted, joined, compared."""
MAX_REQUEST_TOOLS = 1_000
"""Maximum tools of a request."""
MAX_NAME_CHARS = 256
"""Maximum length of the name of a tool or of the author of a message. Names are part of every manifest."""
MAX_CALL_ID_CHARS = 16_000
"""Maximum length of the ID of a tool call; some gateways put signatures of several thousand characters into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The fields of a request that every format has in some form."""

    stream: bool = False
    max_tokens: int | None = None
    """The client's limit on reply tokens, if it sets one."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: Literal["auto", "required", "none"] | None = None
    required_tool: str | None = None
    """The one tool that the model must call."""
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    """The form of the reply, as in `response_format` of chat completions."""
    reasoning_effort: str | None = None
    user: str | None = None
    other_fields: tuple[str, ...] = ()
    """Names of the client's fields that only its own format has."""


class TranslatedFields(NamedTuple):
    """Fields of a translated request, and the names of the options that have no place in the upstream's format."""

    fields: dict[str, Any]
    dropped: tuple[str, ...] = ()


class TranslatedTools(NamedTuple):
    """Tools that every format can offer, and the names of those that only the client's format has."""

    definitions: tuple[ToolDefinition, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """A parsed request of a client. Leading system messages are instructions, not part of the history."""

    codec: "Codec"
    raw: bytes
    raw_digest: str | None = None
    """SHA-256 of `raw` in hexadecimal, if it was computed."""
    body: dict[str, Any]
    instructions: tuple[WireMessage, ...] = ()
    """Instructions as the client sent them, in a form that its wire format counts."""
    messages: tuple[ClientMessage, ...]
    known_start: KnownStart = field(default_factory=KnownStart)
    """The first of the messages, as far as an earlier request had the same ones."""
    known_bytes: int = 0
    """Bytes of `raw` whose messages were parsed for an earlier request."""
    tools: tuple[WireMessage, ...] = ()
    """Tools as the client sent them."""
    options: RequestOptions = field(default_factory=RequestOptions)
    choice_count: int = 1
    previous_reply: str | None = None
    """ID of the recorded reply that the request continues, if its format names one."""
    conversation: str | None = None
    """Conversation that the request continues, if its format names one."""
    is_stored: bool = True
    """Whether a later request may refer to the reply."""
    overflow: Literal["fit", "refuse"] | None = None
    """What to do if the request exceeds the window, if its format lets the client choose."""
    is_edited: bool = False
    """Whether `raw` has the user's edits of the context; `body` and `messages` are the client's own."""
    dropped: tuple[str, ...] = ()
    """Parts of the messages that were removed from `body` and `raw`, because no provider accepts them."""
    carried_items: tuple[WireMessage, ...] = ()
    """Instructions within the messages of the request that this one continues."""

    @property
    def model(self) -> str:
        return get_model_name(self.body)

    @property
    def work_bytes(self) -> int:
        """Size for `run_sized` of what is still to be done with the request."""
        return measure_work(self.raw, self.known_bytes)

    @property
    def continues_recorded(self) -> bool:
        """Whether the request names what it continues, and has only new messages."""
        return self.previous_reply is not None or self.conversation is not None

    def compute_digest(self, content: bytes) -> str:
        """SHA-256 of a body that is sent for this request, which may be `raw` itself."""
        return self.raw_digest if content is self.raw and self.raw_digest is not None else sha256(content).hexdigest()

    def compute_envelope_key(self) -> bytes:
        """Cache key of the instructions and tools."""
        return sha256(to_json((self.instructions, self.tools), inf_nan_mode="constants")).digest()


def measure_work(raw: bytes, known_bytes: int) -> int:
    """Size of the work on a body for `run_sized`, if some of its bytes are of known messages."""
    return len(raw) - known_bytes + known_bytes // KNOWN_BYTE_DIVISOR


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyContext:
    """What a translated reply repeats of its request."""

    client_request: ClientRequest
    request_id: str
    created_at: int
    """Seconds since 1970."""
    input_tokens: int
    """Tokens of the request by Quire's count, until the upstream reports its own."""


class ReplyEncoder(ABC):
    """Encodes one reply in the client's format: whole, or event by event."""

    keep_alive: ClassVar[bytes] = b": keep-alive\n\n"
    """Bytes that a client ignores, for a stream that is silent."""

    def __init__(self, context: ReplyContext) -> None:
        self.context = context

    @property
    def stream_content_type(self) -> str:
        return "text/event-stream; charset=utf-8"

    @property
    def response_id(self) -> str | None:
        """ID of the reply that a later request may refer to, if the format has such references."""
        return None

    @abstractmethod
    def encode_response(self, reply: Reply, finish_reason: FinishReason) -> bytes:
        """Encodes a reply that is not streamed."""

    @abstractmethod
    def start(self) -> bytes:
        """Encodes the events before the first delta."""

    @abstractmethod
    def encode(self, delta: ReplyDelta) -> bytes: ...

    @abstractmethod
    def finish(self, reply: Reply, finish_reason: FinishReason) -> bytes:
        """Encodes the events that end the reply, with its usage. Sent after the reply is recorded."""

    def fail(self, detail: str, *, code: str) -> bytes:
        """Encodes the events that end a stream with an error."""
        return self.context.client_request.codec.encode_error_event(detail, code=code)

    def describe_response(self, finish_reason: FinishReason) -> JsonObject:
        """Fields of the response that a later read of it repeats, in addition to its message and usage."""
        return {}

    def restore_calls(self, message: Message) -> Message:
        """Returns the reply with calls of the client's own tools, where a function stood for a tool of another kind."""
        return message


class Codec(ABC):
    """A wire format of the gateway."""

    name: ClassVar[WireFormatName]
    create_path: ClassVar[str]
    """Path of an upstream that creates a reply, unless `build_create_path` has another."""
    stream_query: ClassVar[str] = ""
    """Query of a request for a stream, if the format has one."""
    default_overflow: ClassVar[Literal["fit", "refuse"]] = "refuse"
    """What happens to a request that exceeds the window. Agents of most formats shorten their own histories."""
    translated_headers: ClassVar[Mapping[str, str]] = {}
    """Headers of a request to an upstream that Quire writes in this format."""
    item_field: ClassVar[str] = "messages"
    """Field of the body with the list of messages."""
    leading_roles: ClassVar[frozenset[str] | None] = None
    """Roles of items at the start of the list that are instructions, or None if the list cannot be parsed in parts."""
    joins_replies: ClassVar[bool] = False
    """Whether a reply behind an item of the assistant is one message with it in the next list."""
    item_editor: ClassVar[ItemEditor]
    requires_reply_limit: ClassVar[bool] = False
    """Whether a request must limit the tokens of its reply."""

    carries_envelope: ClassVar[bool] = False
    """Whether a request that continues a recorded reply has the instructions and tools of that reply's request."""
    count_path: ClassVar[str | None] = None
    """Path of an upstream that counts the tokens of a request, if the format has one."""
    prefix_fields: ClassVar[tuple[str, ...]] = ("tools",)
    """Fields that a provider's prompt cache reads before the list of messages."""
    prefix_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters whose change may leave the cached messages unused, such as `thinking.type`."""

    # The client's side.

    def get_cache_seconds(self, raw: bytes) -> int:
        """Seconds for which the provider's prompt cache holds a request, at most or as estimated."""
        return 600

    @abstractmethod
    def parse_request(self, raw: bytes, body: dict[str, Any]) -> ClientRequest:
        """Parses a body. Raises `UnreadableBody` if it has no messages that Quire can store."""

    def encode_body(self, body: dict[str, Any]) -> bytes:
        """Encodes the fields of a request, without those that its URL has."""
        return encode_body(body)

    def find_stored_id(self, raw: bytes, body: Mapping[str, Any]) -> str | None:
        """The first ID in a body of something that the provider stores."""
        return find_stored_id(raw, body, self.item_field)

    def has_unsendable(self, request: ClientRequest) -> bool:
        """Whether the request may have something that only Quire's translation had added."""
        return False

    def drop_unsendable(self, request: ClientRequest) -> ClientRequest:
        """The request without what only Quire's translation had added, for an upstream of this format."""
        return request

    @abstractmethod
    def list_identifiers(self, body: Mapping[str, Any]) -> Iterator[tuple[str, object, int]]:
        """Names and IDs of tools, messages and calls, each with its maximum length."""

    def check_limits(self, body: Mapping[str, Any]) -> None:
        """Raises `RequestLimitExceeded` for a too long name or ID, and for too many messages or tools."""
        _check_length("`model`", get_model_name(body), MAX_MODEL_NAME_CHARS)
        if (count := count_items(body, self.item_field)) > MAX_REQUEST_MESSAGES:
            raise RequestLimitExceeded(
                f"`{self.item_field}` has {count:,} items, and at most {MAX_REQUEST_MESSAGES:,} are allowed; name the"
                " conversation in the header X-Quire-Conversation and send only the new messages."
            )
        if (count := self.count_tools(body)) > MAX_REQUEST_TOOLS:
            raise RequestLimitExceeded(
                f"`tools` has {count:,} items, and at most {MAX_REQUEST_TOOLS:,} are allowed; send fewer."
            )
        for label, text, max_chars in self.list_identifiers(body):
            if text is not None:
                _check_length(label, text, max_chars)

    def count_tools(self, body: Mapping[str, Any]) -> int:
        return count_items(body, "tools", "functions")

    @abstractmethod
    def join_instructions(self, request: ClientRequest, *, is_translated: bool = False) -> str | None:
        """The text of the instructions. Of a translated request, without what only this format's provider reads."""

    @abstractmethod
    def is_plain_system(self, request: ClientRequest, system: str | None) -> bool:
        """Whether the log's own rendering of the instructions equals what the client sent."""

    @abstractmethod
    def to_tool_definition(self, tool: WireMessage) -> ToolDefinition:
        """Converts a tool to the form of the log. The parameters of an unknown kind of tool are its whole JSON."""

    def translate_tools(self, request: ClientRequest) -> TranslatedTools:
        """The tools for an upstream of another format, if requests of this one are translated."""
        raise NotImplementedError

    @abstractmethod
    def encode_fitted(
        self,
        request: ClientRequest,
        payload: dict[str, Any],
        *,
        stable_prefix: Sequence[WireMessage],
        model: str | None,
    ) -> bytes:
        """Encodes the body with the messages of `payload`, which has no instructions and tools.

        `stable_prefix` are the messages that the next request repeats.

        All other fields stay as the client sent them, except the model's name if one is given.
        """

    @abstractmethod
    def list_sent(self, request: ClientRequest, *, start: int) -> Sequence[WireMessage] | None:
        """The client's items from message `start` on, or None if they cannot be cut there."""

    @abstractmethod
    def is_equivalent(self, rendered: Sequence[WireMessage], sent: Sequence[WireMessage]) -> bool:
        """Whether rendered messages equal items that a client sent, except for what has no meaning."""

    def make_encoder(self, context: ReplyContext) -> ReplyEncoder:
        """The encoder of a reply from an upstream of another format, if requests of this one are translated."""
        raise NotImplementedError

    @abstractmethod
    def build_error(
        self, status: int, detail: str, *, code: str, headers: Mapping[str, str] | None = None
    ) -> ErrorResponse: ...

    @abstractmethod
    def build_overflow(self, error: ContextOverflow) -> ErrorResponse:
        """Builds the provider's own error for a request that exceeds the context window."""

    @abstractmethod
    def encode_error_event(self, detail: str, *, code: str) -> bytes:
        """Encodes an error for a stream that has started."""

    def to_error_response(self, error: QuireError) -> ErrorResponse:
        if isinstance(error, ContextOverflow):
            return self.build_overflow(error)
        if isinstance(error, ResponseNotFound | ConversationNotFound):
            return self.build_unknown_reference(error)
        if isinstance(error, ModelTimeout):
            return self.build_error(504, str(error), code=error_code(error))
        return self.build_error(
            http_status(error), error_detail(error), code=error_code(error), headers=retry_headers(error)
        )

    def translate_error(self, status: int, error: ModelError) -> ErrorResponse:
        """Builds the error of an upstream of another format."""
        if isinstance(error, ModelContextOverflow):
            return self.build_error(400, error_detail(error), code="context_length_exceeded")
        return self.build_error(status, error_detail(error), code=error_code(error))

    def to_error_event(self, error: QuireError) -> bytes:
        return self.encode_error_event(error_detail(error), code=error_code(error))

    def build_envelope(self, system: str, tools: Sequence[ToolDefinition]) -> dict[str, Any]:
        """Fields of a body with these instructions and tools. None in a format that does not carry them over."""
        return {}

    def list_item_references(self, body: Mapping[str, Any]) -> Sequence[str]:
        """IDs of recorded items that the messages refer to."""
        return ()

    def refers_to_log(self, body: Mapping[str, Any]) -> bool:
        """Whether the request names something that an earlier one left in the log, or at the provider."""
        return bool(self.list_item_references(body))

    def find_untranslatable(self, body: Mapping[str, Any]) -> str | None:
        """Describes content that no other format can have, and without which the request has another meaning."""
        return None

    def insert_items(self, body: dict[str, Any], items: Mapping[str, Sequence[WireMessage]]) -> dict[str, Any]:
        """Replaces each of these references by its items, in a format that has references."""
        return body

    def build_request_record(self, request: ClientRequest) -> dict[str, Any] | None:
        """The fields of a request that a read of its response repeats, and what a request that continues it needs."""
        return None

    def carry_over(self, request: ClientRequest, record: Mapping[str, Any]) -> ClientRequest:
        """Adds what the request inherits of the one that it continues, from the record of that one."""
        return request

    def is_unknown_reference(self, body: bytes) -> bool:
        """Whether an upstream's error says that it does not know the reply that the request continues."""
        return False

    def build_unknown_reference(self, error: NotFound) -> ErrorResponse:
        """Builds the provider's own error for a request that continues an unknown reply."""
        return self.build_error(404, error_detail(error), code=error_code(error))

    def build_token_count(self, tokens: int) -> dict[str, Any]:
        """Builds the response to a request for a token count."""
        return {"input_tokens": tokens}

    # The upstream's side.

    media_types: ClassVar[tuple[str, ...]]
    """Types of content that are images and files."""
    thinking_types: ClassVar[tuple[str, ...]] = ()
    """Types of content that are thinking."""
    has_author_names: ClassVar[bool] = False
    """Whether a message can name its author."""

    def list_types(self, values: Iterable[WireMessage]) -> Iterator[object]:
        """Types of rendered messages and of everything in their contents."""
        for value in values:
            yield value.get("type")
            for name in ("content", "output"):
                yield from self.list_types(filter_objects(value.get(name)))

    def build_create_path(self, model: str, *, stream: bool) -> str:
        return self.create_path

    def build_count_path(self, model: str) -> str | None:
        return self.count_path

    def parse_models(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The models in an upstream's list, each with its name as `id`."""
        return [model for model in filter_objects(body.get("data")) if model.get("id")]

    def build_url(self, base_url: str, path: str) -> str:
        return f"{base_url.rstrip('/')}/{path}"

    def build_credentials(self, key: str) -> dict[str, str]:
        """Headers with the operator's API key."""
        return {"authorization": f"Bearer {key}"}

    @abstractmethod
    def translate_options(self, options: RequestOptions) -> TranslatedFields:
        """Fields of a request to an upstream of this format, in addition to model, instructions, messages, tools."""

    @abstractmethod
    def make_decoder(self, *, choice_count: int = 1, is_translated: bool) -> StreamDecoder:
        """Makes the decoder of an upstream's stream, which collects deltas if the reply is translated."""

    @abstractmethod
    def parse_response(self, response: object) -> list[Reply]:
        """Parses a response that is not streamed: one reply, or one for each choice. Empty if it has none."""

    def read_response_id(self, response: object) -> str | None:
        """ID of an upstream's reply that a later request may refer to."""
        return None


def _check_length(label: str, text: object, max_chars: int) -> None:
    if isinstance(text, str) and len(text) > max_chars:
        raise RequestLimitExceeded(f"{label} has {len(text):,} characters, and at most {max_chars:,} are allowed.")
