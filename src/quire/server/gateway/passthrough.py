"""A request with the client's own list of messages: build its manifest without loading the history that it repeats.

The manifest is that of the same request built from the log, so a replay reproduces it. Where the client's JSON differs
from what the log can reproduce, `replayable` is false, and only the digest of the body identifies what was sent.
"""

from dataclasses import dataclass

from quire.engine.request import PendingMessage, Request
from quire.model import Decision, ForwardedRequest, Slot, Span
from quire.server.gateway.log_renderer import LogRendering
from quire.server.gateway.matched_request import MatchedRequest
from quire.view.assembly import Assembly


@dataclass(frozen=True, kw_only=True)
class ListedAssembly(Assembly):
    """A request as the client sent it."""

    matched: MatchedRequest

    def build_decisions(self) -> tuple[Decision, ...]:
        return (*self.matched.envelope.decisions, *_build_message_decisions(self.matched))


def build_listed_request(
    matched: MatchedRequest, rendering: LogRendering, *, id: str, forwarded: ForwardedRequest
) -> Request:
    """Builds the request with the client's own list, which is recorded with its reply."""
    match = matched.match
    replayable = forwarded.replayable and rendering.replayable and match.stored_start == 0 and not match.delta_only
    assembly = ListedAssembly(
        conversation=match.conversation,
        branch=match.branch,
        head=match.head_seq,
        policy=matched.variant.engine.policy,
        message_counter=matched.message_counter,
        ratio=matched.ratio,
        budget=matched.budget,
        rendered=rendering.rendered_request,
        full_history_tokens=matched.tokens,
        forwarded=forwarded.model_copy(update={"replayable": replayable}),
        matched=matched,
    )
    return Request(
        assembly=assembly,
        pending=tuple(PendingMessage(each.message) for each in matched.new_messages),
        after=match.head_path,
        blobs=matched.envelope.blobs,
        id=id,
        strict_head=True,
    )


def _build_message_decisions(matched: MatchedRequest) -> list[Decision]:
    """Builds decisions for the stored and the new messages; a tool result shares one with the call before it."""
    entry_range = matched.match.entry_range
    span = Span(first=entry_range[0], last=entry_range[1]) if entry_range is not None else None
    if span is not None and matched.answers_stored_call:
        return [_build_decision("newest", matched.stored_tokens + matched.new_tokens, span, pending=True)]
    stored = [_build_decision("messages", matched.stored_tokens, span)] if span is not None else []
    new = [_build_decision("newest", matched.new_tokens, None, pending=True)] if matched.new_messages else []
    return [*stored, *new]


def _build_decision(slot: Slot, tokens: int, span: Span | None, *, pending: bool | None = None) -> Decision:
    reason = "recent" if slot == "messages" else "newest"
    return Decision(slot=slot, kind="message", included=True, reason=reason, tokens=tokens, span=span, pending=pending)
