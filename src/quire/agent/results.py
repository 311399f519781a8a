"""What an MCP server answered to a call, as parts of a Quire message.

Data that it sends in base64 goes to the blobs where there is somebody to keep it, and into the part itself where not.
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

from quire.agent.outcomes import Outcome, outcome
from quire.model import FilePart, ImagePart, TextPart
from quire.model.parts import ResultPart
from quire.view.images import image_size
from quire.view.shapes.fields import is_object
from quire.view.shapes.media import data_url


class Keep(Protocol):
    """Keeps data, and gives the digest by which a part names it: the store's `put_blob`."""

    def __call__(self, data: bytes, *, media_type: str) -> Awaitable[str]: ...


_OCTETS = "application/octet-stream"


async def outcome_of(result: CallToolResult, *, largest: int, keep: Keep | None = None) -> Outcome:
    parts = [await _part(block, largest=largest, keep=keep) for block in result.content]
    structured = result.structured_content
    if structured is not None and not _said_already(structured, [part.text for part in _texts(parts)]):
        parts.append(TextPart(text=to_json(structured).decode()))
    return outcome(parts, is_error=result.is_error, largest=largest)


async def _part(block: ContentBlock, *, largest: int, keep: Keep | None) -> ResultPart:
    match block:
        case TextContent():
            return TextPart(text=block.text)
        case ImageContent() | AudioContent():
            return await _data(block.data, block.mime_type, name=None, largest=largest, keep=keep)
        case ResourceLink():
            described = [block.title or block.name, block.uri, block.description]
            return TextPart(text=f"[resource: {', '.join(word for word in described if word)}]")
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return TextPart(text=f"[resource: {resource.uri}]\n{resource.text}")
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            media_type, name = resource.mime_type or _OCTETS, basename(resource.uri) or None
            return await _data(resource.blob, media_type, name=name, largest=largest, keep=keep)
        case _:
            assert_never(block)  # pyright: ignore[reportArgumentType]


async def _data(data: str, media_type: str, *, name: str | None, largest: int, keep: Keep | None) -> ResultPart:
    try:
        raw = b64decode(data, validate=True)
    except (Base64Error, ValueError):
        return TextPart(text=f"[left out: {media_type} that is no base64]")
    blob = await keep(raw, media_type=media_type) if keep is not None and len(data) <= largest else None
    url = data_url(media_type, data) if blob is None else None
    if not media_type.startswith("image/"):
        return FilePart(url=url, blob=blob, media_type=media_type, name=name)
    width, height = image_size(raw) or (None, None)
    return ImagePart(url=url, blob=blob, media_type=media_type, width=width, height=height)


def _texts(parts: Sequence[ResultPart]) -> list[TextPart]:
    return [part for part in parts if isinstance(part, TextPart)]


def _said_already(structured: object, texts: Sequence[str]) -> bool:
    """Servers are asked to say structured content as text too: twice would cost the model twice."""
    value = _unwrapped(structured)
    items = _listed(value)
    # The SDK's servers give a text for each item of a list.
    if texts and len(items) == len(texts) and all(map(_says, texts, items)):
        return True
    return len(texts) == 1 and (_says(texts[0], structured) or _says(texts[0], value))


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _unwrapped(structured: object) -> object:
    """What stands in the object that the SDK's servers put around a result that is none itself."""
    if is_object(structured) and list(structured) == ["result"]:
        return structured["result"]
    return structured


def _says(text: str, value: object) -> bool:
    if isinstance(value, str):
        return text == value
    try:
        return from_json(text) == value
    except ValueError:
        return False
