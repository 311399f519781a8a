"""Discard: the newest messages that fit; the rest is left out and stays in the log."""

from collections.abc import Sequence

from quire.model.policy import Policy
from quire.view.batches import Batch
from quire.view.strategies.fitting import SHARES, first_cut_that_fits


class Discard:
    name = "discard"
    summarizes = False
    recalls = False
    shares = SHARES

    def cut(self, batches: Sequence[Batch], *, legal: Sequence[int], room: int, policy: Policy) -> int:
        return first_cut_that_fits(batches, legal=legal, room=room)
