"""The result of a backtest: one `VariantReport` for each variant, added up conversation by conversation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.backtest.estimates import RatioEstimator
from quire.backtest.simulation import SimulatedStep
from quire.backtest.variants import BacktestVariant

MAX_SERIES_POINTS = 400
"""Points of a series; a longer one is averaged."""


class SeriesPoint(NamedTuple):
    """Mean tokens at one position of the conversations that reach it."""

    position: int
    """Number of the first turn or request, from 1."""
    tokens: float
    cached_tokens: float
    conversations: int


class TokenSeries:
    """Mean tokens by turn or by request number, over conversations of different lengths."""

    def __init__(self) -> None:
        self._sums: list[tuple[float, float, float, int]] = []
        """Weight, tokens, cached tokens and number of conversations at each position."""

    def add(self, values: Sequence[tuple[int, int]], *, weight: float) -> None:
        """Adds the tokens and the cached tokens of one conversation, position by position."""
        self._sums += [(0.0, 0.0, 0.0, 0)] * (len(values) - len(self._sums))
        for index, (tokens, cached) in enumerate(values):
            total, token_sum, cached_sum, count = self._sums[index]
            self._sums[index] = total + weight, token_sum + weight * tokens, cached_sum + weight * cached, count + 1

    def points(self) -> list[SeriesPoint]:
        size = max(1, -(-len(self._sums) // MAX_SERIES_POINTS))
        return [self._merge(first, size) for first in range(0, len(self._sums), size)]

    def _merge(self, first: int, size: int) -> SeriesPoint:
        rows = self._sums[first : first + size]
        weight = sum(row[0] for row in rows)
        tokens, cached = sum(row[1] for row in rows) / weight, sum(row[2] for row in rows) / weight
        return SeriesPoint(first + 1, tokens, cached, rows[0][3])


class ConversationSteps:
    """Steps of one conversation with one variant."""

    def __init__(self) -> None:
        self.steps: list[SimulatedStep] = []

    def add(self, step: SimulatedStep) -> None:
        self.steps.append(step)

    def by_turn(self) -> list[tuple[int, int]]:
        """Tokens and cached tokens of each turn, over all its steps."""
        turns: list[tuple[int, int]] = []
        for step in self.steps:
            if step.turn > len(turns):
                turns.append((0, 0))
            tokens, cached = turns[-1]
            turns[-1] = tokens + step.tokens, cached + step.cached_tokens
        return turns

    def by_request(self) -> list[tuple[int, int]]:
        return [(step.tokens, step.cached_tokens) for step in self.steps]


def _new_estimator() -> RatioEstimator:
    return RatioEstimator()


@dataclass(slots=True)
class VariantReport:
    """Totals of one variant."""

    variant: BacktestVariant
    model: str
    window: int
    """Context window that applies: that of the model, bounded by the settings."""
    has_price: bool
    turns: RatioEstimator = field(default_factory=_new_estimator)
    requests: RatioEstimator = field(default_factory=_new_estimator)
    tokens: RatioEstimator = field(default_factory=_new_estimator)
    cached_share: RatioEstimator = field(default_factory=_new_estimator)
    output_tokens: RatioEstimator = field(default_factory=_new_estimator)
    compactions: RatioEstimator = field(default_factory=_new_estimator)
    cost_usd: RatioEstimator = field(default_factory=_new_estimator)
    regret: RatioEstimator = field(default_factory=_new_estimator)
    needed: int = 0
    recorded_requests: int = 0
    """Requests of which the log has a manifest."""
    matching_requests: int = 0
    """Those of them that the simulation repeats byte for byte."""
    failed_requests: int = 0
    first_error: str | None = None
    by_turn: TokenSeries = field(default_factory=TokenSeries)
    by_request: TokenSeries = field(default_factory=TokenSeries)

    def add(self, conversation: ConversationSteps, *, weight: float) -> None:
        steps, turns = conversation.steps, conversation.by_turn()
        tokens = sum(step.tokens for step in steps)
        needed = sum(step.needed for step in steps)
        self.turns.add(len(turns), weight=weight)
        self.requests.add(len(steps), weight=weight)
        self.tokens.add(tokens, weight=weight)
        self.cached_share.add(sum(step.cached_tokens for step in steps), tokens, weight=weight)
        self.output_tokens.add(sum(step.output_tokens for step in steps), weight=weight)
        self.compactions.add(sum(step.compactions for step in steps), weight=weight)
        self.cost_usd.add(sum(step.cost_usd for step in steps), weight=weight)
        self.regret.add(needed - sum(step.in_view for step in steps), needed, weight=weight)
        self.needed += needed
        self.recorded_requests += sum(step.matches_recorded is not None for step in steps)
        self.matching_requests += sum(step.matches_recorded is True for step in steps)
        errors = [step.error for step in steps if step.error is not None]
        self.failed_requests += len(errors)
        self.first_error = self.first_error or next(iter(errors), None)
        self.by_turn.add(turns, weight=weight)
        self.by_request.add(conversation.by_request(), weight=weight)


@dataclass(slots=True)
class BacktestReport:
    variants: list[VariantReport]
    is_sample: bool
    """Whether the conversations are a random sample, so that estimates have confidence intervals."""
    conversations: int = 0
    skipped: int = 0
    """Conversations without a reply, and those that were purged meanwhile."""
