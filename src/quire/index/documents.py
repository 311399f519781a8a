"""Indexed documents of vaults: their metadata, written together with their passages."""

import json
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update

from quire.db.dialects import insert_rows, sanitize_text
from quire.db.schema import documents
from quire.db.store_part import StorePart, read, write, write_bulk
from quire.errors import InvalidEntry
from quire.index import passages
from quire.index.inverted_index import split_chunks
from quire.index.types import IndexedDocument, VaultDocument, vault_scope
from quire.log.row_digests import has_row_digest, with_row_digest
from quire.log.tenant_masker import mask_text


def list_documents(
    connection: Connection, tenant: str, vault: str, *, paths: Collection[str] | None = None
) -> list[VaultDocument]:
    """All documents of a vault by path, or those with these paths.

    A row that was changed is left out, so that its file is indexed again and its text is in no request.
    """
    query = select(documents).where(documents.c.tenant == tenant, documents.c.vault == vault).order_by(documents.c.path)
    queries = (
        [query] if paths is None else [query.where(documents.c.path.in_(c)) for c in split_chunks(sorted(set(paths)))]
    )
    rows = (row for each in queries for row in connection.execute(each).mappings())
    found: list[VaultDocument] = []
    for row in rows:
        if has_row_digest(documents, row):
            document = VaultDocument(**{name: row[name] for name in VaultDocument._fields})
            aliases, headings = (tuple(json.loads(row[name])) for name in ("aliases", "headings"))
            found.append(document._replace(aliases=aliases, headings=headings))
    # The database cannot order encrypted paths.
    return sorted(found, key=attrgetter("path"))


def put_documents(connection: Connection, tenant: str, vault: str, items: Sequence[IndexedDocument]) -> None:
    """Stores these documents and their passages, replacing documents with the same paths."""
    rows: dict[str, dict[str, Any]] = {}
    for document, document_passages in items:
        for passage in document_passages:
            if passage.key != document.path:
                raise InvalidEntry(
                    f"The passage {passage.key!r} belongs to the document {document.path!r}; use its path as key."
                )
        texts = {name: sanitize_text(mask_text(connection, getattr(document, name))) for name in ("title", "summary")}
        lists = {name: mask_text(connection, json.dumps(getattr(document, name))) for name in ("aliases", "headings")}
        row = {"tenant": tenant, "vault": vault, **document._asdict(), **texts, **lists}
        rows[document.path] = with_row_digest(documents, row)
    all_passages = [passage for each in items for passage in each.passages]
    # First, because it locks the scope: a concurrent indexer of the same vault waits here.
    passages.write_passages(connection, tenant, vault_scope(vault), all_passages, replacing=rows)
    _delete_rows(connection, tenant, vault, rows)
    if rows:
        insert_rows(connection, documents, list(rows.values()))


def touch_documents(connection: Connection, tenant: str, vault: str, touched: Sequence[tuple[str, int, int]]) -> None:
    """Updates size and modification time (by path) of files that were rewritten with the indexed content."""
    rows = [{"of_path": path, "size": size, "modified_ns": modified_ns} for path, size, modified_ns in touched]
    if rows:
        key = (documents.c.tenant == tenant, documents.c.vault == vault, documents.c.path == bindparam("of_path"))
        statement = update(documents).where(*key)
        connection.execute(statement.values(size=bindparam("size"), modified_ns=bindparam("modified_ns")), rows)


def delete_documents(connection: Connection, tenant: str, vault: str, paths: Collection[str]) -> None:
    """Deletes documents and their passages."""
    passages.delete_passages(connection, tenant, vault_scope(vault), paths)
    _delete_rows(connection, tenant, vault, paths)


def _delete_rows(connection: Connection, tenant: str, vault: str, paths: Iterable[str]) -> None:
    for chunk in split_chunks(paths):
        rows = (documents.c.tenant == tenant, documents.c.vault == vault, documents.c.path.in_(chunk))
        connection.execute(delete(documents).where(*rows))


class Documents(StorePart):
    """Index of the documents of vaults."""

    put = write_bulk(put_documents)
    touch = write(touch_documents)
    delete = write_bulk(delete_documents)
    list = read(list_documents)
