"""The two hash chains of a log.

`digest` chains every entry with its metadata, so that `verify` detects a change of one byte.
`path` chains messages alone, so that the same list of messages is recognised wherever it is stored.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256

CHAIN_ROOT = bytes(32)
"""Start value of both chains."""


def chain_digest(previous: bytes, *, metadata: str, body: str) -> bytes:
    """Digest of an entry: SHA-256 of the previous digest, the metadata on one line, and the body."""
    return sha256(previous + metadata.encode() + b"\n" + body.encode()).digest()


def next_path(previous: bytes, message: str) -> bytes:
    return sha256(previous + message.encode()).digest()


def iter_paths(messages: Iterable[str], *, start: bytes = CHAIN_ROOT) -> Iterator[bytes]:
    """Yields the path after each of these messages, which are given as canonical JSON."""
    path = start
    for message in messages:
        path = next_path(path, message)
        yield path
