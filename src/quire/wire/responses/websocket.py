"""Responses over a WebSocket, as Codex speaks them: a message is a request, and each event of its stream a message.

A message `response.create` has the fields of a request. One that names the connection's previous response has only the
items that are new, and is short for a request with all of them. The provider stores none of these responses, so that
the connection holds their items.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from pydantic_core import from_json, to_json

from quire.model.json_values import get_object, get_text, is_object
from quire.wire.codec import UnreadableBody, encode_body, parse_body
from quire.wire.json_limits import MAX_JSON_SEPARATORS, exceeds_json_limit
from quire.wire.replies import read_event_data, take_events

CREATE_TYPE = "response.create"
_ITEM_EVENT = b'"response.output_item.done"'
_END_EVENTS = (b'"response.completed"', b'"response.incomplete"')
_HEADER_PREFIXES = ("x-codex-", "x-openai-")
"""Keys of `client_metadata` that Codex sends as headers over HTTP."""
_MESSAGE_FIELDS = ("type", "generate", "background")
"""Fields of a message that its request over HTTP lacks, unless it is a warm-up."""

FindItems = Callable[[str], bytes | None]
"""Finds the input and the output of the connection's previous response by its ID, as JSON without brackets."""


class CreateMessage(NamedTuple):
    body: bytes
    """Body of the request, with the whole input."""
    items: bytes
    """The input, as JSON without brackets."""
    headers: Mapping[str, str]
    """Headers that the request would have over HTTP."""


def parse_create(message: bytes, find_items: FindItems) -> CreateMessage:
    """Reads a message that asks for a response. Raises `UnreadableBody`."""
    if exceeds_json_limit(message):
        raise UnreadableBody(f"The message has more than {MAX_JSON_SEPARATORS:,} JSON values or keys; send fewer.")
    fields = parse_body(message)
    if (type_ := fields.get("type")) != CREATE_TYPE:
        raise UnreadableBody(f"The gateway accepts messages of the type {CREATE_TYPE!r}, not {type_!r}.")
    given: object = fields.pop("input", [])
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": given}]
    items = to_json(given)[1:-1]
    previous = get_text(fields, "previous_response_id")
    if previous is not None and (before := find_items(previous)) is not None:
        del fields["previous_response_id"]
        items = b",".join(filter(None, (before, items)))
    is_warm_up = fields.get("generate") is False
    rest = {name: value for name, value in fields.items() if name not in _MESSAGE_FIELDS}
    rest |= {"stream": True, **({"generate": False} if is_warm_up else {})}
    metadata = get_object(fields, "client_metadata")
    headers = {
        name.lower(): value
        for name, value in metadata.items()
        if name.lower().startswith(_HEADER_PREFIXES) and isinstance(value, str) and value.isprintable()
    }
    # The items first: what every request of the connection begins with is recognised by its bytes.
    return CreateMessage(b'{"input":[%b],%b' % (items, encode_body(rest)[1:]), items, headers)


class EventMessages:
    """Turns the event stream of a response into messages, and collects the items of its output."""

    def __init__(self) -> None:
        self.response_id: str | None = None
        """Set at the end of a response that a later one may continue."""
        self._buffer = bytearray()
        self._items: list[bytes] = []

    @property
    def output(self) -> bytes:
        """The items, as JSON without brackets."""
        return b",".join(self._items)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Adds bytes of the stream. Returns the messages that are complete."""
        events = (read_event_data(event) for event in take_events(self._buffer, chunk))
        messages = [data for data in events if data.startswith(b"{")]
        for data in messages:
            if _ITEM_EVENT not in data and not any(each in data for each in _END_EVENTS):
                continue
            event: object = from_json(data)
            match get_text(event, "type") if is_object(event) else None:
                case "response.output_item.done" if is_object(event):
                    self._items.append(to_json(event.get("item")))
                case "response.completed" | "response.incomplete" if is_object(event):
                    self.response_id = get_text(get_object(event, "response"), "id")
                case _:
                    pass
        return messages


def build_error_message(status: int, body: bytes, headers: Mapping[str, str]) -> bytes:
    """The message for a request that failed before its stream began."""
    error: object = None
    with suppress(ValueError):
        error = from_json(body)
    detail = get_object(error, "error") if is_object(error) else {}
    fallback = {"message": body[:1_000].decode(errors="replace"), "type": "server_error", "code": None, "param": None}
    return to_json({"type": "error", "status": status, "error": detail or fallback, "headers": dict(headers)})
