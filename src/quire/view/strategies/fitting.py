"""The cut that the strategies share: keep as much as fits."""

from collections.abc import Sequence

from quire.view.batches import Batch


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
