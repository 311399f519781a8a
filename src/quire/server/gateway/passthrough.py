"""A request with the client's own list of messages: build its manifest without loading the history that it repeats.

The manifest is that of the same request built from the log, so a replay reproduces it. Where the client's JSON differs
from what the log can reproduce, `replayable` is false, and only the digest of the body identifies what was sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.engine.request import PendingMessage, Request
from quire.log import LogStore
from quire.log.worker_threads import run_sized
from quire.model import Decision, ForwardedRequest, Message, Slot, Span
from quire.model.lazy import lazy_property
from quire.server.gateway.codecs.base import ClientRequest
from quire.server.gateway.codecs.client_messages import ClientMessage
from quire.server.gateway.codecs.normal_form import extend_path
from quire.server.gateway.engine_variants import EngineVariant, RequestEnvelope
from quire.server.gateway.recognition import HistoryMatch
from quire.view.assembly import Assembly
from quire.view.batches import group_batches
from quire.view.budget import Budget, allocate_budget
from quire.view.calibration import Calibration
from quire.view.layout import RenderedRequest, RequestContents, lay_out
from quire.view.rendered import MessageCounter, RenderedMessage, drop_unsupported_parts
from quire.view.strategies import get_strategy
from quire.view.tool_call_repair import repair_tool_calls

_EMPTY_MESSAGE = Message.user("")


@dataclass(frozen=True, kw_only=True)
class MatchedRequest:
    """A client's request, matched to the log, with token counts."""

    client_request: ClientRequest
    match: HistoryMatch
    variant: EngineVariant
    envelope: RequestEnvelope
    calibration: Calibration
    """Correction of our token counts by those that the provider reported."""

    @property
    def is_native(self) -> bool:
        """Whether the upstream uses the client's format."""
        return self.variant.target is self.client_request.codec

    @property
    def message_counter(self) -> MessageCounter:
        return self.variant.engine.message_counter

    @property
    def new_messages(self) -> tuple[ClientMessage, ...]:
        """Messages that are not in the log yet."""
        return self.client_request.messages[self.match.stored_end :]

    def extend_client_path(self, path: bytes) -> bytes:
        """Computes the client's path after the new messages that follow `path`."""
        return extend_path(path, [each.normalized for each in self.new_messages])

    @lazy_property
    def new_tokens(self) -> int:
        return sum(self.message_counter.count(each.message) for each in self.new_messages)

    @lazy_property
    def stored_tokens(self) -> int:
        """Tokens of the stored messages; taken from the last manifest if the same counter made it."""
        recorded = self.match.recorded_tokens
        if recorded is not None and recorded[1] == self.message_counter.name:
            return recorded[0]
        return sum(
            self.message_counter.count(each.message) for each in self.client_request.messages[: self.match.stored_end]
        )

    @lazy_property
    def tokens(self) -> int:
        """Tokens of the whole request as the client sent it."""
        response_format = self.client_request.options.response_format
        format_tokens = (
            self.message_counter.token_counter.count(str(response_format)) if response_format is not None else 0
        )
        return (
            self.message_counter.wire_format.request_overhead
            + self.envelope.tokens
            + self.stored_tokens
            + self.new_tokens
            + format_tokens
        )

    def count_tokens(self) -> None:
        """Computes `tokens`, which is cached: a caller may do this in a thread before it reads any count."""
        _ = self.tokens

    @lazy_property
    def ratio(self) -> float:
        """Expected ratio of the provider's token count to ours."""
        return self.calibration.ratio_for(
            tokens=self.tokens,
            messages=len(self.client_request.messages),
            exact=self.message_counter.token_counter.exact,
        )

    @lazy_property
    def budget(self) -> Budget:
        policy = self.variant.engine.policy
        return allocate_budget(policy, get_strategy(policy.strategy).shares, ratio=self.ratio)

    @property
    def fits(self) -> bool:
        """Whether the request can be passed through. The margin above the trigger is for errors of estimates."""
        return self.tokens <= (
            self.budget.max_input_tokens if self.message_counter.token_counter.exact else self.budget.trigger_tokens
        )


@dataclass(frozen=True, kw_only=True)
class ListedAssembly(Assembly):
    """A request as the client sent it."""

    matched: MatchedRequest

    def build_decisions(self) -> tuple[Decision, ...]:
        return (*self.matched.envelope.decisions, *_build_message_decisions(self.matched))


def build_listed_request(
    matched: MatchedRequest, rendering: "LogRendering", *, id: str, forwarded: ForwardedRequest
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
    if span is not None and matched.new_messages and _starts_with_tool_result(matched):
        return [_build_decision("newest", matched.stored_tokens + matched.new_tokens, span, pending=True)]
    stored = [_build_decision("messages", matched.stored_tokens, span)] if span is not None else []
    new = [_build_decision("newest", matched.new_tokens, None, pending=True)] if matched.new_messages else []
    return [*stored, *new]


def _build_decision(slot: Slot, tokens: int, span: Span | None, *, pending: bool | None = None) -> Decision:
    reason = "recent" if slot == "messages" else "newest"
    return Decision(slot=slot, kind="message", included=True, reason=reason, tokens=tokens, span=span, pending=pending)


def _starts_with_tool_result(matched: MatchedRequest) -> bool:
    return matched.new_messages[0].role == "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRendering:
    """A request rendered from the log, and whether it equals what the client sent."""

    rendered_request: RenderedRequest
    replayable: bool


async def render_from_log(matched: MatchedRequest, store: LogStore) -> LogRendering:
    """Renders the request as a replay would, without reading the store where equal paths prove equal messages."""
    messages, match = matched.client_request.messages, matched.match
    same_path = match.stored_end == 0 or match.client_path == match.head_path
    body_bytes = len(matched.client_request.raw)
    if matched.is_native and same_path and all(each.is_plain_text for each in messages):
        return await run_sized(body_bytes, _render_plain_texts, matched)
    stored = await _render_stored(matched, store, same_path=same_path)
    return await run_sized(body_bytes, _render_after_stored, matched, stored)


def _render_plain_texts(matched: MatchedRequest) -> LogRendering:
    rendered, stored_end = (
        [_render_plain_text(each) for each in matched.client_request.messages],
        matched.match.stored_end,
    )
    request = _lay_out_messages(matched, rendered[:stored_end], rendered[stored_end:])
    return LogRendering(rendered_request=request, replayable=True)


def _render_after_stored(matched: MatchedRequest, stored: list[RenderedMessage]) -> LogRendering:
    request, client_request = (
        _lay_out_messages(matched, *_split_at_newest_batch(matched, stored)),
        matched.client_request,
    )
    if not matched.is_native:
        return LogRendering(rendered_request=request, replayable=True)
    wire_messages = [wire_message for each in request.messages for wire_message in each.wire_messages]
    replayable = client_request.codec.is_equivalent(wire_messages, client_request, start=matched.match.stored_start)
    return LogRendering(rendered_request=request, replayable=replayable)


async def _render_stored(matched: MatchedRequest, store: LogStore, *, same_path: bool) -> list[RenderedMessage]:
    counter, match = matched.message_counter, matched.match
    if same_path:
        return await run_sized(len(matched.client_request.raw), _render_normalized, matched)
    if match.entry_range is None:
        return []
    first, last = match.entry_range
    entries = match.entries or await store.read_range(
        match.conversation, branch=match.branch, first=first, last=last, kinds=["message"]
    )
    await matched.variant.engine.load_blobs(entries)
    return await run_sized(sum(len(entry.raw) for entry in entries), counter.render_entries, entries)


def _render_normalized(matched: MatchedRequest) -> list[RenderedMessage]:
    counter = matched.message_counter
    return [
        counter.render_message(drop_unsupported_parts(each.normalized), tokens=0)
        for each in matched.client_request.messages[: matched.match.stored_end]
    ]


def _split_at_newest_batch(
    matched: MatchedRequest, stored: list[RenderedMessage]
) -> tuple[Sequence[RenderedMessage], Sequence[RenderedMessage]]:
    """Returns the history and the new messages. New tool results take the stored call that they answer with them."""
    counter = matched.message_counter
    new = [counter.render_message(drop_unsupported_parts(each.message), tokens=0) for each in matched.new_messages]
    if new and _starts_with_tool_result(matched):
        call = max((index for index, each in enumerate(stored) if each.role != "tool"), default=0)
        stored, new = stored[:call], [*stored[call:], *new]
    return repair_tool_calls(stored, counter).messages, repair_tool_calls(new, counter).messages


def _render_plain_text(message: ClientMessage) -> RenderedMessage:
    """Renders only what a digest needs."""
    return RenderedMessage(None, _EMPTY_MESSAGE, (), message.wire_json, 0, "user", ())


def _lay_out_messages(
    matched: MatchedRequest, history: Sequence[RenderedMessage], newest: Sequence[RenderedMessage]
) -> RenderedRequest:
    contents = RequestContents(
        system=matched.envelope.system,
        tools=matched.envelope.tools,
        batches={"history": group_batches(history), "newest": group_batches(newest)},
    )
    policy = matched.variant.engine.policy
    return lay_out(contents, matched.message_counter, model=policy.model, tokens=matched.tokens)
