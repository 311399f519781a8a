"""Values of the store: conversations, branches, windows, passages, segments, memories, documents, matches, faults."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field

from quire.db.dialects import sanitize_text
from quire.db.store_part import EntriesOffloaded
from quire.model import BranchState, ChainHead, Draft, Entry, Manifest, Span
from quire.model.base import FrozenModel
from quire.rows.boilerplate import AGENTS
from quire.rows.branches import MAIN_BRANCH as MAIN_BRANCH
from quire.rows.branches import BranchRange, find_fork_seq, split_ranges

"""The number of a conversation's first branch."""

MAX_ORIGIN_CHARS = 500
"""Maximum length of each text of an origin. The rest is cut off, since an index entry of PostgreSQL has at most 2,704
bytes."""


def _normalize_origin_text(value: str | None) -> str | None:
    return sanitize_text(value)[:MAX_ORIGIN_CHARS] or None if value is not None else None


_OriginText = Annotated[str | None, BeforeValidator(_normalize_origin_text)]


class ConversationOrigin(FrozenModel):
    """Where a conversation comes from: the client, its session, and its role in that session.

    An empty text is null, and a long one is cut.
    """

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    client: _OriginText = Field(default=None, description="Program that sent the requests, such as `claude-code`.")
    session: _OriginText = Field(
        default=None, description="The client's session id: a scope that several conversations share."
    )
    project: _OriginText = Field(default=None, description="Project of the session, such as its working directory.")
    agent: _OriginText = Field(default=None, description="Id or name of the sub-agent.")
    parent_agent: _OriginText = Field(default=None, description="Id or name of the agent that started the sub-agent.")
    purpose: _OriginText = Field(
        default=None,
        description="`subagent`, `title`, `classifier`, `compaction` or `side`; null for a main conversation.",
    )


@dataclass(frozen=True, slots=True)
class OriginCount:
    client: str
    """Program that the conversations come from, such as `claude-code`."""
    project: str | None
    conversations: int
    """Number of conversations without a purpose."""
    updated_at: int


class ConversationRecord(NamedTuple):
    id: str
    title: str
    created_at: int
    updated_at: int
    """Time of the last append, precise to `TOUCH_INTERVAL_MICROS`."""
    origin: ConversationOrigin | None = None
    """None for a conversation without any of its values."""
    tags: tuple[str, ...] = ()
    is_continued: bool = False
    """Whether an agent's conversation was continued in Quire."""

    @property
    def owner(self) -> str | None:
        """The program that holds the conversation's context: its client, if that is an agent, or if the conversation
        was imported. None if Quire does, or a client that only names its session: Quire compacts only those."""
        client = self.origin.client if self.origin is not None else None
        if client is None or self.is_continued:
            return None
        return client if client in AGENTS or self.is_imported else None

    @property
    def is_imported(self) -> bool:
        """Whether it began as an import of what its client had stored."""
        return self.origin is not None and self.id.startswith(f"{self.origin.client}-")

    @property
    def is_main(self) -> bool:
        """Whether it is a user's conversation: not a sub-agent's, or a call of an agent for a title and the like."""
        return self.origin is None or self.origin.purpose is None


class Branch(NamedTuple):
    """A branch. `lineage` lists its ancestors and the last entry shared with each, oldest first."""

    conversation: str
    number: int
    name: str
    created_at: int
    lineage: tuple[tuple[int, int], ...]
    head_seq: int
    head_digest: bytes
    head_path: bytes
    state: BranchState
    updated_at: int
    """The conversation's `updated_at` as of the last append to this branch that wrote it."""

    @property
    def fork_seq(self) -> int:
        """The last entry that the branch shares with its parent, or 0 without one."""
        return find_fork_seq(self.lineage)

    @property
    def parent(self) -> int | None:
        return self.lineage[-1][0] if self.lineage else None

    def check_in_database(self) -> None:
        """Raises `EntriesOffloaded` if the entries are in object storage: the store restores them."""
        if self.state.offloaded:
            raise EntriesOffloaded(self.conversation)

    def move_to(self, head: ChainHead, state: BranchState) -> "Branch":
        """The branch with a new head and the state after it."""
        return self._replace(head_seq=head.seq, head_digest=head.digest, head_path=head.path, state=state)

    def split_ranges(self, first: int = 1, last: int | None = None) -> Iterator[BranchRange]:
        """The ranges of own rows, per branch, that hold the entries `first` to `last` of this branch; newest first."""
        last = self.head_seq if last is None else min(last, self.head_seq)
        return split_ranges(self.number, self.lineage, first=first, last=last)

    def find_owner(self, seq: int) -> int | None:
        """The branch whose row holds this branch's entry `seq`."""
        return next((own_range.branch for own_range in self.split_ranges(seq, seq)), None)


class Window(NamedTuple):
    """Input of a view: the branch, its active compaction, and the messages that the compaction does not cover."""

    branch: Branch
    compaction: Entry | None
    pinned: tuple[Entry, ...]
    """Messages that the compaction covers and that stay in the view: pinned ones, and those that it preserves."""
    messages: tuple[Entry, ...]
    not_loaded: Span | None = None
    """Entries before `messages` that were not read because the later ones reach `max_tokens`."""
    question: Entry | None = None
    """The question of the turn that `messages` begins inside of."""
    loaded: tuple[Entry, ...] = ()
    """All entries that were read after the covered ones, of any kind. The next read need not repeat them."""


class TurnLease(NamedTuple):
    """The right to run the turn of a branch."""

    conversation: str
    branch: int
    turn: str
    """Id of the turn (fencing token): another process that takes over writes its own."""


Outcome = Literal["answered", "refused", "broken", "unanswered", "cancelled"]
"""What became of a request: a whole reply, an error status, an answer that broke off or is no reply, no answer, or a
client that left. None if no end was recorded."""


class EncodedBody(NamedTuple):
    """A request as it is stored: a delta to the request of the exchange `base`, or whole."""

    base: str | None
    size: int
    """Bytes of the request itself."""
    delta: bytes


class ExchangeEnd(NamedTuple):
    """What came back for a request, and when."""

    outcome: Outcome
    status: int | None
    error: str | None
    """The provider's words, or what happened."""
    first_byte_at: int | None
    completed_at: int
    response: bytes
    """Encoded by `quire.log.exchanges.encode_answer`."""


class ReplyRecord(NamedTuple):
    """Everything that one transaction records when a request was answered."""

    drafts: tuple[Draft, ...]
    """New messages. The last one is the reply."""
    build_manifest: Callable[[Sequence[Entry]], Manifest]
    """Called with the stored entries, which have their numbers."""
    blobs: tuple["Blob", ...] = ()
    """Texts in the request that are not entries of the log."""
    calibration: tuple[str, str] | None = None
    """Model and its new token calibration as JSON."""
    cost: float = 0.0
    """Cost of the call in US dollars."""
    key_id: str = ""
    """API key that the cost is charged to; empty for a call without one."""
    reservation_id: str | None = None
    """Reservation under a spend cap that the cost replaces."""
    request_id: str | None = None
    """Id for `get_request`, if the request has one."""
    response_id: str | None = None
    """Id of the reply for `find_response`, by which a client may refer to it."""
    creates_conversation: ConversationRecord | None = None
    """Conversation to create with this turn. If it exists by then, the turn is appended to it."""
    client_path: bytes | None = None
    """Path of the reply as the client computes it, if the client's copy of the messages differs from the log."""
    start_path: bytes | None = None
    """Path of a client's list that begins with the reply, where a compaction of the provider replaces all before."""
    lease: TurnLease | None = None
    """Lease of the turn, which must still have it."""
    ends_turn: bool = False
    """Whether the reply ends the turn, and with it the lease."""
    exchange: tuple[Mapping[str, Any], ExchangeEnd] | None = None
    """The row of the request's exchange, and its end."""


class RecordedRequest(NamedTuple):
    """An answered request and the reply under which its manifest is stored."""

    conversation: str
    branch: int
    seq: int
    manifest: Manifest


class BranchMatch(NamedTuple):
    """The first `length` messages of a client's list are stored and end at entry `seq` of this branch."""

    length: int
    branch: Branch
    seq: int
    manifest: str | None
    """Manifest of the request that entry `seq` answered, if there is one."""


class IntegrityFault(NamedTuple):
    """A row that differs from what was recorded: an entry, a branch, the conversation, or a row of the tenant."""

    branch: int | None
    seq: int | None
    problem: str


class TenantCheck(NamedTuple):
    """What an entry point `quire.checks`, a coroutine function of a store, finds in a tenant."""

    faults: list[IntegrityFault]
    note: str | None
    """What to print if there are no faults."""


class TenantPurge(NamedTuple):
    """What a purge of a tenant deleted."""

    conversations: int
    rows: int
    objects: int = 0
    """Objects in object storage."""


class ValuePurge(NamedTuple):
    """What a purge by value erased, and what it could not."""

    entries: tuple[tuple[str, int, int], ...]
    """Conversation, branch and number of the purged entries."""
    rows: dict[str, int]
    """Other rows that were erased or cleared, by table."""
    remaining: tuple[str, ...]
    """Tables that still contain the value, because it is in an id."""


class Blob(NamedTuple):
    media_type: str
    data: bytes


class MessageKey(NamedTuple):
    """Names a message by the branch that owns it."""

    conversation: str
    branch: int
    seq: int


class Citation(NamedTuple):
    """The message that a memory came from."""

    conversation: str
    branch: int
    seq: int


class Memory(NamedTuple):
    """A memory of an agent. An imported one has a `source` instead of a citation."""

    id: str
    namespace: str
    text: str
    citation: Citation | None
    source: str | None
    created_at: int
    retired_at: int | None
    replaced_by: str | None
