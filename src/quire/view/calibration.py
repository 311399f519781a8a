"""Calibration of token counts by reported usage: by a factor, and by an overhead per message."""

from pydantic import Field

from quire.model.base import FrozenModel

MIN_RATIO, MAX_RATIO = 0.5, 2.0
SMOOTHING_FACTOR = 0.1
"""Weight of one report in the moving averages: ten equal reports move the ratio two thirds of the way."""
MAX_MESSAGE_ERROR_TOKENS = 16
"""Maximum correction of the overhead of one message, in either direction."""
PRIOR_DENSITY_VARIANCE = 0.01**2
"""Variance of the density at which the reports weigh as much as the prior of the error per message."""


class Calibration(FrozenModel):
    """Correction of the token counts of one model, from the usage that its provider reported.

    A wrong overhead per message is an additive error: it raises the ratio of reported to counted tokens in a request of
    many short messages, and hardly at all in a request of one long message. The ratio is therefore a line over the
    density of a request, its messages per counted token. The slope of the line is the error of one message in tokens.
    """

    ratio: float = Field(default=1.0, ge=MIN_RATIO, le=MAX_RATIO)
    """Moving average of reported over counted tokens."""
    density: float = Field(default=0.0, ge=0, le=1)
    """Moving average of the density of the same requests."""
    density_variance: float = Field(default=0.0, ge=0, le=1)
    covariance: float = Field(default=0.0, ge=-MAX_RATIO, le=MAX_RATIO)
    """Of density and ratio."""
    samples: int = Field(default=0, ge=0)
    """Number of reports."""

    def ratio_for(self, *, tokens: int, messages: int, exact: bool) -> float:
        """Expected ratio of reported to counted tokens for a request; `exact` if the model's own vocabulary counts."""
        if tokens <= 0:
            return self.ratio
        slope = self._message_error_tokens(exact=exact)
        return _clamp_ratio(self.ratio + slope * (_density(tokens, messages) - self.density))

    def with_ratio(self, ratio: float, *, tokens: int, messages: int) -> "Calibration":
        """The calibration that expects `ratio` for a request like this one: a report that overrides the average."""
        changes = {"ratio": ratio, "density": _density(tokens, messages), "samples": self.samples + 1}
        return self.model_copy(update=changes)

    def _message_error_tokens(self, *, exact: bool) -> float:
        """Regression slope. The prior for equal densities: exact counts are wrong only in the overhead, estimates only
        in the text."""
        prior = (self.ratio - 1) / self.density if exact and self.density else 0.0
        slope = self.covariance + PRIOR_DENSITY_VARIANCE * prior
        slope /= self.density_variance + PRIOR_DENSITY_VARIANCE
        return min(max(slope, -MAX_MESSAGE_ERROR_TOKENS), MAX_MESSAGE_ERROR_TOKENS)


def update_calibration(calibration: Calibration, *, predicted: int, reported: int, messages: int) -> Calibration:
    """Adds one report. An absurd report is clamped and moves the ratio a tenth of the way; empty ones are ignored."""
    if predicted <= 0 or reported <= 0:
        return calibration
    ratio_change = _clamp_ratio(reported / predicted) - calibration.ratio
    density = _density(predicted, messages)
    density_change = density - calibration.density if calibration.samples else 0.0
    rest = 1 - SMOOTHING_FACTOR
    return Calibration(
        ratio=calibration.ratio + SMOOTHING_FACTOR * ratio_change,
        density=(calibration.density if calibration.samples else density) + SMOOTHING_FACTOR * density_change,
        density_variance=rest * (calibration.density_variance + SMOOTHING_FACTOR * density_change**2),
        covariance=rest * (calibration.covariance + SMOOTHING_FACTOR * density_change * ratio_change),
        samples=calibration.samples + 1,
    )


def _density(tokens: int, messages: int) -> float:
    return min(messages / tokens, 1.0)


def _clamp_ratio(ratio: float) -> float:
    return min(max(ratio, MIN_RATIO), MAX_RATIO)
