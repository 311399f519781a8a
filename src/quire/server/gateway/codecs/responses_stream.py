"""Decodes streams of OpenAI's Responses."""

from dataclasses import dataclass, field
from typing import Any

from quire.errors import InvalidEntry, ModelUnavailable
from quire.server.gateway.codecs.deltas import ReplyText, ReplyThinking, ReplyToolCall
from quire.server.gateway.codecs.responses_encoder import encode_error_event, encode_failure
from quire.server.gateway.codecs.responses_tools import join_name
from quire.server.gateway.codecs.sse import MAX_DELTA_ITEMS, StreamDecoder, join_texts
from quire.view.replies import TextPieces
from quire.view.wire_formats import Reply, WireMessage
from quire.view.wire_formats.fields import dump_json, filter_objects, get_object, get_text
from quire.view.wire_formats.openai_responses_parse import parse_reply

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
        """The item; None for the call of a custom tool that is cut off, whose text could be taken for the whole."""
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
            self._add_response(get_object(data, "response"), has_ended=type_ in _ENDING_EVENTS)
        elif type_ == "error" or data.get("error"):
            self.error = {"error": get_object(data, "error") or data}
        elif type_ == "response.output_item.added":
            self._start_item(data)
        elif type_ == "response.output_item.done":
            self._finish_item(data)
        elif type_ in _DELTA_FIELDS or type_ in _CALL_DELTAS:
            self._add_delta(type_, data)

    def _add_response(self, response: dict[str, Any], *, has_ended: bool) -> None:
        self._response = {**self._response, **response}
        self._has_ended = self._has_ended or has_ended
        if response.get("status") == "failed":
            self.error = self.error or {"error": get_object(response, "error")}

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

    def _finish_item(self, data: dict[str, Any]) -> None:
        """Replaces the item by its final form; what had no deltas is emitted now."""
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
    """Parses a response; none if it is not an object with an output."""
    try:
        return [parse_reply(response)]
    except (InvalidEntry, ValueError):
        return []
