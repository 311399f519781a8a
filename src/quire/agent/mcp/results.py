"""Converts the result of an MCP tool call to parts of a Quire message.

Base64 data is stored as a blob if there is a blob store, else the part contains it as a data URL.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Sequence
from posixpath import basename
from typing import Protocol, assert_never, cast

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic_core import from_json, to_json

from quire.agent.tool_results import ToolResult, make_tool_result
from quire.model import FilePart, ImagePart, TextPart
from quire.model.messages import ToolResultContent
from quire.view.images import read_image_size
from quire.view.wire_formats.fields import is_object
from quire.view.wire_formats.media import build_data_url


class PutBlob(Protocol):
    """Stores data and returns the digest by which a part refers to it; the store's `put_blob` is one."""

    def __call__(self, data: bytes, *, media_type: str) -> Awaitable[str]: ...


_OCTET_STREAM = "application/octet-stream"


async def convert_mcp_result(result: CallToolResult, *, max_chars: int, put_blob: PutBlob | None = None) -> ToolResult:
    parts = [await _to_part(block, max_chars=max_chars, put_blob=put_blob) for block in result.content]
    structured = result.structured_content
    if structured is not None and not _is_duplicated_in_text(
        structured, [part.text for part in _select_text_parts(parts)]
    ):
        parts.append(TextPart(text=to_json(structured).decode()))
    return make_tool_result(parts, is_error=result.is_error, max_chars=max_chars)


async def _to_part(block: ContentBlock, *, max_chars: int, put_blob: PutBlob | None) -> ToolResultContent:
    match block:
        case TextContent():
            return TextPart(text=block.text)
        case ImageContent() | AudioContent():
            return await _to_data_part(block.data, block.mime_type, name=None, max_chars=max_chars, put_blob=put_blob)
        case ResourceLink():
            description = [block.title or block.name, block.uri, block.description]
            return TextPart(text=f"[resource: {', '.join(text for text in description if text)}]")
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return TextPart(text=f"[resource: {resource.uri}]\n{resource.text}")
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            media_type, name = resource.mime_type or _OCTET_STREAM, basename(resource.uri) or None
            return await _to_data_part(resource.blob, media_type, name=name, max_chars=max_chars, put_blob=put_blob)
        case _:
            assert_never(block)  # pyright: ignore[reportArgumentType]


async def _to_data_part(
    data: str, media_type: str, *, name: str | None, max_chars: int, put_blob: PutBlob | None
) -> ToolResultContent:
    try:
        raw = b64decode(data, validate=True)
    except (Base64Error, ValueError):
        return TextPart(text=f"[omitted: {media_type} with invalid base64]")
    blob = await put_blob(raw, media_type=media_type) if put_blob is not None and len(data) <= max_chars else None
    url = build_data_url(media_type, data) if blob is None else None
    if not media_type.startswith("image/"):
        return FilePart(url=url, blob=blob, media_type=media_type, name=name)
    width, height = read_image_size(raw) or (None, None)
    return ImagePart(url=url, blob=blob, media_type=media_type, width=width, height=height)


def _select_text_parts(parts: Sequence[ToolResultContent]) -> list[TextPart]:
    return [part for part in parts if isinstance(part, TextPart)]


def _is_duplicated_in_text(structured: object, texts: Sequence[str]) -> bool:
    """Whether the text repeats the structured content, as the protocol recommends: the tokens would count twice."""
    value = _unwrap_result(structured)
    items = _as_list(value)
    # Servers built with the SDK send one text block for each item of a list.
    if texts and len(items) == len(texts) and all(map(_text_equals, texts, items)):
        return True
    return len(texts) == 1 and (_text_equals(texts[0], structured) or _text_equals(texts[0], value))


def _as_list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _unwrap_result(structured: object) -> object:
    """Unwraps `{"result": ...}`, in which servers built with the SDK wrap a result that is no object."""
    if is_object(structured) and list(structured) == ["result"]:
        return structured["result"]
    return structured


def _text_equals(text: str, value: object) -> bool:
    if isinstance(value, str):
        return text == value
    try:
        return from_json(text) == value
    except ValueError:
        return False
