"""What requests quoted of memories that are purged: their manifests hold names, and blobs hold the texts.

A memory cites one conversation and may have been shown in any: all texts of the tenant are looked through, which a
purge may take its time for.
"""

from collections.abc import Iterable

from sqlalchemy import Connection, delete, select, text

from quire.log.blobs import drop_unquoted
from quire.log.found import Memory
from quire.log.schema import blob_uses, manifests
from quire.model import Manifest


def drop_memories(connection: Connection, tenant: str, forgotten: Iterable[Memory]) -> None:
    """Removes the texts in which requests were shown these memories. Other texts that say the same stay."""
    for memory in forgotten:
        for digest in _texts_with(connection, tenant, memory.text):
            _drop_from_requests(connection, tenant, digest)


def _texts_with(connection: Connection, tenant: str, said: str) -> list[bytes]:
    found = "position(:said IN data)" if connection.dialect.name == "postgresql" else "instr(data, :said)"
    statement = text(f"SELECT digest FROM quire_blobs WHERE tenant = :tenant AND {found} > 0")  # noqa: S608 (constants)
    return list(connection.execute(statement, {"tenant": tenant, "said": said.encode()}).scalars())


def _drop_from_requests(connection: Connection, tenant: str, digest: bytes) -> None:
    mine = (blob_uses.c.tenant == tenant, blob_uses.c.digest == digest)
    wanted = (
        select(blob_uses.c.conversation, blob_uses.c.branch, blob_uses.c.seq, manifests.c.manifest)
        .join(
            manifests,
            (manifests.c.tenant == blob_uses.c.tenant)
            & (manifests.c.conversation == blob_uses.c.conversation)
            & (manifests.c.branch == blob_uses.c.branch)
            & (manifests.c.seq == blob_uses.c.seq),
        )
        .where(*mine)
    )
    for conversation, branch, seq, manifest in connection.execute(wanted).all():
        if _shows_as_memory(Manifest.parse(manifest), digest.hex()):
            place = (blob_uses.c.conversation == conversation, blob_uses.c.branch == branch, blob_uses.c.seq == seq)
            connection.execute(delete(blob_uses).where(*mine, *place))
    drop_unquoted(connection, tenant, [digest])


def _shows_as_memory(manifest: Manifest, digest: str) -> bool:
    return any(row.what == "memory" and row.blob == digest for row in manifest.included)
