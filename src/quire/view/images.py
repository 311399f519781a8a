"""How many tokens an image costs, by its size in pixels, as each provider documents it.

What is not known is taken at the most that it can cost: an image must never be what breaks the budget.
"""

import re
from collections.abc import Callable
from math import ceil
from typing import Literal, NamedTuple, assert_never

Provider = Literal["openai", "anthropic"]


def image_tokens(
    provider: Provider, width: int | None, height: int | None, detail: str | None, *, model: str = ""
) -> int:
    """The tokens of one image; `model` tells apart the families that a provider counts in different ways."""
    size = None if width is None or height is None else (max(width, 1), max(height, 1))
    match provider:
        case "openai":
            return _openai(size, low=detail == "low", model=model.lower())
        case "anthropic":
            return _anthropic(size, model=model.lower())
    assert_never(provider)


class _Tiles(NamedTuple):
    """OpenAI's older way: a base, and so much for every tile of 512 pixels."""

    base: int
    tile: int


_TILES = _Tiles(base=85, tile=170)
_MINI_TILES = _Tiles(base=2833, tile=5667)
_MOST_TILES = 8

# OpenAI's newer way: patches of 32 pixels, 1,536 at most, times a factor. `detail` changes nothing here.
_PATCH_FACTORS = ((r"gpt-4\.1-mini", 1.62), (r"gpt-4\.1-nano", 2.46), (r"o4-mini", 1.72))
_MOST_PATCHES = 1536


def _openai(size: tuple[int, int] | None, *, low: bool, model: str) -> int:
    for pattern, factor in _PATCH_FACTORS:
        if re.search(pattern, model):
            patches = _MOST_PATCHES if size is None else min(_grid(size, 32), _MOST_PATCHES)
            return ceil(patches * factor)
    cost = _MINI_TILES if "gpt-4o-mini" in model else _TILES
    if low:
        return cost.base
    tiles = _MOST_TILES if size is None else _grid(_shrunk(_shrunk(size, long=2048), short=768), 512)
    return cost.base + cost.tile * tiles


class _Sight(NamedTuple):
    """The largest image that a Claude model sees; a larger one is scaled down to it first."""

    long_edge: int
    tokens: int


_CLAUDE = _Sight(long_edge=1568, tokens=1568)
_SHARP_CLAUDE = _Sight(long_edge=2576, tokens=4784)
_SHARP_MODELS = r"claude-opus-4[-.][7-9]|claude-[a-z]+-[5-9]"


def _anthropic(size: tuple[int, int] | None, *, model: str) -> int:
    sight = _SHARP_CLAUDE if re.search(_SHARP_MODELS, model) else _CLAUDE
    if size is None:
        return sight.tokens
    return min(_grid(_shrunk(size, long=sight.long_edge), 28), sight.tokens)


def _shrunk(size: tuple[int, int], *, long: int | None = None, short: int | None = None) -> tuple[int, int]:
    """The size scaled down until its long or short edge fits; an image is never scaled up."""
    edge, limit = (max(size), long) if long is not None else (min(size), short)
    if limit is None or edge <= limit:
        return size
    width, height = size
    return max(1, round(width * limit / edge)), max(1, round(height * limit / edge))


def _grid(size: tuple[int, int], cell: int) -> int:
    width, height = size
    return ceil(width / cell) * ceil(height / cell)


def image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height from the header of a PNG, JPEG, GIF or WebP; None for anything else."""
    for magic, read in _HEADERS:
        if data.startswith(magic):
            size = read(data)
            return size if size is not None and min(size) > 0 else None
    return None


def _png(data: bytes) -> tuple[int, int] | None:
    return None if len(data) < 24 or data[12:16] != b"IHDR" else (_big(data[16:20]), _big(data[20:24]))


def _gif(data: bytes) -> tuple[int, int] | None:
    return None if len(data) < 10 else (_little(data[6:8]), _little(data[8:10]))


_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """From segment to segment, as each says how long it is, to the one that describes the frame."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif marker in _START_OF_FRAME:
            return _big(data[at + 7 : at + 9]), _big(data[at + 5 : at + 7])
        else:
            at += 2 + _big(data[at + 2 : at + 4])
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30 or data[8:12] != b"WEBP":
        return None
    match data[12:16]:
        case b"VP8 ":
            return _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF
        case b"VP8L":
            bits = _little(data[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return _little(data[24:27]) + 1, _little(data[27:30]) + 1
        case _:
            return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")


_HEADERS: tuple[tuple[bytes, Callable[[bytes], tuple[int, int] | None]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8", _jpeg),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"RIFF", _webp),
)
