"""What the index knows of a vault's files, kept in step with the passages that a search finds in them."""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update

from quire.errors import InvalidEntry
from quire.log import passages
from quire.log.dialects import insert_rows
from quire.log.found import Document, DocumentMark, IndexedDocument, Passage, vault_scope
from quire.log.schema import documents
from quire.log.terms import chunked
from quire.log.words import storable

_COLUMNS = tuple(documents.c[name] for name in Document._fields)


def list_marks(connection: Connection, tenant: str, vault: str) -> list[DocumentMark]:
    """Every file that is indexed, by path, with what shows whether it has changed."""
    columns = [documents.c[name] for name in DocumentMark._fields]
    wanted = select(*columns).where(documents.c.tenant == tenant, documents.c.vault == vault)
    return [DocumentMark._make(row) for row in connection.execute(wanted.order_by(documents.c.path))]


def list_documents(
    connection: Connection, tenant: str, vault: str, *, paths: Collection[str] | None = None
) -> list[Document]:
    """All documents of a vault by path, or those with these paths."""
    wanted = select(*_COLUMNS).where(documents.c.tenant == tenant, documents.c.vault == vault)
    if paths is None:
        return [_document(row) for row in connection.execute(wanted.order_by(documents.c.path))]
    return [
        _document(row)
        for some in chunked(sorted(set(paths)))
        for row in connection.execute(wanted.where(documents.c.path.in_(some)).order_by(documents.c.path))
    ]


def put_documents(connection: Connection, tenant: str, vault: str, indexed: Sequence[IndexedDocument]) -> None:
    """Stores these documents and their passages in place of what was known of the same paths."""
    rows = {each.document.path: _row(tenant, vault, each.document) for each in indexed}
    found = [passage for each in indexed for passage in _own_passages(each)]
    # First, since it holds the scope: whoever indexes the same vault waits here.
    passages.put(connection, tenant, vault_scope(vault), found, replacing=rows)
    _delete(connection, tenant, vault, rows)
    if rows:
        insert_rows(connection, documents, list(rows.values()))


def touch_documents(connection: Connection, tenant: str, vault: str, touched: Sequence[tuple[str, int, int]]) -> None:
    """Notes the size and time of files that were written anew with the content that is indexed already."""
    rows = [{"of_path": path, "size": size, "modified": modified} for path, size, modified in touched]
    if rows:
        mine = (documents.c.tenant == tenant, documents.c.vault == vault, documents.c.path == bindparam("of_path"))
        changed = update(documents).where(*mine)
        connection.execute(changed.values(size=bindparam("size"), modified=bindparam("modified")), rows)


def drop_documents(connection: Connection, tenant: str, vault: str, paths: Collection[str]) -> None:
    """Forgets documents that are gone."""
    passages.drop(connection, tenant, vault_scope(vault), paths)
    _delete(connection, tenant, vault, paths)


def _own_passages(indexed: IndexedDocument) -> tuple[Passage, ...]:
    for passage in indexed.passages:
        if passage.key != indexed.document.path:
            raise InvalidEntry(f"The passage {passage.key!r} does not have the path {indexed.document.path!r} as key.")
    return indexed.passages


def _delete(connection: Connection, tenant: str, vault: str, paths: Iterable[str]) -> None:
    for some in chunked(paths):
        mine = (documents.c.tenant == tenant, documents.c.vault == vault, documents.c.path.in_(some))
        connection.execute(delete(documents).where(*mine))


def _row(tenant: str, vault: str, document: Document) -> dict[str, Any]:
    texts = {"title": storable(document.title), "summary": storable(document.summary)}
    lists = {name: json.dumps(getattr(document, name)) for name in ("aliases", "headings")}
    return {"tenant": tenant, "vault": vault, **document._asdict(), **texts, **lists}


def _document(row: Sequence[Any]) -> Document:
    document = Document._make(row)
    return document._replace(aliases=_listed(document.aliases), headings=_listed(document.headings))


def _listed(stored: Any) -> tuple[str, ...]:
    return tuple(json.loads(stored))
