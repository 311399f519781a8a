"""Row digests: SHA-256 over the values of a row that the application may update, so that one changed value is found.

Entries and blobs have digests of their content instead, which the application's role cannot update.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

from sqlalchemy import Column, Table

from quire.db.schema import conversations, documents
from quire.errors import IntegrityViolation

ROW_DIGEST = "row_digest"

_UNCOVERED_COLUMNS = frozenset({"tenant", ROW_DIGEST})
_UNCOVERED_BY_TABLE = {
    conversations.name: frozenset({"updated_at", "metadata"}),
    documents.name: frozenset({"size", "modified_ns"}),
}
"""Columns that are updated without reading the row. `integrity` compares a conversation's time with its branches; a
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
    """The row with its digest; columns that it lacks are NULL."""
    values = [
        row.get(column.name)
        for column in covered_columns(table)
        if column.name not in _LATER_COLUMNS or row.get(column.name) is not None
    ]
    return {**row, ROW_DIGEST: compute_row_digest(values)}


def has_row_digest(table: Table, row: Mapping[Any, Any]) -> bool:
    """Whether a stored row is as it was written."""
    return with_row_digest(table, row)[ROW_DIGEST] == row[ROW_DIGEST]


def compute_row_digest(values: Sequence[object]) -> bytes:
    return sha256(_encode_values(values).encode()).digest()


def check_row(values: Sequence[object], digest: bytes, *, name: str) -> None:
    """Raises `IntegrityViolation` if a row with these values was changed after it was written."""
    if compute_row_digest(values) != digest:
        raise IntegrityViolation(
            f"The row of {name} is not as it was recorded; restore it from a backup. "
            "`quire conversation verify --all` lists all changes."
        )


def _encode_bytes(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"a row has no values of type {type(value).__name__}")
    return value.hex()


# Every read of a branch checks its row, and `json.dumps` would make an encoder for each.
_encode_values = json.JSONEncoder(default=_encode_bytes, separators=(",", ":")).encode
