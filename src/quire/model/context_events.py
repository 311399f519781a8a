"""Events of a branch's context: token usage after a request, and compactions."""

from dataclasses import dataclass

from quire.model.entries import Entry
from quire.model.entry_bodies import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class _ContextEvent:
    conversation: str
    branch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextUsageUpdated(_ContextEvent):
    """Token usage after a request was prepared; `tokens` above `trigger_tokens` leads to a compaction."""

    tokens: int
    trigger_tokens: int
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStarted(_ContextEvent):
    covers: Span | None
    freed_tokens: int
    """Tokens that the plan expects to free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompacted(_ContextEvent):
    entry: Entry
    """The compaction's entry in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailed(_ContextEvent):
    """A summary failed: it changed nothing, and the next fallback is tried."""

    reason: str
    detail: str


ContextEvent = ContextUsageUpdated | CompactionStarted | ContextCompacted | CompactionFailed
