"""Row digests: which columns of a table they cover. `quire.rows.digests` computes them.

Entries and blobs have digests of their content instead, which the application's role cannot update.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Column, Table

from quire.db.schema import conversations, documents
from quire.rows.digests import compute_row_digest

ROW_DIGEST = "row_digest"

_UNCOVERED_COLUMNS = frozenset({"tenant", ROW_DIGEST})
_UNCOVERED_BY_TABLE = {
    conversations.name: frozenset({"updated_at", "metadata"}),
    documents.name: frozenset({"size", "modified_ns"}),
}
"""Columns that are updated without reading the row. `integrity` compares a conversation's time with its branches. A
document whose size or time differs from its file is indexed again. Servers of the release before 0007 write the digest
of a conversation without its metadata."""


_LATER_COLUMNS = frozenset({"created_by"})
"""Columns that a migration added: a row in which they are NULL has the digest that it had before."""


@cache
def covered_columns(table: Table) -> tuple[Column[Any], ...]:
    """The columns that a row's digest covers, in the order of the table."""
    uncovered = _UNCOVERED_COLUMNS | _UNCOVERED_BY_TABLE.get(table.name, frozenset())
    return tuple(column for column in table.columns if column.name not in uncovered)


def with_row_digest(table: Table, row: Mapping[Any, Any]) -> dict[str, Any]:
    """The row with its digest. Columns that it lacks are NULL."""
    values = [
        row.get(column.name)
        for column in covered_columns(table)
        if column.name not in _LATER_COLUMNS or row.get(column.name) is not None
    ]
    return {**row, ROW_DIGEST: compute_row_digest(values)}


def has_row_digest(table: Table, row: Mapping[Any, Any]) -> bool:
    """Whether a stored row is as it was written."""
    return with_row_digest(table, row)[ROW_DIGEST] == row[ROW_DIGEST]
