"""Translation of one reply from the upstream's format to the client's."""

from collections.abc import Sequence
from typing import Any

from quire.errors import ModelUnavailable, QuireError, error_detail
from quire.log.ids import now
from quire.model import Message, TextPart, ThinkingPart, ToolCallPart
from quire.model.base import JsonObject
from quire.model.messages import Part
from quire.server.gateway.codecs.base import FinishReason, ReplyContext, ReplyEncoder
from quire.server.gateway.codecs.deltas import ReplyDelta, ReplyText, ReplyThinking, ReplyToolCall
from quire.server.gateway.prepare import PreparedRequest
from quire.server.problems import error_code
from quire.view.wire_formats import Reply
from quire.view.wire_formats.fields import get_object, get_text, to_safe_name

MICROSECONDS_PER_SECOND = 1_000_000


class ReplyTranslator:
    """Encodes the reply of a prepared request for its client."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._target, self._is_stream = prepared.target, prepared.client_request.options.stream
        context = ReplyContext(
            client_request=prepared.client_request,
            request_id=prepared.request.id or "",
            created_at=now() // MICROSECONDS_PER_SECOND,
            input_tokens=round(prepared.matched.tokens * prepared.matched.ratio),
        )
        self._encoder: ReplyEncoder = prepared.client_request.codec.make_encoder(context)

    @property
    def keep_alive(self) -> bytes:
        return self._encoder.keep_alive

    @property
    def response_id(self) -> str | None:
        return self._encoder.response_id

    @property
    def content_type(self) -> str:
        return "text/event-stream; charset=utf-8" if self._is_stream else "application/json"

    def adapt(self, reply: Reply) -> Reply:
        """The reply as the client gets it, which the log records: with IDs of calls that every format accepts."""
        parts = tuple(_adapt_part(part) for part in reply.message.parts)
        message = reply.message.model_copy(update={"parts": parts})
        return reply._replace(message=self._encoder.restore_calls(message))

    def describe_response(self, reply: Reply) -> JsonObject:
        """Fields of the client's response that are recorded with the reply."""
        return self._encoder.describe_response(self._to_finish_reason(reply))

    def start(self) -> bytes:
        return self._encoder.start()

    def encode(self, deltas: Sequence[ReplyDelta]) -> bytes:
        return b"".join(self._encoder.encode(_adapt_delta(delta)) for delta in deltas)

    def finish(self, replies: Sequence[Reply], error: dict[str, Any] | None) -> bytes:
        """The end of a stream: of the reply, or the upstream's error."""
        if error is not None:
            details = get_object(error, "error")
            message = get_text(details, "message") or "The upstream failed during the reply; retry the request."
            return self._encoder.fail(message, code=get_text(details, "code") or "upstream_error")
        if not replies:
            return self.fail(ModelUnavailable("The upstream sent an empty reply; retry the request."))
        return self._encoder.finish(replies[0], self._to_finish_reason(replies[0]))

    def fail(self, error: QuireError) -> bytes:
        """The end of a stream that has started."""
        return self._encoder.fail(error_detail(error), code=error_code(error))

    def encode_whole(self, reply: Reply) -> bytes:
        """Encodes a reply that arrived at once; as a stream if the client expects one."""
        if not self._is_stream:
            return self._encoder.encode_response(reply, self._to_finish_reason(reply))
        return self.start() + self.encode(to_deltas(reply.message)) + self.finish([reply], None)

    def _to_finish_reason(self, reply: Reply) -> FinishReason:
        reason = self._target.finish_reasons.get(reply.finish_reason or "", "stop")
        return "tool_calls" if reason == "stop" and reply.message.tool_calls else reason


def to_deltas(message: Message) -> list[ReplyDelta]:
    deltas: list[ReplyDelta] = []
    for part in message.parts:
        match part:
            case TextPart(text=text):
                deltas.append(ReplyText(text))
            case ThinkingPart(text=text):
                deltas.append(ReplyThinking(text))
            case ToolCallPart(id=id_, name=name, arguments=arguments):
                index = sum(isinstance(each, ReplyToolCall) for each in deltas)
                deltas.append(ReplyToolCall(index, id_, name, arguments))
            case _:
                pass
    return deltas


def _adapt_part(part: Part) -> Part:
    return part.model_copy(update={"id": to_safe_name(part.id)}) if isinstance(part, ToolCallPart) else part


def _adapt_delta(delta: ReplyDelta) -> ReplyDelta:
    if isinstance(delta, ReplyToolCall) and (delta.id or delta.name):
        return delta._replace(id=to_safe_name(delta.id))
    return delta
