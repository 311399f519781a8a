"""Estimates of a sample: means, ratios and confidence intervals, compared with known values."""

from random import Random
from statistics import mean, stdev

import pytest

from quire.backtest.report import RatioEstimator, student_quantile


@pytest.mark.parametrize(("degrees", "expected"), [(4, 2.776), (9, 2.262), (29, 2.045), (1_000, 1.962)])
def test_the_quantile_is_that_of_students_distribution(degrees: int, expected: float):
    assert student_quantile(degrees) == pytest.approx(expected, rel=0.01)


def test_a_mean_has_the_interval_of_the_textbook():
    values = [12.0, 15.0, 11.0, 19.0, 14.0, 13.0]
    estimator = RatioEstimator()
    for value in values:
        estimator.add(value)
    estimate = estimator.estimate(is_sample=True)
    assert estimate is not None
    assert estimate.value == pytest.approx(mean(values))
    assert estimate.half_width == pytest.approx(student_quantile(5) * stdev(values) / len(values) ** 0.5)


def test_all_conversations_have_no_interval_and_nothing_needed_has_no_regret():
    estimator = RatioEstimator()
    estimator.add(3, 4)
    estimator.add(1, 4)
    assert estimator.estimate(is_sample=False) == (0.5, None)
    empty = RatioEstimator()
    empty.add(0, 0)
    assert empty.estimate(is_sample=True) is None


def test_intervals_of_samples_drawn_by_size_contain_the_mean_of_all():
    """Large conversations are drawn more often; their weights correct it."""
    random = Random(5)
    sizes = [random.randint(2, 200) for _ in range(3_000)]
    tokens = [size * random.randint(50, 150) for size in sizes]
    inside = 0
    for _ in range(200):
        estimator = RatioEstimator()
        for index in random.choices(range(len(sizes)), weights=sizes, k=60):
            estimator.add(tokens[index], weight=1 / sizes[index])
        estimate = estimator.estimate(is_sample=True)
        assert estimate is not None
        assert estimate.half_width is not None
        inside += abs(estimate.value - mean(tokens)) <= estimate.half_width
    assert 170 <= inside <= 200
