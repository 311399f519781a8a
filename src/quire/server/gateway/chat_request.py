"""Parse a chat completions body into a `ChatRequest` and its messages.

A `ClientMessage` has three forms: the client's JSON, the message for the log, and a normalized form for matching.
Clients send a reply back changed: without its thinking, with reformatted call arguments, with null fields. The
normalized form has none of that, so the same conversation always has the same path (hash chain over messages).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

from pydantic_core import from_json, to_json

from quire.errors import QuireError
from quire.model import CHAIN_ROOT, Message, TextPart, ThinkingPart, ToolCallPart
from quire.model.lazy import lazy_property
from quire.model.messages import Part
from quire.model.policy import MAX_MODEL_NAME_CHARS
from quire.view.wire_formats.fields import dump_json, filter_objects, get_object, is_object
from quire.view.wire_formats.openai_chat import PROVIDER
from quire.view.wire_formats.openai_chat_parse import parse_messages

MAX_REQUEST_MESSAGES = 10_000
"""Maximum messages of a request; each one costs time and memory, however short it is."""
MAX_REQUEST_TOOLS = 1_000
"""Maximum tools of a request, the deprecated `functions` included."""
MAX_REQUEST_CHOICES = 128
"""Maximum replies (`n`) of a request, the maximum of OpenAI; each further one is recorded on a fork."""
MAX_NAME_CHARS = 256
"""Maximum length of the name of a tool or of the author of a message; names are part of every manifest."""
MAX_CALL_ID_CHARS = 16_000
"""Maximum length of the ID of a tool call; some gateways put signatures of several thousand characters into it."""

_KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_SYSTEM_ROLES = frozenset({"system", "developer"})
_CONTENT_SUBSTITUTES = ("refusal", "audio", "function_call")
"""Fields of an assistant message that replace its content."""
_PLAIN_TEXT_PREFIXES = {
    "user": (b'{"role":"user","parts":[{"type":"text","text":', b'[{"role":"user","content":'),
    "assistant": (b'{"role":"assistant","parts":[{"type":"text","text":', b'[{"role":"assistant","content":'),
}
"""JSON prefixes of a plain text message by role: canonical JSON of the log, and wire format."""


class UnreadableBody(Exception):
    """Quire cannot parse the body. It is passed through to the upstream, and not recorded."""


class RequestLimitExceeded(Exception):
    """The request exceeds a limit of the gateway. It is refused, and not forwarded."""


class ClientMessage:
    """One message of a client's list."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.role: str = raw["role"]
        text = raw.get("content")
        self._json_prefixes = (
            _PLAIN_TEXT_PREFIXES.get(self.role)
            if isinstance(text, str) and text and _has_only_role_and_content(raw)
            else None
        )
        self._text_json = to_json(text) if self._json_prefixes is not None else b""

    @property
    def is_plain_text(self) -> bool:
        """Whether this is a user or assistant message of text alone, as most are: the log stores it without loss."""
        return self._json_prefixes is not None

    @lazy_property
    def message(self) -> Message:
        """The message as the log stores it."""
        return _to_message(self.raw)

    @lazy_property
    def normalized(self) -> Message:
        """The message as it is matched with the log."""
        return normalize_message(self.message)

    @property
    def match_key(self) -> bytes:
        """Canonical JSON of `normalized`."""
        if self._json_prefixes is not None:
            return b"%b%b}]}" % (self._json_prefixes[0], self._text_json)
        return self.normalized.canonical_json().encode()

    @property
    def wire_json(self) -> bytes:
        """Wire format of a plain text message, as it enters a request's digest."""
        return b"%b%b}]" % (self._json_prefixes[1] if self._json_prefixes is not None else b"", self._text_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A parsed chat completions request. Leading system messages are instructions, not part of the history."""

    raw: bytes
    body: dict[str, Any]
    system_messages: tuple[dict[str, Any], ...]
    messages: tuple[ClientMessage, ...]
    tools: tuple[dict[str, Any], ...]
    """Tools, including the deprecated `functions`."""
    max_reply_tokens: int | None
    """The client's limit on reply tokens, if it sets one."""

    @property
    def model(self) -> str:
        return get_model_name(self.body)

    @property
    def choice_count(self) -> int:
        count = self.body.get("n")
        return count if isinstance(count, int) and count > 1 else 1

    def compute_envelope_key(self) -> bytes:
        """Cache key of the instructions and tools."""
        return sha256(to_json((self.system_messages, self.tools), inf_nan_mode="constants")).digest()

    def encode_with_messages(self, messages: list[dict[str, Any]], *, model: str | None) -> bytes:
        """Encodes the body with other messages; all other fields stay, except the model's name if one is given."""
        return encode_body({**self.body, "messages": messages, **({"model": model} if model else {})})


def parse_body(raw: bytes) -> dict[str, Any]:
    try:
        body: object = from_json(raw)
    except ValueError as error:
        raise UnreadableBody(f"The body is not valid JSON: {error}.") from error
    if not is_object(body):
        raise UnreadableBody("The body is not a JSON object.")
    return body


def check_request_limits(body: Mapping[str, Any]) -> None:
    """Raises `RequestLimitExceeded` for a too long name or ID, and for too many messages, tools or choices."""
    name_chars = len(get_model_name(body))
    if name_chars > MAX_MODEL_NAME_CHARS:
        raise RequestLimitExceeded(
            f"`model` has {name_chars:,} characters, and at most {MAX_MODEL_NAME_CHARS} are allowed."
        )
    message_count, tool_count = _count_items(body, "messages"), _count_items(body, "tools", "functions")
    if message_count > MAX_REQUEST_MESSAGES:
        raise RequestLimitExceeded(
            f"`messages` has {message_count:,} items, and at most {MAX_REQUEST_MESSAGES:,} are allowed; name the"
            " conversation in the header X-Quire-Conversation and send only the new messages."
        )
    if tool_count > MAX_REQUEST_TOOLS:
        raise RequestLimitExceeded(
            f"`tools` has {tool_count:,} items, and at most {MAX_REQUEST_TOOLS:,} are allowed; send fewer."
        )
    choices = body.get("n")
    if isinstance(choices, int) and choices > MAX_REQUEST_CHOICES:
        raise RequestLimitExceeded(f"`n` is above {MAX_REQUEST_CHOICES}, the maximum number of choices.")
    for label, text, max_chars in _list_identifiers(body):
        if isinstance(text, str) and len(text) > max_chars:
            raise RequestLimitExceeded(f"{label} has {len(text):,} characters, and at most {max_chars:,} are allowed.")


def _list_identifiers(body: Mapping[str, Any]) -> Iterator[tuple[str, object, int]]:
    """Names and IDs of tools, messages and calls, each with its maximum length."""
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


def _count_items(body: Mapping[str, Any], *names: str) -> int:
    return sum(len(cast("list[object]", value)) for name in names if isinstance(value := body.get(name), list))


def parse_chat_request(raw: bytes, body: dict[str, Any]) -> ChatRequest:
    """Parses a body; raises `UnreadableBody` if it has no list of messages that Quire can store."""
    system_messages, messages = _split_system_messages(_validate_messages(body))
    return ChatRequest(
        raw=raw,
        body=body,
        system_messages=tuple(system_messages),
        messages=tuple(_parse_message(message) for message in messages),
        tools=tuple(_parse_tools(body)),
        max_reply_tokens=_parse_max_reply_tokens(body),
    )


def get_model_name(body: Mapping[str, Any]) -> str:
    model = body.get("model")
    return model if isinstance(model, str) else ""


def encode_body(body: dict[str, Any]) -> bytes:
    return to_json(body, inf_nan_mode="constants")


def normalize_message(message: Message) -> Message:
    """Returns the message without what clients drop or reformat when they send it back."""
    if message.role != "assistant":
        return message
    fields = message.provider_fields.get(PROVIDER) if message.provider_fields is not None else None
    substitutes = (
        {name: fields[name] for name in _CONTENT_SUBSTITUTES if name in fields} if isinstance(fields, dict) else {}
    )
    parts = tuple(_normalize_part(part) for part in message.parts if not _is_dropped_by_clients(part))
    return Message(role="assistant", parts=parts, provider_fields={PROVIDER: substitutes} if substitutes else None)


def compute_client_paths(messages: Iterable[ClientMessage]) -> list[bytes]:
    """Computes the path after each message; the store looks conversations up by these."""
    path, paths = CHAIN_ROOT, list[bytes]()
    for message in messages:
        path = sha256(path + message.match_key).digest()
        paths.append(path)
    return paths


def extend_path(path: bytes, messages: Sequence[Message]) -> bytes:
    """Computes the path after `messages` that follow `path`."""
    for message in messages:
        path = sha256(path + message.canonical_json().encode()).digest()
    return path


def _has_only_role_and_content(raw: Mapping[str, Any]) -> bool:
    """Whether all other fields are null or empty lists, which carry no meaning."""
    return len(raw) == 2 or all(
        value is None or value == [] for name, value in raw.items() if name not in ("role", "content")
    )


def _to_message(raw: dict[str, Any]) -> Message:
    if raw["role"] != "function":
        return parse_messages([raw])[0]
    # A result of the deprecated function calling has no call ID to belong to, so it is stored as a user message.
    message = parse_messages([{**raw, "role": "user"}])[0]
    return message.model_copy(update={"provider_fields": {PROVIDER: {"role": "function"}}})


def _is_dropped_by_clients(part: Part) -> bool:
    return isinstance(part, ThinkingPart) or (isinstance(part, TextPart) and not part.text)


def _normalize_part(part: Part) -> Part:
    if isinstance(part, ToolCallPart):
        return ToolCallPart(id=part.id, name=part.name, arguments=_normalize_arguments(part.arguments))
    return TextPart(text=part.text) if isinstance(part, TextPart) else part


def _normalize_arguments(arguments: str) -> str:
    try:
        return dump_json(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _validate_messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    messages: object = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise UnreadableBody("`messages` is missing, empty, or not a list.")
    for index, message in enumerate(cast("list[object]", messages)):
        if not is_object(message) or message.get("role") not in _KNOWN_ROLES:
            raise UnreadableBody(f"Message {index} has no known role.")
    return cast("list[dict[str, Any]]", messages)


def _split_system_messages(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Splits instructions from history. If all messages are instructions, the last one is the history."""
    first = next((index for index, each in enumerate(messages) if each["role"] not in _SYSTEM_ROLES), len(messages) - 1)
    return messages[:first], messages[first:]


def _parse_message(raw: dict[str, Any]) -> ClientMessage:
    client_message = ClientMessage(raw)
    if not client_message.is_plain_text:
        try:
            _ = client_message.message
        except (QuireError, ValueError, TypeError, AttributeError) as error:
            # A client may put anything into a message; the upstream decides whether it is valid.
            raise UnreadableBody(f"A message cannot be parsed: {error}.") from error
    return client_message


def _parse_tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    tools = filter_objects(body.get("tools"))
    return tools + [{"type": "function", "function": each} for each in filter_objects(body.get("functions"))]


def _parse_max_reply_tokens(body: dict[str, Any]) -> int | None:
    limits = (body.get(name) for name in ("max_completion_tokens", "max_tokens"))
    return next((each for each in limits if isinstance(each, int) and not isinstance(each, bool) and each >= 0), None)
