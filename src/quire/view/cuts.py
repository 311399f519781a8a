"""Where a history may be cut: the intersection of a few named invariants. A cut at `n` leaves the batches from `n` on.

Batches are whole by the way they are bound; what else must hold is listed here.
"""

from collections.abc import Callable, Sequence

from quire.model.policy import Policy
from quire.view.batches import Batch, newest_turn

Invariant = Callable[[Sequence[Batch], Policy], range]


def keeps_the_newest_turn(batches: Sequence[Batch], policy: Policy) -> range:
    """What is being asked, and the tool loop that answers it, is never cut off or into."""
    return range(newest_turn(batches) + 1)


def keeps_recent_messages(batches: Sequence[Batch], policy: Policy) -> range:
    """At least `min_recent_messages_to_keep` messages stay as they were said."""
    return range(last_cut_keeping(batches, policy.min_recent_messages_to_keep) + 1)


def cuts_what_is_stored(batches: Sequence[Batch], policy: Policy) -> range:
    """Only messages that have a number can be covered by a compaction."""
    stored = next((place for place, batch in enumerate(batches) if not batch.seqs), len(batches))
    return range(stored + 1)


INVARIANTS: tuple[Invariant, ...] = (keeps_the_newest_turn, keeps_recent_messages, cuts_what_is_stored)


def legal_cuts(batches: Sequence[Batch], policy: Policy) -> list[int]:
    """All places where every invariant holds, the one that keeps most first."""
    allowed = set(range(len(batches) + 1)).intersection(*(holds(batches, policy) for holds in INVARIANTS))
    return sorted(allowed)


def last_cut_keeping(batches: Sequence[Batch], messages: int) -> int:
    """The last place where so many messages still come after it."""
    kept, place = 0, len(batches)
    while place > 0 and kept < messages:
        place -= 1
        kept += len(batches[place].leaves)
    return place
