"""The message history of Pydantic AI as Quire's messages, and back."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pydantic_ai import messages as pai

from quire.adapters.framework_requests import make_match_key
from quire.llm.pydantic_ai_messages import to_pydantic_ai, to_reply
from quire.model import FilePart, ImagePart, Message, TextPart, ToolResultPart
from quire.model.messages import ToolResultContent
from quire.view.wire_formats import BlobLoader
from quire.view.wire_formats.media import build_data_url

HistoryItem = pai.ModelRequestPart | pai.ModelResponse
"""What one of Quire's messages is in Pydantic AI: a part of a request, or a response."""


_ENVELOPE_PARTS = (
    "capability-load-delta", "instruction-baseline", "instruction-delta", "model-settings-delta",
    "tool-availability-delta",
)  # fmt: skip
"""Parts that record changes of instructions, tools and settings. Each request has the current ones anyway."""
_UNTRANSLATED_PARTS = ("builtin-tool-call", "builtin-tool-return", "compaction", "speech")
"""Parts of responses that are in the log only by their kind."""


class ParsedItem(NamedTuple):
    item: HistoryItem
    message: Message | None
    dropped: tuple[str, ...] = ()
    """Names of what the message has no part for."""


def parse_history(history: Iterable[pai.ModelMessage]) -> Iterator[ParsedItem]:
    """Yields a message for each response, and for each part of a request that is content."""
    for each in history:
        if isinstance(each, pai.ModelResponse):
            message = to_reply(each).message
            native = [part.part_kind for part in each.parts if part.part_kind in _UNTRANSLATED_PARTS]
            yield ParsedItem(each, message, tuple(f"messages[{kind}]" for kind in native))
        else:
            yield from map(_parse_part, each.parts)


def build_history(
    messages: Sequence[Message], originals: Iterable[ParsedItem], *, load_blob: BlobLoader | None
) -> list[pai.ModelMessage]:
    """The history with these messages. Those that are in `originals` are the same parts and responses."""
    known = {make_match_key(each.message): each.item for each in originals if each.message is not None}
    converted = _list_items(to_pydantic_ai(messages, load_blob=load_blob))
    history: list[pai.ModelMessage] = []
    requested: list[pai.ModelRequestPart] = []
    for message in messages:
        items: list[HistoryItem] = [next(converted) for _ in range(_count_items(message))]
        original = known.get(make_match_key(message))
        for item in [original] if original is not None else items:
            if not isinstance(item, pai.ModelResponse):
                requested.append(item)
                continue
            history += [pai.ModelRequest(parts=requested)] if requested else []
            history.append(item)
            requested = []
    return [*history, pai.ModelRequest(parts=requested)] if requested else history


def _list_items(history: Iterable[pai.ModelMessage]) -> Iterator[HistoryItem]:
    for each in history:
        if isinstance(each, pai.ModelResponse):
            yield each
        else:
            yield from each.parts


def _count_items(message: Message) -> int:
    return len(message.tool_results) if message.role == "tool" else 1


def _parse_part(part: pai.ModelRequestPart) -> ParsedItem:
    match part:
        case pai.SystemPromptPart():
            return ParsedItem(part, Message.system(part.content))
        case pai.UserPromptPart():
            content = [part.content] if isinstance(part.content, str) else part.content
            pieces, dropped = _parse_content(content)
            return ParsedItem(part, Message(role="user", parts=pieces), dropped)
        case pai.ToolReturnPart():
            pieces, dropped = _parse_content([part.model_response_str(wrap_if_error=False), *part.files])
            is_error = part.outcome != "success"
            result = ToolResultPart(call_id=part.tool_call_id, content=pieces, is_error=is_error)
            return ParsedItem(part, Message(role="tool", parts=(result,)), dropped)
        case pai.RetryFeedbackPart():
            return ParsedItem(part, Message.user(part.model_response()))
        case _:
            kind = part.part_kind
            message = None if kind in _ENVELOPE_PARTS else Message.user(f"[{kind}]")
            return ParsedItem(part, message, (f"messages[{kind}]",))


def _parse_content(content: Iterable[Any]) -> tuple[tuple[ToolResultContent, ...], tuple[str, ...]]:
    parts: list[ToolResultContent] = []
    dropped: list[str] = []
    for each in content:
        match each:
            case str():
                parts.append(TextPart(text=each))
            case pai.TextContent():
                parts.append(TextPart(text=each.content))
            case pai.ImageUrl():
                parts.append(ImagePart(url=each.url))
            case pai.DocumentUrl():
                parts.append(FilePart(url=each.url))
            case pai.BinaryContent() if not (each.is_audio or each.is_video):
                media = ImagePart if each.is_image else FilePart
                url = build_data_url(each.media_type, b64encode(each.data).decode())
                parts.append(media(url=url, media_type=each.media_type))
            case _:
                dropped.append(f"messages[{each.kind}]")
                parts.append(TextPart(text=f"[{each.kind}]"))
    return tuple(parts), tuple(dropped)
