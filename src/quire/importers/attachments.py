"""Images and files of an export as parts of a message, with their bytes as data URLs."""

from base64 import b64encode
from typing import TypeGuard

from quire.model import FilePart, ImagePart
from quire.view.images import read_image_size
from quire.view.wire_formats.media import build_data_url, split_data_url

MAX_ATTACHMENT_BYTES = 20_000_000
"""Maximum size of one image or file; a larger one is dropped."""
MAX_NAME_CHARS = 200
_DEFAULT_MEDIA_TYPE = "application/octet-stream"
_MAGIC_NUMBERS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def make_media_part(data: bytes, *, media_type: object = None, name: object = None) -> ImagePart | FilePart:
    """A part with these bytes. Their own first bytes say what they are; `media_type` is what the export says."""
    known = _detect_media_type(data) or (media_type if _is_media_type(media_type) else None) or _DEFAULT_MEDIA_TYPE
    url = build_data_url(known, b64encode(data).decode())
    if known.startswith("image/"):
        width, height = read_image_size(data) or (None, None)
        return ImagePart(url=url, media_type=known, width=width, height=height)
    return FilePart(url=url, media_type=known, name=clip_name(name))


def make_url_part(url: object, *, name: object = None) -> ImagePart | FilePart | None:
    """A part for a data URL or a web address of an image; None for a link that only the program can open."""
    if not isinstance(url, str) or len(url) > 2 * MAX_ATTACHMENT_BYTES:
        return None
    if split := split_data_url(url):
        media_type = split[0]
        if media_type.startswith("image/"):
            return ImagePart(url=url, media_type=media_type)
        return FilePart(url=url, media_type=media_type or _DEFAULT_MEDIA_TYPE, name=clip_name(name))
    return ImagePart(url=url) if url.startswith(("http://", "https://")) else None


def clip_name(name: object) -> str | None:
    return name[:MAX_NAME_CHARS] if isinstance(name, str) and name else None


def _is_media_type(value: object) -> TypeGuard[str]:
    return (
        isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS and value.isascii() and not set(value) & set(" ;,")
    )


def _detect_media_type(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for magic, media_type in _MAGIC_NUMBERS if data.startswith(magic)), None)
