"""Means and ratios over conversations, with confidence intervals where the conversations are a sample."""

from dataclasses import dataclass, fields
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

CONFIDENCE = 0.95
"""Probability that an interval contains the value of all conversations."""


class Estimate(NamedTuple):
    value: float
    half_width: float | None = None
    """Half of the confidence interval; None if every conversation was simulated, or only one."""


@dataclass(slots=True)
class RatioEstimator:
    """Estimates the ratio of two sums over all conversations, from weighted conversations; of 1 it is a mean.

    The weight of a conversation is the inverse of the probability that it is drawn. The variance is that of the
    linearized ratio, so memory does not grow with the sample.
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

    def merge(self, other: "RatioEstimator") -> None:
        """Adds the conversations of another estimator."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def estimate(self, *, is_sample: bool) -> Estimate | None:
        """The ratio; None if the denominator is 0, as the regret where no reply needed anything."""
        if not self.denominator:
            return None
        ratio = self.numerator / self.denominator
        if not is_sample or self.count < 2:
            return Estimate(ratio)
        residuals = self.square - 2 * ratio * self.product + ratio * ratio * self.denominator_square
        variance = max(0.0, residuals) * self.count / (self.count - 1)
        return Estimate(ratio, student_quantile(self.count - 1) * sqrt(variance) / self.denominator)


def student_quantile(degrees: int) -> float:
    """Quantile of Student's t distribution for a two-sided interval (expansion of Fisher and Cornish; within 1 % from 4
    degrees on)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees ** (power + 1) for power, term in enumerate(terms))
