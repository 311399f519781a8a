"""Blobs: what a request quotes from outside the log, kept once for each tenant under the digest of its bytes."""

from collections.abc import Collection, Iterable
from hashlib import sha256

from sqlalchemy import Connection, delete, exists, select

from quire.errors import BlobNotFound
from quire.log.dialects import insert_new
from quire.log.records import Blob
from quire.log.schema import blob_uses, blobs


def put_blob(connection: Connection, tenant: str, blob: Blob) -> str:
    digest = sha256(blob.data).digest()
    row = {"tenant": tenant, "digest": digest, "media_type": blob.media_type, "data": blob.data}
    connection.execute(insert_new(connection, blobs), row)
    return digest.hex()


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
