"""Select: of what was gathered, what goes into the request. Required first, then the newest turn, then what fits.

Blocks that can be left out go in by score up to their slot's ceiling; history goes in newest first and stops where the
next batch does not fit, so that what is shown has no holes. Archived messages are recalled into what is left then.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from quire.errors import ContextOverflow
from quire.model.policy import Slot
from quire.view.batches import Batch, leaves_of
from quire.view.budget import Budget
from quire.view.excerpts import excerpt, largest_that_fits, longest_text
from quire.view.gather import CountedBlock, Gathered
from quire.view.leaves import Leaf, Meter
from quire.view.recalled import Fitted, fit, fitted_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    blocks: tuple[CountedBlock, ...]
    """In the order in which they were handed in."""
    history: tuple[Batch, ...]
    left_behind: tuple[Batch, ...]
    newest: tuple[Batch, ...]
    recalled: "Recalled | None"
    excerpt: int | None
    """How many characters of each text of the newest turn are left, where it alone exceeds the room."""


class Recalled(NamedTuple):
    """Archived messages shown again, and the one leaf in which they stand."""

    shown: tuple[Fitted, ...]
    leaf: Leaf


def select(gathered: Gathered, budget: Budget, meter: Meter) -> Selection:
    left = budget.room - gathered.required
    newest, limit = _newest(gathered, left, budget, meter)
    left -= sum(batch.tokens for batch in newest)
    chosen, taken = _blocks(gathered, left, budget)
    left -= taken
    first, left = _reach(gathered.history, left)
    recalled = _recalled(gathered, chosen, left, budget, meter)
    return Selection(
        blocks=chosen,
        history=gathered.history[first:],
        left_behind=gathered.history[:first],
        newest=newest,
        recalled=recalled,
        excerpt=limit,
    )


def _reach(history: tuple[Batch, ...], left: int) -> tuple[int, int]:
    """How far back the history fits, and what is left then."""
    first = len(history)
    for batch in reversed(history):
        if batch.tokens > left:
            break
        first -= 1
        left -= batch.tokens
    return first, left


def _blocks(gathered: Gathered, left: int, budget: Budget) -> tuple[tuple[CountedBlock, ...], int]:
    used: defaultdict[Slot, int] = defaultdict(int)
    for counted in gathered.blocks:
        if counted.block.required:
            used[counted.block.slot] += counted.tokens
    optional = [counted for counted in gathered.blocks if not counted.block.required]
    chosen: set[int] = set()
    taken = 0
    for counted in sorted(optional, key=lambda each: -(each.block.score or 0)):
        slot = counted.block.slot
        if used[slot] + counted.tokens <= budget.ceiling(slot) and taken + counted.tokens <= left:
            used[slot] += counted.tokens
            taken += counted.tokens
            chosen.add(id(counted))
    return tuple(each for each in gathered.blocks if each.block.required or id(each) in chosen), taken


def _recalled(
    gathered: Gathered, chosen: tuple[CountedBlock, ...], left: int, budget: Budget, meter: Meter
) -> Recalled | None:
    """What the recall slot still holds after the blocks in it."""
    used = sum(counted.tokens for counted in chosen if counted.block.slot == "recall")
    room = min(left, budget.ceiling("recall") - used, budget.recalled)
    shown = fit(gathered.recalled, room=room, counter=meter.counter)
    while shown:
        leaf = meter.data(fitted_text(shown))
        if leaf.tokens <= room:
            return Recalled(tuple(shown), leaf)
        shown.pop()
    return None


def _newest(gathered: Gathered, left: int, budget: Budget, meter: Meter) -> tuple[tuple[Batch, ...], int | None]:
    if gathered.newest_tokens <= left:
        return gathered.newest, None

    def tokens(limit: int) -> int:
        return sum(batch.tokens for batch in excerpted(gathered.newest, limit, meter))

    longest = max(longest_text(leaf.message) for leaf in leaves_of(gathered.newest))
    limit = largest_that_fits(tokens, longest=longest, room=left)
    if limit is None:
        needed = gathered.required + gathered.newest_tokens
        raise ContextOverflow(needed=needed, room=budget.room, largest=gathered.largest())
    return excerpted(gathered.newest, limit, meter), limit


def excerpted(batches: tuple[Batch, ...], limit: int, meter: Meter) -> tuple[Batch, ...]:
    return tuple(Batch.of(*(_excerpted(leaf, limit, meter) for leaf in batch.leaves)) for batch in batches)


def _excerpted(leaf: Leaf, limit: int, meter: Meter) -> Leaf:
    shorter = excerpt(leaf.message, limit, number=leaf.seq)
    return leaf if shorter is leaf.message else meter.leaf(shorter, seq=leaf.seq)
