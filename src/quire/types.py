"""The types in the signatures of the public API, other than those that `quire` itself has."""

from quire.agent.approvals import Allow, AllowAlways, ApprovalDecision, ApprovalFunction
from quire.agent.function_tools import ApprovalRule, FunctionTool
from quire.agent.protocols import ToolOutcome
from quire.compaction.execution import CompactionTrigger
from quire.compaction.summarizer import Summarizer
from quire.context.items import ResolvedSessionItem
from quire.context.vault import Vault
from quire.engine.message_input import MessageInput
from quire.engine.runtime import CompactionHooks
from quire.engine.search import MessageHit, MessageSearchResult
from quire.engine.vault_index import IndexProgress
from quire.ledger import ManifestChange, Replay
from quire.ledger.cache_breaks import CacheBreak
from quire.ledger.cache_history import CacheReport
from quire.llm import Model, Reply
from quire.llm.embeddings import Embedder
from quire.llm.protocol import ModelBuilder, ModelChunk, Prompt, TextDelta, ThinkingDelta, ToolCallDelta
from quire.model import (
    ContextChange,
    ContextEpoch,
    ContextItem,
    Drop,
    Pin,
    Policy,
    Priority,
    Restore,
    Slot,
    TokenCount,
    Topic,
    TopicIndex,
    Undrop,
    Unpin,
)
from quire.model.agents import Agent, IncludeMode
from quire.model.entry_bodies import Body
from quire.model.entry_metadata import DocumentReference, EntryMetadata
from quire.model.events import TurnEndReason
from quire.model.messages import ToolResultContent
from quire.model.policy import PriorityClass
from quire.search.catalog import SearchOrder
from quire.view.batches import MessageBatch
from quire.view.budget import UsageReport
from quire.view.compaction_plan import CompactionPlan

__all__ = [
    "Agent", "Allow", "AllowAlways", "ApprovalDecision", "ApprovalFunction", "ApprovalRule", "Body",
    "CacheBreak", "CacheReport",
    "CompactionHooks", "CompactionPlan", "CompactionTrigger", "ContextChange", "ContextEpoch", "ContextItem",
    "DocumentReference", "Drop",
    "Embedder", "EntryMetadata", "FunctionTool", "IncludeMode", "IndexProgress", "ManifestChange", "MessageBatch",
    "MessageHit", "MessageInput", "MessageSearchResult", "Model", "ModelBuilder", "ModelChunk", "Pin",
    "Policy", "Priority", "PriorityClass", "Prompt", "Replay", "Reply", "ResolvedSessionItem", "Restore",
    "SearchOrder", "Slot",
    "Summarizer", "TextDelta", "ThinkingDelta", "TokenCount", "ToolCallDelta", "ToolOutcome", "ToolResultContent",
    "Topic", "TopicIndex", "TurnEndReason", "Undrop", "Unpin", "UsageReport", "Vault",
]  # fmt: skip
