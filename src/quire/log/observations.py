"""Files of other programs that were imported to their end, and what was noticed in the conversations of them.

Both are derived from the files: without a row, the next import reads its file again.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from quire.db.dialects import upsert
from quire.db.schema import conversations, imported_files, observations
from quire.log.tenant_masker import mask_text


class FileVersion(NamedTuple):
    """A file of a source as it was when its import began."""

    file: bytes
    """Digest of the name of the source and the path."""
    size: int
    modified_ns: int
    reads: int = 1
    """Version of the reader of its source."""


class ObservedConversation(NamedTuple):
    """An imported conversation with what was noticed in it, as JSON."""

    conversation: str
    title: str
    client: str | None
    project: str | None
    observations: str


def make_file_key(source: str, path: str) -> bytes:
    return sha256(f"{source}\0{path}".encode(errors="replace")).digest()


def list_imported_files(connection: Connection, tenant: str) -> dict[bytes, FileVersion]:
    query = select(*(imported_files.c[name] for name in FileVersion._fields)).where(imported_files.c.tenant == tenant)
    return {row[0]: FileVersion._make(row) for row in connection.execute(query)}


def record_files(connection: Connection, tenant: str, files: Sequence[FileVersion], noticed: Mapping[str, str]) -> None:
    """Records files that were imported to their end, and what was noticed, by conversation."""
    if files:
        rows = [{"tenant": tenant, **each._asdict()} for each in files]
        connection.execute(upsert(connection, imported_files, replace=["size", "modified_ns", "reads"]), rows)
    if noticed:
        rows = [
            {"tenant": tenant, "conversation": conversation, "observations": mask_text(connection, text)}
            for conversation, text in noticed.items()
        ]
        connection.execute(upsert(connection, observations, replace=["observations"]), rows)


def read_observations(connection: Connection, tenant: str) -> list[ObservedConversation]:
    """All conversations in which something was noticed."""
    columns = (conversations.c[name] for name in ("conversation", "title", "client", "project"))
    query = (
        select(*columns, observations.c.observations)
        .join(
            observations,
            (observations.c.tenant == conversations.c.tenant)
            & (observations.c.conversation == conversations.c.conversation),
        )
        .where(conversations.c.tenant == tenant)
        .order_by(conversations.c.conversation)
    )
    return [ObservedConversation._make(row) for row in connection.execute(query)]


def delete_observations(connection: Connection, tenant: str, conversation: str) -> None:
    table = observations.c
    connection.execute(delete(observations).where(table.tenant == tenant, table.conversation == conversation))
