"""Compaction strategies: where to cut a history. Pure; users can register their own."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from quire.errors import UnknownStrategy
from quire.model.policy import Policy, Slot
from quire.view.batches import MessageBatch
from quire.view.strategies.builtin import DiscardStrategy, HybridStrategy, SummarizeStrategy


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
