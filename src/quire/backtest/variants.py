"""Variants of the settings that a backtest compares: strategy, context window and model."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from quire.errors import InvalidRequest
from quire.view.strategies import get_strategy

MAX_VARIANTS = 24
"""Variants of one backtest: each one has a scratch log in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestVariant:
    """Settings that replace those of the engine; None is the engine's own."""

    name: str
    strategy: str
    window: int | None = None
    model: str | None = None

    @property
    def changes(self) -> dict[str, Any]:
        named = {"strategy": self.strategy, "context_limit": self.window, "model": self.model}
        return {name: value for name, value in named.items() if value is not None}


def combine_variants(
    strategies: Sequence[str], *, windows: Sequence[int] = (), models: Sequence[str] = ()
) -> list[BacktestVariant]:
    """Every combination. The names have the strategy, and what else differs."""
    combinations = list(
        product(dict.fromkeys(strategies), dict.fromkeys(windows) or [None], dict.fromkeys(models) or [None])
    )
    if len(combinations) > MAX_VARIANTS:
        raise InvalidRequest(
            f"These are {len(combinations)} combinations, and a backtest compares at most {MAX_VARIANTS}; "
            "give fewer strategies, windows or models."
        )
    variants: list[BacktestVariant] = []
    for strategy, window, model in combinations:
        get_strategy(strategy)  # Raises an error that lists the strategies.
        parts = [
            strategy,
            *([f"{window:,}"] if window and len(windows) > 1 else []),
            *([model] if model and len(models) > 1 else []),
        ]
        variants.append(BacktestVariant(name=" ".join(parts), strategy=strategy, window=window, model=model))
    return variants
