"""Object storage: large blobs, and unused conversations.

Nothing that a request waits for is written to object storage. A blob is stored in the database with its message, and a
job moves it later; so live conversations go on while the object storage is away. An object is uploaded and read back
before the transaction that refers to it and removes the rows. `quire_pending_objects` names every object before its
upload and from the moment that nothing refers to it any more, so that a crash leaves no object behind.

The archive of a conversation has its entries, manifests and exchanges, compressed, and encrypted if the tenant is.
Its row, branches, blobs, index, costs and imports stay, and that by which a client finds it: the paths of the first
reply and of each head, and the ids of responses. A transaction that needs the entries raises `EntriesOffloaded`; the
store restores them and repeats it. A purge therefore works on rows as always, and leaves an object that nothing refers
to.
"""

import asyncio
import json
import lzma
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from cachetools import LRUCache
from sqlalchemy import Column, Connection, Table, delete, func, literal, select, text, tuple_, update

from quire.db.column_types import SealedBytes, open_value, seal_value, verify_values
from quire.db.database import TransactionOptions
from quire.db.dialects import insert_rows, upsert
from quire.db.raw_sql import yield_to_event_loop
from quire.db.schema import (
    archived_replies,
    archives,
    blob_uses,
    blobs,
    conversations,
    entries,
    exchanges,
    manifests,
    paths,
    pending_objects,
    uncounted_branches,
    unindexed_branches,
)
from quire.db.store_part import StorePart, TenantDatabase, read, read_bulk, write, write_bulk
from quire.errors import IntegrityViolation, InvalidConfiguration, ObjectStorageUnavailable
from quire.log.blobs import release_objects
from quire.log.body_deltas import decode_delta
from quire.log.conversations import get_conversation, list_branches, lock_branches, overwrite_branch
from quire.log.exchanges import MAX_DECODED_BYTES, decode_answer, from_body_row
from quire.log.reads import ENTRY_COLUMNS
from quire.log.row_digests import has_row_digest, with_row_digest
from quire.log.titles import fill_titles
from quire.log.types import IntegrityFault, MessageKey
from quire.model import Entry
from quire.model.ids import now
from quire.objects import MissingObject, ObjectKind, ObjectStorage, make_object_name
from quire.store.integrity import ReadObject, verify_conversation
from quire.store.purge import find_holding_blobs, list_written_forms

ARCHIVED_TABLES = (entries, manifests, exchanges)
BODY_TABLE = "quire_request_bodies"
"""Table of the bodies of requests in archives of earlier versions."""
ROWS_PER_LINE = 500
LARGE_ROWS_PER_LINE = 20
_BYTES_KEY = "base64"
COMPRESSION_PRESET = 2
MIN_MOVED_BYTES = 65_536
"""Size from which a blob moves to the object storage."""
UPLOAD_MICROS = 3_600 * 1_000_000
"""Time after which an upload that did not end is given up, and its object deleted."""
READ_GRACE_SECONDS = 0.5
"""Time between the mark on a conversation in SQLite and the removal of its rows. A read on the event loop has no
snapshot there: one that saw no mark finds the rows."""
_SQLITE_PATHS = 500
"""Paths in one statement of SQLite."""


class OffloadResult(NamedTuple):
    """The archive of a conversation that was offloaded."""

    conversation: str
    row_bytes: int
    """Bytes of the texts and bodies in its rows."""
    object_bytes: int


class _Archive(NamedTuple):
    lines: tuple[str, ...]
    title: str
    tokens: int
    row_bytes: int


def _own(table: Any, tenant: str, conversation: str) -> tuple[Any, Any]:
    return table.c.tenant == tenant, table.c.conversation == conversation


# --- Archives of conversations


def pack_lines(lines: Sequence[str]) -> bytes:
    return lzma.compress("\n".join(lines).encode(errors="surrogatepass"), preset=COMPRESSION_PRESET)


def unpack_lines(data: bytes) -> list[str]:
    """The lines of an archive. Raises `ValueError` if the bytes are none."""
    try:
        return lzma.decompress(data).decode(errors="surrogatepass").split("\n")
    except lzma.LZMAError as error:
        raise ValueError(f"not an archive: {error}") from error


def _list_columns(table: Table) -> list[Column[Any]]:
    """The columns of an archived row, in their order."""
    return [column for column in table.columns if column.name != "tenant"]


def _format_rows(table: Table, rows: Sequence[Sequence[Any]]) -> str:
    """A line with these rows."""
    value = {"table": table.name, "columns": [column.name for column in _list_columns(table)], "rows": rows}
    return json.dumps(value, default=_encode_bytes, ensure_ascii=False, separators=(",", ":"))


def parse_rows(line: str) -> tuple[str, list[dict[str, Any]]]:
    """The name of the table and the rows of a line."""
    content = json.loads(line)
    rows = [dict(zip(content["columns"], map(_decode_value, row), strict=True)) for row in content["rows"]]
    if content["table"] == BODY_TABLE:
        return exchanges.name, [from_body_row(row) for row in rows]
    return content["table"], rows


def _encode_bytes(value: object) -> dict[str, str]:
    if not isinstance(value, bytes):
        raise TypeError(f"a row has no values of type {type(value).__name__}")
    return {_BYTES_KEY: b64encode(value).decode()}


def _decode_value(value: Any) -> Any:
    return b64decode(cast(dict[str, str], value)[_BYTES_KEY]) if isinstance(value, dict) else value


def _read_pages(connection: Connection, tenant: str, table: Table, conversation: str) -> Iterator[list[list[Any]]]:
    """The archived columns of the conversation's rows, in the order of their key, which begins with the tenant."""
    columns, key = _list_columns(table), list(table.primary_key.columns)[1:]
    limit = LARGE_ROWS_PER_LINE if table is exchanges else ROWS_PER_LINE
    query = select(*columns).where(*_own(table, tenant, conversation)).order_by(*key).limit(limit)
    page = [list(row) for row in connection.execute(query)]
    while page:
        yield page
        last = tuple_(*(literal(page[-1][columns.index(column)], column.type) for column in key))
        page = [list(row) for row in connection.execute(query.where(tuple_(*key) > last))]


def _build_archive(connection: Connection, tenant: str, conversation: str) -> _Archive | None:
    """The archive, or None if the conversation has background work or nothing to move."""
    branches = list_branches(connection, tenant, conversation)
    if any(branch.state.offloaded for branch in branches) or not any(branch.head_seq for branch in branches):
        return None
    for outbox in (unindexed_branches, uncounted_branches):
        if connection.execute(select(outbox.c.branch).where(*_own(outbox, tenant, conversation)).limit(1)).first():
            return None
    lines: list[str] = []
    row_bytes = 0
    for table in ARCHIVED_TABLES:
        sized = [
            index
            for index, column in enumerate(_list_columns(table))
            if column.name in ("body", "notes", "request", "response")
        ]
        for rows in _read_pages(connection, tenant, table, conversation):
            lines.append(_format_rows(table, rows))
            row_bytes += sum(_count_bytes(row[index]) for row in rows for index in sized)
            yield_to_event_loop(connection)
    tokens = select(func.sum(entries.c.tokens)).where(*_own(entries, tenant, conversation), entries.c.kind == "message")
    record = get_conversation(connection, tenant, conversation)
    [titled] = fill_titles(connection, tenant, record)
    return _Archive(
        tuple(lines), "" if record.title else titled.title, int(connection.execute(tokens).scalar() or 0), row_bytes
    )


def _count_bytes(value: str | bytes | None) -> int:
    return len(value.encode(errors="surrogatepass") if isinstance(value, str) else value or b"")


def _verify_and_build(connection: Connection, tenant: str, conversation: str) -> _Archive | None:
    archive = _build_archive(connection, tenant, conversation)
    if archive is not None and (faults := verify_conversation(connection, tenant, conversation)):
        raise IntegrityViolation(
            f"The conversation {conversation!r} stays in the database, because a row was changed: {faults[0].problem}."
        )
    return archive


def _mark_offloaded(
    connection: Connection, tenant: str, conversation: str, name: str, archive: _Archive
) -> float | None:
    """Records the archive, and returns for how many seconds the rows have to stay, or None if the conversation was used
    since the archive was made."""
    branches = lock_branches(connection, tenant, conversation, is_offloading=True)
    if _lock_pending(connection, tenant, name) is None:
        return None
    locked = select(manifests.c.response_id).where(*_own(manifests, tenant, conversation)).with_for_update()
    replies = {each for each in connection.execute(locked).scalars() if each is not None}
    if _build_archive(connection, tenant, conversation) != archive:
        return None
    row = {
        "tenant": tenant,
        "conversation": conversation,
        "object": name,
        "title": archive.title,
        "tokens": archive.tokens,
        "bytes": archive.row_bytes,
        "changed_at": now(),
    }
    _put_archive(connection, row)
    for branch in branches:
        state = branch.state.model_copy(update={"offloaded": True})
        overwrite_branch(connection, tenant, branch._replace(state=state))
    named = [{"tenant": tenant, "response_id": each, "conversation": conversation} for each in sorted(replies)]
    if named:
        insert_rows(connection, archived_replies, named, ignore_existing=True)
    return READ_GRACE_SECONDS if connection.dialect.name == "sqlite" else 0.0


def _put_archive(connection: Connection, row: dict[str, Any]) -> None:
    columns = [column.name for column in archives.columns if not column.primary_key]
    connection.execute(upsert(connection, archives, replace=columns), with_row_digest(archives, row))


def _delete_rows(connection: Connection, tenant: str, conversation: str, name: str) -> None:
    """Deletes the rows of a conversation whose archive this object is. Nothing if it was restored meanwhile."""
    lock_branches(connection, tenant, conversation, is_offloading=True)
    if _get_object(connection, tenant, conversation) != name or _lock_pending(connection, tenant, name) is None:
        return
    own = _own(entries, tenant, conversation)
    messages = select(entries.c.path).where(*own, entries.c.kind == "message")
    kept = {branch.head_path for branch in list_branches(connection, tenant, conversation)}
    first_reply = messages.where(entries.c.role == "assistant").order_by(entries.c.branch, entries.c.seq).limit(1)
    kept.update(connection.execute(first_reply).scalars())
    unneeded = sorted(set(connection.execute(messages).scalars()) - kept)
    if connection.dialect.name == "postgresql":
        delete_all = text("SELECT quire_delete_offloaded(:conversation, CAST(:paths AS bytea[]))")
        connection.execute(delete_all, {"conversation": conversation, "paths": unneeded})
    else:
        for start in range(0, len(unneeded), _SQLITE_PATHS):
            some = unneeded[start : start + _SQLITE_PATHS]
            connection.execute(delete(paths).where(*_own(paths, tenant, conversation), paths.c.path.in_(some)))
        for table in ARCHIVED_TABLES:
            connection.execute(delete(table).where(*_own(table, tenant, conversation)))
    connection.execute(delete(pending_objects).where(*_is_pending(tenant, name)))


def _insert_rows(connection: Connection, tenant: str, conversation: str, name: str, lines: Sequence[str]) -> None:
    """Restores the rows of an archive. Those of an offload that was interrupted are still there."""
    branches = lock_branches(connection, tenant, conversation, is_offloading=True)
    stored = connection.execute(select(archives).where(*_own(archives, tenant, conversation))).mappings().one()
    if stored["object"] != name:
        return
    tables = {table.name: table for table in ARCHIVED_TABLES}
    for line in lines:
        table_name, values = parse_rows(line)
        rows = [{"tenant": tenant, **row} for row in values]
        insert_rows(connection, tables[table_name], rows, ignore_existing=True)
        if table_name == entries.name:
            messages = [
                {name: row[name] for name in ("tenant", "path", "conversation", "branch", "seq")}
                for row in rows
                if row["kind"] == "message"
            ]
            if messages:
                insert_rows(connection, paths, messages, ignore_existing=True)
        yield_to_event_loop(connection)
    for branch in branches:
        state = branch.state.model_copy(update={"offloaded": None})
        overwrite_branch(connection, tenant, branch._replace(state=state))
    connection.execute(delete(archived_replies).where(*_own(archived_replies, tenant, conversation)))
    _put_archive(connection, {**stored, "object": None, "title": "", "tokens": 0, "changed_at": now()})
    release_objects(connection, tenant, [name])


def _get_object(connection: Connection, tenant: str, conversation: str) -> str | None:
    return connection.execute(select(archives.c.object).where(*_own(archives, tenant, conversation))).scalar()


def _list_archives(connection: Connection, tenant: str) -> list[tuple[str, str]]:
    """Conversations in object storage, with their objects."""
    is_archived = (archives.c.tenant == tenant, archives.c.object.is_not(None))
    rows = connection.execute(select(archives.c.conversation, archives.c.object).where(*is_archived))
    return [(row.conversation, row.object) for row in rows]


def _list_moved_blobs(connection: Connection, tenant: str) -> list[tuple[bytes, str]]:
    """Blobs in object storage, with their objects."""
    is_moved = (blobs.c.tenant == tenant, blobs.c.object.is_not(None))
    rows = connection.execute(select(blobs.c.digest, blobs.c.object).where(*is_moved))
    return [(row.digest, row.object) for row in rows]


def verify_stored(
    connection: Connection, tenant: str, conversation: str, *, read_object: ReadObject
) -> list[IntegrityFault]:
    """The faults of a conversation, wherever its entries are. An archive has the bytes that were verified."""
    faults = verify_conversation(connection, tenant, conversation, read_object=read_object)
    with verify_values():
        row = connection.execute(select(archives).where(*_own(archives, tenant, conversation))).mappings().first()
        try:
            branches = list_branches(connection, tenant, conversation)
        except IntegrityViolation:
            # The row of a branch was changed, which is among the faults.
            return faults
        if row is not None and not has_row_digest(archives, row):
            faults.append(IntegrityFault(None, None, "the row of the conversation's archive is not as it was recorded"))
        if not any(branch.state.offloaded for branch in branches):
            return faults
        try:
            lines = unpack_lines(read_object(connection, (row["object"] if row is not None else None) or ""))
            found = [row for line in lines for name, rows in [parse_rows(line)] if name == entries.name for row in rows]
        except (IntegrityViolation, ValueError, LookupError):
            return [*faults, IntegrityFault(None, None, "the conversation's archive is missing or was changed")]
    heads = {(row["branch"], row["seq"]): row["digest"] for row in found}
    for branch in branches:
        if branch.head_seq > branch.fork_seq and heads.get((branch.number, branch.head_seq)) != branch.head_digest:
            fault = "is not the last entry of the branch in the conversation's archive"
            faults.append(IntegrityFault(branch.number, branch.head_seq, fault))
    return faults


def _list_restored(connection: Connection, tenant: str, *, before: int) -> list[str]:
    """Conversations that were restored before this time and not used since; others leave the list."""
    is_restored = (archives.c.tenant == tenant, archives.c.object.is_(None), archives.c.changed_at < before)
    query = select(archives, conversations.c.updated_at).join(
        conversations,
        (conversations.c.tenant == archives.c.tenant) & (conversations.c.conversation == archives.c.conversation),
    )
    unused: list[str] = []
    for row in connection.execute(query.where(*is_restored)).mappings().all():
        if row["updated_at"] < before:
            unused.append(row["conversation"])
        else:
            values = {column.name: row[column.name] for column in archives.columns}
            _put_archive(connection, {**values, "changed_at": row["updated_at"]})
    return unused


def _is_restored(connection: Connection, tenant: str, conversation: str) -> bool:
    """Whether the conversation was restored. It is offloaded again once it was unused since."""
    is_own = (*_own(archives, tenant, conversation), archives.c.object.is_(None))
    return connection.execute(select(archives.c.conversation).where(*is_own)).first() is not None


# --- Objects that are being uploaded or removed


def _is_pending(tenant: str, name: str) -> tuple[Any, Any]:
    return pending_objects.c.tenant == tenant, pending_objects.c.object == name


def _begin_upload(connection: Connection, tenant: str, name: str) -> None:
    insert_rows(connection, pending_objects, [{"tenant": tenant, "object": name, "since": now()}])


def _lock_pending(connection: Connection, tenant: str, name: str) -> int | None:
    """When the upload began, or None if it was given up."""
    query = select(pending_objects.c.since).where(*_is_pending(tenant, name), pending_objects.c.since > 0)
    return connection.execute(query.with_for_update()).scalar()


def _list_pending(connection: Connection, tenant: str, *, before: int) -> list[str]:
    is_old = (pending_objects.c.tenant == tenant, pending_objects.c.since < before)
    return list(connection.execute(select(pending_objects.c.object).where(*is_old)).scalars())


def _give_up(connection: Connection, tenant: str, name: str) -> bool:
    """Marks an object for removal. Returns False if it is in use: of an archive, the rows are deleted instead."""
    conversation, blob = (
        connection.execute(select(key).where(key.table.c.tenant == tenant, key.table.c.object == name)).scalar()
        for key in (archives.c.conversation, blobs.c.digest)
    )
    if conversation is not None:
        _delete_rows(connection, tenant, conversation, name)
    if conversation is None and blob is None:
        release_objects(connection, tenant, [name])
        return True
    _end_removal(connection, tenant, name)
    return False


def _end_removal(connection: Connection, tenant: str, name: str) -> None:
    connection.execute(delete(pending_objects).where(*_is_pending(tenant, name)))


# --- Blobs


def _list_large_blobs(connection: Connection, tenant: str, conversation: str, *, min_bytes: int) -> list[bytes]:
    """Digests of the large blobs in the database that a conversation uses."""
    query = (
        select(blobs.c.digest)
        .join(blob_uses, (blob_uses.c.tenant == blobs.c.tenant) & (blob_uses.c.digest == blobs.c.digest))
        .where(*_own(blob_uses, tenant, conversation), func.length(blobs.c.data) >= min_bytes)
        .distinct()
    )
    return list(connection.execute(query).scalars())


def _get_data(connection: Connection, tenant: str, digest: bytes) -> bytes | None:
    return connection.execute(select(blobs.c.data).where(blobs.c.tenant == tenant, blobs.c.digest == digest)).scalar()


def _move_blob(connection: Connection, tenant: str, digest: bytes, name: str, size: int) -> bool:
    """Refers to the object in place of the data, unless the blob was purged or moved meanwhile."""
    if _lock_pending(connection, tenant, name) is None:
        return False
    is_blob = (blobs.c.tenant == tenant, blobs.c.digest == digest, blobs.c.object.is_(None))
    moved = connection.execute(update(blobs).where(*is_blob).values(data=b"", object=name, size=size)).rowcount
    if moved:
        _end_removal(connection, tenant, name)
    return bool(moved)


def _return_blob(connection: Connection, tenant: str, digest: bytes, name: str, data: bytes) -> None:
    """Stores the data of a blob in the database again."""
    is_blob = (blobs.c.tenant == tenant, blobs.c.digest == digest, blobs.c.object == name)
    if connection.execute(update(blobs).where(*is_blob).values(data=data, object=None, size=None)).rowcount:
        release_objects(connection, tenant, [name])


class Offloading(StorePart):
    """What of the tenant is in object storage."""

    list_restored = write(_list_restored)
    is_restored = read(_is_restored)

    def __init__(self, base: TenantDatabase, storage: ObjectStorage | None) -> None:
        super().__init__(base)
        self._storage = storage
        base.restore = self.restore

    @property
    def is_enabled(self) -> bool:
        return self._storage is not None

    def get_storage(self) -> ObjectStorage:
        """The object storage. Raises `InvalidConfiguration` if this process has none."""
        if self._storage is None:
            raise InvalidConfiguration(
                "There is no object storage: `object_storage_url` is not set. Set it as on your servers."
            )
        return self._storage

    async def offload(self, conversation: str) -> OffloadResult | None:
        """Moves the rows of a conversation to object storage, or None if there is nothing to move, or it is in use.

        Raises `IntegrityViolation` if a row of it was changed: then it stays.
        """
        archive = await self.run(read_bulk, _verify_and_build, conversation)
        if archive is None:
            return None
        data = await self._seal(await asyncio.to_thread(pack_lines, archive.lines))
        name = await self._upload("conversations", data)
        grace = await self.run(write_bulk, _mark_offloaded, conversation, name, archive)
        if grace is None:
            await self._remove(name)
            return None
        await asyncio.sleep(grace)
        await self.run(write_bulk, _delete_rows, conversation, name)
        return OffloadResult(conversation, archive.row_bytes, len(data))

    async def restore(self, conversation: str) -> None:
        """Brings the rows of a conversation back, and removes its object."""
        name = await self.run(read, _get_object, conversation)
        lines = await self._read_archive(conversation, name) if name is not None else None
        if name is not None and lines is not None:
            await self.run(write_bulk, _insert_rows, conversation, name, lines)
            await self._remove(name)

    async def restore_containing(self, value: str) -> None:
        """Brings back every conversation and blob that contains this text, so that a search or purge finds it in the
        database. A message contains the text of its attachment, whose digest it has."""
        forms = list_written_forms(value)
        for digest, name in await self.run(read_bulk, _list_moved_blobs):
            data = await self.read_object(name)
            if any(form.encode(errors="surrogatepass") in data for form in forms):
                await self.run(write_bulk, _return_blob, digest, name, data)
        archived = await self.run(read_bulk, _list_archives)
        if archived:
            forms += await self.run(read_bulk, find_holding_blobs, forms)
        for conversation, name in archived:
            lines = await self._read_archive(conversation, name)
            if lines is not None and await asyncio.to_thread(_has_text, lines, forms):
                await self.run(write_bulk, _insert_rows, conversation, name, lines)
        await self.collect()

    async def move_blobs(self, conversation: str, *, min_bytes: int = MIN_MOVED_BYTES) -> int:
        """Moves the large blobs that a conversation uses. Returns their number."""
        count = 0
        for digest in await self.run(read_bulk, _list_large_blobs, conversation, min_bytes=min_bytes):
            data = await self.run(read_bulk, _get_data, digest)
            if data:
                name = await self._upload("blobs", await self._seal(data))
                is_moved = await self.run(write_bulk, _move_blob, digest, name, len(data))
                count += is_moved
                if not is_moved:
                    await self._remove(name)
        return count

    async def read_messages(self, keys: Iterable[MessageKey]) -> dict[MessageKey, Entry]:
        """These messages, from archives that stay where they are."""
        by_conversation: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
        for key in keys:
            by_conversation[key.conversation].add((key.branch, key.seq))
        found: dict[MessageKey, Entry] = {}

        async def find(conversation: str, positions: set[tuple[int, int]]) -> None:
            name = await self.run(read, _get_object, conversation)
            lines = await self._read_archive(conversation, name) if name is not None else None
            for line in lines or ():
                table_name, rows = parse_rows(line)
                for row in rows if table_name == entries.name else ():
                    if (row["branch"], row["seq"]) in positions and row["purged_at"] is None:
                        entry = Entry._make(row[column.name] for column in ENTRY_COLUMNS)
                        found[MessageKey(conversation, entry.branch, entry.seq)] = entry

        await asyncio.gather(*(find(*each) for each in by_conversation.items()))
        return found

    async def _read_archive(self, conversation: str, name: str) -> list[str] | None:
        """The lines of a conversation's archive, or None if the conversation came back since it was that archive."""
        try:
            data = await self.read_object(name)
        except MissingObject:
            if await self.run(read, _get_object, conversation) == name:
                raise
            return None
        try:
            return await asyncio.to_thread(unpack_lines, data)
        except ValueError as error:
            raise IntegrityViolation(f"The archive of {conversation!r} cannot be read: {error}.") from error

    async def read_object(self, name: str) -> bytes:
        """The content of an object, decrypted."""
        sealed = await self.get_storage().get(self.base.tenant, name)
        cipher = await self.base.keys.find(self.base.database, self.base.tenant, writes=False)
        return sealed if cipher is None else cast(SealedBytes, blobs.c.data.type).open(cipher, sealed)

    def read_in_transaction(self, connection: Connection, name: str) -> bytes:
        """Like `read_object`, in a long transaction: an export or a verification."""
        if connection.dialect.name == "sqlite":
            sealed = self.get_storage().get_blocking(self.base.tenant, name)
        else:
            from sqlalchemy.util import await_only

            sealed = await_only(self.get_storage().get(self.base.tenant, name))
        return open_value(blobs.c.data, sealed)

    async def collect(self) -> int:
        """Removes objects that nothing refers to, and finishes what a crash interrupted. Returns the number.

        If the object storage is away, they are removed later.
        """
        if self._storage is None:
            return 0
        count = 0
        for name in await self.run(read, _list_pending, before=now() - UPLOAD_MICROS):
            if await self.run(write_bulk, _give_up, name):
                await self._remove(name)
            count += 1
        return count

    async def delete_all(self) -> int:
        """Deletes all objects of the tenant. Returns their number."""
        names = await self.get_storage().list(self.base.tenant)
        for name in names:
            await self.get_storage().delete(self.base.tenant, name)
        return len(names)

    async def has_objects(self) -> bool:
        """Whether something is in object storage, for a purge that may lack the tenant's key."""
        base = self.base

        def find(connection: Connection) -> bool:
            return bool(_list_archives(connection, base.tenant) or _list_moved_blobs(connection, base.tenant))

        return await base.database.read(find, TransactionOptions(base.tenant))

    async def _seal(self, data: bytes) -> bytes:
        return await self.run(write, _seal, data)

    async def _upload(self, kind: ObjectKind, data: bytes) -> str:
        name = make_object_name(kind, data)
        await self.run(write, _begin_upload, name)
        await self.get_storage().put(self.base.tenant, name, data)
        return name

    async def _remove(self, name: str) -> None:
        await self.run(write, _release, name)
        try:
            await self.get_storage().delete(self.base.tenant, name)
        except ObjectStorageUnavailable:
            return
        await self.run(write, _end_removal, name)


def _seal(_connection: Connection, _tenant: str, data: bytes) -> bytes:
    return seal_value(blobs.c.data, data)


def _release(connection: Connection, tenant: str, name: str) -> None:
    release_objects(connection, tenant, [name])


def _has_text(lines: Iterable[str], forms: Collection[str]) -> bool:
    """Whether an archive has one of these texts in an entry, a manifest or a body."""
    encoded = [form.encode(errors="surrogatepass") for form in forms]
    deltas: dict[str, tuple[str | None, bytes]] = {}
    for line in lines:
        table_name, rows = parse_rows(line)
        texts = (value for row in rows for value in row.values() if isinstance(value, str))
        if any(form in value for value in texts for form in forms):
            return True
        if table_name == exchanges.name:
            for row in rows:
                deltas[row["exchange"]] = row["base"], row["request"]
                headers, answer = decode_answer(row["response"])
                if any(form in answer or form in repr(headers).encode() for form in encoded):
                    return True
    decoded: LRUCache[str, bytes] = LRUCache(MAX_DECODED_BYTES, getsizeof=len)
    for key in deltas:
        chain: list[str] = []
        current: str | None = key
        content: bytes | None = b""
        while current is not None and (content := decoded.get(current)) is None:
            chain.append(current)
            current, content = deltas[current][0], b""
        for each in reversed(chain):
            delta = deltas[each][1]
            content = decode_delta(content or b"", delta) if delta else b""
            if any(form in content for form in encoded):
                return True
            if len(content) <= MAX_DECODED_BYTES:
                decoded[each] = content
    return False
