"""Hybrid: a summary of what is old, as many recent turns as fit, memory, and what is recalled for the question."""

from collections.abc import Sequence

from quire.model.policy import Policy, Slot
from quire.view.batches import Batch
from quire.view.strategies.fitting import first_cut_that_fits


class Hybrid:
    name = "hybrid"
    summarizes = True
    shares: dict[Slot, float] = {"system": 0.10, "tools": 0.30, "memory": 0.20, "references": 0.20, "recall": 0.20}  # noqa: RUF012 (constant)

    def cut(self, batches: Sequence[Batch], *, legal: Sequence[int], room: int, policy: Policy) -> int:
        """Keeps what fits once a part of the room is left for the summary and for recall."""
        return first_cut_that_fits(batches, legal=legal, room=int(room * 0.8))
