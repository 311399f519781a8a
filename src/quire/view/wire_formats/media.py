"""Images and files in requests: data URLs, sizes read from the data, and text placeholders for what cannot be sent.

No I/O: data is base64 text. The cost of an image or a file depends on the request alone, so that a finished request can
be recounted.
"""

import re
from base64 import b64decode
from binascii import Error as Base64Error

from quire.model import FilePart, ImagePart
from quire.view.images import count_image_tokens, read_image_size
from quire.view.wire_formats.base import BlobLoader, Provider

PDF_MEDIA_TYPE = "application/pdf"
URL_SCHEMES = ("http://", "https://", "data:")
"""Schemes of the URLs that OpenAI accepts."""

PDF_PAGE_TOKENS = 3_000
"""Providers document 1,500 to 3,000 tokens for each page of a PDF, including its image."""
PDF_PAGE_BYTES = 50_000
"""Estimated page size of a PDF whose pages cannot be counted: a light page, so that the estimate errs upward."""
REMOTE_FILE_PAGES = 10
"""Assumed pages of a file behind a URL, whose size is unknown."""

_MAX_HEADER_CHARS = 400_000
"""Base64 characters searched for the size of an image: photos contain previews before it."""
_MAX_NOTE_CHARS = 200
_PDF_PAGE = re.compile(rb"/Type\s*/Page\b")


def build_data_url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """Media type and base64 text of a data URL; None for any other URL."""
    if not url.startswith("data:"):
        return None
    head, _, data = url.partition(",")
    return (head[5:-7].partition(";")[0], data) if head.endswith(";base64") and data else None


def resolve_url(part: ImagePart | FilePart, load_blob: BlobLoader | None, *, media_type: str) -> str | None:
    """URL of the part; a data URL if it is a blob. `media_type` is the default for a blob without one."""
    if part.blob is None:
        return part.url
    data = load_blob(part.blob) if load_blob is not None else None
    return build_data_url(part.media_type or media_type, data) if data else None


def describe_media(part: ImagePart | FilePart) -> str:
    """Text placeholder that describes an image or a file."""
    name = part.name if isinstance(part, FilePart) else None
    source = f"blob {part.blob[:12]}" if part.blob is not None else part.url or ""
    if source.startswith("data:"):
        source = source.partition(",")[0]
    details = [piece[:_MAX_NOTE_CHARS] for piece in (name, part.media_type, source) if piece]
    return f"[{part.type}: {', '.join(details)}]" if details else f"[{part.type}]"


def count_image(provider: Provider, *, data: str | None, detail: str | None, model: str) -> int:
    """Tokens of an image by the size in its data; without data, the size is unknown."""
    size = read_image_size(_decode(data[:_MAX_HEADER_CHARS])) if data is not None else None
    width, height = size or (None, None)
    return count_image_tokens(provider, width, height, detail, model=model)


def count_file(data: str | None) -> int:
    """Estimates the tokens of a file by its pages."""
    return PDF_PAGE_TOKENS * (REMOTE_FILE_PAGES if data is None else _count_pages(data))


def _count_pages(data: str) -> int:
    raw = _decode(data)
    return len(_PDF_PAGE.findall(raw)) or 1 + len(raw) // PDF_PAGE_BYTES


def _decode(data: str) -> bytes:
    try:
        return b64decode(data + "=" * (-len(data) % 4))
    except (Base64Error, ValueError):
        return b""
