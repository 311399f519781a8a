"""State machines for the event order of all wire formats, and what a client has read of a stream."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from infra.scripted_provider import WireFormatName
from infra.scripted_provider_formats import ChatEncoder, MessagesEncoder, ReplyEncoder
from infra.scripted_provider_gemini import GeminiEncoder
from infra.scripted_provider_responses import ResponsesEncoder

Json = dict[str, Any]
ENCODERS: dict[WireFormatName, ReplyEncoder] = {
    "chat": ChatEncoder(),
    "messages": MessagesEncoder(),
    "responses": ResponsesEncoder(),
    "gemini": GeminiEncoder(),
}


@dataclass
class StreamReading:
    """What a client has after the last event."""

    text: str = ""
    thinking: str = ""
    calls: dict[int, tuple[str, str, str]] = field(default_factory=dict[int, tuple[str, str, str]])
    """ID, name and arguments by position."""
    is_complete: bool = False
    has_finish_reason: bool = False
    """Whether a chat completion says why it ended; some servers send nothing after that."""
    error: Json | None = None


def read_stream(format: WireFormatName, stream: bytes) -> StreamReading:
    """Reads a stream, and checks the order of its events, up to its end or to the error that ends it."""
    readers = {"chat": _read_chat, "messages": _read_messages, "responses": _read_responses, "gemini": _read_gemini}
    return readers[format](stream)


def _list_events(stream: bytes) -> Iterator[tuple[str | None, str]]:
    """Name and data of each event; comments are left out."""
    assert stream.endswith(b"\n\n"), stream[-100:]
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        if fields:
            assert fields.keys() <= {"event", "data"}, block
            yield fields.get("event"), fields["data"]


def _list_named_events(stream: bytes) -> Iterator[Json]:
    for name, data in _list_events(stream):
        event = json.loads(data)
        assert name == event["type"]
        yield event


def _read_gemini(stream: bytes) -> StreamReading:
    """A native stream has CRLF between its events. Empty lines are signs of life."""
    reading = StreamReading()
    for line in filter(None, stream.decode().splitlines()):
        assert line.startswith("data: "), line
        assert not reading.is_complete, "a chunk after the end"
        assert reading.error is None, "a chunk after an error"
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            reading.error = chunk["error"]
            continue
        (candidate,) = chunk["candidates"]
        assert (candidate["index"], candidate["content"]["role"]) == (0, "model")
        for part in candidate["content"]["parts"]:
            if "functionCall" in part:
                call = part["functionCall"]
                reading.calls[len(reading.calls)] = (call["id"], call["name"], json.dumps(call["args"]))
            elif part.get("thought"):
                reading.thinking += part["text"]
            else:
                reading.text += part["text"]
        reading.has_finish_reason = reading.is_complete = "finishReason" in candidate
        assert ("usageMetadata" in chunk) == reading.is_complete
    return reading


def _read_chat(stream: bytes) -> StreamReading:
    reading, is_first, has_usage = StreamReading(), True, False
    for name, data in _list_events(stream):
        assert name is None
        assert not reading.is_complete, "an event after the end"
        assert reading.error is None, "an event after an error"
        if data == "[DONE]":
            assert reading.has_finish_reason
            reading.is_complete = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            assert not reading.has_finish_reason
            reading.error = chunk["error"]
            continue
        assert chunk["object"] == "chat.completion.chunk"
        if not chunk["choices"]:
            assert reading.has_finish_reason
            assert not has_usage
            has_usage = bool(chunk["usage"])
            continue
        (choice,) = chunk["choices"]
        assert choice["index"] == 0
        assert not reading.has_finish_reason, "a delta after the finish reason"
        assert ("role" in choice["delta"]) == is_first
        is_first = False
        _add_chat_delta(reading, choice["delta"])
        reading.has_finish_reason = choice["finish_reason"] is not None
    return reading


def _add_chat_delta(reading: StreamReading, delta: Json) -> None:
    reading.text += delta.get("content") or ""
    reading.thinking += delta.get("reasoning_content") or ""
    for call in delta.get("tool_calls") or ():
        position, function = call["index"], call["function"]
        if position not in reading.calls:
            assert position == len(reading.calls), "a gap in the indexes"
            assert call["id"]
            reading.calls[position] = (call["id"], function["name"], "")
        else:
            assert "id" not in call, "SDKs join repeated IDs"
            assert "name" not in function, "SDKs join repeated names"
        id_, name, arguments = reading.calls[position]
        reading.calls[position] = (id_, name, arguments + function["arguments"])


_DELTA_TYPES = {
    "text": ("text_delta",),
    "thinking": ("thinking_delta", "signature_delta"),
    "tool_use": ("input_json_delta",),
}


@dataclass
class _MessageState:
    """A message, as far as it has been read."""

    reading: StreamReading = field(default_factory=StreamReading)
    block: Json | None = None
    block_count: int = 0
    has_delta: bool = False

    def add(self, event: Json) -> None:
        match event["type"]:
            case "content_block_start":
                assert self.block is None, "two blocks are open"
                assert not self.has_delta
                assert event["index"] == self.block_count
                self.block = _open_block(event["content_block"])
            case "content_block_delta":
                assert self.block is not None
                assert event["index"] == self.block_count
                _add_messages_delta(self.reading, self.block, event["delta"])
            case "content_block_stop":
                assert event["index"] == self.block_count
                self._close_block()
            case "message_delta":
                assert self.block is None
                assert not self.has_delta
                assert event["delta"]["stop_reason"]
                self.has_delta = True
            case "message_stop":
                assert self.has_delta
                self.reading.is_complete = True
            case "error":
                self.reading.error = event["error"]
            case kind:
                assert kind == "ping"

    def _close_block(self) -> None:
        block, calls = self.block, self.reading.calls
        assert block is not None
        assert block["type"] != "thinking" or block["is_signed"]
        if block["type"] == "tool_use":
            calls[len(calls)] = (block["id"], block["name"], block["pieces"])
        self.block, self.block_count = None, self.block_count + 1


def _open_block(block: Json) -> Json:
    assert (block.get("text", ""), block.get("thinking", ""), block.get("input", {})) == ("", "", {})
    assert block["type"] != "tool_use" or (block["id"] and block["name"])
    return {**block, "pieces": "", "is_signed": False}


def _read_messages(stream: bytes) -> StreamReading:
    first, *others = _list_named_events(stream)
    assert first["type"] == "message_start"
    assert (first["message"]["content"], first["message"]["stop_reason"]) == ([], None)
    assert first["message"]["usage"]["input_tokens"] > 0
    state = _MessageState()
    for event in others:
        assert not state.reading.is_complete, "an event after the end"
        assert state.reading.error is None, "an event after an error"
        state.add(event)
    return state.reading


def _add_messages_delta(reading: StreamReading, block: Json, delta: Json) -> None:
    assert delta["type"] in _DELTA_TYPES[block["type"]]
    assert not block["is_signed"], "a delta after the signature"
    match delta:
        case {"text": text}:
            reading.text += text
        case {"thinking": text}:
            reading.thinking += text
        case {"partial_json": text}:
            block["pieces"] += text
        case _:
            block["is_signed"] = True


_TEXT_EVENTS = {
    "message": ("response.output_text", "text"),
    "reasoning": ("response.reasoning_summary_text", "text"),
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
_PART_EVENTS = {"message": "response.content_part", "reasoning": "response.reasoning_summary_part"}


@dataclass
class _Item:
    type: str
    id: str
    pieces: str = ""
    has_part: bool = False
    is_text_done: bool = False
    is_done: bool = False


def _read_responses(stream: bytes) -> StreamReading:
    reading = StreamReading()
    items: list[_Item] = []
    for number, event in enumerate(_list_named_events(stream)):
        kind = event["type"]
        assert event["sequence_number"] == number
        assert (number == 0) == (kind == "response.created")
        assert (number == 1) == (kind == "response.in_progress") or kind == "error"
        assert not reading.is_complete, "an event after the end"
        if kind in ("response.created", "response.in_progress"):
            assert event["response"]["status"] == "in_progress"
        elif kind == "error":
            assert reading.error is None
            reading.error = {"code": event["code"], "message": event["message"]}
        elif kind == "response.failed":
            reading.error = event["response"]["error"]
        elif kind in ("response.completed", "response.incomplete"):
            assert reading.error is None
            assert all(item.is_done for item in items)
            assert [item["id"] for item in event["response"]["output"]] == [item.id for item in items]
            assert event["response"]["usage"]
            reading.is_complete = True
        elif kind == "response.output_item.added":
            assert event["output_index"] == len(items), "a gap in the indexes"
            assert all(item.is_done or "call" in item.type for item in items), "two items are open"
            items.append(_Item(event["item"]["type"], event["item"]["id"]))
        else:
            _add_item_event(reading, items, event)
    return reading


def _add_item_event(reading: StreamReading, items: list[_Item], event: Json) -> None:
    item, kind = items[event["output_index"]], event["type"]
    prefix, text_field = _TEXT_EVENTS[item.type]
    part_prefix = _PART_EVENTS.get(item.type)
    assert not item.is_done
    if kind == "response.output_item.done":
        assert item.is_text_done or not item.has_part
        assert (event["item"]["id"], event["item"]["type"]) == (item.id, item.type)
        item.is_done = True
        if "call" in item.type:
            done = event["item"]
            reading.calls[len(reading.calls)] = (done["call_id"], done["name"], item.pieces)
            assert done.get("arguments", done.get("input")) == item.pieces
        return
    assert event["item_id"] == item.id
    if kind == f"{part_prefix}.added":
        assert not item.has_part
        item.has_part = True
    elif kind == f"{part_prefix}.done":
        assert item.is_text_done
    elif kind == f"{prefix}.delta":
        assert item.has_part or part_prefix is None
        assert not item.is_text_done
        item.pieces += event["delta"]
        reading.text += event["delta"] if item.type == "message" else ""
        reading.thinking += event["delta"] if item.type == "reasoning" else ""
    else:
        assert kind == f"{prefix}.done"
        assert event[text_field] == item.pieces
        item.is_text_done = True
