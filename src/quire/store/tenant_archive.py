"""Archive of a whole tenant: the rows of its tables as JSON Lines, for a backup or a move to another database.

Derived rows are included, so that search works at once. Vectors of passages are not, because their type depends on the
database: they are computed again. Background responses, leases, live events, rate limits and reserved
spending end with their processes. An archive is not encrypted, and an import encrypts it with the key of its tenant.
"""

import json
import lzma
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, cast

from sqlalchemy import Column, ColumnElement, Connection, Table, literal, select, tuple_

from quire.db.column_types import VECTOR_TERM_PREFIX
from quire.db.dialects import insert_rows, insert_tuples
from quire.db.migrate import SCHEMA_VERSION
from quire.db.schema import (
    api_keys,
    archived_replies,
    archives,
    audit_exports,
    background_responses,
    blobs,
    branches,
    conversations,
    message_segments,
    metadata,
    passages,
    paths,
    pending_objects,
    rate_limits,
    request_bodies,
    sessions,
    spend_reservations,
    tenant_keys,
    terms,
    turn_events,
    turn_leases,
)
from quire.errors import ImportFailed
from quire.index.types import messages_scope
from quire.log.row_digests import with_row_digest
from quire.model import BranchState

ARCHIVE_FORMAT = 1
ROWS_PER_LINE = 500
LARGE_ROWS_PER_LINE = 20
_LARGE_TABLES = (blobs, request_bodies, message_segments)
_LIVE_TABLES = (
    background_responses, turn_leases, turn_events, rate_limits, spend_reservations, sessions, audit_exports,
    tenant_keys, archives, archived_replies, pending_objects,
)  # fmt: skip
_VECTOR_COLUMNS = (passages.c.embedder, passages.c.vector)
_BYTES_KEY = "base64"
COMPRESSION_PRESET = 2


class TenantArchive(NamedTuple):
    """What an archive contains."""

    tenant: str
    conversations: int
    rows: int
    skipped_keys: int = 0
    """API keys that an import left out, because another tenant of the database has them."""


def list_archived_tables() -> list[Table]:
    """Tables with rows of tenants, each after those that it refers to."""
    return [table for table in metadata.tables.values() if "tenant" in table.c and table not in _LIVE_TABLES]


def pack_lines(lines: Sequence[str]) -> bytes:
    return lzma.compress("\n".join(lines).encode(errors="surrogatepass"), preset=COMPRESSION_PRESET)


def unpack_lines(data: bytes) -> list[str]:
    """The lines of an archive. Raises `ValueError` if the bytes are none."""
    try:
        return lzma.decompress(data).decode(errors="surrogatepass").split("\n")
    except lzma.LZMAError as error:
        raise ValueError(f"not an archive: {error}") from error


def export_tenant(
    connection: Connection,
    tenant: str,
    write: Callable[[str], object],
    *,
    read_object: Callable[[Connection, str], bytes],
) -> TenantArchive:
    """Writes the archive line by line, all of it from the same snapshot.

    What is in object storage is written as the rows that it was: an archive needs no object storage.
    """
    checksum, counts = sha256(), Counter[str]()
    is_offloaded = (archives.c.tenant == tenant, archives.c.object.is_not(None))
    stored = connection.execute(select(archives.c.conversation, archives.c.object).where(*is_offloaded))
    offloaded: dict[str, str] = {row.conversation: row.object for row in stored}

    def write_line(line: str) -> None:
        checksum.update(line.encode())
        write(f"{line}\n")

    header = {"archive": ARCHIVE_FORMAT, "schema": SCHEMA_VERSION, "tenant": tenant}
    write_line(json.dumps(header, ensure_ascii=False, separators=(",", ":")))
    for table in list_archived_tables():
        for rows in read_pages(connection, tenant, table):
            if table is blobs:
                rows = [_include_data(row, lambda name: read_object(connection, name)) for row in rows]
            elif table is branches and offloaded:
                rows = [_mark_restored(row) if row[0] in offloaded else row for row in rows]
            write_line(format_rows(table, rows))
            counts[table.name] += len(rows)
        if table is paths:
            known = _list_paths(connection, tenant, offloaded)
            for name in offloaded.values():
                for line in unpack_lines(read_object(connection, name)):
                    table_name, rows_by_name = parse_rows(line)
                    write_line(line)
                    counts[table_name] += len(rows_by_name)
                    messages = [
                        [row["path"], row["conversation"], row["branch"], row["seq"]]
                        for row in rows_by_name
                        if row.get("kind") == "message" and (row["conversation"], row["path"]) not in known
                    ]
                    if messages:
                        write_line(format_rows(paths, messages))
                        counts[paths.name] += len(messages)
    write(json.dumps({"rows": counts, "sha256": checksum.hexdigest()}) + "\n")
    return TenantArchive(tenant, counts[conversations.name], counts.total())


def _include_data(row: list[Any], read_data: Callable[[str], bytes]) -> list[Any]:
    """The row of a blob with the data that is in object storage."""
    values = dict(zip(_list_names(blobs), row, strict=True))
    if values["object"] is None:
        return row
    return list((values | {"data": read_data(values["object"]), "object": None, "size": None}).values())


def _mark_restored(row: list[Any]) -> list[Any]:
    """The row of a branch as it is with its entries in the database."""
    names = _list_names(branches)
    values = dict(zip(names, row, strict=True))
    state = BranchState.parse(values["state"]).model_copy(update={"offloaded": None})
    restored = with_row_digest(branches, {**values, "state": state.canonical_json()})
    return [restored[name] for name in names]


def _list_paths(connection: Connection, tenant: str, conversations: Collection[str]) -> set[tuple[str, bytes]]:
    """The paths of these conversations."""
    query = select(paths.c.conversation, paths.c.path).where(paths.c.tenant == tenant)
    rows = connection.execute(query.where(paths.c.conversation.in_(list(conversations)))) if conversations else ()
    return {(conversation, path) for conversation, path in rows}


def format_rows(table: Table, rows: Sequence[Sequence[Any]]) -> str:
    """A line with these rows."""
    value = {"table": table.name, "columns": _list_names(table), "rows": rows}
    return json.dumps(value, default=_encode_bytes, ensure_ascii=False, separators=(",", ":"))


def parse_rows(line: str) -> tuple[str, list[dict[str, Any]]]:
    """The name of the table and the rows of a line."""
    content = json.loads(line)
    return content["table"], [
        dict(zip(content["columns"], map(_decode_value, row), strict=True)) for row in content["rows"]
    ]


def list_columns(table: Table) -> list[Column[Any]]:
    """The columns of an archived row, in their order."""
    return [column for column in table.columns if column.name != "tenant" and column not in _VECTOR_COLUMNS]


def _list_names(table: Table) -> list[str]:
    return [column.name for column in list_columns(table)]


def read_pages(
    connection: Connection, tenant: str, table: Table, *conditions: ColumnElement[bool]
) -> Iterator[list[list[Any]]]:
    """The archived columns of the tenant's rows, in the order of their key, which begins with the tenant."""
    columns = list_columns(table)
    key = list(table.primary_key.columns)[1:]
    limit = LARGE_ROWS_PER_LINE if table in _LARGE_TABLES else ROWS_PER_LINE
    query = select(*columns).where(table.c.tenant == tenant, *conditions).order_by(*key).limit(limit)
    if table is terms:
        query = query.where(terms.c.term.not_like(f"{VECTOR_TERM_PREFIX}%"))
    page = [list(row) for row in connection.execute(query)]
    while page:
        yield page
        if not key:
            break
        last = tuple_(*(literal(page[-1][columns.index(column)], column.type) for column in key))
        page = [list(row) for row in connection.execute(query.where(tuple_(*key) > last))]


def import_tenant(connection: Connection, tenant: str, lines: Iterable[str]) -> TenantArchive:
    """Imports an archive as this tenant, which must have no conversations and no keys yet."""
    for table in (conversations, api_keys):
        if connection.execute(select(table.c.tenant).where(table.c.tenant == tenant).limit(1)).first() is not None:
            raise ImportFailed(
                f"The tenant {tenant} already has rows in this database. Import the archive as another tenant, with "
                "--tenant NAME."
            )
    try:
        counts, skipped_keys = _import_lines(connection, tenant, lines)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ImportFailed(f"This is no archive of a tenant: {error}. Nothing was imported.") from error
    return TenantArchive(tenant, counts[conversations.name], counts.total(), skipped_keys)


def _import_lines(connection: Connection, tenant: str, lines: Iterable[str]) -> tuple[Counter[str], int]:
    """Returns the rows of the archive by table, and the number of keys that were left out."""
    skipped_keys = 0
    tables, checksum, counts = {table.name: table for table in list_archived_tables()}, sha256(), Counter[str]()
    iterator = iter(lines)
    first = next(iterator, "{}").rstrip("\n")
    header = json.loads(first)
    if header.get("archive") != ARCHIVE_FORMAT:
        raise ValueError("its first line is another one")
    if header.get("schema") != SCHEMA_VERSION:
        raise ImportFailed(
            f"The archive has schema {header.get('schema')}, and this version reads {SCHEMA_VERSION}. Export it again "
            "with the same version of Quire."
        )
    checksum.update(first.encode())
    scopes = {messages_scope(header["tenant"]): messages_scope(tenant)}
    for raw in iterator:
        line = raw.rstrip("\n")
        content = json.loads(line)
        if "sha256" in content:
            if content["sha256"] != checksum.hexdigest() or content["rows"] != counts:
                raise ImportFailed("The archive was changed after its export. Nothing was imported.")
            return counts, skipped_keys
        checksum.update(line.encode())
        table, names = tables[content["table"]], ("tenant", *content["columns"])
        rows = [(tenant, *map(_decode_value, row)) for row in content["rows"]]
        if "scope" in table.c:
            # The scope of a tenant's messages has its name.
            place = names.index("scope")
            rows = [(*row[:place], scopes.get(row[place], row[place]), *row[place + 1 :]) for row in rows]
        if table is api_keys:
            keys = [dict(zip(names, row, strict=True)) for row in rows]
            skipped_keys += len(keys) - insert_rows(connection, table, keys, ignore_existing=True)
        else:
            insert_tuples(connection, table, names, rows)
        counts[table.name] += len(rows)
    raise ImportFailed("The archive is incomplete: its last line is missing. Nothing was imported.")


def _encode_bytes(value: object) -> dict[str, str]:
    if not isinstance(value, bytes):
        raise TypeError(f"a row has no values of type {type(value).__name__}")
    return {_BYTES_KEY: b64encode(value).decode()}


def _decode_value(value: Any) -> Any:
    return b64decode(cast(dict[str, str], value)[_BYTES_KEY]) if isinstance(value, dict) else value
