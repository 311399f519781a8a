"""Token cost of an image by its size in pixels, as each provider documents it.

An unknown size counts at the maximum cost, so that an image can never break the budget.
"""

import re
from io import BytesIO
from math import ceil
from typing import NamedTuple, assert_never

from quire.model.policy import Provider

MAX_IMAGE_HEADER_BYTES = 256 * 1024
"""Bytes of an image in which its size is searched, because a damaged JPEG is scanned byte by byte."""
_IMAGE_SIGNATURE = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8|GIF8[79]a|RIFF(?!ftyp)....WEBP", re.DOTALL)


def count_image_tokens(
    provider: Provider, width: int | None, height: int | None, detail: str | None, *, model: str = ""
) -> int:
    """Tokens of one image; `model` selects the family, since a provider counts images differently by family."""
    size = None if width is None or height is None else (max(width, 1), max(height, 1))
    match provider:
        case "openai" | "openai_responses":
            return _count_openai(size, low=detail == "low", model=model.lower())
        case "anthropic":
            return _count_anthropic(size, model=model.lower())
    assert_never(provider)


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


def _count_openai(size: tuple[int, int] | None, *, low: bool, model: str) -> int:
    for pattern, factor in _PATCH_FACTORS:
        if re.search(pattern, model):
            patches = _MAX_PATCHES if size is None else min(_count_cells(size, 32), _MAX_PATCHES)
            return ceil(patches * factor)
    cost = _MINI_TILE_COST if "gpt-4o-mini" in model else _TILE_COST
    if low:
        return cost.base
    tiles = _MAX_TILES if size is None else _count_cells(_scale_down(_scale_down(size, long=2048), short=768), 512)
    return cost.base + cost.tile * tiles


class _ClaudeImageLimit(NamedTuple):
    """Largest image that a Claude model processes; a larger one is scaled down to it first."""

    max_edge_pixels: int
    max_tokens: int


_CLAUDE_LIMIT = _ClaudeImageLimit(max_edge_pixels=1568, max_tokens=1568)
_HIGH_RES_CLAUDE_LIMIT = _ClaudeImageLimit(max_edge_pixels=2576, max_tokens=4784)
_HIGH_RES_CLAUDE_MODELS = r"claude-opus-4[-.][7-9]|claude-[a-z]+-[5-9]"


def _count_anthropic(size: tuple[int, int] | None, *, model: str) -> int:
    limit = _HIGH_RES_CLAUDE_LIMIT if re.search(_HIGH_RES_CLAUDE_MODELS, model) else _CLAUDE_LIMIT
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
    """Width and height from the header of a PNG, JPEG, GIF or WebP; None for anything else."""
    # imagesize reads more formats: SVG by an XML parser, and HEIF by `ftyp`. Untrusted bytes must not reach those.
    if not _IMAGE_SIGNATURE.match(data):
        return None
    from imagesize import get as get_size  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    width, height = get_size(BytesIO(data[:MAX_IMAGE_HEADER_BYTES]), exif_rotation=False)
    if width > 0 and data.startswith(b"RIFF") and data[12:16] == b"VP8 ":
        # imagesize does not mask the two scaling bits above the 14 bits of a lossy WebP's size.
        width, height = width & 0x3FFF, height & 0x3FFF
    return (width, height) if min(width, height) > 0 else None
