"""Indexed documents of a vault, written together with their searchable passages."""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update

from quire.errors import InvalidEntry
from quire.log.dialects import insert_rows, sanitize_text
from quire.log.schema import documents
from quire.log.search import passages
from quire.log.search.inverted_index import split_chunks
from quire.log.types import DocumentFingerprint, IndexedDocument, Passage, VaultDocument, vault_scope

_COLUMNS = tuple(documents.c[name] for name in VaultDocument._fields)


def list_fingerprints(connection: Connection, tenant: str, vault: str) -> list[DocumentFingerprint]:
    """Path, digest, size and modification time of every indexed file, by path."""
    columns = [documents.c[name] for name in DocumentFingerprint._fields]
    query = select(*columns).where(documents.c.tenant == tenant, documents.c.vault == vault)
    return [DocumentFingerprint._make(row) for row in connection.execute(query.order_by(documents.c.path))]


def list_documents(
    connection: Connection, tenant: str, vault: str, *, paths: Collection[str] | None = None
) -> list[VaultDocument]:
    """All documents of a vault by path, or those with these paths."""
    query = select(*_COLUMNS).where(documents.c.tenant == tenant, documents.c.vault == vault)
    if paths is None:
        return [_to_document(row) for row in connection.execute(query.order_by(documents.c.path))]
    return [
        _to_document(row)
        for chunk in split_chunks(sorted(set(paths)))
        for row in connection.execute(query.where(documents.c.path.in_(chunk)).order_by(documents.c.path))
    ]


def put_documents(connection: Connection, tenant: str, vault: str, items: Sequence[IndexedDocument]) -> None:
    """Stores these documents and their passages, replacing those with the same paths."""
    rows = {each.document.path: _to_row(tenant, vault, each.document) for each in items}
    all_passages = [passage for each in items for passage in _check_passages(each)]
    # First, because it locks the scope: a concurrent indexer of the same vault waits here.
    passages.put_passages(connection, tenant, vault_scope(vault), all_passages, replacing=rows)
    _delete_rows(connection, tenant, vault, rows)
    if rows:
        insert_rows(connection, documents, list(rows.values()))


def touch_documents(connection: Connection, tenant: str, vault: str, touched: Sequence[tuple[str, int, int]]) -> None:
    """Updates size and modification time of files that were rewritten with the indexed content."""
    rows = [{"of_path": path, "size": size, "modified_ns": modified_ns} for path, size, modified_ns in touched]
    if rows:
        key = (documents.c.tenant == tenant, documents.c.vault == vault, documents.c.path == bindparam("of_path"))
        statement = update(documents).where(*key)
        connection.execute(statement.values(size=bindparam("size"), modified_ns=bindparam("modified_ns")), rows)


def delete_documents(connection: Connection, tenant: str, vault: str, paths: Collection[str]) -> None:
    """Deletes documents and their passages."""
    passages.delete_passages(connection, tenant, vault_scope(vault), paths)
    _delete_rows(connection, tenant, vault, paths)


def _check_passages(item: IndexedDocument) -> tuple[Passage, ...]:
    for passage in item.passages:
        if passage.key != item.document.path:
            raise InvalidEntry(
                f"The passage {passage.key!r} belongs to the document {item.document.path!r}; use its path as key."
            )
    return item.passages


def _delete_rows(connection: Connection, tenant: str, vault: str, paths: Iterable[str]) -> None:
    for chunk in split_chunks(paths):
        rows = (documents.c.tenant == tenant, documents.c.vault == vault, documents.c.path.in_(chunk))
        connection.execute(delete(documents).where(*rows))


def _to_row(tenant: str, vault: str, document: VaultDocument) -> dict[str, Any]:
    texts = {"title": sanitize_text(document.title), "summary": sanitize_text(document.summary)}
    lists = {name: json.dumps(getattr(document, name)) for name in ("aliases", "headings")}
    return {"tenant": tenant, "vault": vault, **document._asdict(), **texts, **lists}


def _to_document(row: Sequence[Any]) -> VaultDocument:
    document = VaultDocument._make(row)
    return document._replace(aliases=_parse_list(document.aliases), headings=_parse_list(document.headings))


def _parse_list(stored: Any) -> tuple[str, ...]:
    return tuple(json.loads(stored))
