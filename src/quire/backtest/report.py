"""The result of a backtest: one `VariantReport` for each variant, added up conversation by conversation.

Means and ratios have confidence intervals where the conversations are a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

from quire.backtest.selection import BacktestVariant
from quire.backtest.simulation import SimulatedStep

MAX_SERIES_POINTS = 400
"""Points of a series; in a longer one each is the mean of several positions."""
CONFIDENCE = 0.95
"""Probability that an interval contains the value of all conversations."""


class Estimate(NamedTuple):
    value: float
    half_width: float | None = None
    """Half of the confidence interval, or None if every conversation was simulated, or only one."""


@dataclass(slots=True)
class RatioEstimator:
    """Estimates the ratio of two sums over all conversations from a weighted sample.

    With denominators of 1 it is a mean. The weight of a conversation is the inverse of the probability that it is
    drawn. The variance is estimated from the linearized ratio. It needs sums alone, so memory does not grow with the
    sample.
    """

    count: int = 0
    numerator: float = 0.0
    denominator: float = 0.0
    square: float = 0.0
    product: float = 0.0
    denominator_square: float = 0.0
    """Sums of the squares and products of the weighted numerators and denominators, for the variance."""

    def add(self, numerator: float, denominator: float = 1.0, *, weight: float = 1.0) -> None:
        weighted, total = weight * numerator, weight * denominator
        self.count += 1
        self.numerator += weighted
        self.denominator += total
        self.square += weighted * weighted
        self.product += weighted * total
        self.denominator_square += total * total

    def estimate(self, *, is_sample: bool) -> Estimate | None:
        """The ratio, or None if the denominator is 0, such as regret where no reply needed anything."""
        if not self.denominator:
            return None
        ratio = self.numerator / self.denominator
        if not is_sample or self.count < 2:
            return Estimate(ratio)
        residuals = self.square - 2 * ratio * self.product + ratio * ratio * self.denominator_square
        variance = max(0.0, residuals) * self.count / (self.count - 1)
        return Estimate(ratio, student_quantile(self.count - 1) * sqrt(variance) / self.denominator)


def student_quantile(degrees: int) -> float:
    """Quantile of Student's t distribution for a two-sided interval.

    By the expansion of Fisher and Cornish, which is within 1 % from 4 degrees of freedom on.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees ** (power + 1) for power, term in enumerate(terms))


class SeriesPoint(NamedTuple):
    """Mean tokens at one position of the conversations that reach it."""

    position: int
    """Number of the first turn or request, from 1."""
    tokens: float
    cached_tokens: float
    conversations: int


class SeriesSum(NamedTuple):
    """Sums over the conversations at some neighbouring positions."""

    weight: float = 0.0
    tokens: float = 0.0
    cached_tokens: float = 0.0
    conversations: int = 0
    """Conversations that reach the first of the positions."""

    def add(self, other: "SeriesSum") -> "SeriesSum":
        return SeriesSum(
            self.weight + other.weight,
            self.tokens + other.tokens,
            self.cached_tokens + other.cached_tokens,
            self.conversations + other.conversations,
        )

    def join(self, following: "SeriesSum") -> "SeriesSum":
        """The sums of these positions and the following ones together."""
        return self.add(following)._replace(conversations=self.conversations)


@dataclass(slots=True)
class TokenSeries:
    """Mean tokens by turn or by request number, over conversations of different lengths.

    A series that gets longer than `MAX_SERIES_POINTS` joins each two neighbours, so that its size has a bound.
    """

    width: int = 1
    """Positions in each sum: a power of 2."""
    sums: list[SeriesSum] = field(default_factory=list[SeriesSum])

    def add(self, values: Sequence[tuple[int, int]], *, weight: float) -> None:
        """Adds the tokens and the cached tokens of one conversation, position by position."""
        sums = [SeriesSum(weight, weight * tokens, weight * cached, 1) for tokens, cached in values]
        self.merge(TokenSeries(1, sums))

    def merge(self, other: "TokenSeries") -> None:
        """Adds the conversations of another series."""
        width = max(self.width, other.width)
        while -(-max(self.length, other.length) // width) > MAX_SERIES_POINTS:
            width *= 2
        mine, theirs = self._widen(width), other._widen(width)
        self.width = width
        self.sums = [one.add(two) for one, two in zip_longest(mine, theirs, fillvalue=SeriesSum())]

    @property
    def length(self) -> int:
        return self.width * len(self.sums)

    def points(self) -> list[SeriesPoint]:
        return [
            SeriesPoint(
                1 + index * self.width, each.tokens / each.weight, each.cached_tokens / each.weight, each.conversations
            )
            for index, each in enumerate(self.sums)
        ]

    def _widen(self, width: int) -> list[SeriesSum]:
        step = width // self.width
        return [reduce(SeriesSum.join, self.sums[first : first + step]) for first in range(0, len(self.sums), step)]


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
    """Context window that applies: the model's, bounded by the settings."""
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
    """Recorded requests that the simulation repeats byte for byte."""
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
