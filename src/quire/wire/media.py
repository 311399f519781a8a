"""Images and files in requests: data URLs, sizes and token costs, and text placeholders for what cannot be sent.

No I/O: data is base64 text. The cost of an image or a file depends on the request alone, so that a finished request can
be recounted. An image of unknown size counts at the maximum cost, so that it can never break the budget.
"""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from io import BytesIO
from math import ceil
from typing import NamedTuple

from quire.model import FilePart, ImagePart
from quire.wire.base import BlobLoader

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
    """Media type and base64 text of a data URL, or None for any other URL."""
    if not url.startswith("data:"):
        return None
    head, _, data = url.partition(",")
    return (head[5:-7].partition(";")[0], data) if head.endswith(";base64") and data else None


def resolve_url(part: ImagePart | FilePart, load_blob: BlobLoader | None, *, media_type: str) -> str | None:
    """URL of the part. A data URL if it is a blob. `media_type` is the default for a blob without one."""
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


def read_encoded_size(data: str | None) -> tuple[int, int] | None:
    """Width and height of an image in base64, or None without data, or if the size cannot be read."""
    return read_image_size(_decode(data[:_MAX_HEADER_CHARS])) if data is not None else None


def count_file(data: str | None) -> int:
    """Estimates the tokens of a file by its pages."""
    if data is None:
        return PDF_PAGE_TOKENS * REMOTE_FILE_PAGES
    raw = _decode(data)
    return PDF_PAGE_TOKENS * (len(_PDF_PAGE.findall(raw)) or 1 + len(raw) // PDF_PAGE_BYTES)


def _decode(data: str) -> bytes:
    try:
        return b64decode(data + "=" * (-len(data) % 4))
    except (Base64Error, ValueError):
        return b""


MAX_IMAGE_HEADER_BYTES = 256 * 1024
"""Bytes of an image in which its size is searched, because a damaged JPEG is scanned byte by byte."""
_IMAGE_SIGNATURE = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8|GIF8[79]a|RIFF(?!ftyp)....WEBP", re.DOTALL)


class _TileCost(NamedTuple):
    """OpenAI's older rule: a base cost, and a cost for every tile of 512 pixels."""

    base: int
    tile: int


_TILE_COST = _TileCost(base=85, tile=170)
_MINI_TILE_COST = _TileCost(base=2833, tile=5667)
_MAX_TILES = 8

# OpenAI's newer rule: patches of 32 pixels, at most 1,536, times a factor. `detail` has no effect here.
_PATCH_FACTORS = ((r"gpt-4\.1-mini", 1.62), (r"gpt-4\.1-nano", 2.46), (r"o4-mini", 1.72))
_MAX_PATCHES = 1536


def count_openai_image(size: tuple[int, int] | None, detail: str | None = None, *, model: str = "") -> int:
    """Tokens of an image of this size in pixels by OpenAI's rules, which differ by family of models."""
    model = model.lower()
    for pattern, factor in _PATCH_FACTORS:
        if re.search(pattern, model):
            patches = _MAX_PATCHES if size is None else min(_count_cells(size, 32), _MAX_PATCHES)
            return ceil(patches * factor)
    cost = _MINI_TILE_COST if "gpt-4o-mini" in model else _TILE_COST
    if detail == "low":
        return cost.base
    tiles = _MAX_TILES if size is None else _count_cells(_scale_down(_scale_down(size, long=2048), short=768), 512)
    return cost.base + cost.tile * tiles


class _ClaudeImageLimit(NamedTuple):
    """Largest image that a Claude model processes. A larger one is scaled down to it first."""

    max_edge_pixels: int
    max_tokens: int


_CLAUDE_LIMIT = _ClaudeImageLimit(max_edge_pixels=1568, max_tokens=1568)
_HIGH_RES_CLAUDE_LIMIT = _ClaudeImageLimit(max_edge_pixels=2576, max_tokens=4784)
_HIGH_RES_CLAUDE_MODELS = r"claude-opus-4[-.][7-9]|claude-[a-z]+-[5-9]"


def count_claude_image(size: tuple[int, int] | None, *, model: str = "") -> int:
    """Tokens of an image of this size in pixels by Anthropic's rules."""
    limit = _HIGH_RES_CLAUDE_LIMIT if re.search(_HIGH_RES_CLAUDE_MODELS, model.lower()) else _CLAUDE_LIMIT
    if size is None:
        return limit.max_tokens
    return min(_count_cells(_scale_down(size, long=limit.max_edge_pixels), 28), limit.max_tokens)


def _scale_down(size: tuple[int, int], *, long: int | None = None, short: int | None = None) -> tuple[int, int]:
    """Scales a size down until its long or short edge fits; never up."""
    edge, limit = (max(size), long) if long is not None else (min(size), short)
    if limit is None or edge <= limit:
        return size
    width, height = size
    return max(1, round(width * limit / edge)), max(1, round(height * limit / edge))


def _count_cells(size: tuple[int, int], cell: int) -> int:
    width, height = size
    return ceil(width / cell) * ceil(height / cell)


def read_image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height from the header of a PNG, JPEG, GIF or WebP, or None for anything else."""
    # imagesize reads more formats: SVG by an XML parser, and HEIF by `ftyp`. Untrusted bytes must not reach those.
    if not _IMAGE_SIGNATURE.match(data):
        return None
    from imagesize import get as get_size  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    width, height = get_size(BytesIO(data[:MAX_IMAGE_HEADER_BYTES]), exif_rotation=False)
    if width > 0 and data.startswith(b"RIFF") and data[12:16] == b"VP8 ":
        # imagesize does not mask the two scaling bits above the 14 bits of a lossy WebP's size.
        width, height = width & 0x3FFF, height & 0x3FFF
    return (width, height) if min(width, height) > 0 else None
