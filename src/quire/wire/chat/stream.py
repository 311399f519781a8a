"""Streams of chat completions: decodes an upstream's chunks, and encodes translated replies."""

from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_core import to_json

from quire.errors import InvalidEntry, ModelUnavailable
from quire.model import Usage
from quire.model.finish_reasons import FinishReason
from quire.model.json_values import filter_objects, get_object, get_text, is_object
from quire.wire import Reply
from quire.wire.chat.parse import REASONING_FIELDS, parse_reply
from quire.wire.chat.render import OpenAIChatFormat
from quire.wire.codec import ReplyEncoder
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

MAX_REQUEST_CHOICES = 128
"""Maximum replies (`n`) of a request, the maximum of OpenAI. Each further one is recorded on a fork."""
_REPLACED_FIELDS = frozenset({"role", "id", "type", "name", "index", "expires_at"})
"""Delta fields that are sent once or repeated. Strings in all other fields are pieces to join."""


@dataclass(slots=True)
class _ChoiceAccumulator:
    """One reply, as far as it has arrived. Its texts are `TextPieces`."""

    message: dict[str, Any] = field(default_factory=dict[str, Any])
    finish_reason: str | None = None

    def to_response_choice(self) -> dict[str, Any]:
        return {"index": 0, "message": join_texts(self.message), "finish_reason": self.finish_reason}


class ChatStreamDecoder(StreamDecoder):
    """Accumulates one stream with `choice_count` replies."""

    def __init__(self, choice_count: int = 1, *, is_translated: bool = False) -> None:
        super().__init__(is_translated=is_translated)
        self._choices: dict[int, _ChoiceAccumulator] = {}
        self._choice_count = choice_count
        self._response_fields: dict[str, Any] = {}

    @property
    def is_finished(self) -> bool:
        ended = sum(choice.finish_reason is not None for choice in self._choices.values())
        return ended >= self._choice_count

    @property
    def is_done(self) -> bool:
        return self.has_done_marker

    def build_replies(self) -> list[Reply]:
        return [reply for response in self.build_responses() if (reply := parse_choice(response)) is not None]

    def build_responses(self) -> list[dict[str, Any]]:
        """Builds one response per choice, in order of their indexes."""
        fields = join_texts(self._response_fields)
        choices = [choice for _, choice in sorted(self._choices.items())]
        return [{**fields, "choices": [choice.to_response_choice()]} for choice in choices]

    def add_event(self, data: dict[str, Any]) -> None:
        if data.get("error"):
            self.error = data
        for name, value in data.items():
            if name not in ("choices", "object", "error") and value is not None:
                self._response_fields[name] = value
        for piece in filter_objects(data.get("choices")):
            index = piece.get("index")
            index = index if isinstance(index, int) else 0
            if index not in self._choices and len(self._choices) >= MAX_REQUEST_CHOICES:
                raise ModelUnavailable(f"The upstream sent more than {MAX_REQUEST_CHOICES} choices; retry the request.")
            choice = self._choices.setdefault(index, _ChoiceAccumulator())
            delta = piece.get("delta")
            if is_object(delta):
                _merge_delta(choice.message, delta)
                self._emit_deltas(delta)
            reason = piece.get("finish_reason")
            choice.finish_reason = reason if isinstance(reason, str) else choice.finish_reason

    def _emit_deltas(self, delta: dict[str, Any]) -> None:
        if not self.is_translated:
            return
        thinking = next((text for name in REASONING_FIELDS if (text := get_text(delta, name))), None)
        if thinking:
            self.emit(ReplyThinking(thinking))
        if text := get_text(delta, "content") or get_text(delta, "refusal"):
            self.emit(ReplyText(text))
        for position, call in enumerate(filter_objects(delta.get("tool_calls"))):
            index, function = call.get("index"), get_object(call, "function", "custom")
            self.emit(
                ReplyToolCall(
                    position=index if isinstance(index, int) else position,
                    id=get_text(call, "id") or "",
                    name=get_text(function, "name") or "",
                    arguments=get_text(function, "arguments") or get_text(function, "input") or "",
                )
            )


def parse_choice(response: dict[str, Any]) -> Reply | None:
    """Parses a response with one choice, or None if it has no message."""
    try:
        return parse_reply(response)
    except (InvalidEntry, ValueError):
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


class ChatEncoder(ReplyEncoder):
    """Encodes a translated reply as a chat completion."""

    def encode_response(self, reply: Reply, finish_reason: FinishReason) -> bytes:
        rendered = OpenAIChatFormat().render_message(reply.message)
        message = rendered[0] if rendered else {"role": "assistant", "content": ""}
        thinking = "".join(part.text for part in reply.message.parts if part.type == "thinking")
        if thinking:
            message = {**message, "reasoning_content": thinking}
        choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
        head = {**self._build_head("chat.completion"), "choices": [choice]}
        return to_json({**head, "usage": _build_usage(reply.usage)})

    def start(self) -> bytes:
        return self._encode_chunk({"role": "assistant", "content": ""})

    def encode(self, delta: ReplyDelta) -> bytes:
        match delta:
            case ReplyText(text):
                return self._encode_chunk({"content": text})
            case ReplyThinking(text):
                return self._encode_chunk({"reasoning_content": text})
            case ReplyToolCall(position, id_, name, arguments):
                first = {"id": id_, "type": "function"} if id_ else {}
                function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
                return self._encode_chunk({"tool_calls": [{"index": position, **first, "function": function}]})

    def finish(self, reply: Reply, finish_reason: FinishReason) -> bytes:
        events = self._encode_chunk({}, finish_reason=finish_reason)
        if get_object(self.context.client_request.body, "stream_options").get("include_usage"):
            head = self._build_head("chat.completion.chunk")
            events += encode_event({**head, "choices": [], "usage": _build_usage(reply.usage)})
        return events + b"data: [DONE]\n\n"

    def _encode_chunk(self, delta: dict[str, Any], *, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return encode_event({**self._build_head("chat.completion.chunk"), "choices": [choice]})

    def _build_head(self, kind: str) -> dict[str, Any]:
        context = self.context
        return {
            "id": f"chatcmpl-{context.request_id}",
            "object": kind,
            "created": context.created_at,
            "model": context.client_request.model,
        }


def _build_usage(usage: Usage | None) -> dict[str, Any]:
    usage = usage or Usage(input_tokens=0, output_tokens=0)
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }
