"""Streams of Anthropic's Messages: decodes an upstream's events, and encodes translated replies."""

from typing import Any, ClassVar

from pydantic_core import to_json

from quire.errors import InvalidEntry, ModelUnavailable
from quire.model import TextPart, ThinkingPart, ToolCallPart, Usage
from quire.model.finish_reasons import FinishReason
from quire.model.json_values import get_object, get_text, parse_object
from quire.wire import Reply, WireMessage
from quire.wire.codec import ReplyContext, ReplyEncoder
from quire.wire.messages.parse import parse_reply
from quire.wire.messages.render import UNSIGNED_SIGNATURE
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

_DELTA_FIELDS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "partial_json"),
}
"""Field of a delta, and of the block that it extends, by the delta's type."""
_STOP_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


class MessagesStreamDecoder(StreamDecoder):
    """Accumulates the one reply of a stream."""

    def __init__(self, *, is_translated: bool = False) -> None:
        super().__init__(is_translated=is_translated)
        self._message: dict[str, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        self._closed_blocks: set[object] = set()
        self._call_count = 0
        self._has_stopped = False

    @property
    def is_finished(self) -> bool:
        return self._has_stopped

    @property
    def response_id(self) -> str | None:
        return get_text(self._message, "id")

    def build_replies(self) -> list[Reply]:
        if not self._message:
            return []
        content: list[WireMessage] = []
        for index, block in enumerate(self._blocks):
            joined = join_texts(block)
            arguments = joined.pop("partial_json", None)
            value = parse_object(arguments) if arguments else None
            if index not in self._closed_blocks and block.get("type") == "tool_use" and not value:
                # A call that was cut lacks some of its arguments, and the rest could be taken for the whole.
                continue
            if arguments:
                # Arguments that are not an object stay a text.
                joined["input"] = value if value is not None else {"_raw": arguments}
            content.append(joined)
        try:
            return [parse_reply({**join_texts(self._message), "content": content})]
        except (InvalidEntry, ValueError):
            return []

    def add_event(self, data: dict[str, Any]) -> None:
        match data.get("type"):
            case "message_start":
                self._message = dict(get_object(data, "message"))
            case "content_block_start":
                block = get_object(data, "content_block")
                if len(self._blocks) >= MAX_DELTA_ITEMS:
                    raise ModelUnavailable(f"The upstream sent a reply of more than {MAX_DELTA_ITEMS:,} blocks; retry.")
                self._blocks.append(dict(block))
                if block.get("type") == "tool_use":
                    self.emit(
                        ReplyToolCall(self._call_count, get_text(block, "id") or "", get_text(block, "name") or "")
                    )
                    self._call_count += 1
                elif text := get_text(block, "text"):
                    self.emit(ReplyText(text))
            case "content_block_delta":
                self._extend_block(data.get("index"), get_object(data, "delta"))
            case "content_block_stop":
                self._closed_blocks.add(data.get("index"))
            case "message_delta":
                usage = {**get_object(self._message, "usage"), **get_object(data, "usage")}
                others = {name: value for name, value in data.items() if name not in ("type", "delta", "usage")}
                self._message |= {**get_object(data, "delta"), **others, "usage": usage}
            case "message_stop":
                self._has_stopped = True
            case "error":
                self.error = data
            case _:
                pass

    def _extend_block(self, index: object, delta: WireMessage) -> None:
        if not isinstance(index, int) or not 0 <= index < len(self._blocks):
            return
        fields, block = _DELTA_FIELDS.get(get_text(delta, "type") or ""), self._blocks[index]
        piece = get_text(delta, fields[0]) if fields is not None else None
        if fields is None or piece is None:
            if delta.get("type") == "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
            return
        field = fields[1]
        known = block.get(field)
        if not isinstance(known, TextPieces):
            known = block[field] = TextPieces([known] if isinstance(known, str) and known else [])
        known.add(piece)
        match field:
            case "text":
                self.emit(ReplyText(piece))
            case "thinking":
                self.emit(ReplyThinking(piece))
            case "partial_json":
                self.emit(ReplyToolCall(self._call_count - 1, arguments=piece))
            case _:
                pass


class MessagesEncoder(ReplyEncoder):
    """Encodes a translated reply as a message. One block is open at a time."""

    keep_alive: ClassVar[bytes] = encode_event({"type": "ping"}, name="ping")

    def __init__(self, context: ReplyContext) -> None:
        super().__init__(context)
        self._next_index = 0
        self._open_block: str | int | None = None
        """What the open block holds: a type of delta, or the position of a call."""
        self._arguments = TextPieces()
        """Arguments of the open call."""
        self._closed_calls: set[int] = set()
        self._waiting: list[ReplyDelta] = []
        """Deltas that arrived within a call whose arguments are incomplete: some upstreams alternate between calls."""

    @property
    def response_id(self) -> str:
        return f"msg_{self.context.request_id}"

    def encode_response(self, reply: Reply, finish_reason: FinishReason) -> bytes:
        content: list[WireMessage] = []
        for part in reply.message.parts:
            match part:
                case ToolCallPart(id=id_, name=name, arguments=arguments):
                    value = parse_object(arguments or "{}")
                    input_ = {"_raw": arguments} if value is None else value
                    content.append({"type": "tool_use", "id": id_, "name": name, "input": input_})
                case ThinkingPart(text=text):
                    content.append({"type": "thinking", "thinking": text, "signature": UNSIGNED_SIGNATURE})
                case TextPart(text=text) if text:
                    content.append({"type": "text", "text": text})
                case _:
                    pass
        message = self._build_message(content)
        stop = {"stop_reason": _STOP_REASONS[finish_reason], "stop_sequence": None}
        return to_json({**message, **stop, "usage": _build_usage(reply.usage)})

    def start(self) -> bytes:
        usage = _build_usage(Usage(input_tokens=self.context.input_tokens, output_tokens=1))
        return _encode({"type": "message_start", "message": {**self._build_message([]), "usage": usage}})

    def encode(self, delta: ReplyDelta) -> bytes:
        if isinstance(delta, ReplyToolCall) and delta.position == self._open_block:
            events = self._encode_now(delta)
            return events + self._encode_waiting() if self._waiting else events
        self._waiting.append(delta)
        return self._encode_waiting()

    def _encode_waiting(self) -> bytes:
        """Encodes what may follow now: everything, or only up to a call whose arguments are incomplete."""
        events = b""
        while self._waiting and (not isinstance(self._open_block, int) or self._has_arguments()):
            events += self._encode_now(self._waiting.pop(0))
            if isinstance(position := self._open_block, int):
                own = [each for each in self._waiting if _is_part_of_call(each, position)]
                self._waiting = [each for each in self._waiting if not _is_part_of_call(each, position)]
                events += b"".join(map(self._encode_now, own))
        return events

    def _has_arguments(self) -> bool:
        """Whether the arguments of the open call are complete: no proper prefix of a JSON object is one."""
        return parse_object(self._arguments.join()) is not None

    def _encode_now(self, delta: ReplyDelta) -> bytes:
        match delta:
            case ReplyText(text):
                start = self._open("text", {"type": "text", "text": ""})
                return start + self._encode_delta({"type": "text_delta", "text": text})
            case ReplyThinking(text):
                start = self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                return start + self._encode_delta({"type": "thinking_delta", "thinking": text})
            case ReplyToolCall(position, id_, name, arguments):
                if position in self._closed_calls:
                    return b""
                start = self._open(position, {"type": "tool_use", "id": id_, "name": name, "input": {}})
                if not arguments:
                    return start
                self._arguments.add(arguments)
                return start + self._encode_delta({"type": "input_json_delta", "partial_json": arguments})

    def finish(self, reply: Reply, finish_reason: FinishReason) -> bytes:
        delta = {"stop_reason": _STOP_REASONS[finish_reason], "stop_sequence": None}
        end = {"type": "message_delta", "delta": delta, "usage": _build_usage(reply.usage)}
        events = self._close()
        while self._waiting:
            events += self._encode_waiting() + self._close()
        return events + _encode(end) + _encode({"type": "message_stop"})

    def _open(self, kind: str | int, block: WireMessage) -> bytes:
        if self._open_block == kind:
            return b""
        closed = self._close()
        self._open_block = kind
        return closed + _encode({"type": "content_block_start", "index": self._next_index, "content_block": block})

    def _close(self) -> bytes:
        if self._open_block is None:
            return b""
        signature = b""
        if self._open_block == "thinking":
            signature = self._encode_delta({"type": "signature_delta", "signature": UNSIGNED_SIGNATURE})
        elif isinstance(self._open_block, int):
            self._closed_calls.add(self._open_block)
            self._arguments = TextPieces()
        end = _encode({"type": "content_block_stop", "index": self._next_index})
        self._open_block, self._next_index = None, self._next_index + 1
        return signature + end

    def _encode_delta(self, delta: WireMessage) -> bytes:
        return _encode({"type": "content_block_delta", "index": self._next_index, "delta": delta})

    def _build_message(self, content: list[WireMessage]) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "type": "message",
            "role": "assistant",
            "model": self.context.client_request.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
        }


def _encode(event: dict[str, Any]) -> bytes:
    return encode_event(event, name=event["type"])


def _is_part_of_call(delta: ReplyDelta, position: int) -> bool:
    return isinstance(delta, ReplyToolCall) and delta.position == position


def _build_usage(usage: Usage | None) -> dict[str, Any]:
    usage = usage or Usage(input_tokens=0, output_tokens=0)
    return {
        "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "output_tokens": usage.output_tokens,
    }
