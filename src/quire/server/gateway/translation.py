"""Translation of a request to an upstream of another format; what has no place there is listed by name."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from quire.model import FilePart, ImagePart, Message, TextPart, ThinkingPart
from quire.model.messages import Part, ToolResultPart
from quire.server.gateway.codecs.base import RequestOptions
from quire.server.gateway.codecs.bodies import encode_body
from quire.server.gateway.codecs.normal_form import get_content_substitutes, get_placeholder_type
from quire.server.gateway.matched_request import MatchedRequest
from quire.view.layout import RenderedRequest
from quire.view.rendered import MessageCounter
from quire.view.wire_formats import WireMessage
from quire.view.wire_formats.fields import filter_objects
from quire.view.wire_formats.openai_chat import PROVIDER as CHAT_PROVIDER

MIN_REPLY_TOKENS = 1
_THINKING_TYPES = ("thinking", "redacted_thinking", "reasoning")
_MEDIA_TYPES = ("image_url", "image", "input_image", "file", "document", "input_file")
"""Types of images and files in all formats."""
_MAX_URL_CHARS = 2_000
"""Length to which the URL of an image or a file is cut to find out how it is rendered."""


def encode_translated(matched: MatchedRequest, rendered: RenderedRequest, *, model: str | None) -> bytes:
    """Encodes a rendered request in the upstream's format, with the client's options and a reply limit that fits."""
    request, target = matched.client_request, matched.variant.target
    fields = target.translate_options(_limit_reply(matched, rendered.tokens)).fields
    return encode_body({**rendered.to_payload(), **fields, "model": model or request.model})


def add_unrecorded_messages(matched: MatchedRequest, rendered: RenderedRequest) -> RenderedRequest:
    """Puts the client's own messages before the stored ones, such as its summary, first."""
    counter, unrecorded = matched.message_counter, matched.client_request.messages[: matched.match.stored_start]
    messages = [counter.render_message(each.message, tokens=0) for each in unrecorded]
    return replace(rendered, messages=(*messages, *rendered.messages)) if messages else rendered


def _limit_reply(matched: MatchedRequest, prompt_tokens: int) -> RequestOptions:
    """The client's options with a reply limit that fits the window: some servers reject any other."""
    options, policy = matched.client_request.options, matched.variant.engine.policy
    limit = options.max_tokens
    if limit is None and matched.variant.target.requires_reply_limit:
        limit = policy.reserved_response_tokens
    if limit is None:
        return options
    room = policy.window - round(prompt_tokens * matched.ratio)
    return replace(options, max_tokens=max(MIN_REPLY_TOKENS, min(limit, room)))


def list_dropped(matched: MatchedRequest, rendered: RenderedRequest) -> tuple[str, ...]:
    """Names of all fields, tools and parts of messages that have no place in the upstream's format."""
    request = matched.client_request
    messages = [each.message for each in request.messages]
    options = matched.variant.target.translate_options(request.options).dropped
    parts = [*_list_dropped_thinking(messages, rendered), *_list_dropped_parts(messages, matched.message_counter)]
    return tuple(dict.fromkeys((*request.options.other_fields, *options, *matched.envelope.dropped, *parts)))


def _list_dropped_thinking(messages: Sequence[Message], rendered: RenderedRequest) -> Iterator[str]:
    """Names thinking, unless the log has all of it with the upstream's own signature."""
    received = sum(isinstance(part, ThinkingPart) for message in messages for part in message.parts)
    if received:
        wire_messages = (wire for each in rendered.messages for wire in each.wire_messages)
        if received > sum(type_ in _THINKING_TYPES for type_ in _list_types(wire_messages)):
            yield "messages[thinking]"


def _list_dropped_parts(messages: Sequence[Message], counter: MessageCounter) -> Iterator[str]:
    has_names = counter.wire_format.name == CHAT_PROVIDER
    for message in messages:
        if message.name and not has_names:
            yield "messages[name]"
        yield from (f"messages[{name}]" for name in get_content_substitutes(message))
        for part in message.parts:
            for piece in part.content if isinstance(part, ToolResultPart) else (part,):
                if isinstance(piece, TextPart) and (kind := get_placeholder_type(piece)) is not None:
                    yield f"messages[{kind}]"
                elif isinstance(piece, ImagePart | FilePart) and not _is_rendered(piece, part, message, counter):
                    yield f"messages[{piece.type}]"


def _is_rendered(piece: ImagePart | FilePart, part: Part, message: Message, counter: MessageCounter) -> bool:
    """Whether the upstream gets an image or a file as such, and not only its description."""
    # The beginning of a data URL decides how it is rendered, and its data is long.
    short = piece.model_copy(update={"url": piece.url[:_MAX_URL_CHARS]}) if piece.url else piece
    only = part.model_copy(update={"content": (short,)}) if isinstance(part, ToolResultPart) else short
    wire_messages = counter.wire_format.render_message(message.model_copy(update={"parts": (only,)}))
    return any(type_ in _MEDIA_TYPES for type_ in _list_types(wire_messages))


def _list_types(values: Iterable[WireMessage]) -> Iterator[object]:
    """Types of wire messages and of everything in their contents."""
    for value in values:
        yield value.get("type")
        for name in ("content", "output"):
            yield from _list_types(filter_objects(value.get(name)))
