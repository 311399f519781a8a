"""Values of the search index: scopes, passages, vectors, segments of messages, and documents of a vault."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from quire.model import Entry


def messages_scope(tenant: str) -> str:
    """Search scope of all messages of a tenant. It names the tenant so that tenants have different partitions."""
    return f"messages:{tenant}"


def vault_scope(vault: str) -> str:
    return f"vault:{vault}"


def memory_scope(namespace: str) -> str:
    return f"memory:{namespace}"


class Passage(NamedTuple):
    """A searchable piece of text; `part` numbers the passages of one key."""

    key: str
    text: str
    part: int = 0
    title: str = ""
    at: int | None = None
    embedder: str | None = None
    vector: bytes | None = None
    """Embedding: float32, little-endian, unit length. See `pack_vector`."""

    @property
    def digest(self) -> bytes:
        """Digest of the text and of what identifies it."""
        values = (self.key, self.part, self.title, self.text, self.at)
        return sha256(json.dumps(values).encode()).digest()


class UnembeddedPassage(NamedTuple):
    """A passage without a vector of some embedder; `digest` identifies its text."""

    key: str
    part: int
    title: str
    text: str
    digest: bytes


class PassageVector(NamedTuple):
    key: str
    part: int
    digest: bytes
    vector: bytes


class SearchHit(NamedTuple):
    """A passage found by a search. Its score is from 0 to 1: the share of the query's words, by their rarity, and the
    similarity of meaning."""

    scope: str
    key: str
    part: int
    title: str
    text: str
    score: float
    at: int | None


class SegmentRef(NamedTuple):
    """Identifies a segment of the message index, the last entry in it, and the revision of its bytes."""

    branch: int
    segment: int
    number: int
    """Number among the tenant's segments."""
    revision: int
    last_seq: int
    erasures: int
    """Number of changes to rows that it had: by purges, and by topics that were added."""
    format: int
    embedder: str | None
    """Embedder of all messages in it, or None if some have no vector."""


class SegmentData(NamedTuple):
    columns: bytes
    terms: bytes


class SegmentTask(NamedTuple):
    """A segment that lacks entries, or vectors of the embedder, or has another format."""

    conversation: str
    branch: int
    segment: int
    last_seq: int
    """The last entry that it should have."""
    stored: SegmentRef | None
    data: SegmentData | None
    """Its bytes, if they are extended, or None if it is built from all its entries."""
    entries: tuple[Entry, ...]
    topics: Mapping[int, Sequence[str]] | None = None
    """Of a segment that is built again: texts of topics by the number of a message that they cite."""


class IndexedBranch(NamedTuple):
    """A branch whose entries up to `last_seq` are in the message index."""

    conversation: str
    branch: int
    last_seq: int


class IndexingBatch(NamedTuple):
    tasks: tuple[SegmentTask, ...]
    branches: tuple[IndexedBranch, ...]
    """Branches that are indexed when all of these tasks are done."""


class SegmentUpdate(NamedTuple):
    """A segment to store.

    Optimistic concurrency: it is refused if the segment has another revision by then, or if another number of the
    entries that were read is purged.
    """

    conversation: str
    branch: int
    segment: int
    first_read_seq: int
    last_seq: int
    base_revision: int | None
    purged_count: int
    """Number of entries from `first_read_seq` on that were purged when they were read."""
    data: SegmentData
    embedder: str | None
    term_counts: tuple[tuple[int, Sequence[Mapping[str, int]]], ...] = ()
    """Row in the segment and term counts of each new message: of all of it, then of each ranked passage."""
    topic_counts: tuple[tuple[int, Sequence[Mapping[str, int]]], ...] = ()
    """The same of topics that were added to messages."""
    topic_indexes: tuple[Entry, ...] = ()
    """Topic indexes among the new entries: their topics are added to the messages that they cite, in any segment."""
    replaces_rows: bool = False
    """Whether its messages were in the inverted index before, and may be there under other terms."""


class SegmentColumns(NamedTuple):
    """The columns of a segment that has changed; empty after a purge of the whole conversation."""

    number: int
    conversation: str
    branch: int
    format: int
    columns: bytes


MAX_REVISION = 2**62
"""After this revision nothing has changed: a read after it has postings alone."""


class MessageIndexRead(NamedTuple):
    """What a search reads: the segments that changed since a revision, and the postings of terms."""

    revision: int
    """Revision up to which `changes` go."""
    is_latest: bool
    """False if more segments have changed, which the next read has."""
    is_current_format: bool
    changes: tuple[SegmentColumns, ...]
    postings: Mapping[str, Sequence[tuple[int, bytes]]]
    """Blocks of each term."""


class VaultDocument(NamedTuple):
    """Indexed metadata of a file in a vault."""

    path: str
    digest: bytes
    size: int
    modified_ns: int
    title: str = ""
    summary: str = ""
    aliases: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()


class IndexedDocument(NamedTuple):
    """A document with its passages, whose key is the document's path."""

    document: VaultDocument
    passages: tuple[Passage, ...]
