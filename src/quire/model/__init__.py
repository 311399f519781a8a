"""The values that everything else speaks in: frozen, without identity, without I/O."""

from quire.model.chain import ROOT, chain_digest, next_path, path_of
from quire.model.entries import (
    Author,
    Body,
    Compaction,
    ContextChange,
    ContextItem,
    Draft,
    Entry,
    EntryKind,
    Pin,
    Restore,
    Shortened,
    Span,
    Unpin,
)
from quire.model.manifest import Decision, Manifest, Reason, Sent, SlotUse, What
from quire.model.messages import Message, Role
from quire.model.notes import DocumentReference, Notes, TokenCount, Usage
from quire.model.parts import (
    FilePart,
    ImagePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from quire.model.policy import SLOTS, Policy, Provider, Slot
from quire.model.state import BranchState, Coverage, SessionItem, fold
from quire.model.tools import ToolDefinition

__all__ = [
    "ROOT",
    "SLOTS",
    "Author",
    "Body",
    "BranchState",
    "Compaction",
    "ContextChange",
    "ContextItem",
    "Coverage",
    "Decision",
    "DocumentReference",
    "Draft",
    "Entry",
    "EntryKind",
    "FilePart",
    "ImagePart",
    "Manifest",
    "Message",
    "Notes",
    "Part",
    "Pin",
    "Policy",
    "Provider",
    "Reason",
    "Restore",
    "Role",
    "Sent",
    "SessionItem",
    "Shortened",
    "Slot",
    "SlotUse",
    "Span",
    "TextPart",
    "ThinkingPart",
    "TokenCount",
    "ToolCallPart",
    "ToolDefinition",
    "ToolResultPart",
    "Unpin",
    "Usage",
    "What",
    "chain_digest",
    "fold",
    "next_path",
    "path_of",
]
