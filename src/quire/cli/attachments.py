"""Attachments in the terminal: images and PDFs from disk, stored as blobs that the next message refers to."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quire.errors import DocumentNotFound, InvalidRequest
from quire.model import FilePart, ImagePart, Message, TextPart

if TYPE_CHECKING:
    from quire.log import LogStore

MAX_ATTACHMENT_BYTES = 20 * 1_000_000
"""Maximum size of one attachment. Providers accept requests of about 30 MB, and base64 adds a third."""

_MEDIA_TYPES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"%PDF-"), "application/pdf"),
)
"""Signatures at the start of the files that both wire formats can carry. A file name proves nothing."""


class Attachment(NamedTuple):
    """A stored file: its name, and the part of a message that refers to it."""

    name: str
    part: ImagePart | FilePart


async def load_attachment(path: Path, store: "LogStore") -> Attachment:
    """Reads an image or a PDF and stores it as a blob. Its content decides the media type."""
    data = await asyncio.to_thread(_read_file, path)
    media_type = next((name for signature, name in _MEDIA_TYPES if signature.match(data)), None)
    if media_type is None:
        raise InvalidRequest(
            f"{path} is neither an image (PNG, JPEG, GIF, WebP) nor a PDF. To send a text file, refer to it with "
            "@path, or pipe it into `quire ask`."
        )
    blob = await store.put_blob(data, media_type=media_type)
    if media_type.startswith("image/"):
        return Attachment(path.name, ImagePart(blob=blob, media_type=media_type))
    return Attachment(path.name, FilePart(blob=blob, media_type=media_type, name=path.name))


def attach_to(text: str, attachments: Sequence[Attachment]) -> Message:
    """Builds the user's message: the text, followed by the attachments."""
    return Message(role="user", parts=(TextPart(text=text), *(each.part for each in attachments)))


def _read_file(path: Path) -> bytes:
    path = path.expanduser()
    try:
        if not path.is_file():  # A pipe or a device could block or never end.
            if not path.exists():
                raise DocumentNotFound(f"There is no file {path}.")
            raise InvalidRequest(f"{path} is not a file.")
        with path.open("rb") as file:
            data = file.read(MAX_ATTACHMENT_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_ATTACHMENT_BYTES:
        raise InvalidRequest(f"{path} is larger than {MAX_ATTACHMENT_BYTES // 1_000_000} MB; attach a smaller file.")
    return data
