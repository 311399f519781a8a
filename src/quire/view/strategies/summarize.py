"""Summarize: the newest few messages word for word, everything before them in the running summary."""

from collections.abc import Sequence

from quire.model.policy import Policy
from quire.view.batches import Batch
from quire.view.cuts import last_cut_keeping
from quire.view.strategies.fitting import SHARES, first_cut_that_fits


class Summarize:
    name = "summarize"
    summarizes = True
    recalls = False
    shares = SHARES

    def cut(self, batches: Sequence[Batch], *, legal: Sequence[int], room: int, policy: Policy) -> int:
        """Keeps `recent_messages_to_keep`; fewer, down to the least that is legal, where they do not fit."""
        wanted = last_cut_keeping(batches, policy.recent_messages_to_keep)
        fits = first_cut_that_fits(batches, legal=legal, room=room)
        return max((place for place in legal if place <= max(wanted, fits)), default=legal[0])
