"""Legal cut points of a history: the intersection of named invariants. A cut at `n` preserves the batches from `n` on.

A cut never splits a batch, since cut points are indexes of batches; the other invariants are listed here. A cut may be
inside a turn, whose question then stays in the view.
"""

from collections.abc import Callable, Sequence

from quire.model.policy import Policy
from quire.view.batches import MessageBatch

Invariant = Callable[[Sequence[MessageBatch], Policy], range]


def keep_newest_batch(batches: Sequence[MessageBatch], policy: Policy) -> range:
    """The newest message, or the newest tool call with its results, is never archived or split."""
    return range(len(batches))


def keep_recent_messages(batches: Sequence[MessageBatch], policy: Policy) -> range:
    """At least `min_recent_messages_to_keep` messages stay unchanged."""
    return range(find_cut_keeping(batches, policy.min_recent_messages_to_keep) + 1)


def cut_only_stored(batches: Sequence[MessageBatch], policy: Policy) -> range:
    """A compaction can cover only stored messages."""
    first_unstored = next((index for index, batch in enumerate(batches) if not batch.seqs), len(batches))
    return range(first_unstored + 1)


INVARIANTS: tuple[Invariant, ...] = (keep_newest_batch, keep_recent_messages, cut_only_stored)


def find_legal_cuts(batches: Sequence[MessageBatch], policy: Policy) -> list[int]:
    """Cut points that satisfy every invariant, the one that preserves most messages first."""
    allowed = set(range(len(batches) + 1)).intersection(*(invariant(batches, policy) for invariant in INVARIANTS))
    return sorted(allowed)


def find_cut_keeping(batches: Sequence[MessageBatch], messages: int) -> int:
    """Last cut point with at least `messages` messages after it. An empty question is not one of them."""
    count, cut = 0, len(batches)
    while cut > 0 and count < messages:
        cut -= 1
        count += 0 if batches[cut].is_empty_question else len(batches[cut].messages)
    return cut
