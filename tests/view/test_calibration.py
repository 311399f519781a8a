"""The correction from reported usage: bounded, convergent, and hard to upset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from quire.view.calibration import HIGHEST, LOWEST, WEIGHT, Calibration, diverges, observe

calibrations = st.builds(Calibration, ratio=st.floats(LOWEST, HIGHEST), samples=st.integers(0, 1000))
counts = st.integers(-5, 10**12)


@given(calibrations, st.lists(st.tuples(counts, counts)))
def test_the_ratio_stays_within_its_bounds(calibration: Calibration, reports: list[tuple[int, int]]):
    for predicted, reported in reports:
        calibration = observe(calibration, predicted=predicted, reported=reported)
        assert LOWEST <= calibration.ratio <= HIGHEST


@given(calibrations, st.floats(LOWEST, HIGHEST))
def test_it_converges_to_a_constant_ratio(calibration: Calibration, truth: float):
    for _ in range(100):
        calibration = observe(calibration, predicted=1_000_000, reported=round(1_000_000 * truth))
    assert calibration.ratio == pytest.approx(truth, abs=0.001)


@given(calibrations, st.integers(1, 10**12), st.integers(1, 10**12))
def test_it_moves_towards_the_report_and_only_a_little(calibration: Calibration, predicted: int, reported: int):
    after = observe(calibration, predicted=predicted, reported=reported)
    seen = min(max(reported / predicted, LOWEST), HIGHEST)
    low, high = sorted((calibration.ratio, seen))
    assert low <= after.ratio <= high
    assert abs(after.ratio - calibration.ratio) <= WEIGHT * (HIGHEST - LOWEST) + 1e-12
    assert after.samples == calibration.samples + 1


def test_one_absurd_report_moves_a_settled_ratio_by_a_tenth_at_most():
    settled = Calibration(ratio=1.0, samples=50)
    assert observe(settled, predicted=1, reported=10**9).ratio == pytest.approx(1.1)
    assert observe(settled, predicted=10**9, reported=1).ratio == pytest.approx(0.95)


@given(calibrations, st.integers(-5, 0), counts)
def test_reports_without_tokens_are_ignored(calibration: Calibration, nothing: int, other: int):
    assert observe(calibration, predicted=nothing, reported=other) is calibration
    assert observe(calibration, predicted=other, reported=nothing) is calibration


def test_a_correction_is_rounded_up_and_starts_as_none():
    assert Calibration().corrected(1234) == 1234
    assert Calibration(ratio=1.2).corrected(101) == 122
    assert Calibration(ratio=0.5).corrected(0) == 0


@given(calibrations)
def test_it_survives_being_stored(calibration: Calibration):
    assert Calibration.parse(calibration.canonical()) == calibration


@pytest.mark.parametrize("ratio", [0.49, 2.01, float("nan"), float("inf")])
def test_a_ratio_out_of_bounds_cannot_be_made(ratio: float):
    with pytest.raises(ValidationError):
        Calibration(ratio=ratio)


@pytest.mark.parametrize(
    ("predicted", "reported", "exact", "expected"),
    [
        (100, 110, True, False),
        (100, 111, True, True),
        (100, 90, True, False),
        (100, 89, True, True),
        (100, 125, False, False),
        (100, 126, False, True),
        (100, 74, False, True),
        (100, 111, False, False),
        (0, 100, True, False),
        (100, 0, True, False),
        (-1, 5, False, False),
    ],
)
def test_divergence_is_flagged_past_its_tolerance(predicted: int, reported: int, exact: bool, expected: bool):
    assert diverges(predicted, reported, exact=exact) is expected
