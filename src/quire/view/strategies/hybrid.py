"""Hybrid: a summary of what is old, as many recent turns as fit, memory, and what is recalled for the question."""

from collections.abc import Mapping, Sequence

from quire.model.policy import Policy, Slot
from quire.view.batches import Batch
from quire.view.strategies.fitting import SHARES, first_cut_that_fits

HYBRID_SHARES: Mapping[Slot, float] = {**SHARES, "memory": 0.20, "recall": 0.20}


class Hybrid:
    name = "hybrid"
    summarizes = True
    recalls = True
    shares = HYBRID_SHARES

    def cut(self, batches: Sequence[Batch], *, legal: Sequence[int], room: int, policy: Policy) -> int:
        """Keeps what fits once a part of the room is left for the summary and for recall."""
        return first_cut_that_fits(batches, legal=legal, room=int(room * 0.8))
