"""How far a model's counts are from what its provider reports, learned slowly and kept within bounds.

Pure: the caller keeps one `Calibration` per model and hands it in. `predicted` is always the count before correction.
"""

from math import ceil

from pydantic import Field

from quire.model.value import Value

LOWEST, HIGHEST = 0.5, 2.0
WEIGHT = 0.1
"""How much one report moves the ratio: after ten like ones, two thirds of the way."""

EXACT_TOLERANCE, ESTIMATE_TOLERANCE = 10, 25
"""Per cent. An exact counter that is further off has the wrong vocabulary, or overheads are missing."""


class Calibration(Value):
    """What counts for one model are multiplied by, and how many reports that rests on."""

    ratio: float = Field(default=1.0, ge=LOWEST, le=HIGHEST)
    samples: int = Field(default=0, ge=0)

    def corrected(self, tokens: int) -> int:
        return ceil(tokens * self.ratio)


def observe(calibration: Calibration, *, predicted: int, reported: int) -> Calibration:
    """The calibration after one more report. One absurd report moves it by a tenth at most; empty ones are ignored."""
    if predicted <= 0 or reported <= 0:
        return calibration
    seen = min(max(reported / predicted, LOWEST), HIGHEST)
    ratio = calibration.ratio + WEIGHT * (seen - calibration.ratio)
    return Calibration(ratio=ratio, samples=calibration.samples + 1)


def diverges(predicted: int, reported: int, *, exact: bool) -> bool:
    """Whether a report is too far from the prediction to be let pass without a word."""
    if predicted <= 0 or reported <= 0:
        return False
    tolerance = EXACT_TOLERANCE if exact else ESTIMATE_TOLERANCE
    return abs(reported - predicted) * 100 > tolerance * predicted
