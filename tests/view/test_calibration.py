"""Calibration from reported usage: bounded, convergent, and robust against outliers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from quire.view.tokens import MAX_RATIO, MIN_RATIO, SMOOTHING_FACTOR, Calibration, update_calibration

calibrations = st.builds(Calibration, ratio=st.floats(MIN_RATIO, MAX_RATIO), samples=st.integers(0, 1000))
counts = st.integers(-5, 10**12)


@given(calibrations, st.lists(st.tuples(counts, counts)))
def test_the_ratio_stays_within_its_bounds(calibration: Calibration, reports: list[tuple[int, int]]):
    for predicted, reported in reports:
        calibration = update_calibration(calibration, predicted=predicted, reported=reported)
        assert MIN_RATIO <= calibration.ratio <= MAX_RATIO


@given(calibrations, st.floats(MIN_RATIO, MAX_RATIO))
def test_it_converges_to_a_constant_ratio(calibration: Calibration, truth: float):
    for _ in range(100):
        calibration = update_calibration(calibration, predicted=1_000_000, reported=round(1_000_000 * truth))
    assert calibration.ratio == pytest.approx(truth, abs=0.001)


@given(calibrations, st.integers(1, 10**12), st.integers(1, 10**12))
def test_it_moves_towards_the_report_and_only_a_little(calibration: Calibration, predicted: int, reported: int):
    after = update_calibration(calibration, predicted=predicted, reported=reported)
    seen = min(max(reported / predicted, MIN_RATIO), MAX_RATIO)
    low, high = sorted((calibration.ratio, seen))
    assert low <= after.ratio <= high
    assert abs(after.ratio - calibration.ratio) <= SMOOTHING_FACTOR * (MAX_RATIO - MIN_RATIO) + 1e-12
    assert after.samples == calibration.samples + 1


def test_one_absurd_report_moves_a_settled_ratio_by_a_tenth_at_most():
    settled = Calibration(ratio=1.0, samples=50)
    assert update_calibration(settled, predicted=1, reported=10**9).ratio == pytest.approx(1.1)
    assert update_calibration(settled, predicted=10**9, reported=1).ratio == pytest.approx(0.95)


@given(calibrations, st.integers(-5, 0), counts)
def test_reports_without_tokens_are_ignored(calibration: Calibration, nothing: int, other: int):
    assert update_calibration(calibration, predicted=nothing, reported=other) is calibration
    assert update_calibration(calibration, predicted=other, reported=nothing) is calibration


@given(calibrations)
def test_it_survives_being_stored(calibration: Calibration):
    assert Calibration.parse(calibration.canonical_json()) == calibration


@pytest.mark.parametrize("ratio", [0.49, 2.01, float("nan"), float("inf")])
def test_a_ratio_out_of_bounds_cannot_be_made(ratio: float):
    with pytest.raises(ValidationError):
        Calibration(ratio=ratio)
