"""The message history of Pydantic AI as Quire's messages, and back."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic_ai import messages as pai

from quire.llm.pydantic_ai_messages import to_pydantic_ai, to_reply
from quire.model import FilePart, ImagePart, Message, TextPart, ToolResultPart
from quire.model.messages import ToolResultContent
from quire.proxy.framework_requests import ConvertedMessage, make_match_key
from quire.wire import BlobLoader
from quire.wire.media import build_data_url

HistoryItem = pai.ModelRequestPart | pai.ModelResponse
"""What one of Quire's messages is in Pydantic AI: a part of a request, or a response."""


_ENVELOPE_PARTS = (
    "capability-load-delta", "instruction-baseline", "instruction-delta", "model-settings-delta",
    "tool-availability-delta",
)  # fmt: skip
"""Parts that record changes of instructions, tools and settings. Each request has the current ones anyway."""
_UNTRANSLATED_PARTS = ("builtin-tool-call", "builtin-tool-return", "compaction", "speech")
"""Parts of responses that are in the log only by their kind."""


def convert_model_message(source: pai.ModelMessage) -> list[ConvertedMessage]:
    """Converts each item of a message: a response, or the parts of a request."""
    if not isinstance(source, pai.ModelResponse):
        return [_convert_part(part) for part in source.parts]
    native = [part.part_kind for part in source.parts if part.part_kind in _UNTRANSLATED_PARTS]
    return [ConvertedMessage(to_reply(source).message, tuple(f"messages[{kind}]" for kind in native))]


def list_items(history: Iterable[pai.ModelMessage]) -> Iterator[HistoryItem]:
    for each in history:
        if isinstance(each, pai.ModelResponse):
            yield each
        else:
            yield from each.parts


def build_history(
    messages: Sequence[Message], originals: Mapping[bytes, HistoryItem], *, load_blob: BlobLoader | None
) -> list[pai.ModelMessage]:
    """The history with these messages. Those whose match key is in `originals` are the same parts and responses."""
    converted = list_items(to_pydantic_ai(messages, load_blob=load_blob))
    history: list[pai.ModelMessage] = []
    requested: list[pai.ModelRequestPart] = []
    for message in messages:
        items: list[HistoryItem] = [next(converted) for _ in range(_count_items(message))]
        original = originals.get(make_match_key(message))
        for item in [original] if original is not None else items:
            if not isinstance(item, pai.ModelResponse):
                requested.append(item)
                continue
            history += [pai.ModelRequest(parts=requested)] if requested else []
            history.append(item)
            requested = []
    return [*history, pai.ModelRequest(parts=requested)] if requested else history


def _count_items(message: Message) -> int:
    return len(message.tool_results) if message.role == "tool" else 1


def _convert_part(part: pai.ModelRequestPart) -> ConvertedMessage:
    match part:
        case pai.SystemPromptPart():
            return ConvertedMessage(Message.system(part.content))
        case pai.UserPromptPart():
            content = [part.content] if isinstance(part.content, str) else part.content
            pieces, dropped = _parse_content(content)
            return ConvertedMessage(Message(role="user", parts=pieces), dropped)
        case pai.ToolReturnPart():
            pieces, dropped = _parse_content([part.model_response_str(wrap_if_error=False), *part.files])
            is_error = part.outcome != "success"
            result = ToolResultPart(call_id=part.tool_call_id, content=pieces, is_error=is_error)
            return ConvertedMessage(Message(role="tool", parts=(result,)), dropped)
        case pai.RetryFeedbackPart():
            return ConvertedMessage(Message.user(part.model_response()))
        case _:
            kind = part.part_kind
            message = None if kind in _ENVELOPE_PARTS else Message.user(f"[{kind}]")
            return ConvertedMessage(message, (f"messages[{kind}]",))


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
