"""Digests by which a changed value of a stored row is found.

A row digest covers the values that the application may update, a content digest the values of an entry
that never change.
"""

import json
from collections.abc import Sequence
from hashlib import sha256

from quire.errors import IntegrityViolation


def compute_row_digest(values: Sequence[object]) -> bytes:
    return sha256(_encode_values(values).encode()).digest()


def check_row(values: Sequence[object], digest: bytes, *, name: str) -> None:
    """Raises `IntegrityViolation` if a row with these values was changed after it was written."""
    if compute_row_digest(values) != digest:
        raise IntegrityViolation(
            f"The row of {name} is not as it was recorded; restore it from a backup. "
            "`quire conversation verify --all` lists all changes."
        )


def compute_content_digest(*, metadata: str, body: str) -> bytes:
    """SHA-256 of an entry's metadata on one line and its body. It stays when the content is purged."""
    return sha256(metadata.encode() + b"\n" + body.encode()).digest()


def format_digest_metadata(
    kind: str, author: str, created_at: int, tokens: int | None, counter: str | None, raw_metadata: str | None
) -> str:
    return f"{kind} {author} {created_at} {tokens} {counter} {raw_metadata}"


def _encode_bytes(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"a row has no values of type {type(value).__name__}")
    return value.hex()


# Every read of a branch checks its row, and `json.dumps` would make an encoder for each.
_encode_values = json.JSONEncoder(default=_encode_bytes, separators=(",", ":")).encode
