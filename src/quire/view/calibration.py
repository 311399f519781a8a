"""Calibration of token counts against the usage that a provider reports: a bounded moving average.

Pure: the caller stores one `Calibration` per model and passes it in. `predicted` is always the uncorrected count.
"""

from pydantic import Field

from quire.model.base import FrozenModel

MIN_RATIO, MAX_RATIO = 0.5, 2.0
SMOOTHING_FACTOR = 0.1
"""Weight of one report in the moving average: ten equal reports move the ratio two thirds of the way."""


class Calibration(FrozenModel):
    """Factor for the token counts of one model, and the number of reports behind it."""

    ratio: float = Field(default=1.0, ge=MIN_RATIO, le=MAX_RATIO)
    samples: int = Field(default=0, ge=0)


def update_calibration(calibration: Calibration, *, predicted: int, reported: int) -> Calibration:
    """Adds one report. An absurd report is clamped and moves the ratio a tenth of the way; empty ones are ignored."""
    if predicted <= 0 or reported <= 0:
        return calibration
    observed = min(max(reported / predicted, MIN_RATIO), MAX_RATIO)
    ratio = calibration.ratio + SMOOTHING_FACTOR * (observed - calibration.ratio)
    return Calibration(ratio=ratio, samples=calibration.samples + 1)
