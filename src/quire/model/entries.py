"""An entry is a body in its place in the log. Bodies are a closed union; the entry's `kind` says which one it holds."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, NamedTuple, assert_never

from pydantic import Field, model_validator

from quire.model.messages import PURGED, Message
from quire.model.notes import DocumentReference, Notes, TokenCount, Usage
from quire.model.value import Value

Author = Literal["user", "assistant", "tool", "engine"]
EntryKind = Literal["message", "compaction", "restore", "pin", "unpin", "context_change"]
EntryNumber = Annotated[int, Field(gt=0)]


class Span(Value):
    """Entries by number, both ends included."""

    first: EntryNumber
    last: EntryNumber

    @model_validator(mode="after")
    def _in_order(self) -> "Span":
        if self.first > self.last:
            raise ValueError(f"a span runs forward, and {self.first} stands after {self.last}")
        return self

    def __contains__(self, seq: int) -> bool:
        return self.first <= seq <= self.last


class Shortened(Value):
    """The message with this number is shown with each text cut to so many characters; 0 leaves a stub."""

    message: EntryNumber
    limit: int = Field(ge=0)


class Compaction(Value):
    """From here on the view shows `summary` in place of the messages in `covers`. Nothing is removed.

    `supersedes` is the entry number of the compaction that was active when this one was made. Without a summary
    the covered messages are simply left out; without `covers` nothing is, and only what is `shortened` changes.
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
    shortened: tuple[Shortened, ...] | None = None
    instructions: str | None = None
    """What the user asked to be kept."""
    failures: tuple[str, ...] | None = None
    """Why summaries failed before this one was taken."""
    invalidated: int | None = None
    """Tokens that the provider had cached and must read anew because of it."""
    saves: float | None = None
    """An estimate, in dollars, of what it saves on every request from now on."""
    usage: Usage | None = None
    """What writing the summary took."""


class Restore(Value):
    """Undoes the active compaction, named by its entry number: the view goes back to what was there before it."""

    compaction: EntryNumber


class Pin(Value):
    """The message with this number stays in the view, word for word, whatever is compacted."""

    message: EntryNumber


class Unpin(Value):
    message: EntryNumber


class ContextItem(Value):
    """A rule, a reference or a tool by name; a tool also by the server that offers it."""

    type: Literal["rule", "reference", "tool"]
    name: str
    server: str | None = None


SessionInclude = Literal["always", "manual", "agent"]
"""How an item came into the session: at its beginning, by the user's hand, or as a tool that a message called for."""


class ContextChange(Value):
    """An item enters the session or leaves it."""

    action: Literal["add", "remove"]
    item: ContextItem
    include: SessionInclude = "manual"


Body = Message | Compaction | Restore | Pin | Unpin | ContextChange

_BODIES: dict[EntryKind, type[Body]] = {
    "message": Message,
    "compaction": Compaction,
    "restore": Restore,
    "pin": Pin,
    "unpin": Unpin,
    "context_change": ContextChange,
}
_KINDS: dict[type[Body], EntryKind] = {body: kind for kind, body in _BODIES.items()}


def kind_of(body: Body) -> EntryKind:
    return _KINDS[type(body)]


def parse_body(kind: EntryKind, text: str) -> Body:
    return _BODIES[kind].parse(text)


def purged_body(body: Body) -> Body:
    """The body without its content. What only steers the view (pins, undo, items) has none and stays."""
    match body:
        case Message():
            return body.purged()
        case Compaction():
            return body if body.summary is None else body.model_copy(update={"summary": PURGED})
        case Restore() | Pin() | Unpin() | ContextChange():
            return body
    assert_never(body)


def quoted_blobs(body: Body, references: Iterable[DocumentReference]) -> set[str]:
    """The digests of the blobs that an entry with this body and these references needs to be shown again."""
    inside = body.blobs() if isinstance(body, Message) else ()
    return {*inside, *(reference.blob for reference in references if reference.blob is not None)}


class Entry(NamedTuple):
    """One row of the log. `raw` is the body's canonical JSON: enough to quote it; `body` decodes it.

    A tuple, because a window of a hundred entries is built on every request, and most are never decoded.
    """

    conversation: str
    branch: int
    seq: int
    kind: EntryKind
    role: str | None
    author: Author
    at: int
    digest: bytes
    path: bytes
    tokens: int | None
    counter: str | None
    raw: str
    raw_notes: str | None
    purged_at: int | None

    @property
    def body(self) -> Body:
        return parse_body(self.kind, self.raw)

    @property
    def message(self) -> Message:
        return Message.parse(self.raw)

    @property
    def notes(self) -> Notes:
        return Notes.parse(self.raw_notes) if self.raw_notes else Notes()

    def beside(self) -> str:
        """All that is recorded beside the body, for the digest: one line, since JSON has no bare line breaks."""
        return f"{self.kind} {self.author} {self.at} {self.tokens} {self.counter} {self.raw_notes}"

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.at / 1_000_000, tz=UTC)

    def blobs(self) -> set[str]:
        return quoted_blobs(self.body, self.notes.references or ())

    @property
    def token_count(self) -> TokenCount | None:
        return None if self.tokens is None or self.counter is None else TokenCount(self.tokens, self.counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A body on its way into the log, with what is known about it."""

    body: Body
    author: Author | None = None
    tokens: TokenCount | None = None
    references: tuple[DocumentReference, ...] = ()
    usage: Usage | None = None
    at: int | None = None
    unfinished: bool = False
    """A reply that broke off."""

    def written_by(self) -> Author:
        if self.author is not None:
            return self.author
        if not isinstance(self.body, Message):
            return "engine"
        return "user" if self.body.role in ("user", "system") else self.body.role

    def notes(self) -> str | None:
        if not self.references and self.usage is None and not self.unfinished:
            return None
        unfinished = self.unfinished or None
        return Notes(references=self.references or None, usage=self.usage, unfinished=unfinished).canonical()

    def blobs(self) -> set[str]:
        return quoted_blobs(self.body, self.references)
