"""What a view is made from, handed in whole: the view itself reads nothing."""

from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from quire.model import Entry, Message, Span, ToolDefinition
from quire.model.manifest import Decision, Reason, What
from quire.model.policy import Slot
from quire.view.recalled import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A text besides messages: instructions, a rule, a memory, a document. What is not required can be left out."""

    slot: Slot
    what: What
    name: str
    text: str
    reason: Reason
    score: float | None = None
    required: bool = True

    @property
    def blob(self) -> str:
        """The digest under which the text is kept, so that the request can be built again."""
        return text_digest(self.text)


def text_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


class Tool(NamedTuple):
    """A tool that the model is told of, and why."""

    definition: ToolDefinition
    reason: Reason = "always"
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    conversation: str
    branch: int
    head: int
    blocks: tuple[Block, ...] = ()
    tools: tuple[Tool, ...] = ()
    compaction: Entry | None = None
    pinned: tuple[Entry, ...] = ()
    unread: Span | None = None
    """Messages before the first of `history` that no compaction covers and that were not loaded: too many to fit."""
    history: tuple[Entry, ...] = ()
    pins: frozenset[int] = frozenset()
    pending: tuple[Message, ...] = ()
    """What is being asked and is not in the log yet."""
    quoted: tuple[Decision, ...] = ()
    """What was decided about the documents that the question names; they stand in it, or are listed there."""
    recalled: tuple[Candidate, ...] = ()
    """Archived messages that bear on the question, the most worth first."""
    decided: tuple[Decision, ...] = ()
    """Candidates that were left out before: items below the score, items switched off."""
