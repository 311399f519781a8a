"""A reply as it arrives: its deltas and pieces, and the decoding of an upstream's event stream (SSE).

The agent and the gateway share the rules of a reply that grows: each translates its own chunks into them.

A decoder passes events on as they arrive, and merges their deltas into replies. It withholds the event that ends the
reply and all after it until the reply is recorded: a reply that a client has seen end is in the log. The work per chunk
is a copy and an append. Texts are joined once, at the end.
"""

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from pydantic_core import from_json, to_json

from quire.errors import ModelUnavailable
from quire.model import Manifest, Message, Part, ThinkingPart, ToolCallPart, Usage
from quire.model.base import replace_lone_surrogates
from quire.model.json_values import is_object, parse_object
from quire.wire import Reply
from quire.wire.json_limits import MAX_JSON_SEPARATORS, exceeds_json_limit

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_MAX_EVENT_END_BYTES = 4
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Maximum size of one event of the upstream, and of all events withheld after the end of the reply."""
MAX_STREAM_BYTES = 128 * 1024 * 1024
"""Maximum size of a whole stream."""
MAX_DELTA_ITEMS = 1_000
"""Maximum items of one list of a reply, such as its tool calls."""
_DONE_DATA = b"[DONE]"
_MAX_LENIENT_BRACKETS = 100
"""Maximum opening brackets in an event that only the lenient parser accepts."""


class ReplyText(NamedTuple):
    text: str


class ReplyThinking(NamedTuple):
    text: str


class ReplyToolCall(NamedTuple):
    """A piece of the call at `position` in the reply. Its first piece has the ID and the name."""

    position: int
    id: str = ""
    name: str = ""
    arguments: str = ""


ReplyDelta = ReplyText | ReplyThinking | ReplyToolCall
"""A piece of a reply that is translated while it arrives."""


@dataclass(slots=True)
class TextPieces:
    """Text that arrives in pieces. Adding one is an append: to join the text for every chunk takes quadratic time."""

    pieces: list[str] = field(default_factory=list[str])

    def add(self, piece: str) -> None:
        self.pieces.append(piece)

    def join(self) -> str:
        """Joins the pieces. A character whose surrogates arrived in two pieces becomes whole."""
        return replace_lone_surrogates("".join(self.pieces))


def drop_incomplete_calls(message: Message) -> Message:
    """Returns what is recorded of an incomplete reply: all of it, except tool calls that may be incomplete.

    A call is complete if it has an id, a name and a JSON object as arguments: no proper prefix of an object is one.
    After thinking, all calls are dropped: the provider's signature comes at the end of the thinking and is missing
    here, and some providers reject a call whose thinking is unsigned. The calls have not run, so nothing is lost.
    """
    has_thinking = any(isinstance(part, ThinkingPart) for part in message.parts)
    parts: tuple[Part, ...] = tuple(
        part
        for part in message.parts
        if not isinstance(part, ToolCallPart) or (not has_thinking and _is_complete_call(part))
    )
    return message if len(parts) == len(message.parts) else message.model_copy(update={"parts": parts})


def _is_complete_call(call: ToolCallPart) -> bool:
    return bool(call.id and call.name) and parse_object(call.arguments) is not None


def estimate_usage(manifest: Manifest, *, model: str, output_tokens: int) -> Usage:
    """Estimates the usage of a reply whose provider reports none: the counted reply, and the counted request, scaled by
    the calibration ratio from the provider's earlier reports."""
    return Usage(
        model=model,
        input_tokens=round(manifest.total_tokens * manifest.ratio),
        output_tokens=output_tokens,
        estimated=True,
    )


class StreamDecoder(ABC):
    """Decodes one stream. `deltas` collects what has arrived since it was last taken, if the reply is translated."""

    def __init__(self, *, is_translated: bool = False) -> None:
        self.received_bytes = 0
        """Bytes of the stream so far."""
        self.error: dict[str, Any] | None = None
        """The error event of the upstream, if it sent one."""
        self.has_done_marker = False
        """Whether the upstream has sent `[DONE]`."""
        self.is_translated = is_translated
        self._deltas: list[ReplyDelta] = []
        self._withheld = bytearray()
        self._buffer = bytearray()
        """The last event, which is incomplete."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether every reply has ended."""

    @property
    def is_done(self) -> bool:
        """Whether no further event is expected."""
        return self.is_finished

    @abstractmethod
    def build_replies(self) -> list[Reply]:
        """Builds the replies as far as they have arrived. None if nothing has."""

    @property
    def response_id(self) -> str | None:
        """ID of the reply that a later request may refer to, if the format has such references."""
        return None

    def fail(self, detail: str, *, code: str) -> bytes | None:
        """Encodes the events that end a broken stream, or None if its format needs nothing of the events before."""
        return None

    @abstractmethod
    def add_event(self, data: dict[str, Any]) -> None:
        """Adds the data of one event."""

    def feed(self, chunk: bytes) -> bytes:
        """Adds bytes of the stream. Returns the complete events that can be passed on now.

        Raises `ModelUnavailable` if an event, what is withheld, or the whole stream exceeds a limit.
        """
        try:
            self.received_bytes += len(chunk)
            if self.received_bytes > MAX_STREAM_BYTES:
                raise ModelUnavailable(
                    f"The upstream streamed a reply of more than {MAX_STREAM_BYTES:,} bytes; shorten it."
                )
            passed = bytearray()
            for event in take_events(self._buffer, chunk):
                self._check_size(len(event))
                if exceeds_json_limit(event):
                    raise ModelUnavailable(
                        f"The upstream sent an event of more than {MAX_JSON_SEPARATORS:,} JSON values; "
                        "retry, or use another model."
                    )
                data = read_event_data(event)
                if data and is_object(parsed := _parse_json(data)):
                    self.add_event(parsed)
                elif data == _DONE_DATA:
                    self.has_done_marker = True
                if self.is_finished or self.is_done:
                    self._withheld += event
                else:
                    passed += event
            self._check_size(max(len(self._buffer), len(self._withheld)))
            return bytes(passed)
        except ModelUnavailable:
            self._buffer.clear()
            raise

    def take_deltas(self) -> list[ReplyDelta]:
        """Returns the deltas since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def emit(self, delta: ReplyDelta) -> None:
        if self.is_translated:
            self._deltas.append(delta)

    def _check_size(self, event_bytes: int) -> None:
        if event_bytes > MAX_EVENT_BYTES:
            raise ModelUnavailable(
                f"The upstream sent an event of more than {MAX_EVENT_BYTES:,} bytes; retry, or use another model."
            )

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the last event, which is incomplete."""
        return len(self._buffer)

    @property
    def remainder(self) -> bytes:
        """Withheld events and the incomplete last event."""
        return bytes(self._withheld + self._buffer)

    def drop_incomplete_event(self) -> None:
        """Drops the last event of a stream that was cut off within it."""
        self._buffer.clear()


def take_events(buffer: bytearray, chunk: bytes) -> list[bytes]:
    """Adds bytes of a stream to the buffer of its last event, and takes the events that are complete."""
    # No event ends within the old buffer, but one may end in its last bytes and the first of the chunk.
    search_from = max(0, len(buffer) - _MAX_EVENT_END_BYTES + 1)
    buffer += chunk
    events, start = list[bytes](), 0
    for end in [match.end() for match in _EVENT_END.finditer(buffer, search_from)]:
        events.append(bytes(buffer[start:end]))
        start = end
    del buffer[:start]
    return events


def read_event_data(event: bytes) -> bytes:
    return b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))


def encode_event(data: dict[str, Any], *, name: str | None = None) -> bytes:
    """Encodes one event. Clients of some formats ignore events without a name."""
    head = b"event: %b\n" % name.encode() if name is not None else b""
    return b"%bdata: %b\n\n" % (head, to_json(data, inf_nan_mode="constants"))


def join_texts(value: Any) -> Any:
    """Returns a copy with all `TextPieces` joined, in which every text can be encoded."""
    if isinstance(value, TextPieces):
        return value.join()
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    if isinstance(value, list):
        return [join_texts(item) for item in cast("list[object]", value)]
    if is_object(value):
        return {replace_lone_surrogates(name): join_texts(item) for name, item in value.items()}
    return value


def _parse_json(data: bytes) -> object:
    """Parses the data of an event, or None if it is not JSON."""
    try:
        return from_json(data)
    except ValueError:
        pass
    # pydantic rejects an escaped lone surrogate, which a provider sends when it splits a character in two pieces;
    # `json` accepts it, and nesting without pydantic's limit, which the number of brackets bounds instead.
    if data.count(b"{") + data.count(b"[") > _MAX_LENIENT_BRACKETS:
        return None
    try:
        return json.loads(data)
    except ValueError:
        return None
