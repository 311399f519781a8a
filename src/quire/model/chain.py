"""The two chains that hold a log together.

`digest` runs over every entry with all that was recorded about it, so that a change of one byte shows.
`path` runs over messages alone, so that a list of messages is recognised wherever it is stored.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256

ROOT = bytes(32)
"""What both chains start from."""


def chain_digest(previous: bytes, *, beside: str, body: str) -> bytes:
    """The digest of an entry: the previous one, what is recorded beside the body on one line, and the body."""
    return sha256(previous + beside.encode() + b"\n" + body.encode()).digest()


def next_path(previous: bytes, message: str) -> bytes:
    return sha256(previous + message.encode()).digest()


def path_of(messages: Iterable[str], *, start: bytes = ROOT) -> Iterator[bytes]:
    """The path after each of these messages, given in their canonical form."""
    path = start
    for message in messages:
        path = next_path(path, message)
        yield path
