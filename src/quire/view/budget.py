"""The budget: the room of a request, shared by its slots, and the report of how much each one uses."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from quire.model.manifest import SlotUse
from quire.model.policy import SLOTS, Policy, Slot

FLOOR = 64
"""The least that a slot with a share may take, so that a small window does not shut it out."""


class Budget(NamedTuple):
    """`ceilings` bind what can be left out; what must be there goes in, and its slot is said to overflow."""

    room: int
    trigger: int
    target: int
    ceilings: Mapping[Slot, int]
    recalled: int
    """The most that archived messages may take of the recall slot."""

    def ceiling(self, slot: Slot) -> int:
        return self.ceilings.get(slot, self.room)


def allot(policy: Policy, shares: Mapping[Slot, float], *, ratio: float = 1.0) -> Budget:
    """`ratio` is how far the provider's counts exceed ours: the room shrinks by it and never grows."""
    scale = max(1.0, ratio)
    room = int(policy.room / scale)
    given: Mapping[Slot, float] = policy.shares or shares
    ceilings: dict[Slot, int] = {slot: min(room, max(FLOOR, int(room * share))) for slot, share in given.items()}
    recalled = ceilings.get("recall", room)
    if policy.recall_tokens is not None:
        recalled = min(recalled, policy.recall_tokens)
    return Budget(room, int(policy.trigger / scale), int(policy.target / scale), ceilings, recalled)


def slot_uses(budget: Budget, used: Mapping[Slot, int]) -> tuple[SlotUse, ...]:
    """What each slot has and uses. Messages have what the others leave."""
    others = sum(tokens for slot, tokens in used.items() if slot != "messages")
    uses: list[SlotUse] = []
    for slot in SLOTS:
        own = max(0, budget.room - others) if slot == "messages" else budget.ceiling(slot)
        tokens = used.get(slot, 0)
        uses.append(SlotUse(slot=slot, budget=own, used=tokens, overflows=True if tokens > own else None))
    return tuple(uses)


Status = Literal["ok", "near", "over"]


class UsageReport(NamedTuple):
    """The meter: what the next request would hold, against the window and against the number that triggers."""

    slots: tuple[SlotUse, ...]
    total: int
    window: int
    reserved: int
    trigger: int
    exact: bool

    @property
    def available(self) -> int:
        return max(0, self.window - self.reserved - self.total)

    @property
    def percentage(self) -> float:
        return 100 * self.total / self.window

    @property
    def status(self) -> Status:
        """`over` means that the next request is compacted first; `near` that it has used nine tenths of that."""
        if self.total > self.trigger:
            return "over"
        return "near" if self.total > 0.9 * self.trigger else "ok"
