"""Row digests: SHA-256 over the values of a row that the application may update, so that one changed value is found."""

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


def _encode_bytes(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"a row has no values of type {type(value).__name__}")
    return value.hex()


# Every read of a branch checks its row, and `json.dumps` would make an encoder for each.
_encode_values = json.JSONEncoder(default=_encode_bytes, separators=(",", ":")).encode
