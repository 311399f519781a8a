"""Log entries: their bodies, their metadata, and the two hash chains that connect them.

An entry has a position and a body; bodies are a closed union, discriminated by the entry's `kind`. The chain of digests
covers every entry with its metadata, so that `verify` detects a change of one byte. The chain of paths covers messages
alone, so that the same list of messages is recognised wherever it is stored.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, Literal, NamedTuple, assert_never

from pydantic import Field, model_validator

from quire.model.base import FrozenModel, JsonObject
from quire.model.messages import PURGED_TEXT, Message


class TokenCount(NamedTuple):
    """A number of tokens and the name of the counter; the counter `estimate` marks an estimate."""

    tokens: int
    counter: str


class Usage(FrozenModel):
    """Token usage that the provider reported for the request that an assistant's message answers."""

    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    provider_fields: JsonObject | None = None
    estimated: bool | None = None
    """The provider reported nothing, as when a reply is interrupted; these are Quire's own counts."""


class DocumentReference(FrozenModel):
    """A document that a message names (direct) or that a tool found (search); without a path the link is broken."""

    link: str
    path: str | None = None
    kind: Literal["direct", "search"] = "direct"
    summary: str | None = None
    snippet: str | None = None
    blob: str | None = None
    injected: bool | None = None
    """Whether its text was injected into the message; otherwise the message only lists it."""


class EntryMetadata(FrozenModel):
    """Metadata stored with an entry, as JSON."""

    references: tuple[DocumentReference, ...] | None = None
    usage: Usage | None = None
    incomplete: bool | None = None
    """The reply was interrupted, by the user or by an error; the message holds what had arrived."""


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


Author = Literal["user", "assistant", "tool", "engine"]
EntryKind = Literal["message", "compaction", "restore", "pin", "unpin", "context_change"]
EntryNumber = Annotated[int, Field(gt=0)]


class Span(FrozenModel):
    """A range of entry numbers, both ends included."""

    first: EntryNumber
    last: EntryNumber

    @model_validator(mode="after")
    def _check_order(self) -> "Span":
        if self.first > self.last:
            raise ValueError(f"a span must run forward, but {self.first} is after {self.last}")
        return self

    def __contains__(self, seq: int) -> bool:
        return self.first <= seq <= self.last


class Truncation(FrozenModel):
    """Truncates each text of a message to `max_chars` characters in the view; 0 replaces it with a stub."""

    message: EntryNumber
    max_chars: int = Field(ge=0)


class Compaction(FrozenModel):
    """From this entry on the view has `summary` instead of the messages in `covers`. Nothing is deleted.

    `supersedes` is the entry number of the compaction that was active when this one was made. Without a summary the
    covered messages are omitted; without `covers` only the `truncations` apply.
    """

    number: int = Field(gt=0)
    covers: Span | None = None
    summary: str | None = None
    sources: tuple[int, ...] = ()
    trigger: Literal["threshold", "background", "manual", "overflow", "edit", "model"] = "manual"
    strategy: str = "summarize"
    model: str | None = None
    tokens_before: int = 0
    tokens_after: int = 0
    supersedes: EntryNumber | None = None
    truncations: tuple[Truncation, ...] | None = None
    instructions: str | None = None
    """The user's instructions for the summary."""
    failures: tuple[str, ...] | None = None
    """Reasons why earlier attempts at this summary failed."""
    invalidated_tokens: int | None = None
    """Tokens of the provider's prompt cache that it invalidates."""
    savings_per_request: float | None = None
    """Estimated savings per later request, in dollars."""
    usage: Usage | None = None
    """Tokens used to write the summary."""


class Restore(FrozenModel):
    """Undoes the active compaction, named by its entry number; the one that it superseded is active again."""

    compaction: EntryNumber


class Pin(FrozenModel):
    """The message with this number stays in the view verbatim, whatever is compacted."""

    message: EntryNumber


class Unpin(FrozenModel):
    message: EntryNumber


class ContextItem(FrozenModel):
    """A rule, a reference or a tool, by name; for a tool also its MCP server."""

    type: Literal["rule", "reference", "tool"]
    name: str
    server: str | None = None


SessionIncludeMode = Literal["always", "manual", "agent"]
"""How an item was added to the session: at its start, by the user, or as a tool selected for a message."""


class ContextChange(FrozenModel):
    """Adds an item to the session or removes it."""

    action: Literal["add", "remove"]
    item: ContextItem
    include: SessionIncludeMode = "manual"


Body = Message | Compaction | Restore | Pin | Unpin | ContextChange

_BODY_TYPES: dict[EntryKind, type[Body]] = {
    "message": Message,
    "compaction": Compaction,
    "restore": Restore,
    "pin": Pin,
    "unpin": Unpin,
    "context_change": ContextChange,
}
_KINDS: dict[type[Body], EntryKind] = {body: kind for kind, body in _BODY_TYPES.items()}


def kind_of(body: Body) -> EntryKind:
    return _KINDS[type(body)]


def parse_body(kind: EntryKind, text: str) -> Body:
    return _BODY_TYPES[kind].parse(text)


def purge_body(body: Body) -> Body:
    """The body without its content. Bodies that only control the view (pins, undo, items) have none and stay."""
    match body:
        case Message():
            return body.without_content()
        case Compaction():
            return _purge_compaction(body)
        case Restore() | Pin() | Unpin() | ContextChange():
            return body
    assert_never(body)


def _purge_compaction(body: Compaction) -> Compaction:
    """The compaction without any text; what it covers stays, because the state of the branch depends on it."""
    return body.model_copy(
        update={
            "summary": None if body.summary is None else PURGED_TEXT,
            "instructions": None if body.instructions is None else PURGED_TEXT,
            "failures": None,
            "usage": None if body.usage is None else body.usage.model_copy(update={"provider_fields": None}),
        }
    )


def referenced_blobs(body: Body, references: Iterable[DocumentReference]) -> set[str]:
    """Digests of the blobs that an entry with this body and these references needs to be rendered."""
    from_body = body.blob_digests() if isinstance(body, Message) else ()
    return {*from_body, *(reference.blob for reference in references if reference.blob is not None)}


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

    @property
    def body(self) -> Body:
        """The decoded body. That of a purged entry has no content, whatever its row holds: no digest covers it."""
        body = parse_body(self.kind, self.raw)
        return body if self.purged_at is None else purge_body(body)

    @property
    def message(self) -> Message:
        message = Message.parse(self.raw)
        return message if self.purged_at is None else message.without_content()

    @property
    def metadata(self) -> EntryMetadata:
        if not self.raw_metadata or self.purged_at is not None:
            return EntryMetadata()
        return EntryMetadata.parse(self.raw_metadata)

    @property
    def has_purged_form(self) -> bool:
        """Whether the row holds exactly what a purge writes: the purged body, and no metadata or token count."""
        if (self.raw_metadata, self.tokens, self.counter) != (None, None, None):
            return False
        try:
            body = parse_body(self.kind, self.raw)
        except ValueError:
            return False
        return isinstance(body, Message | Compaction) and purge_body(body).canonical_json() == self.raw

    def digest_metadata(self) -> str:
        """Everything recorded except the body, for the hash chain: one line, since JSON has no raw line breaks."""
        return f"{self.kind} {self.author} {self.created_at} {self.tokens} {self.counter} {self.raw_metadata}"

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.created_at / 1_000_000, tz=UTC)

    def blob_digests(self) -> set[str]:
        return referenced_blobs(self.body, self.metadata.references or ())

    @property
    def token_count(self) -> TokenCount | None:
        return None if self.tokens is None or self.counter is None else TokenCount(self.tokens, self.counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A body to append to the log, with its metadata."""

    body: Body
    author: Author | None = None
    tokens: TokenCount | None = None
    references: tuple[DocumentReference, ...] = ()
    usage: Usage | None = None
    created_at: int | None = None
    incomplete: bool = False
    """Whether the reply was interrupted."""

    def resolve_author(self) -> Author:
        if self.author is not None:
            return self.author
        if not isinstance(self.body, Message):
            return "engine"
        return "user" if self.body.role in ("user", "system") else self.body.role

    def metadata_json(self) -> str | None:
        if not self.references and self.usage is None and not self.incomplete:
            return None
        metadata = EntryMetadata(
            references=self.references or None, usage=self.usage, incomplete=self.incomplete or None
        )
        return metadata.canonical_json()

    def blob_digests(self) -> set[str]:
        return referenced_blobs(self.body, self.references)
