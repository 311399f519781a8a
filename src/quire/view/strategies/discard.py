"""Discard: the newest messages that fit; the rest is left out and stays in the log."""

from collections.abc import Sequence

from quire.model.policy import Policy, Slot
from quire.view.batches import Batch
from quire.view.strategies.fitting import first_cut_that_fits


class Discard:
    name = "discard"
    summarizes = False
    shares: dict[Slot, float] = {"system": 0.10, "tools": 0.30, "memory": 0.10, "references": 0.20, "recall": 0.10}  # noqa: RUF012 (constant)

    def cut(self, batches: Sequence[Batch], *, legal: Sequence[int], room: int, policy: Policy) -> int:
        return first_cut_that_fits(batches, legal=legal, room=room)
