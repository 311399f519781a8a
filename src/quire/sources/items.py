"""Converts messages of a source to items of the log's import: canonical JSON, digest, metadata and blobs."""

from base64 import b64decode
from binascii import Error as Base64Error
from hashlib import sha256

from quire.log.imports import ImportItem, make_item_id
from quire.log.types import Blob
from quire.model import Compaction, EntryMetadata, FilePart, ImagePart, Part, ToolResultPart
from quire.model.entry_bodies import IMPORTED_STRATEGY
from quire.sources.base import SourceMessage
from quire.wire.media import split_data_url


def build_item(source_message: SourceMessage, *, default_at: int, dropped: tuple[str, ...] = ()) -> ImportItem:
    """The item of a message. `default_at` is its time if it has none; `dropped` adds to what could not be carried."""
    message, usage = source_message.message, source_message.usage
    blobs: dict[str, Blob] = {}
    if any(isinstance(part, ImagePart | FilePart | ToolResultPart) for part in message.parts):
        parts = tuple(_extract_blobs(part, blobs) for part in message.parts)
        message = message.model_copy(update={"parts": parts}) if blobs else message
    raw = message.canonical_json()
    compaction: Compaction | None = None
    preserved: tuple[str, ...] = ()
    if source_message.compaction is not None:
        made = source_message.compaction
        compaction = Compaction(
            number=1,
            summary=made.summary,
            trigger=made.trigger,
            strategy=IMPORTED_STRATEGY,
            model=usage.model if usage else None,
            tokens_before=made.tokens_before,
            tokens_after=made.tokens_after,
            usage=usage,
            cost_usd=source_message.cost_usd,
        )
        usage, preserved = None, made.preserved
    metadata: EntryMetadata | None = None
    dropped += source_message.dropped
    if usage is not None or dropped or source_message.cost_usd is not None:
        metadata = EntryMetadata(usage=usage, cost_usd=source_message.cost_usd, dropped=dropped or None)
    return ImportItem(
        id=make_item_id(source_message.id),
        parent=make_item_id(source_message.parent) if source_message.parent is not None else None,
        raw=raw,
        role=message.role,
        at=source_message.at if source_message.at is not None else default_at,
        digest=sha256(raw.encode()).digest(),
        metadata=metadata.canonical_json() if metadata is not None else None,
        blobs=blobs,
        compaction=compaction,
        preserved=tuple(map(make_item_id, preserved)),
    )


def _extract_blobs(part: Part, blobs: dict[str, Blob]) -> Part:
    """The part with a blob in place of its data URL. The blob is added to `blobs` under its digest."""
    if isinstance(part, ToolResultPart):
        content = tuple(_extract_blobs(piece, blobs) for piece in part.content)
        return part.model_copy(update={"content": content}) if blobs else part
    if not isinstance(part, ImagePart | FilePart) or part.url is None:
        return part
    split = split_data_url(part.url)
    if split is None:
        return part
    media_type, data = split
    try:
        blob = Blob(part.media_type or media_type or "application/octet-stream", b64decode(data, validate=True))
    except (Base64Error, ValueError):
        return part
    digest = sha256(blob.data).hexdigest()
    blobs[digest] = blob
    return part.model_copy(update={"url": None, "blob": digest, "media_type": blob.media_type})


def measure_item(item: ImportItem) -> int:
    """Bytes of an item, blobs included; at least one."""
    return 1 + len(item.raw) + sum(len(blob.data) for blob in item.blobs.values())
