"""The append-only log of conversations: entries, branches, blobs, manifests."""

from quire.log.types import (
    MAIN_BRANCH,
    Blob,
    Branch,
    BranchMatch,
    Citation,
    ConversationOrigin,
    ConversationRecord,
    IntegrityFault,
    Memory,
    MessageKey,
    RecordedRequest,
    ReplyRecord,
    Window,
)

__all__ = [
    "MAIN_BRANCH",
    "Blob",
    "Branch",
    "BranchMatch",
    "Citation",
    "ConversationOrigin",
    "ConversationRecord",
    "IntegrityFault",
    "Memory",
    "MessageKey",
    "RecordedRequest",
    "ReplyRecord",
    "Window",
]
