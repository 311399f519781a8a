"""Blobs: what a request quotes from outside the log, kept once for each tenant under the digest of its bytes."""

from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256

from sqlalchemy import Connection, delete, exists, select

from quire.errors import BlobNotFound, StoreError
from quire.log.dialects import insert_new, insert_rows
from quire.log.records import Blob
from quire.log.schema import blob_uses, blobs
from quire.model import Entry


def put_blob(connection: Connection, tenant: str, blob: Blob) -> str:
    digest = sha256(blob.data).digest()
    row = {"tenant": tenant, "digest": digest, "media_type": blob.media_type, "data": blob.data}
    connection.execute(insert_new(connection, blobs), row)
    return digest.hex()


def keep_blobs(connection: Connection, tenant: str, given: Iterable[Blob], *, but: Collection[bytes] = ()) -> None:
    """Keeps these blobs, but for those with these digests. Most texts that a request quotes, the one before quoted."""
    rows = [
        {"tenant": tenant, "digest": digest, "media_type": blob.media_type, "data": blob.data}
        for digest, blob in {digest_of(blob): blob for blob in given}.items()
        if digest not in but
    ]
    if rows:
        insert_rows(connection, blobs, rows, where_new=True)


def digest_of(blob: Blob) -> bytes:
    return sha256(blob.data).digest()


def is_missing(error: BlobNotFound | StoreError) -> bool:
    """Whether a quotation and a blob missed each other: the tables hold them together, and refused one of them."""
    cause = error.__cause__
    refused: object = getattr(cause, "orig", cause)
    return isinstance(error, BlobNotFound) or "foreign key" in str(refused).lower()


class StoredBlobs:
    """What this process has seen stored for a tenant, so that it is not sent again; a purge may make that wrong."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def __contains__(self, digest: object) -> bool:
        return digest in self._digests

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._digests)

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, given: Iterable[Blob]) -> None:
        if len(self._digests) > REMEMBERED:
            self._digests.clear()
        self._digests.update(map(digest_of, given))

    def forget(self) -> None:
        self._digests.clear()


REMEMBERED = 10_000


def write_uses(connection: Connection, tenant: str, entry: Entry, digests: Iterable[str]) -> None:
    """Notes that this entry quotes these blobs; what is noted already stays so."""
    place = {"tenant": tenant, "conversation": entry.conversation, "branch": entry.branch, "seq": entry.seq}
    rows = [place | {"digest": bytes.fromhex(digest)} for digest in sorted(set(digests))]
    if rows:
        insert_rows(connection, blob_uses, rows, where_new=True)


def get_blob(connection: Connection, tenant: str, digest: str) -> Blob:
    wanted = select(blobs.c.media_type, blobs.c.data).where(
        blobs.c.tenant == tenant, blobs.c.digest == bytes.fromhex(digest)
    )
    row = connection.execute(wanted).first()
    if row is None:
        raise BlobNotFound(f"No blob {digest} is stored for this tenant.")
    return Blob._make(row)


def quoted_by(connection: Connection, tenant: str, conversation: str) -> list[str]:
    """The digests of all blobs that a conversation quotes, sorted."""
    wanted = (
        select(blob_uses.c.digest)
        .where(blob_uses.c.tenant == tenant, blob_uses.c.conversation == conversation)
        .distinct()
        .order_by(blob_uses.c.digest)
    )
    return [digest.hex() for digest in connection.execute(wanted).scalars()]


def drop_uses(connection: Connection, tenant: str, conversation: str, *, branch: int, seqs: Iterable[int]) -> None:
    """These entries no longer quote anything; blobs that nobody else quotes go."""
    mine = (
        blob_uses.c.tenant == tenant,
        blob_uses.c.conversation == conversation,
        blob_uses.c.branch == branch,
        blob_uses.c.seq.in_(list(seqs)),
    )
    digests = set(connection.execute(select(blob_uses.c.digest).where(*mine)).scalars())
    if not digests:
        return
    connection.execute(delete(blob_uses).where(*mine))
    drop_unquoted(connection, tenant, digests)


def drop_unquoted(connection: Connection, tenant: str, digests: Collection[bytes]) -> None:
    """Of these blobs, those that nobody quotes go."""
    still_quoted = exists().where(blob_uses.c.tenant == blobs.c.tenant, blob_uses.c.digest == blobs.c.digest)
    connection.execute(delete(blobs).where(blobs.c.tenant == tenant, blobs.c.digest.in_(digests), ~still_quoted))
