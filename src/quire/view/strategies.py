"""Compaction strategies: where to cut a history. Pure; users can register their own.

The built-in strategies are `discard`, `summarize` and `hybrid`.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from quire.errors import UnknownStrategy
from quire.model.policy import Policy, Slot
from quire.view.batches import MessageBatch
from quire.view.cut_points import find_cut_keeping
from quire.view.priorities import PriorityClass

DEFAULT_SLOT_SHARES: Mapping[Slot, float] = {
    "system": 0.10,
    "tools": 0.30,
    "memory": 0.10,
    "references": 0.20,
    "recall": 0.10,
}
NO_PRIORITY_SHARES: Mapping[PriorityClass, float] = {}


def find_first_fitting_cut(batches: Sequence[MessageBatch], *, legal_cuts: Sequence[int], max_tokens: int) -> int:
    """Earliest legal cut whose messages fit into `max_tokens`; the last legal one if none does."""
    tokens, cut, best = 0, len(batches), legal_cuts[-1]
    allowed = set(legal_cuts)
    while cut > 0 and tokens + batches[cut - 1].tokens <= max_tokens:
        cut -= 1
        tokens += batches[cut].tokens
        if cut in allowed:
            best = cut
    return best


class DiscardStrategy:
    """Archives old messages without a summary."""

    name = "discard"
    summarizes = False
    recalls = False
    shares = DEFAULT_SLOT_SHARES
    priority_shares = NO_PRIORITY_SHARES

    def choose_cut(
        self, batches: Sequence[MessageBatch], *, legal_cuts: Sequence[int], max_tokens: int, policy: Policy
    ) -> int:
        return find_first_fitting_cut(batches, legal_cuts=legal_cuts, max_tokens=max_tokens)


class SummarizeStrategy:
    """Replaces old messages by a summary and preserves a fixed number of recent ones."""

    name = "summarize"
    summarizes = True
    recalls = False
    shares = DEFAULT_SLOT_SHARES
    priority_shares = NO_PRIORITY_SHARES

    def choose_cut(
        self, batches: Sequence[MessageBatch], *, legal_cuts: Sequence[int], max_tokens: int, policy: Policy
    ) -> int:
        """Preserves `recent_messages_to_keep` messages; fewer, down to the legal minimum, if they do not fit."""
        preferred = find_cut_keeping(batches, policy.recent_messages_to_keep)
        fitting = find_first_fitting_cut(batches, legal_cuts=legal_cuts, max_tokens=max_tokens)
        return max((cut for cut in legal_cuts if cut <= max(preferred, fitting)), default=legal_cuts[0])


HYBRID_SLOT_SHARES: Mapping[Slot, float] = {**DEFAULT_SLOT_SHARES, "memory": 0.20, "recall": 0.20}
HYBRID_PRIORITY_SHARES: Mapping[PriorityClass, float] = {"critical": 0.30, "important": 0.25}


class HybridStrategy:
    """Replaces old messages by a summary, preserves those of high priority, and recalls those that are relevant."""

    name = "hybrid"
    summarizes = True
    recalls = True
    shares = HYBRID_SLOT_SHARES
    priority_shares = HYBRID_PRIORITY_SHARES

    def choose_cut(
        self, batches: Sequence[MessageBatch], *, legal_cuts: Sequence[int], max_tokens: int, policy: Policy
    ) -> int:
        """Reserves a fifth of the budget for the summary and recall, and preserves what fits into the rest."""
        return find_first_fitting_cut(batches, legal_cuts=legal_cuts, max_tokens=int(max_tokens * 0.8))


class Strategy(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def summarizes(self) -> bool:
        """Whether archived messages are replaced by a summary."""
        ...

    @property
    def shares(self) -> Mapping[Slot, float]:
        """Share of the budget that each slot may use; unused tokens go to messages."""
        ...

    @property
    def priority_shares(self) -> Mapping[PriorityClass, float]:
        """Share of the input tokens that archived messages of each class may use in the view; empty to ignore
        priorities."""
        ...

    @property
    def recalls(self) -> bool:
        """Whether archived messages that are relevant to a question are recalled."""
        ...

    def choose_cut(
        self, batches: Sequence[MessageBatch], *, legal_cuts: Sequence[int], max_tokens: int, policy: Policy
    ) -> int:
        """Returns one of `legal_cuts`. The batches after it should fit into `max_tokens`, if possible."""
        ...


_strategies: dict[str, Strategy] = {}


def register_strategy(strategy: Strategy) -> None:
    """Registers a strategy under its name; replaces an earlier one with that name."""
    _strategies[strategy.name] = strategy


def get_strategy(name: str) -> Strategy:
    try:
        return _strategies[name]
    except KeyError:
        known = ", ".join(sorted(_strategies))
        raise UnknownStrategy(f"Unknown strategy {name!r}; use one of {known}, or register your own.") from None


for _strategy in (DiscardStrategy(), SummarizeStrategy(), HybridStrategy()):
    register_strategy(_strategy)
