"""The inverse of `to_pydantic_ai`, for the property that nothing is lost on the way to pydantic-ai."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_ai import messages as pai

from quire.adapters.pydantic_ai_messages import to_reply
from quire.model import FilePart, ImagePart, Message, TextPart, ToolResultPart
from quire.model.messages import ToolResultContent
from quire.wire.media import build_data_url


def from_pydantic_ai(history: Sequence[pai.ModelMessage]) -> list[Message]:
    return [message for item in history for message in _to_messages(item)]


def _to_messages(item: pai.ModelMessage) -> Iterator[Message]:
    if isinstance(item, pai.ModelResponse):
        yield to_reply(item).message
        return
    for part in item.parts:
        match part:
            case pai.SystemPromptPart():
                yield Message.system(part.content)
            case pai.UserPromptPart():
                pieces = [part.content] if isinstance(part.content, str) else part.content
                yield Message(role="user", parts=tuple(_to_result_part(piece) for piece in pieces))
            case pai.ToolReturnPart():
                content = tuple(_to_result_part(piece) for piece in part.content_items(mode="str", wrap_if_error=False))
                failed = part.outcome != "success"
                result = ToolResultPart(call_id=part.tool_call_id, content=content, is_error=failed)
                yield Message(role="tool", parts=(result,))
            case _:
                # pydantic-ai's agents write further kinds of parts, which a Quire conversation never contains.
                yield Message(role="user", parts=(TextPart(text=f"[{part.part_kind}]"),))


def _to_result_part(piece: object) -> ToolResultContent:
    match piece:
        case str():
            return TextPart(text=piece)
        case pai.TextContent():
            return TextPart(text=piece.content)
        case pai.ImageUrl():
            return ImagePart(url=piece.url, detail=_parse_detail(piece.vendor_metadata))
        case pai.BinaryContent():
            url = build_data_url(piece.media_type, b64encode(piece.data).decode())
            if piece.is_image:
                return ImagePart(url=url, media_type=piece.media_type, detail=_parse_detail(piece.vendor_metadata))
            return FilePart(url=url, media_type=piece.media_type)
        case pai.DocumentUrl():
            return FilePart(url=piece.url)
        case _:
            return TextPart(text=f"[{type(piece).__name__}]")


def _parse_detail(metadata: dict[str, Any] | None) -> Any:
    detail = (metadata or {}).get("detail")
    return detail if detail in ("low", "high", "auto") else None
