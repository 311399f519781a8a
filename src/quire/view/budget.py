"""Token budget of a request: the limit and the usage of each slot, and the calibration of token counts.

A calibration corrects counts by the usage that providers report: by a factor, and by an overhead per message.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pydantic import Field

from quire.model.base import FrozenModel
from quire.model.manifest import Manifest, SlotUsage
from quire.model.policy import SLOTS, Policy, Slot

MIN_SLOT_TOKENS = 64
"""Minimum tokens of a slot with a share, so that a small window does not exclude the slot."""
MAX_UNKNOWN_WINDOW_CONTENT = 8_192
"""Tokens that optional content shares where the window is not known, and those of the documents that a question names.
The history is sent whole."""
MIN_RATIO, MAX_RATIO = 0.5, 2.0
SMOOTHING_FACTOR = 0.1
"""Weight of one report in the moving averages: ten equal reports move the ratio two thirds of the way."""
MAX_MESSAGE_ERROR_TOKENS = 16
"""Maximum correction of the overhead of one message, in either direction."""
PRIOR_DENSITY_VARIANCE = 0.01**2
"""Variance of the density at which the reports weigh as much as the prior of the error per message."""


class Budget(NamedTuple):
    """Token limits. `slot_limits` bind optional content only. Required content may overflow its slot."""

    max_input_tokens: int
    trigger_tokens: int
    target_tokens: int
    slot_limits: Mapping[Slot, int]
    recall_tokens: int
    """Maximum tokens of recalled messages within the recall slot."""
    has_own_shares: bool = False
    """Whether the user set the shares: then they also bind content that may use free tokens otherwise."""

    def limit_for(self, slot: Slot) -> int:
        return self.slot_limits.get(slot, self.max_input_tokens)


def allocate_budget(policy: Policy, default_shares: Mapping[Slot, float], *, ratio: float = 1.0) -> Budget:
    """Derives the limits from the policy. `ratio` is reported over counted tokens; above 1 it lowers the limits."""
    scale = max(1.0, ratio)
    max_input_tokens = int(policy.max_input_tokens / scale)
    given = policy.shares or {}
    own_shares: dict[Slot, float] = {slot: given[slot] for slot in SLOTS if slot in given}
    shares = own_shares or default_shares
    shared_tokens = max_input_tokens if policy.has_known_window else MAX_UNKNOWN_WINDOW_CONTENT
    slot_limits: dict[Slot, int] = {
        slot: min(max_input_tokens, max(MIN_SLOT_TOKENS, int(shared_tokens * share))) for slot, share in shares.items()
    }
    recall_tokens = slot_limits.get("recall", max_input_tokens)
    if policy.recall_tokens is not None:
        recall_tokens = min(recall_tokens, policy.recall_tokens)
    return Budget(
        max_input_tokens,
        int(policy.trigger_tokens / scale),
        int(policy.target_tokens / scale),
        slot_limits,
        recall_tokens,
        has_own_shares=bool(own_shares),
    )


def build_slot_usage(budget: Budget, used_tokens: Mapping[Slot, int]) -> tuple[SlotUsage, ...]:
    """Budget and used tokens of each slot. The budget of messages is what the other slots do not use."""
    others = sum(tokens for slot, tokens in used_tokens.items() if slot != "messages")
    rows: list[SlotUsage] = []
    for slot in SLOTS:
        used = used_tokens.get(slot, 0)
        available = max(0, budget.max_input_tokens - others) if slot == "messages" else budget.limit_for(slot)
        rows.append(SlotUsage(slot=slot, budget=available, used=used, overflows=True if used > available else None))
    return tuple(rows)


UsageStatus = Literal["ok", "near", "over"]


class UsageReport(NamedTuple):
    """Token usage of the next request, compared with the context window and the compaction trigger."""

    slots: tuple[SlotUsage, ...]
    total_tokens: int
    window: int
    reserved: int
    trigger_tokens: int
    exact: bool
    document_tokens: int = 0
    """How many of the tokens come from documents that were added to messages."""
    context_management_enabled: bool = True
    asks_first: bool = False
    """Whether a compaction needs the user's consent (`compact_when`)."""

    @classmethod
    def from_manifest(cls, manifest: Manifest, *, asks_first: bool = False) -> "UsageReport":
        policy = manifest.policy
        return cls(
            slots=manifest.slots,
            total_tokens=manifest.full_history_tokens,
            window=policy.window,
            reserved=policy.reserved_response_tokens,
            trigger_tokens=manifest.trigger_tokens if policy.context_management_enabled else manifest.max_input_tokens,
            exact=manifest.exact,
            document_tokens=manifest.document_tokens,
            context_management_enabled=policy.context_management_enabled,
            asks_first=asks_first,
        )

    @property
    def proposes_compaction(self) -> bool:
        """Whether a compaction waits for the user's consent; until then requests omit the oldest messages."""
        return self.asks_first and self.context_management_enabled and self.status == "over"

    @property
    def available(self) -> int:
        return max(0, self.window - self.reserved - self.total_tokens)

    @property
    def status(self) -> UsageStatus:
        """`over`: compaction runs before the next request, or with context management off the request is refused.
        `near`: above 90 % of the trigger."""
        if self.total_tokens > self.trigger_tokens:
            return "over"
        return "near" if self.total_tokens > 0.9 * self.trigger_tokens else "ok"


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
        # Regression slope, with a prior for equal densities: exact counts are wrong only in the overhead, and estimates
        # only in the text.
        prior = (self.ratio - 1) / self.density if exact and self.density else 0.0
        slope = self.covariance + PRIOR_DENSITY_VARIANCE * prior
        slope /= self.density_variance + PRIOR_DENSITY_VARIANCE
        message_error = min(max(slope, -MAX_MESSAGE_ERROR_TOKENS), MAX_MESSAGE_ERROR_TOKENS)
        return _clamp_ratio(self.ratio + message_error * (_density(tokens, messages) - self.density))

    def with_ratio(self, ratio: float, *, tokens: int, messages: int) -> "Calibration":
        """The calibration that expects `ratio` for a request like this one: a report that overrides the average."""
        changes = {"ratio": ratio, "density": _density(tokens, messages), "samples": self.samples + 1}
        return self.model_copy(update=changes)


def update_calibration(calibration: Calibration, *, predicted: int, reported: int, messages: int) -> Calibration:
    """Adds one report. An absurd report is clamped and moves the ratio a tenth of the way. Empty ones are ignored."""
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
