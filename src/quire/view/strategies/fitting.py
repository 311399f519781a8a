"""What the strategies share: the cut that keeps as much as fits, and the shares of the slots."""

from collections.abc import Mapping, Sequence

from quire.model.policy import Slot
from quire.view.batches import Batch

SHARES: Mapping[Slot, float] = {"system": 0.10, "tools": 0.30, "memory": 0.10, "references": 0.20, "recall": 0.10}


def first_cut_that_fits(batches: Sequence[Batch], *, legal: Sequence[int], room: int) -> int:
    """The legal place that keeps most and still fits into `room`; the last legal one if none does."""
    kept, place, best = 0, len(batches), legal[-1]
    allowed = set(legal)
    while place > 0 and kept + batches[place - 1].tokens <= room:
        place -= 1
        kept += batches[place].tokens
        if place in allowed:
            best = place
    return best
