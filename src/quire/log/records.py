"""What the store gives back besides entries: conversations, branches, windows, matches, faults."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from quire.model import BranchState, Draft, Entry, Manifest, Span

MAIN = 0
"""The number of a conversation's first branch."""


class Conversation(NamedTuple):
    id: str
    title: str
    created_at: int
    used_at: int
    """When something was last added, to the second."""


class Segment(NamedTuple):
    """Entries `first` to `last` of one branch's own rows."""

    branch: int
    first: int
    last: int


class Branch(NamedTuple):
    """A line of entries. `lineage` names the branches that it continues and up to which entry, oldest first."""

    conversation: str
    number: int
    name: str
    created_at: int
    lineage: tuple[tuple[int, int], ...]
    head_seq: int
    head_digest: bytes
    head_path: bytes
    state: BranchState
    used_at: int
    """When the conversation was last noted to be in use, as far as this branch knows."""

    @property
    def fork_seq(self) -> int:
        """The last entry that the branch shares with the one it left; 0 for a branch of its own."""
        return self.lineage[-1][1] if self.lineage else 0

    def segments(self, first: int = 1, last: int | None = None) -> Iterator[Segment]:
        """Where the entries `first` to `last` of this branch are stored, newest piece first."""
        last = self.head_seq if last is None else min(last, self.head_seq)
        starts = [0, *(upto for _, upto in self.lineage)]
        pieces = [*self.lineage, (self.number, self.head_seq)]
        for start, (branch, upto) in reversed(list(zip(starts, pieces, strict=True))):
            piece = Segment(branch, max(first, start + 1), min(last, upto))
            if piece.first <= piece.last:
                yield piece

    def holder(self, seq: int) -> int | None:
        """The branch whose row holds this branch's entry `seq`."""
        return next((piece.branch for piece in self.segments(seq, seq)), None)


class Window(NamedTuple):
    """What the view starts from: the branch, its active compaction, and the messages that it leaves to be seen."""

    branch: Branch
    compaction: Entry | None
    pinned: tuple[Entry, ...]
    """Messages that are pinned and covered by the compaction."""
    messages: tuple[Entry, ...]
    unread: Span | None = None
    """Entries before the first of `messages` that were not read, because those after them have tokens enough."""


class Turn(NamedTuple):
    """What is recorded when a request was answered, all of it or nothing."""

    drafts: tuple[Draft, ...]
    """The last of them is the reply."""
    manifest: Callable[[Sequence[Entry]], Manifest]
    """Called with the entries once they have their numbers."""
    blobs: tuple["Blob", ...] = ()
    """The texts that the request quoted from outside the log."""
    calibration: tuple[str, str] | None = None
    """For which model, and what is known of its counts now, as JSON."""
    cost: float = 0.0
    """What the call cost, in dollars."""
    request: str | None = None
    """The id by which the request is found, if it has one."""
    opens: Conversation | None = None
    """The conversation, if it begins with this turn; where someone else has begun it meanwhile, it goes on."""
    told: bytes | None = None
    """The path by which a client knows the reply, where what the client keeps of the messages differs from the log."""


class Filed(NamedTuple):
    """A request that was answered, and under which reply its manifest is filed."""

    conversation: str
    branch: int
    seq: int
    manifest: Manifest


class Recognised(NamedTuple):
    """Where a client's list of messages goes on: so many of them are stored and end at entry `seq` of this branch."""

    length: int
    branch: Branch
    seq: int
    manifest: str | None
    """The record of the request that entry `seq` answered, if it is a reply that was asked for."""


class Match(NamedTuple):
    """The longest stored prefix of a list of messages: so many of them, ending at this entry."""

    length: int
    conversation: str
    branch: int
    seq: int


class Fault(NamedTuple):
    """Something in the stored log that is not as it was written."""

    branch: int
    seq: int
    problem: str


class Blob(NamedTuple):
    media_type: str
    data: bytes
