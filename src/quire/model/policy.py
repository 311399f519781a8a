"""The numbers and names that a view is made by, resolved: nothing is left to look up."""

from typing import Literal

from pydantic import Field

from quire.model.value import Value

Provider = Literal["openai", "anthropic"]
Slot = Literal["system", "tools", "memory", "references", "summary", "messages", "recall", "newest"]

SLOTS: tuple[Slot, ...] = ("system", "tools", "memory", "references", "summary", "messages", "recall", "newest")
"""In the order of the request: stable first, then what is chosen for this request, then what is asked."""


class Policy(Value):
    model: str
    provider: Provider
    strategy: str = "hybrid"
    window: int = Field(gt=0)
    reserved_response_tokens: int = Field(default=512, ge=0)
    context_threshold: float = Field(default=0.85, gt=0, le=1)
    context_target: float = Field(default=0.5, gt=0, le=1)
    recent_messages_to_keep: int = Field(default=6, ge=0)
    min_recent_messages_to_keep: int = Field(default=2, ge=0)
    context_management_enabled: bool = True
    shares: dict[Slot, float] | None = None
    """Shares of the room by slot, in place of the strategy's own."""
    recall_tokens: int | None = Field(default=None, ge=0)
    """The most that archived messages may take of the recall slot."""

    @property
    def room(self) -> int:
        """The most tokens that a request may have."""
        return max(0, self.window - self.reserved_response_tokens)

    @property
    def trigger(self) -> int:
        """A request with more tokens than this is compacted first. It is the number that the meter shows."""
        return min(self.room, int(self.window * self.context_threshold))

    @property
    def target(self) -> int:
        """What a compaction brings a request down to: well below the trigger, so that it is rare."""
        return min(self.trigger, int(self.room * self.context_target))
