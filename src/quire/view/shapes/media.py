"""Pictures and files in requests: data URLs, sizes read from the data, notes in place of what cannot be sent.

No I/O: data comes as base64 text. What a picture or a file costs is told by the request alone, so that a finished
request can be counted again.
"""

import re
from base64 import b64decode
from binascii import Error as Base64Error

from quire.model import FilePart, ImagePart
from quire.view.images import image_size, image_tokens
from quire.view.shapes.base import Load, Provider

PDF = "application/pdf"

PAGE_TOKENS = 3_000
"""Providers say 1,500 to 3,000 tokens a page of a PDF, with its picture."""
PAGE_BYTES = 50_000
"""For a PDF whose pages are not to be seen from outside: the size of a light page, so that the count errs upward."""
REMOTE_PAGES = 10
"""What a file behind a URL is taken for: nobody can know."""

_HEADER = 400_000
"""Base64 characters searched for a picture's size: photographs carry previews before it."""
_SHOWN = 200
_PAGE = re.compile(rb"/Type\s*/Page\b")


def data_url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """The media type and the base64 text of a data URL; None for any other."""
    if not url.startswith("data:"):
        return None
    head, _, data = url.partition(",")
    return (head[5:-7].partition(";")[0], data) if head.endswith(";base64") and data else None


def source_url(part: ImagePart | FilePart, load: Load | None, *, media_type: str) -> str | None:
    """A URL for the part, as data if it is a blob; `media_type` is for a blob that names none."""
    if part.blob is None:
        return part.url
    data = load(part.blob) if load is not None else None
    return data_url(part.media_type or media_type, data) if data else None


def note(part: ImagePart | FilePart) -> str:
    """A line that names what is not shown."""
    name = part.name if isinstance(part, FilePart) else None
    source = f"blob {part.blob[:12]}" if part.blob is not None else part.url or ""
    if source.startswith("data:"):
        source = source.partition(",")[0]
    described = [piece[:_SHOWN] for piece in (name, part.media_type, source) if piece]
    return f"[{part.type}: {', '.join(described)}]" if described else f"[{part.type}]"


def count_image(provider: Provider, *, data: str | None, detail: str | None, model: str) -> int:
    """Tokens of a picture, by the size that its data tells; one behind a URL counts as one of unknown size."""
    size = image_size(_decoded(data[:_HEADER])) if data is not None else None
    width, height = size or (None, None)
    return image_tokens(provider, width, height, detail, model=model)


def count_file(data: str | None) -> int:
    """Tokens of a file, an estimate by its pages."""
    return PAGE_TOKENS * (REMOTE_PAGES if data is None else _pages(data))


def _pages(data: str) -> int:
    raw = _decoded(data)
    return len(_PAGE.findall(raw)) or 1 + len(raw) // PAGE_BYTES


def _decoded(data: str) -> bytes:
    try:
        return b64decode(data + "=" * (-len(data) % 4))
    except (Base64Error, ValueError):
        return b""
