"""Converts messages of a source to items of the log's import: canonical JSON, digest, metadata and blobs."""

from base64 import b64decode
from binascii import Error as Base64Error
from hashlib import sha256

from quire.importers.base import SourceCompaction, SourceMessage
from quire.log.imports import ImportItem, make_item_id
from quire.log.types import Blob
from quire.model import Compaction, EntryMetadata, FilePart, ImagePart, Message, Part, ToolResultPart, Usage
from quire.view.wire_formats.media import split_data_url

COMPACTION_STRATEGY = "imported"
"""Strategy of a compaction that the source made."""


def build_item(source_message: SourceMessage, *, default_at: int, dropped: tuple[str, ...] = ()) -> ImportItem:
    """The item of a message. `default_at` is its time if it has none; `dropped` adds to what could not be carried."""
    message, blobs = _extract_blobs(source_message.message)
    raw = message.canonical_json()
    compaction = source_message.compaction
    return ImportItem(
        id=make_item_id(source_message.id),
        parent=make_item_id(source_message.parent) if source_message.parent is not None else None,
        raw=raw,
        role=message.role,
        at=source_message.at if source_message.at is not None else default_at,
        digest=sha256(raw.encode()).digest(),
        metadata=_build_metadata(source_message, dropped),
        blobs=blobs,
        compaction=_build_compaction(compaction, source_message.usage) if compaction else None,
        preserved=tuple(map(make_item_id, compaction.preserved)) if compaction else (),
    )


def _build_metadata(message: SourceMessage, dropped: tuple[str, ...]) -> str | None:
    dropped += message.dropped
    usage = message.usage if message.compaction is None else None
    if usage is None and not dropped and message.cost_usd is None:
        return None
    return EntryMetadata(usage=usage, cost_usd=message.cost_usd, dropped=dropped or None).canonical_json()


def _build_compaction(compaction: SourceCompaction, usage: Usage | None) -> Compaction:
    return Compaction(
        number=1,
        summary=compaction.summary,
        trigger=compaction.trigger,
        strategy=COMPACTION_STRATEGY,
        model=usage.model if usage else None,
        tokens_before=compaction.tokens_before,
        tokens_after=compaction.tokens_after,
        usage=usage,
    )


def _extract_blobs(message: Message) -> tuple[Message, dict[str, Blob]]:
    """The message with blobs in place of data URLs, and the blobs by digest."""
    if not any(isinstance(part, ImagePart | FilePart | ToolResultPart) for part in message.parts):
        return message, {}
    blobs: dict[str, Blob] = {}
    parts = tuple(_replace_data(part, blobs) for part in message.parts)
    return (message.model_copy(update={"parts": parts}), blobs) if blobs else (message, blobs)


def _replace_data(part: Part, blobs: dict[str, Blob]) -> Part:
    if isinstance(part, ToolResultPart):
        content = tuple(_replace_data(piece, blobs) for piece in part.content)
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
