"""Translation between a client and an upstream of another format: of the request, and of the reply.

What has no place in the upstream's format is listed by name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from quire.errors import ModelUnavailable, QuireError, error_detail
from quire.model import FilePart, ImagePart, Message, TextPart, ThinkingPart, ToolCallPart
from quire.model.base import JsonObject
from quire.model.finish_reasons import FinishReason, normalize_finish_reason
from quire.model.ids import new_id, now
from quire.model.json_values import get_object, get_text
from quire.model.messages import Part, ToolResultPart
from quire.proxy.engine_variants import RecognizedRequest
from quire.view.layout import RenderedRequest
from quire.view.rendered import MessageCounter
from quire.wire import Reply
from quire.wire.client_messages import get_content_substitutes, get_placeholder_type
from quire.wire.codec import Codec, ReplyContext, ReplyEncoder
from quire.wire.fields import MADE_ID_PREFIX, to_safe_name
from quire.wire.http_errors import error_code
from quire.wire.replies import ReplyDelta, ReplyText, ReplyThinking, ReplyToolCall

MICROSECONDS_PER_SECOND = 1_000_000
MIN_REPLY_TOKENS = 1
_MAX_URL_CHARS = 2_000
"""Length to which the URL of an image or a file is cut to find out how it is rendered."""


def encode_translated(recognized: RecognizedRequest, rendered: RenderedRequest, *, model: str | None) -> bytes:
    """Encodes a rendered request in the upstream's format, with the client's options and a reply limit that fits."""
    request, target, policy = recognized.client_request, recognized.variant.target, recognized.variant.engine.policy
    options, limit = request.options, request.options.max_tokens
    if limit is None and target.requires_reply_limit:
        limit = policy.reserved_response_tokens
    if limit is not None:
        # Some servers reject a limit that does not fit the window.
        room = policy.window - round(rendered.tokens * recognized.ratio)
        options = replace(options, max_tokens=max(MIN_REPLY_TOKENS, min(limit, room)))
    fields = target.translate_options(options).fields
    return target.encode_body({**rendered.to_payload(), **fields, "model": model or request.model})


def add_unrecorded_messages(recognized: RecognizedRequest, rendered: RenderedRequest) -> RenderedRequest:
    """Puts the client's own messages before the stored ones, such as its summary, first."""
    counter, unrecorded = (
        recognized.message_counter,
        recognized.client_request.messages[: recognized.match.stored_start],
    )
    messages = [counter.render_message(each.message, tokens=0) for each in unrecorded]
    return replace(rendered, messages=(*messages, *rendered.messages)) if messages else rendered


def list_dropped(recognized: RecognizedRequest, rendered: RenderedRequest) -> tuple[str, ...]:
    """Names of all fields, tools and parts of messages that have no place in the upstream's format."""
    request = recognized.client_request
    target, messages = recognized.variant.target, [each.message for each in request.messages]
    options = target.translate_options(request.options).dropped
    parts = list(_list_dropped_parts(messages, target, recognized.message_counter))
    received_thinking = sum(isinstance(part, ThinkingPart) for message in messages for part in message.parts)
    if received_thinking:
        # The log has all of it only with the upstream's own signatures.
        wire_messages = (wire for each in rendered.messages for wire in each.wire_messages)
        if received_thinking > sum(type_ in target.thinking_types for type_ in target.list_types(wire_messages)):
            parts.insert(0, "messages[thinking]")
    return tuple(dict.fromkeys((*request.options.other_fields, *options, *recognized.envelope.dropped, *parts)))


def _list_dropped_parts(messages: Sequence[Message], target: Codec, counter: MessageCounter) -> Iterator[str]:
    for message in messages:
        if message.name and not target.has_author_names:
            yield "messages[name]"
        yield from (f"messages[{name}]" for name in get_content_substitutes(message))
        for part in message.parts:
            for piece in part.content if isinstance(part, ToolResultPart) else (part,):
                if isinstance(piece, TextPart) and (kind := get_placeholder_type(piece)) is not None:
                    yield f"messages[{kind}]"
                elif isinstance(piece, ImagePart | FilePart) and not _is_rendered(
                    piece, part, message, target, counter
                ):
                    yield f"messages[{piece.type}]"


def _is_rendered(
    piece: ImagePart | FilePart, part: Part, message: Message, target: Codec, counter: MessageCounter
) -> bool:
    """Whether the upstream gets an image or a file as such, and not only its description."""
    # The beginning of a data URL decides how it is rendered, and its data is long.
    short = piece.model_copy(update={"url": piece.url[:_MAX_URL_CHARS]}) if piece.url else piece
    only = part.model_copy(update={"content": (short,)}) if isinstance(part, ToolResultPart) else short
    wire_messages = counter.wire_format.render_message(message.model_copy(update={"parts": (only,)}))
    return any(type_ in target.media_types for type_ in target.list_types(wire_messages))


class ReplyTranslator:
    """Encodes the reply of a prepared request for its client."""

    def __init__(self, recognized: RecognizedRequest, *, request_id: str) -> None:
        client_request = recognized.client_request
        self._is_stream = client_request.options.stream
        context = ReplyContext(
            client_request=client_request,
            request_id=request_id,
            created_at=now() // MICROSECONDS_PER_SECOND,
            input_tokens=round(recognized.tokens * recognized.ratio),
        )
        self._encoder: ReplyEncoder = client_request.codec.make_encoder(context)
        self._made_ids: dict[int, str] = {}
        """Unique IDs by place of the calls to which the upstream gave none."""

    @property
    def keep_alive(self) -> bytes:
        return self._encoder.keep_alive

    @property
    def response_id(self) -> str | None:
        return self._encoder.response_id

    @property
    def content_type(self) -> str:
        return self._encoder.stream_content_type if self._is_stream else "application/json"

    def adapt(self, reply: Reply) -> Reply:
        """The reply as the client gets it, which the log records: with IDs of calls that every format accepts."""
        places = count()
        parts = tuple(
            part.model_copy(update={"id": self._name_call(next(places), part.id)})
            if isinstance(part, ToolCallPart)
            else part
            for part in reply.message.parts
        )
        message = reply.message.model_copy(update={"parts": parts})
        return reply._replace(message=self._encoder.restore_calls(message))

    def describe_response(self, reply: Reply) -> JsonObject:
        """Fields of the client's response that are recorded with the reply."""
        return self._encoder.describe_response(self._to_finish_reason(reply))

    def start(self) -> bytes:
        return self._encoder.start()

    def encode(self, deltas: Sequence[ReplyDelta]) -> bytes:
        return b"".join(map(self._encoder.encode, map(self._adapt_delta, deltas)))

    def _adapt_delta(self, delta: ReplyDelta) -> ReplyDelta:
        if isinstance(delta, ReplyToolCall) and (delta.id or delta.name):
            return delta._replace(id=self._name_call(delta.position, delta.id))
        return delta

    def _name_call(self, position: int, id_: str) -> str:
        if not id_.startswith(MADE_ID_PREFIX):
            return to_safe_name(id_)
        # The client may need IDs that are unique in its whole list.
        return self._made_ids.setdefault(position, f"{MADE_ID_PREFIX}{new_id()}")

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
        reason = normalize_finish_reason(reply.finish_reason) or "stop"
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
