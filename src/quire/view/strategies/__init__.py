"""Strategies: how much of a history stays when it has to be cut. Pure; one a file; users can register their own."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from quire.errors import UnknownStrategy
from quire.model.policy import Policy, Slot
from quire.view.batches import Batch
from quire.view.strategies.discard import Discard
from quire.view.strategies.hybrid import Hybrid
from quire.view.strategies.summarize import Summarize


class Strategy(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def summarizes(self) -> bool:
        """Whether what is cut off should leave a summary behind."""
        ...

    @property
    def shares(self) -> Mapping[Slot, float]:
        """The part of the room that each slot may take; what it leaves over flows to messages."""
        ...

    @property
    def recalls(self) -> bool:
        """Whether archived messages that bear on a question are shown again with it."""
        ...

    def cut(self, batches: Sequence[Batch], *, legal: Sequence[int], room: int, policy: Policy) -> int:
        """One of the legal places. `room` is what the batches after it should fit into, if they can."""
        ...


_registered: dict[str, Strategy] = {}


def register_strategy(strategy: Strategy) -> None:
    """Makes a strategy known by its name, in place of one that had it."""
    _registered[strategy.name] = strategy


def strategy_named(name: str) -> Strategy:
    try:
        return _registered[name]
    except KeyError:
        known = ", ".join(sorted(_registered))
        raise UnknownStrategy(f"There is no strategy {name!r}; there are {known}, and those you register.") from None


for _strategy in (Discard(), Summarize(), Hybrid()):
    register_strategy(_strategy)
