"""Input of a view. The caller passes everything in: the view itself does no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from quire.model import Entry, Message, Span, ToolDefinition
from quire.model.base import replace_lone_surrogates
from quire.model.manifest import Decision, DecisionKind, DecisionReason, LearnedRank
from quire.model.policy import Slot
from quire.view.recalled_messages import FittedCandidate, RecallCandidate


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBlock:
    """A text other than a message: instructions, a rule, a memory, a document. Omitted if optional and too large."""

    slot: Slot
    kind: DecisionKind
    name: str
    text: str
    reason: DecisionReason
    score: float | None = None
    is_required: bool = True
    uses_spare_tokens: bool = False
    """Whether the block may exceed its slot by tokens that the rest of the request does not need."""
    excerpt_chars: int | None = None
    """Characters to which the text was trimmed, approximately, or None if it is whole."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", replace_lone_surrogates(self.name))
        object.__setattr__(self, "text", replace_lone_surrogates(self.text))

    @property
    def blob(self) -> str:
        """Digest under which the text is stored, so that the request can be rebuilt."""
        return hash_text(self.text)


def hash_text(text: str) -> str:
    return sha256(text.encode()).hexdigest()


class SelectedTool(NamedTuple):
    """A tool that is offered to the model, and why."""

    definition: ToolDefinition
    reason: DecisionReason = "always"
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewInput:
    conversation: str
    branch: int
    head: int
    blocks: tuple[ContextBlock, ...] = ()
    tools: tuple[SelectedTool, ...] = ()
    tools_after_compaction: tuple[SelectedTool, ...] | None = None
    """Tools that the next request would offer if messages were archived now, or None for the same tools."""
    compaction: Entry | None = None
    pinned: tuple[Entry, ...] = ()
    not_loaded: Span | None = None
    """Messages before `history` that no compaction covers. Not loaded, because they are too many to fit."""
    history: tuple[Entry, ...] = ()
    question: int | None = None
    """Number of the message of `history` that is the question of a turn whose next messages are archived or not
    loaded."""
    pins: frozenset[int] = frozenset()
    drops: frozenset[int] = frozenset()
    """Messages that the user dropped."""
    priorities: Mapping[int, int] = field(default_factory=dict[int, int])
    """Priorities of messages by number, if the strategy uses them."""
    pending: tuple[Message, ...] = ()
    """New messages of this request that are not in the log yet."""
    document_tokens: int = 0
    """How many tokens of the pending messages come from documents that were added to them as written."""
    document_decisions: tuple[Decision, ...] = ()
    """Decisions on the documents that the question references. They are inlined or listed in it."""
    recall_candidates: tuple[RecallCandidate, ...] = ()
    """Archived messages relevant to the question, best first."""
    continues_turn: bool = False
    """Whether the request continues a turn after tool results, and is to extend the request before it."""
    fixed_recall: tuple[FittedCandidate, ...] | None = None
    """The recalled messages of the turn's request before this one, which stay until the next compaction."""
    learned: Mapping[tuple[DecisionKind, str], LearnedRank] = field(
        default_factory=dict[tuple[DecisionKind, str], LearnedRank]
    )
    """Factors on the scores of items, by kind and name."""
    earlier_decisions: tuple[Decision, ...] = ()
    """Decisions on candidates that were excluded earlier: items below the score, disabled items."""
