"""Log entries: a position, a body and metadata, and the two hash chains that connect them.

The chain of digests covers every entry with its metadata, so that `verify` detects a change of one byte. The chain of
paths covers messages alone, so that the same list of messages is recognised wherever it is stored.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Literal, NamedTuple

from quire.errors import IntegrityViolation
from quire.model.entry_bodies import Body, Compaction, ContextChange, EntryKind, TopicIndex, parse_body, purge_body
from quire.model.entry_metadata import DocumentReference, EntryMetadata, TokenCount, TurnTotals, Usage
from quire.model.messages import Message
from quire.rows.digests import compute_content_digest, format_digest_metadata

CHAIN_ROOT = bytes(32)
"""Start value of both chains."""


def chain_digest(previous: bytes, content_digest: bytes) -> bytes:
    """Digest of an entry: SHA-256 of the previous entry's digest and of this entry's content digest."""
    return sha256(previous + content_digest).digest()


def iter_paths(messages: Iterable[bytes], *, start: bytes = CHAIN_ROOT) -> Iterator[bytes]:
    """Yields the path after each of these messages, which are given as canonical JSON in UTF-8."""
    path = start
    for message in messages:
        path = sha256(path + message).digest()
        yield path


def next_path(previous: bytes, message: str) -> bytes:
    return next(iter_paths([message.encode()], start=previous))


Author = Literal["user", "assistant", "tool", "engine"]


def referenced_blobs(body: Body, references: Iterable[DocumentReference]) -> set[str]:
    """Digests of the blobs that an entry with this body and these references needs to be rendered."""
    from_body = body.blob_digests() if isinstance(body, Message) else ()
    return {*from_body, *(reference.blob for reference in references if reference.blob is not None)}


class ChainHead(NamedTuple):
    """The last entry of a branch, which the next one is chained to: its number, digest and path."""

    seq: int
    digest: bytes
    path: bytes


class Entry(NamedTuple):
    """One row of the log. `raw` is the body's canonical JSON; `body` decodes it.

    A tuple, because every request builds a window of a hundred entries, most of which are never decoded.
    """

    conversation: str
    branch: int
    seq: int
    kind: EntryKind
    role: str | None
    author: Author
    created_at: int
    """Microseconds since 1970, UTC."""
    digest: bytes
    path: bytes
    tokens: int | None
    counter: str | None
    raw: str
    raw_metadata: str | None
    purged_at: int | None
    content_digest: bytes | None = None
    """Digest of the content as it was recorded, or None for an entry that is not stored."""

    @property
    def body(self) -> Body:
        """The decoded body. Raises `IntegrityViolation` if it is not what was recorded.

        The body of a purged entry has no content, whatever its row holds: no digest covers it.
        """
        self._check_content()
        body = parse_body(self.kind, self.raw)
        return body if self.purged_at is None else purge_body(body)

    @property
    def message(self) -> Message:
        self._check_content()
        message = Message.parse(self.raw)
        return message if self.purged_at is None else message.without_content()

    @property
    def metadata(self) -> EntryMetadata:
        if not self.raw_metadata or self.purged_at is not None:
            return EntryMetadata()
        self._check_content()
        return EntryMetadata.parse(self.raw_metadata)

    def _check_content(self) -> None:
        """Checks the content before it is decoded, so that no request, tool or page has a changed text."""
        if not self.has_recorded_content:
            raise IntegrityViolation(
                f"Entry #{self.seq} of {self.conversation!r} is not as it was recorded; restore it from a backup, "
                "purge it, or fork before it. `quire conversation verify` lists all changes."
            )

    @property
    def has_recorded_content(self) -> bool:
        """Whether the content has the digest that was recorded, or True if it was purged or is not stored."""
        if self.content_digest is None or self.purged_at is not None:
            return True
        return self.content_digest == compute_content_digest(metadata=self.digest_metadata(), body=self.raw)

    @property
    def has_purged_form(self) -> bool:
        """Whether the row holds exactly what a purge writes: the purged body, and no metadata or token count."""
        if (self.raw_metadata, self.tokens, self.counter) != (None, None, None):
            return False
        try:
            body = parse_body(self.kind, self.raw)
        except ValueError:
            return False
        has_content = isinstance(body, Message | Compaction | ContextChange | TopicIndex)
        return has_content and purge_body(body).canonical_json() == self.raw

    def digest_metadata(self) -> str:
        """Everything recorded except the body, for the hash chain: one line, since JSON has no raw line breaks."""
        return format_digest_metadata(
            self.kind, self.author, self.created_at, self.tokens, self.counter, self.raw_metadata
        )

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.created_at / 1_000_000, tz=UTC)

    def blob_digests(self) -> set[str]:
        return referenced_blobs(self.body, self.metadata.references or ())

    @property
    def token_count(self) -> TokenCount | None:
        return None if self.tokens is None or self.counter is None else TokenCount(self.tokens, self.counter)


def chain_entry(
    head: "ChainHead",
    *,
    conversation: str,
    branch: int,
    kind: EntryKind,
    role: str | None,
    author: Author,
    created_at: int,
    raw: str,
    raw_metadata: str | None,
    tokens: TokenCount | None = None,
) -> Entry:
    """A new entry after the head of a branch, with its digests."""
    count, counter = tokens or (None, None)
    metadata = format_digest_metadata(kind, author, created_at, count, counter, raw_metadata)
    content_digest = compute_content_digest(metadata=metadata, body=raw)
    path = next_path(head.path, raw) if kind == "message" else head.path
    digest = chain_digest(head.digest, content_digest)
    return Entry(
        conversation, branch, head.seq + 1, kind, role, author, created_at, digest, path, count, counter, raw,
        raw_metadata, None, content_digest,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A body to append to the log, with its metadata."""

    body: Body
    author: Author | None = None
    tokens: TokenCount | None = None
    references: tuple[DocumentReference, ...] = ()
    written_tokens: int | None = None
    """Tokens of a message without the text of its references."""
    usage: Usage | None = None
    created_at: int | None = None
    incomplete: bool = False
    """Whether the reply was interrupted."""
    turn: TurnTotals | None = None
    """Totals of the turn that this reply ends."""
    cost_usd: float | None = None
    """Cost of the call that this reply answers."""
    cost_incomplete: bool = False
    """Whether `cost_usd` is a lower bound."""

    def resolve_author(self) -> Author:
        if self.author is not None:
            return self.author
        if not isinstance(self.body, Message):
            return "engine"
        return "user" if self.body.role in ("user", "system") else self.body.role

    def metadata_json(self) -> str | None:
        has_call = self.usage is not None or self.turn is not None or self.cost_usd is not None
        if not self.references and not self.incomplete and not has_call:
            return None
        metadata = EntryMetadata(
            references=self.references or None,
            written_tokens=self.written_tokens if self.references else None,
            usage=self.usage,
            incomplete=self.incomplete or None,
            turn=self.turn,
            cost_usd=self.cost_usd,
            cost_incomplete=self.cost_incomplete or None,
        )
        return metadata.canonical_json()

    def blob_digests(self) -> set[str]:
        return referenced_blobs(self.body, self.references)
