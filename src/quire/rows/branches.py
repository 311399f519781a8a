"""Branches: which rows hold a branch's entries, and which branch of a conversation was used last."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

MAIN_BRANCH = 0

Lineage = Sequence[Sequence[int]]
"""The ancestors of a branch, each with the last entry shared with it, oldest first."""


class BranchRange(NamedTuple):
    """Entries `first` to `last` of one branch's own rows."""

    branch: int
    first: int
    last: int


def find_fork_seq(lineage: Lineage) -> int:
    """The last entry that a branch of this lineage shares with its parent, or 0 without one."""
    return lineage[-1][1] if lineage else 0


def split_ranges(number: int, lineage: Lineage, *, first: int, last: int) -> Iterator[BranchRange]:
    """The ranges of own rows, per branch, that hold the entries `first` to `last` of a branch; newest first."""
    starts = [0, *(shared_seq for _, shared_seq in lineage)]
    ends = [*lineage, (number, last)]
    for start, (branch, end) in reversed(list(zip(starts, ends, strict=True))):
        own_range = BranchRange(branch, max(first, start + 1), min(last, end))
        if own_range.first <= own_range.last:
            yield own_range


class UsedBranch(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def head_seq(self) -> int: ...
    @property
    def fork_seq(self) -> int: ...
    @property
    def updated_at(self) -> int: ...


B = TypeVar("B", bound=UsedBranch)


def choose_branch_used_last(branches: Sequence[B]) -> B:
    """The branch of a conversation that was appended to last: an agent may go on in a separate branch.

    A fork without entries was never used.
    """
    used = [each for each in branches if each.number == MAIN_BRANCH or each.head_seq > each.fork_seq]
    return max(used, key=lambda each: (each.updated_at, each.number))


def may_have_waiting_edits(state: Any) -> bool:
    """Whether there may be edits that an agent's own list does not have yet, by the state of its branch."""
    return bool(state.epoch or state.drops or state.pins or state.compaction_count)
