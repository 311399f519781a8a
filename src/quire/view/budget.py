"""Token budget of a request: the limit of each slot, and the report of the usage of each one."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from quire.model.manifest import SlotUsage
from quire.model.policy import SLOTS, Policy, Slot

MIN_SLOT_TOKENS = 64
"""Minimum tokens of a slot with a share, so that a small window does not exclude the slot."""


class Budget(NamedTuple):
    """Token limits. `slot_limits` bind optional content only; required content may overflow its slot."""

    max_input_tokens: int
    trigger_tokens: int
    target_tokens: int
    slot_limits: Mapping[Slot, int]
    recall_tokens: int
    """Maximum tokens of recalled messages within the recall slot."""

    def limit_for(self, slot: Slot) -> int:
        return self.slot_limits.get(slot, self.max_input_tokens)


def allocate_budget(policy: Policy, default_shares: Mapping[Slot, float], *, ratio: float = 1.0) -> Budget:
    """Derives the limits from the policy. `ratio` is reported over counted tokens; above 1 it lowers the limits."""
    scale = max(1.0, ratio)
    max_input_tokens = int(policy.max_input_tokens / scale)
    shares: Mapping[Slot, float] = policy.shares or default_shares
    slot_limits: dict[Slot, int] = {
        slot: min(max_input_tokens, max(MIN_SLOT_TOKENS, int(max_input_tokens * share)))
        for slot, share in shares.items()
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
    )


def build_slot_usage(budget: Budget, used_tokens: Mapping[Slot, int]) -> tuple[SlotUsage, ...]:
    """Budget and usage of each slot. The budget of messages is what the other slots do not use."""
    others = sum(tokens for slot, tokens in used_tokens.items() if slot != "messages")
    usage: list[SlotUsage] = []
    for slot in SLOTS:
        slot_budget = max(0, budget.max_input_tokens - others) if slot == "messages" else budget.limit_for(slot)
        tokens = used_tokens.get(slot, 0)
        usage.append(
            SlotUsage(slot=slot, budget=slot_budget, used=tokens, overflows=True if tokens > slot_budget else None)
        )
    return tuple(usage)


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
