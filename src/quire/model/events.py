"""What happens to a conversation's context, for those who show it. Every event names its conversation and branch."""

from dataclasses import dataclass

from quire.model.entries import Entry, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    conversation: str
    branch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextUsageUpdated(_Event):
    """The meter after a request was prepared; `tokens` over `trigger` is what leads to a compaction."""

    tokens: int
    trigger: int
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStarted(_Event):
    covers: Span | None
    tokens: int
    """What it is meant to free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompacted(_Event):
    entry: Entry
    """The compaction as it stands in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailed(_Event):
    """A summary failed: nothing was changed by it, and the next rung of the ladder is taken."""

    reason: str
    detail: str


Event = ContextUsageUpdated | CompactionStarted | ContextCompacted | CompactionFailed
