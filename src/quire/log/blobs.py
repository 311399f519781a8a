"""Blobs: content that is referenced by entries and requests, deduplicated per tenant by the digest of its bytes."""

from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, exists, select, update

from quire.db.dialects import insert_rows, upsert
from quire.db.schema import blob_uses, blobs, pending_objects
from quire.db.stored_bytes import count_bytes, is_counting
from quire.errors import BlobNotFound, IntegrityViolation, StoreError
from quire.log.tenant_masker import get_masker
from quire.log.types import Blob
from quire.model import Entry
from quire.model.ids import now

MAX_KNOWN_BLOBS = 10_000
"""Maximum digests in the LRU cache of stored blobs."""

ORPHAN_BLOB_MICROS = 24 * 3_600 * 1_000_000
"""Age after which a purge deletes an uploaded blob that nothing references."""


def put_blob(connection: Connection, tenant: str, data: bytes, *, media_type: str = "application/octet-stream") -> str:
    """Stores a blob before the message that references it, and returns its digest.

    Bytes that are stored already are not stored again, but their upload counts from now.
    """
    digest = sha256(data).digest()
    # A client must not say that a blob is masked, and so has another digest.
    media_type, data = _mask_blob(connection, Blob(media_type.partition(_MASKED_PARAMETER)[0], data))
    _count_new(connection, tenant, {digest: data})
    row = {"tenant": tenant, "digest": digest, "media_type": media_type, "data": data, "uploaded_at": now()}
    connection.execute(upsert(connection, blobs, replace=["uploaded_at"]), row)
    return digest.hex()


def import_blob(connection: Connection, tenant: str, digest: bytes, blob: Blob) -> None:
    """Stores a blob of an export under its recorded digest, which a masked one does not have."""
    row = {"tenant": tenant, "digest": digest, "uploaded_at": now(), **_mask_blob(connection, blob)._asdict()}
    _count_new(connection, tenant, {digest: blob.data})
    connection.execute(upsert(connection, blobs, replace=["uploaded_at"]), row)


def insert_blobs(connection: Connection, tenant: str, items: Iterable[Blob]) -> None:
    """Stores these blobs, unless they are stored."""
    new = {compute_digest(blob): _mask_blob(connection, blob) for blob in items}
    rows = [
        {"tenant": tenant, "digest": digest, "media_type": blob.media_type, "data": blob.data}
        for digest, blob in new.items()
    ]
    if rows:
        _count_new(connection, tenant, {digest: blob.data for digest, blob in new.items()})
        insert_rows(connection, blobs, rows, ignore_existing=True)


def _count_new(connection: Connection, tenant: str, contents: Mapping[bytes, bytes]) -> None:
    """Counts blobs that are not stored yet under the quota of the tenant, if it has one."""
    if is_counting(connection):
        stored = select_stored(connection, tenant, map(bytes.hex, contents))
        count_bytes(connection, sum(len(data) for digest, data in contents.items() if digest.hex() not in stored))


def _mask_blob(connection: Connection, blob: Blob) -> Blob:
    """The blob as it is stored. One that is masked has the digest of its original, by which messages refer to it, and
    its media type has the digest of the stored bytes."""
    masker = get_masker(connection)
    if masker is None:
        return blob
    try:
        text = blob.data.decode()
    except UnicodeDecodeError:
        return blob
    masked = masker.mask_text(text).encode()
    if masked == blob.data:
        return blob
    return Blob(f"{blob.media_type}{_MASKED_PARAMETER}{sha256(masked).hexdigest()}", masked)


_MASKED_PARAMETER = "; masked-sha256="


def compute_digest(blob: Blob) -> bytes:
    return sha256(blob.data).digest()


def has_digest(blob: Blob, digest: bytes) -> bool:
    """Whether a stored blob is as it was recorded under this digest. Of a masked one, the original is not known."""
    _, _, masked_digest = blob.media_type.partition(_MASKED_PARAMETER)
    return compute_digest(blob).hex() == (masked_digest or digest.hex())


def is_missing_blob(error: BlobNotFound | StoreError) -> bool:
    """Whether a blob is missing: a foreign key refused a reference to it, or its deletion while it was referenced."""
    cause = error.__cause__
    driver_error: object = getattr(cause, "orig", cause)
    return isinstance(error, BlobNotFound) or "foreign key" in str(driver_error).lower()


def record_blob_uses(connection: Connection, tenant: str, entry: Entry, digests: Iterable[str]) -> None:
    """Records that this entry references these blobs. Existing rows are skipped."""
    key = {"tenant": tenant, "conversation": entry.conversation, "branch": entry.branch, "seq": entry.seq}
    rows = [key | {"digest": bytes.fromhex(digest)} for digest in sorted(set(digests))]
    if rows:
        insert_rows(connection, blob_uses, rows, ignore_existing=True)


def select_stored(connection: Connection, tenant: str, digests: Iterable[str]) -> set[str]:
    """The digests whose blobs are stored."""
    candidates = [bytes.fromhex(digest) for digest in set(digests)]
    query = select(blobs.c.digest).where(blobs.c.tenant == tenant, blobs.c.digest.in_(candidates))
    return {digest.hex() for digest in connection.execute(query).scalars()}


class StoredBlob(NamedTuple):
    """A blob as it is stored: with its data, or with the name of the object that has it."""

    blob: Blob
    object: str | None


def get_stored_blob(connection: Connection, tenant: str, digest: str) -> StoredBlob:
    query = select(blobs.c.media_type, blobs.c.data, blobs.c.object).where(
        blobs.c.tenant == tenant, blobs.c.digest == bytes.fromhex(digest)
    )
    row = connection.execute(query).first()
    if row is None:
        raise BlobNotFound(f"No blob {digest} is stored for this tenant; check its digest.")
    return StoredBlob(Blob(row.media_type, row.data), row.object)


def check_blob(blob: Blob, digest: str) -> Blob:
    """The blob. Raises `IntegrityViolation` if it does not have its digest."""
    if not has_digest(blob, bytes.fromhex(digest)):
        raise IntegrityViolation(f"The blob {digest} does not have the bytes of its digest; restore it from a backup.")
    return blob


def list_used_blobs(connection: Connection, tenant: str, conversation: str) -> list[str]:
    """Sorted digests of all blobs that a conversation references."""
    query = (
        select(blob_uses.c.digest)
        .where(blob_uses.c.tenant == tenant, blob_uses.c.conversation == conversation)
        .distinct()
        .order_by(blob_uses.c.digest)
    )
    return [digest.hex() for digest in connection.execute(query).scalars()]


def delete_blob_uses(
    connection: Connection, tenant: str, conversation: str, *, branch: int, seqs: Iterable[int]
) -> None:
    """Deletes the blob references of these entries, and blobs without any other reference."""
    conditions = (
        blob_uses.c.tenant == tenant,
        blob_uses.c.conversation == conversation,
        blob_uses.c.branch == branch,
        blob_uses.c.seq.in_(list(seqs)),
    )
    digests = set(connection.execute(select(blob_uses.c.digest).where(*conditions)).scalars())
    if not digests:
        return
    connection.execute(delete(blob_uses).where(*conditions))
    delete_unused_blobs(connection, tenant, digests)


_IS_USED = exists().where(blob_uses.c.tenant == blobs.c.tenant, blob_uses.c.digest == blobs.c.digest)


def delete_unused_blobs(connection: Connection, tenant: str, digests: Collection[bytes]) -> None:
    """Deletes the blobs among these that no entry references."""
    delete_blobs(connection, tenant, blobs.c.digest.in_(digests), ~_IS_USED)


def delete_blobs(connection: Connection, tenant: str, *conditions: ColumnElement[bool]) -> None:
    """Deletes blobs, and records that their objects are no longer needed."""
    where = (blobs.c.tenant == tenant, *conditions)
    objects = connection.execute(select(blobs.c.object).where(*where, blobs.c.object.is_not(None)).with_for_update())
    release_objects(connection, tenant, objects.scalars().all())
    connection.execute(delete(blobs).where(*where))


def release_objects(connection: Connection, tenant: str, names: Iterable[str]) -> None:
    """Records that nothing refers to these objects any more, so that they are deleted after the commit."""
    rows = [{"tenant": tenant, "object": name, "since": 0} for name in names]
    if rows:
        connection.execute(upsert(connection, pending_objects, replace=["since"]), rows)


def delete_orphan_blobs(connection: Connection, tenant: str) -> None:
    """Deletes uploads older than `ORPHAN_BLOB_MICROS` that no entry references.

    Those that are referenced lose their upload time, so that each upload is examined once.
    """
    is_old = (blobs.c.tenant == tenant, blobs.c.uploaded_at < now() - ORPHAN_BLOB_MICROS)
    delete_blobs(connection, tenant, *is_old, ~_IS_USED)
    connection.execute(update(blobs).where(*is_old).values(uploaded_at=None))
