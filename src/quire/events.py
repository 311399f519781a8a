"""The events of a turn, which `Conversation.stream` yields, and of the context, which `Engine.subscribe` passes on."""

from quire.model.context_events import (
    CompactionFailed,
    CompactionStarted,
    ContextCompacted,
    ContextEvent,
    ContextUsageUpdated,
)
from quire.model.events import (
    ApprovalRequested,
    ContextSuggestion,
    QuestionRecorded,
    ReplyRecorded,
    RequestPrepared,
    RetryScheduled,
    TextChunk,
    ThinkingChunk,
    ToolCalled,
    ToolCompleted,
    TurnEnded,
    TurnEvent,
    TurnFailed,
    TurnStarted,
)

__all__ = [
    "ApprovalRequested", "CompactionFailed", "CompactionStarted", "ContextCompacted", "ContextEvent",
    "ContextSuggestion", "ContextUsageUpdated", "QuestionRecorded", "ReplyRecorded", "RequestPrepared",
    "RetryScheduled", "TextChunk", "ThinkingChunk",
    "ToolCalled", "ToolCompleted", "TurnEnded", "TurnEvent", "TurnFailed", "TurnStarted",
]  # fmt: skip
