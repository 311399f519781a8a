"""SSE accumulator: passes a model's events through as they arrive, and merges their deltas into replies.

It withholds the event that ends the reply and all after it until the reply is recorded: a reply that a client has seen
end is in the log. The work per chunk is a copy and an append; texts are joined once, at the end.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_core import from_json

from quire.errors import ModelUnavailable
from quire.model.text import replace_lone_surrogates
from quire.server.gateway.chat_request import MAX_REQUEST_CHOICES
from quire.server.json_limits import MAX_JSON_SEPARATORS, exceeds_json_limit
from quire.view.replies import TextPieces
from quire.view.wire_formats.fields import filter_objects, is_object

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_MAX_EVENT_END_BYTES = 4
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Maximum size of one event of the upstream, and of all events withheld after the end of the reply."""
MAX_STREAM_BYTES = 128 * 1024 * 1024
"""Maximum size of a whole stream."""
MAX_DELTA_ITEMS = 1_000
"""Maximum items of one list of a reply, such as its tool calls."""
_DONE_DATA = b"[DONE]"
_REPLACED_FIELDS = frozenset({"role", "id", "type", "name", "index", "expires_at"})
"""Delta fields that are sent once or repeated; strings in all other fields are pieces to join."""
_MAX_LENIENT_BRACKETS = 100
"""Maximum opening brackets in an event that only the lenient parser accepts."""


@dataclass(slots=True)
class _ChoiceAccumulator:
    """One reply, as far as it has arrived. Its texts are `TextPieces`."""

    message: dict[str, Any] = field(default_factory=dict[str, Any])
    finish_reason: str | None = None

    def to_response_choice(self) -> dict[str, Any]:
        return {"index": 0, "message": _join_texts(self.message), "finish_reason": self.finish_reason}


class SSEAccumulator:
    """Accumulates one stream with `choice_count` replies."""

    def __init__(self, choice_count: int) -> None:
        self.is_done = False
        """Whether the upstream has sent `[DONE]`."""
        self.received_bytes = 0
        """Bytes of the stream so far."""
        self.error: dict[str, Any] | None = None
        """The error event of the upstream, if it sent one."""
        self._withheld = bytearray()
        self._choices: dict[int, _ChoiceAccumulator] = {}
        self._choice_count = choice_count
        self._response_fields: dict[str, Any] = {}
        self._buffer = bytearray()
        """The last event, which is incomplete."""

    def feed(self, chunk: bytes) -> bytes:
        """Adds bytes of the stream; returns the complete events that can be passed on now.

        Raises `ModelUnavailable` if an event, what is withheld, or the whole stream exceeds a limit.
        """
        try:
            return self._pass_events(chunk)
        except ModelUnavailable:
            self._buffer.clear()
            raise

    def _pass_events(self, chunk: bytes) -> bytes:
        # No event ends within the old buffer, but one may end in its last bytes and the first of the chunk.
        search_from = max(0, len(self._buffer) - _MAX_EVENT_END_BYTES + 1)
        self._buffer += chunk
        self.received_bytes += len(chunk)
        if self.received_bytes > MAX_STREAM_BYTES:
            raise ModelUnavailable(
                f"The upstream streamed a reply of more than {MAX_STREAM_BYTES:,} bytes; shorten it."
            )
        ends = [match.end() for match in _EVENT_END.finditer(self._buffer, search_from)]
        passed, start = bytearray(), 0
        for end in ends:
            self._check_size(end - start)
            event, start = bytes(self._buffer[start:end]), end
            self._parse_event(event)
            if self.is_finished or self.is_done:
                self._withheld += event
            else:
                passed += event
        del self._buffer[:start]
        self._check_size(max(len(self._buffer), len(self._withheld)))
        return bytes(passed)

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
    def is_finished(self) -> bool:
        """Whether every reply has a finish reason."""
        ended = sum(choice.finish_reason is not None for choice in self._choices.values())
        return ended >= self._choice_count

    @property
    def remainder(self) -> bytes:
        """Withheld events and the incomplete last event."""
        return bytes(self._withheld + self._buffer)

    def build_responses(self) -> list[dict[str, Any]]:
        """Builds one response per choice, in order of their indexes."""
        fields = _join_texts(self._response_fields)
        choices = [choice for _, choice in sorted(self._choices.items())]
        return [{**fields, "choices": [choice.to_response_choice()]} for choice in choices]

    def _parse_event(self, event: bytes) -> None:
        if exceeds_json_limit(event):
            raise ModelUnavailable(
                f"The upstream sent an event of more than {MAX_JSON_SEPARATORS:,} JSON values; "
                "retry, or use another model."
            )
        data = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
        if data == _DONE_DATA:
            self.is_done = True
        elif data and is_object(chunk := _parse_json(data)):
            self._add_chunk(chunk)

    def _add_chunk(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error"):
            self.error = chunk
        for name, value in chunk.items():
            if name not in ("choices", "object", "error") and value is not None:
                self._response_fields[name] = value
        for piece in filter_objects(chunk.get("choices")):
            index = piece.get("index")
            index = index if isinstance(index, int) else 0
            if index not in self._choices and len(self._choices) >= MAX_REQUEST_CHOICES:
                raise ModelUnavailable(f"The upstream sent more than {MAX_REQUEST_CHOICES} choices; retry the request.")
            choice = self._choices.setdefault(index, _ChoiceAccumulator())
            delta = piece.get("delta")
            if is_object(delta):
                _merge_delta(choice.message, delta)
            reason = piece.get("finish_reason")
            choice.finish_reason = reason if isinstance(reason, str) else choice.finish_reason


def _parse_json(data: bytes) -> object:
    """Parses the data of an event; None if it is not JSON."""
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


def _merge_delta(into: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        known: object = into.get(name)
        if value is None:
            continue
        if isinstance(value, str) and name not in _REPLACED_FIELDS:
            if not isinstance(known, TextPieces):
                known = into[name] = TextPieces()
            known.add(value)
        elif is_object(value):
            into[name] = known if is_object(known) else {}
            _merge_delta(into[name], value)
        elif isinstance(value, list):
            items = cast("list[object]", known) if isinstance(known, list) else []
            into[name] = _merge_list(items, cast("list[object]", value))
        elif not (name in _REPLACED_FIELDS and known and not value):
            into[name] = value


def _merge_list(known: list[object], pieces: list[object]) -> list[object]:
    """Merges each piece into the item with the same `index`; appends pieces without one."""
    for piece in pieces:
        index = piece.get("index") if is_object(piece) else None
        # From the end: nearly every piece continues the newest item.
        item = next((each for each in reversed(known) if is_object(each) and each.get("index") == index), None)
        if item is not None and index is not None and is_object(piece):
            _merge_delta(item, piece)
        elif len(known) >= MAX_DELTA_ITEMS:
            raise ModelUnavailable(f"The upstream sent a reply with more than {MAX_DELTA_ITEMS:,} tool calls; retry.")
        elif is_object(piece):
            new_item: dict[str, Any] = {}
            _merge_delta(new_item, piece)
            known.append(new_item)
        else:
            known.append(piece)
    return known


def _join_texts(value: Any) -> Any:
    """Returns a copy with all texts joined, in which every text can be encoded."""
    if isinstance(value, TextPieces):
        return value.join()
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    if isinstance(value, list):
        return [_join_texts(item) for item in cast("list[object]", value)]
    if is_object(value):
        return {replace_lone_surrogates(name): _join_texts(item) for name, item in value.items()}
    return value
