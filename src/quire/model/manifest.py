"""The manifest of one request: every candidate, included or not, with its slot, tokens and reason.

Contiguous messages with the same decision share one row. The included rows suffice, with the log and the blobs, to
replay the request.
"""

from typing import Literal

from quire.model.base import FrozenModel
from quire.model.entry_bodies import Span
from quire.model.policy import Policy, Slot
from quire.rows.manifests import select_decisions, sum_document_tokens

DecisionReason = Literal[
    "instructions",
    "always",
    "manual",
    "agent",
    "carried",
    "memory",
    "pinned",
    "restored",
    "priority",
    "recent",
    "newest",
    "question",
    "summary",
    "recalled",
    "referenced",
    "imported",
    "excerpted",
    "dropped",
    "cleared",
    "over_budget",
    "below_score",
    "archived",
    "not_added",
    "removed",
    "disabled",
    "orphaned",
    "listed",
    "not_found",
    "cycle",
    "cleared_by_provider",
    "compacted_by_provider",
]
"""Why a candidate is included (the first seventeen; `cleared` and `dropped` as stubs) or not. Of one that is `listed`,
only the summary is included."""

PROVIDER_REASONS: frozenset[DecisionReason] = frozenset(("cleared_by_provider", "compacted_by_provider"))
"""Reasons of what was sent, and what the provider left out on its side. These decisions are added to the ones on what
was sent."""

EDIT_REASONS: frozenset[DecisionReason] = frozenset(("pinned", "restored"))
"""Reasons of messages that a user's edits add to the list that a client sends."""

DecisionKind = Literal["instructions", "rule", "tool", "memory", "reference", "summary", "message", "document"]


class LearnedRank(FrozenModel):
    """What earlier requests say about an item that a message can select, and the factor on its score."""

    factor: float
    chosen: int
    """Requests that included it."""
    used: int
    """Replies that used it."""
    added: int
    """Turns that had it because it was added by hand."""


class Decision(FrozenModel):
    """One row. Messages are identified by number, everything else by name and by the blob of its text."""

    slot: Slot
    kind: DecisionKind
    included: bool
    reason: DecisionReason
    tokens: int = 0
    span: Span | None = None
    name: str | None = None
    blob: str | None = None
    score: float | None = None
    min_score: float | None = None
    """Minimum score of a selected item, where the score was below it; manifests of earlier versions lack it."""
    learned: LearnedRank | None = None
    """Why the score is higher or lower than the match alone, or None if earlier requests say nothing."""
    used: bool | None = None
    """Whether the reply used an item that was selected or added by hand: it calls the tool, or repeats words of the
    text. Set when the reply is recorded."""
    excerpt_chars: int | None = None
    """Characters to which each text of the message was shortened, approximately, or 0 for a stub."""
    turn_excerpt_chars: int | None = None
    """The same for the whole newest turn, where that alone exceeded the budget."""
    max_results: int | None = None
    """Number of results of the tool calls in this row that were included, if not all: the first ones, with their
    calls."""
    summarized_by: int | None = None
    """Number of the compaction that holds a summary of the shortened message."""
    excerpt_spans: tuple[tuple[int, int], ...] | None = None
    """Character ranges included from a recalled message that was too long to include whole."""
    summary_level: Literal["short"] | None = None
    """The summary was sent in its short form, because the full one exceeds its share of the context window."""
    document_tokens: int | None = None
    """How many of the tokens come from documents that were added to the messages as written."""
    pending: bool | None = None
    """It was not in the log when the request was made. Its number was set when it was stored."""


class SlotUsage(FrozenModel):
    """Budget and used tokens of one slot."""

    slot: Slot
    budget: int
    used: int
    overflows: bool | None = None


ForwardedForm = Literal["unchanged", "model_renamed", "edited", "fitted", "translated", "translated_fitted", "adapted"]
"""Pass-through byte for byte, with only the model's name replaced, or edited: with the user's edits, without what only
Quire's translation had added (unsigned thinking, which the provider rejects). Else with other messages so that it fits,
or a translation of the client's list or of messages that fit."""
FITTED_FORMS: frozenset[ForwardedForm] = frozenset({"fitted", "translated_fitted"})


class ProviderEdit(FrozenModel):
    """A change that the provider reports to have made to the request on its side, before the model read it."""

    type: str
    """The provider's name of the edit, such as `clear_tool_uses_20250919`."""
    cleared_tool_uses: int | None = None
    cleared_thinking_turns: int | None = None
    cleared_input_tokens: int | None = None


class ForwardedRequest(FrozenModel):
    """How the gateway forwarded a client's request to the upstream, or how an adapter took it from a framework."""

    form: ForwardedForm
    digest: str
    """SHA-256 of the body sent upstream."""
    replayable: bool
    """Whether a rebuild from the log gives what the model read: the same instructions, tools and messages, field by
    field. False where the provider changed them."""
    client_list_tokens: int | None = None
    """Tokens of the client's list plus the reply, if it holds the whole conversation: the prefix of its next list."""
    unrecorded_messages: int | None = None
    """Messages at the start of the client's list that replace earlier ones, such as its own summary; not recorded."""
    compaction: int | None = None
    """Number of the client's own compaction whose summary these are, if the log has it."""
    dropped: tuple[str, ...] = ()
    """Names of the fields, tools and parts of messages that have no place in the upstream's format."""
    provider_edits: tuple[ProviderEdit, ...] = ()
    """What the provider changed on its side. Decisions name the messages, as far as its documentation names them."""
    request_blob: str | None = None
    """Blob with the fields of the client's request that a read of its response repeats."""
    masked_digest: str | None = None
    """SHA-256 of the body as it is stored, if secrets in it were masked before. What was sent is not stored then."""

    @property
    def stored_body_digest(self) -> str:
        return self.masked_digest or self.digest


class Manifest(FrozenModel):
    """The record of one request."""

    renderer: int
    """Version of the layout."""
    conversation: str
    branch: int
    head: int
    """Number of the branch's newest entry when the request was made."""
    policy: Policy
    counter: str
    exact: bool
    ratio: float = 1.0
    """Calibration: expected tokens, as this model's provider reports them, divided by counted tokens.
    `max_input_tokens` is divided by it."""
    slots: tuple[SlotUsage, ...]
    total_tokens: int
    full_history_tokens: int
    """Tokens that the request would have with the whole history; compared with `trigger_tokens`."""
    max_input_tokens: int
    trigger_tokens: int
    decisions: tuple[Decision, ...]
    stable_messages: int
    """Number of messages in the stable prefix, which the next request repeats."""
    digest: str
    masked: bool | None = None
    """Whether secrets in the request were masked before it was stored, or may have been if its body is not stored. A
    rebuild from the log then differs from what was sent."""
    forwarded: ForwardedRequest | None = None
    """Set for requests through the gateway, and for an adapter's requests that name what has no place in the log."""

    thinned: bool | None = None
    """Whether the manifest is old, and what only a replay needs was removed: the texts of items, how messages were
    shortened, and the stored body."""

    def thin(self) -> "Manifest":
        """The manifest without what only a replay and a comparison of texts need."""
        removed = {"blob": None, "learned": None, "excerpt_spans": None}
        decisions = tuple(each.model_copy(update=removed) for each in self.decisions)
        return self.model_copy(update={"decisions": decisions, "thinned": True})

    @property
    def included(self) -> tuple[Decision, ...]:
        return select_decisions(self.decisions, included=True)

    @property
    def blob_digests(self) -> set[str]:
        """Digests of the blobs that it includes."""
        blobs = {decision.blob for decision in self.included if decision.blob is not None}
        if self.forwarded is not None and self.forwarded.request_blob is not None:
            blobs.add(self.forwarded.request_blob)
        return blobs

    @property
    def document_tokens(self) -> int:
        """Tokens of documents that were added to messages. Without them, the messages count as written."""
        return sum_document_tokens(self.included)

    @property
    def excluded(self) -> tuple[Decision, ...]:
        return select_decisions(self.decisions, included=False)
