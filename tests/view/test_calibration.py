"""Calibration from reported usage: bounded, convergent, and robust against outliers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from quire.view.budget import MAX_RATIO, MIN_RATIO, SMOOTHING_FACTOR, Calibration, update_calibration

calibrations = st.builds(
    Calibration,
    ratio=st.floats(MIN_RATIO, MAX_RATIO),
    density=st.floats(0, 0.25),
    density_variance=st.floats(0, 0.01),
    covariance=st.floats(-0.01, 0.01),
    samples=st.integers(0, 1000),
)
counts = st.integers(-5, 10**12)


@given(calibrations, st.lists(st.tuples(counts, counts)))
def test_the_ratio_stays_within_its_bounds(calibration: Calibration, reports: list[tuple[int, int]]):
    for predicted, reported in reports:
        calibration = update_calibration(calibration, predicted=predicted, reported=reported, messages=9)
        assert MIN_RATIO <= calibration.ratio <= MAX_RATIO
        for exact in (False, True):
            assert MIN_RATIO <= calibration.ratio_for(tokens=predicted, messages=3, exact=exact) <= MAX_RATIO


@given(calibrations, st.floats(MIN_RATIO, MAX_RATIO))
def test_it_converges_to_a_constant_ratio(calibration: Calibration, truth: float):
    for _ in range(100):
        calibration = update_calibration(
            calibration, predicted=1_000_000, reported=round(1_000_000 * truth), messages=1
        )
    assert calibration.ratio == pytest.approx(truth, abs=0.001)


@given(calibrations, st.integers(1, 10**12), st.integers(1, 10**12))
def test_it_moves_towards_the_report_and_only_a_little(calibration: Calibration, predicted: int, reported: int):
    after = update_calibration(calibration, predicted=predicted, reported=reported, messages=2)
    seen = min(max(reported / predicted, MIN_RATIO), MAX_RATIO)
    low, high = sorted((calibration.ratio, seen))
    assert low <= after.ratio <= high
    assert abs(after.ratio - calibration.ratio) <= SMOOTHING_FACTOR * (MAX_RATIO - MIN_RATIO) + 1e-12
    assert after.samples == calibration.samples + 1


def test_one_absurd_report_moves_a_settled_ratio_by_a_tenth_at_most():
    settled = Calibration(ratio=1.0, samples=50)
    assert update_calibration(settled, predicted=1, reported=10**9, messages=1).ratio == pytest.approx(1.1)
    assert update_calibration(settled, predicted=10**9, reported=1, messages=1).ratio == pytest.approx(0.95)


@given(calibrations, st.integers(-5, 0), counts)
def test_reports_without_tokens_are_ignored(calibration: Calibration, nothing: int, other: int):
    assert update_calibration(calibration, predicted=nothing, reported=other, messages=1) is calibration
    assert update_calibration(calibration, predicted=other, reported=nothing, messages=1) is calibration


@given(calibrations)
def test_it_survives_being_stored(calibration: Calibration):
    assert Calibration.parse(calibration.canonical_json()) == calibration


@pytest.mark.parametrize("ratio", [0.49, 2.01, float("nan"), float("inf")])
def test_a_ratio_out_of_bounds_cannot_be_made(ratio: float):
    with pytest.raises(ValidationError):
        Calibration(ratio=ratio)


SHORT_MESSAGE_TOKENS = 9


def test_an_overhead_learned_from_short_messages_does_not_scale_a_long_one():
    calibration = Calibration()
    for messages in range(1, 201):
        counted = SHORT_MESSAGE_TOKENS * messages
        calibration = update_calibration(calibration, predicted=counted, reported=counted + messages, messages=messages)
    assert calibration.ratio == pytest.approx(1 + 1 / SHORT_MESSAGE_TOKENS, abs=0.001)
    assert calibration.ratio_for(tokens=50_000, messages=1, exact=True) == pytest.approx(1.0, abs=0.001)
    short = calibration.ratio_for(tokens=1_800, messages=200, exact=True)
    assert short == pytest.approx(1 + 1 / SHORT_MESSAGE_TOKENS, abs=0.001)
    # Equal densities do not show whether the text or the overhead is wrong: for an estimate, the text.
    assert calibration.ratio_for(tokens=50_000, messages=1, exact=False) == pytest.approx(calibration.ratio)


@pytest.mark.parametrize("exact", [False, True])
@given(
    ratio=st.floats(0.8, 1.4),
    overhead=st.floats(-3, 6),
    lengths=st.lists(st.integers(10, 1_000), min_size=20, max_size=60),
)
def test_requests_of_different_density_separate_factor_and_overhead(
    exact: bool, ratio: float, overhead: float, lengths: list[int]
):
    def report(tokens: int, messages: int) -> int:
        return round(ratio * tokens + overhead * messages)

    calibration = Calibration()
    for length in (*lengths, *(12, 400) * 60):
        counted = 100 * length
        calibration = update_calibration(calibration, predicted=counted, reported=report(counted, 100), messages=100)
    for length in (12, 50, 400, 5_000):
        counted = 100 * length
        predicted = counted * calibration.ratio_for(tokens=counted, messages=100, exact=exact)
        assert predicted == pytest.approx(report(counted, 100), rel=0.04)


@given(calibrations, st.floats(MIN_RATIO, MAX_RATIO), st.integers(1, 10**6), st.integers(1, 10**4), st.booleans())
def test_a_report_can_override_the_average(
    calibration: Calibration, ratio: float, tokens: int, messages: int, exact: bool
):
    corrected = calibration.with_ratio(ratio, tokens=tokens, messages=messages)
    assert corrected.ratio_for(tokens=tokens, messages=messages, exact=exact) == pytest.approx(ratio)
