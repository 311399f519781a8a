"""What a search works on and gives back: passages and hits, shelves, memories, documents; and how they are named."""

from hashlib import sha256
from typing import NamedTuple

SHELF = 512
"""A shelf holds so many consecutive entry numbers: shelf 0 the entries 1 to 512 of a branch, shelf 1 the next."""


def conversation_scope(conversation: str) -> str:
    """Where the passages of a conversation's messages are, on all its branches."""
    return f"conversation:{conversation}"


def vault_scope(vault: str) -> str:
    return f"vault:{vault}"


def memory_scope(agent: str) -> str:
    return f"memory:{agent}"


def message_key(branch: int, seq: int) -> str:
    """The key of a message's passage. The branch is the one whose own entry it is."""
    return f"{branch}:{seq}"


def message_place(key: str) -> tuple[int, int]:
    """The branch and the number that a message's key names."""
    branch, _, seq = key.partition(":")
    return int(branch), int(seq)


class Passage(NamedTuple):
    """A piece of text that a search can find; `part` numbers the pieces of what one key names."""

    key: str
    text: str
    part: int = 0
    title: str = ""
    at: int | None = None
    embedder: str | None = None
    vector: bytes | None = None
    """What the embedder made of it: float32, little-endian, of unit length. See `packed`."""

    @property
    def digest(self) -> bytes:
        return sha256(f"{len(self.title)} {self.title}{self.text}".encode()).digest()


class Unembedded(NamedTuple):
    """A passage that lacks the vector of some embedder; the digest says which text it was made for."""

    key: str
    part: int
    title: str
    text: str
    digest: bytes


class Embedded(NamedTuple):
    key: str
    part: int
    digest: bytes
    vector: bytes


class Hit(NamedTuple):
    """A passage that was found. The score is 1 where every way of searching puts it first."""

    scope: str
    key: str
    part: int
    title: str
    text: str
    score: float
    at: int | None


class ShelfMark(NamedTuple):
    """Which shelf, up to which entry it is filled, and a name for these very bytes."""

    branch: int
    shelf: int
    upto: int
    version: str

    @property
    def first(self) -> int:
        return self.shelf * SHELF + 1


class Shelf(NamedTuple):
    """A shelf on its way into the store, with the passages of its messages.

    `purged` is how many of its entries had lost their content when they were read: if it is another number when
    the shelf is put, one was purged in between, and the shelf is refused.
    """

    branch: int
    number: int
    upto: int
    data: bytes
    passages: tuple[Passage, ...] = ()
    purged: int = 0


class Citation(NamedTuple):
    """The message that a memory came from."""

    conversation: str
    branch: int
    seq: int


class Memory(NamedTuple):
    """Something that an agent remembers. What was imported by hand names its source instead of a message."""

    id: str
    agent: str
    text: str
    cites: Citation | None
    source: str | None
    created_at: int
    retired_at: int | None
    replaced_by: str | None


class DocumentMark(NamedTuple):
    """Enough to see whether a file has changed."""

    path: str
    digest: bytes
    size: int
    modified: int


class Document(NamedTuple):
    """What the index knows of a file of a vault."""

    path: str
    digest: bytes
    size: int
    modified: int
    title: str = ""
    summary: str = ""
    aliases: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()


class IndexedDocument(NamedTuple):
    """A document with the passages that a search shall find; their key is the document's path."""

    document: Document
    passages: tuple[Passage, ...]
