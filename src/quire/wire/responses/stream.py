"""Streams of OpenAI's Responses: decodes an upstream's events, and encodes translated replies."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from pydantic_core import to_json

from quire.errors import InvalidEntry, ModelUnavailable
from quire.model import Message, ToolCallPart, Usage
from quire.model.base import JsonObject
from quire.model.finish_reasons import FinishReason
from quire.model.ids import now
from quire.model.json_values import dump_json, filter_objects, get_object, get_text, parse_object
from quire.wire import Reply, WireMessage
from quire.wire.codec import ReplyContext, ReplyEncoder
from quire.wire.replies import (
    MAX_DELTA_ITEMS,
    ReplyDelta,
    ReplyText,
    ReplyThinking,
    ReplyToolCall,
    StreamDecoder,
    TextPieces,
    encode_event,
    join_texts,
)
from quire.wire.responses.object import (
    ItemStatus,
    build_call_item,
    build_message_item,
    build_reasoning_item,
    build_response_object,
    build_started_response,
    build_text_piece,
    end_response,
    make_item_id,
    select_response_fields,
)
from quire.wire.responses.parse import parse_reply
from quire.wire.responses.tools import index_tools, join_name, render_call, restore_call, restore_calls

_ENDING_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_STARTING_EVENTS = frozenset({"response.created", "response.queued", "response.in_progress"})
_DELTA_FIELDS = {
    "response.output_text.delta": ("content", "content_index", "output_text", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal", "refusal"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "summary_text", "text"),
    "response.reasoning_text.delta": ("content", "content_index", "reasoning_text", "text"),
}
"""By event: the list of the item that it extends, the field with the index, and type and text field of the piece."""
_FUNCTION_CALL_DELTA = "response.function_call_arguments.delta"
_CALL_DELTAS = (_FUNCTION_CALL_DELTA, "response.custom_tool_call_input.delta")
_CALL_TYPES = ("function_call", "custom_tool_call")


@dataclass(slots=True)
class _ItemAccumulator:
    """One item of the output, as far as it has arrived."""

    item: WireMessage
    call_position: int | None = None
    pieces: dict[tuple[str, int], tuple[str, str, TextPieces]] = field(
        default_factory=dict[tuple[str, int], tuple[str, str, TextPieces]]
    )
    """Texts by list and index in it, each with the type and the text field of its piece."""
    arguments: TextPieces = field(default_factory=TextPieces)
    is_done: bool = False

    @property
    def has_deltas(self) -> bool:
        return bool(self.pieces or self.arguments.pieces)

    def build(self) -> WireMessage | None:
        """The item, or None for the call of a custom tool that is cut off, whose text could be taken for the whole."""
        if self.is_done:
            return self.item
        if self.item.get("type") == "custom_tool_call":
            return None
        lists: dict[str, list[WireMessage]] = {}
        for (name, _), (type_, text_field, text) in sorted(self.pieces.items(), key=lambda entry: entry[0]):
            lists.setdefault(name, []).append({"type": type_, text_field: text.join()})
        arguments = {"arguments": self.arguments.join()} if self.item.get("type") == "function_call" else {}
        return {**self.item, **lists, **arguments}


class ResponsesStreamDecoder(StreamDecoder):
    """Accumulates the one response of a stream."""

    def __init__(self, *, is_translated: bool = False) -> None:
        super().__init__(is_translated=is_translated)
        self._response: dict[str, Any] = {}
        self._items: dict[int, _ItemAccumulator] = {}
        self._call_count = 0
        self._has_ended = False
        self._next_sequence_number = 0

    @property
    def is_finished(self) -> bool:
        return self._has_ended

    @property
    def response_id(self) -> str | None:
        return get_text(self._response, "id")

    def build_replies(self) -> list[Reply]:
        response = join_texts(self._response)
        if not (self._has_ended and filter_objects(response.get("output"))):
            response = {**response, "output": join_texts(self._build_items())}
        if not self._has_ended:
            response.pop("status", None)
        return parse_response(response)

    def fail(self, detail: str, *, code: str) -> bytes:
        if not self._response:
            return encode_error_event(detail, code=code)
        response = {**self._response, "output": self._build_items()}
        return encode_failure(response, detail, code=code, sequence_number=self._next_sequence_number)

    def add_event(self, data: dict[str, Any]) -> None:
        type_, sequence_number = get_text(data, "type") or "", data.get("sequence_number")
        if isinstance(sequence_number, int):
            self._next_sequence_number = sequence_number + 1
        if type_ in _STARTING_EVENTS or type_ in _ENDING_EVENTS:
            response = get_object(data, "response")
            self._response = {**self._response, **response}
            self._has_ended = self._has_ended or type_ in _ENDING_EVENTS
            if response.get("status") == "failed":
                self.error = self.error or {"error": get_object(response, "error")}
        elif type_ == "error" or data.get("error"):
            self.error = {"error": get_object(data, "error") or data}
        elif type_ == "response.output_item.added":
            self._start_item(data)
        elif type_ == "response.output_item.done":
            # Replaces the item by its final form; what had no deltas is emitted now.
            accumulator, item = self._start_item(data), get_object(data, "item")
            if accumulator.is_done:
                return
            accumulator.item, accumulator.is_done = item, True
            if not self.is_translated:
                return
            if item.get("type") == "custom_tool_call":
                arguments = dump_json({"input": get_text(item, "input") or ""})
                self.emit(ReplyToolCall(accumulator.call_position or 0, arguments=arguments))
            elif not accumulator.has_deltas:
                self._emit_whole(accumulator)
        elif type_ in _DELTA_FIELDS or type_ in _CALL_DELTAS:
            self._add_delta(type_, data)

    def _build_items(self) -> list[WireMessage]:
        built = [accumulator.build() for _, accumulator in sorted(self._items.items())]
        return [item for item in built if item is not None]

    def _start_item(self, data: dict[str, Any]) -> _ItemAccumulator:
        """Starts the item of an event, unless it has started."""
        index, item = data.get("output_index"), get_object(data, "item")
        index = index if isinstance(index, int) else len(self._items)
        if index in self._items:
            return self._items[index]
        if len(self._items) >= MAX_DELTA_ITEMS:
            raise ModelUnavailable(f"The upstream sent a reply with more than {MAX_DELTA_ITEMS:,} items; retry.")
        accumulator = self._items[index] = _ItemAccumulator(item)
        if item.get("type") in _CALL_TYPES:
            accumulator.call_position = self._call_count
            self._call_count += 1
            name = join_name(get_text(item, "namespace"), get_text(item, "name") or "")
            self.emit(ReplyToolCall(accumulator.call_position, get_text(item, "call_id") or "", name))
        return accumulator

    def _emit_whole(self, accumulator: _ItemAccumulator) -> None:
        item = accumulator.item
        if accumulator.call_position is not None:
            self.emit(ReplyToolCall(accumulator.call_position, arguments=get_text(item, "arguments") or ""))
        make_delta = ReplyThinking if item.get("type") == "reasoning" else ReplyText
        pieces = filter_objects(item.get("summary")) or filter_objects(item.get("content"))
        for text in (get_text(piece, "text") or get_text(piece, "refusal") for piece in pieces):
            if text:
                self.emit(make_delta(text))

    def _add_delta(self, type_: str, data: dict[str, Any]) -> None:
        index, text = data.get("output_index"), get_text(data, "delta")
        accumulator = self._items.get(index) if isinstance(index, int) else None
        if accumulator is None or text is None:
            return
        if type_ in _CALL_DELTAS:
            accumulator.arguments.add(text)
            if type_ == _FUNCTION_CALL_DELTA:
                self.emit(ReplyToolCall(accumulator.call_position or 0, arguments=text))
            return
        list_name, index_field, piece_type, text_field = _DELTA_FIELDS[type_]
        position = data.get(index_field)
        key = (list_name, position if isinstance(position, int) else 0)
        if key not in accumulator.pieces and len(accumulator.pieces) >= MAX_DELTA_ITEMS:
            raise ModelUnavailable(f"The upstream sent an item with more than {MAX_DELTA_ITEMS:,} pieces; retry.")
        is_reasoning = accumulator.item.get("type") == "reasoning"
        separator = "\n\n" if is_reasoning and key not in accumulator.pieces and accumulator.pieces else ""
        accumulator.pieces.setdefault(key, (piece_type, text_field, TextPieces()))[2].add(text)
        self.emit(ReplyThinking(separator + text) if is_reasoning else ReplyText(text))


def parse_response(response: object) -> list[Reply]:
    """Parses a response. None if it is not an object with an output."""
    try:
        return [parse_reply(response)]
    except (InvalidEntry, ValueError):
        return []


MICROSECONDS_PER_SECOND = 1_000_000
_FAILURE_CODES = {"model_rate_limited": "rate_limit_exceeded", "model_context_overflow": "context_length_exceeded"}
"""Codes of a failed response by Quire's error codes."""
_KNOWN_FAILURE_CODES = frozenset(
    {
        "context_length_exceeded",
        "insufficient_quota",
        "invalid_prompt",
        "rate_limit_exceeded",
        "server_is_overloaded",
        "slow_down",
        "usage_not_included",
    }
)
"""Codes by which clients choose to compact, to retry or to stop."""


class _ItemEvents(NamedTuple):
    """Names of the events of an item's text and of its part, and the fields of the whole text and of its index."""

    name: str
    field: str
    part_name: str | None = None
    index_field: str | None = None


_ITEM_EVENTS = {
    "message": _ItemEvents("response.output_text", "text", "response.content_part", "content_index"),
    "reasoning": _ItemEvents(
        "response.reasoning_summary_text", "text", "response.reasoning_summary_part", "summary_index"
    ),
    "function_call": _ItemEvents("response.function_call_arguments", "arguments"),
    "custom_tool_call": _ItemEvents("response.custom_tool_call_input", "input"),
}


@dataclass(slots=True)
class _StreamedItem:
    """One item as far as it has been sent."""

    type: str
    index: int
    id: str
    call: ToolCallPart | None = None
    pieces: TextPieces = field(default_factory=TextPieces)
    finished: WireMessage | None = None

    @property
    def place(self) -> WireMessage:
        index_field = _ITEM_EVENTS[self.type].index_field
        return {"item_id": self.id, "output_index": self.index, **({index_field: 0} if index_field else {})}

    def build(self, text: str, status: ItemStatus) -> WireMessage:
        if self.call is not None:
            return build_call_item(self.call.model_copy(update={"arguments": text}), id=self.id, status=status)
        if self.type == "reasoning":
            return build_reasoning_item(text, id=self.id)
        return build_message_item(text, id=self.id, status=status)

    def build_part(self, text: str) -> WireMessage:
        return build_text_piece(text) if self.type == "message" else {"type": "summary_text", "text": text}


class ResponsesEncoder(ReplyEncoder):
    """Sends items one after another. A call stays open until its arguments are complete: some upstreams alternate."""

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context)
        self._tools = index_tools(context.client_request.tools)
        self._response = build_started_response(
            context.client_request.body, request_id=context.request_id, created_at=context.created_at
        )
        self._sequence_number = 0
        self._items: list[_StreamedItem] = []
        self._calls: dict[int, _StreamedItem] = {}

    @property
    def response_id(self) -> str:
        return self._response["id"]

    @cached_property
    def _completed_at(self) -> int:
        """The time of the first use, so that what is recorded equals what is sent."""
        return now() // MICROSECONDS_PER_SECOND

    def describe_response(self, finish_reason: FinishReason) -> JsonObject:
        ended = end_response(
            self._response, [], completed_at=self._completed_at, finish_reason=finish_reason, usage=None
        )
        return select_response_fields(ended)

    def restore_calls(self, message: Message) -> Message:
        return restore_calls(message, self._tools)

    def encode_response(self, reply: Reply, finish_reason: FinishReason) -> bytes:
        context = self.context
        response = build_response_object(
            reply.message,
            request_id=context.request_id,
            request_fields=context.client_request.body,
            created_at=context.created_at,
            completed_at=self._completed_at,
            finish_reason=finish_reason,
            usage=self._get_usage(reply),
        )
        return to_json(response, inf_nan_mode="constants")

    def start(self) -> bytes:
        events = ("response.created", "response.in_progress")
        return b"".join(self._encode(event, response=self._response) for event in events)

    def encode(self, delta: ReplyDelta) -> bytes:
        match delta:
            case ReplyText(text):
                return self._add_text("message", text)
            case ReplyThinking(text):
                return self._add_text("reasoning", text)
            case ReplyToolCall():
                events, item = b"", self._calls.get(delta.position)
                if item is None:
                    events = self._close(each for each in self._list_open() if _is_complete(each))
                    call = restore_call(ToolCallPart(id=delta.id, name=delta.name, arguments=""), self._tools)
                    item = self._calls[delta.position] = self._add_item(render_call(call)["type"], call)
                    events += self._open(item)
                return events + self._add_piece(item, delta.arguments) if delta.arguments else events

    def finish(self, reply: Reply, finish_reason: FinishReason) -> bytes:
        is_cut = finish_reason in ("length", "content_filter")
        closing = self._close(self._list_open(), status="incomplete" if is_cut else "completed")
        response = end_response(
            self._response,
            [item.finished for item in self._items if item.finished is not None],
            completed_at=self._completed_at,
            finish_reason=finish_reason,
            usage=self._get_usage(reply),
        )
        return closing + self._encode(f"response.{response['status']}", response=response)

    def fail(self, detail: str, *, code: str) -> bytes:
        output = [item.finished or item.build(item.pieces.join(), "incomplete") for item in self._items]
        failed = encode_failure(
            {**self._response, "output": output}, detail, code=code, sequence_number=self._sequence_number
        )
        self._sequence_number += 2
        return failed

    def _get_usage(self, reply: Reply) -> Usage:
        return reply.usage or Usage(input_tokens=self.context.input_tokens, output_tokens=0)

    def _add_text(self, type_: str, text: str) -> bytes:
        if not text:
            return b""
        events, item = b"", self._items[-1] if self._items else None
        if item is None or item.type != type_ or item.finished is not None:
            events = self._close(self._list_open())
            item = self._add_item(type_)
            events += self._open(item)
        return events + self._add_piece(item, text)

    def _add_piece(self, item: _StreamedItem, text: str) -> bytes:
        """Sends a piece of text. JSON wraps the text of a custom call, which can be sent only when it is whole."""
        if item.finished is not None:
            return b""
        item.pieces.add(text)
        return b"" if item.type == "custom_tool_call" else self._encode_delta(item, text)

    def _encode_delta(self, item: _StreamedItem, text: str) -> bytes:
        return self._encode(f"{_ITEM_EVENTS[item.type].name}.delta", **item.place, delta=text, **_get_logprobs(item))

    def _add_item(self, type_: str, call: ToolCallPart | None = None) -> _StreamedItem:
        index = len(self._items)
        item = _StreamedItem(type_, index, make_item_id(type_, self.context.request_id, index), call)
        self._items.append(item)
        return item

    def _list_open(self) -> list[_StreamedItem]:
        return [item for item in self._items if item.finished is None]

    def _open(self, item: _StreamedItem) -> bytes:
        added = item.build("", "in_progress")
        events = self._encode("response.output_item.added", output_index=item.index, item=added)
        part_name = _ITEM_EVENTS[item.type].part_name
        if part_name is not None:
            events += self._encode(f"{part_name}.added", **item.place, part=item.build_part(""))
        return events

    def _close(self, items: Iterable[_StreamedItem], *, status: ItemStatus = "completed") -> bytes:
        return b"".join(self._close_item(item, status) for item in items)

    def _close_item(self, item: _StreamedItem, status: ItemStatus) -> bytes:
        text, names = item.pieces.join(), _ITEM_EVENTS[item.type]
        item.finished = finished = item.build(text, status)
        if item.call is not None:
            text = finished[names.field]
        events = self._encode_delta(item, text) if item.type == "custom_tool_call" else b""
        events += self._encode(f"{names.name}.done", **item.place, **{names.field: text}, **_get_logprobs(item))
        if names.part_name is not None:
            events += self._encode(f"{names.part_name}.done", **item.place, part=item.build_part(text))
        return events + self._encode("response.output_item.done", output_index=item.index, item=finished)

    def _encode(self, type_: str, **fields: Any) -> bytes:
        event = encode_event({"type": type_, "sequence_number": self._sequence_number, **fields}, name=type_)
        self._sequence_number += 1
        return event


def encode_failure(response: WireMessage, detail: str, *, code: str, sequence_number: int) -> bytes:
    """Encodes the two events that end a stream with an error."""
    code = _FAILURE_CODES.get(code, code)
    failed_code = code if code in _KNOWN_FAILURE_CODES else "server_error"
    failed = {**response, "status": "failed", "error": {"code": failed_code, "message": detail}}
    event = {"type": "response.failed", "sequence_number": sequence_number + 1, "response": failed}
    error = encode_error_event(detail, code=code, sequence_number=sequence_number)
    return error + encode_event(event, name="response.failed")


def encode_error_event(detail: str, *, code: str, sequence_number: int = 0) -> bytes:
    error = {"type": "error", "sequence_number": sequence_number, "code": code, "message": detail, "param": None}
    return encode_event(error, name="error")


def _get_logprobs(item: _StreamedItem) -> WireMessage:
    return {"logprobs": []} if item.type == "message" else {}


def _is_complete(item: _StreamedItem) -> bool:
    """Whether no more text can follow. No proper prefix of a JSON object is one, so such arguments are complete."""
    return item.call is None or parse_object(item.pieces.join()) is not None
