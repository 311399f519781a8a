"""Prepare a matched request: the body to forward, and the manifest that records how it was made.

A request that fits is passed through byte for byte, or translated if the upstream uses another format. One that does
not fit is fitted: Quire replaces its messages with those that fit the window; all other fields stay unchanged.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from quire.engine import Conversation
from quire.engine.request import Request
from quire.errors import ContextOverflow, ConversationExists, InvalidRequest, StaleHead
from quire.log import Blob, ConversationOrigin, ConversationRecord
from quire.log.costs import SpendingKey
from quire.log.ids import new_id, now
from quire.log.worker_threads import measure_messages, run_sized
from quire.model import Entry, ForwardedRequest, Message, iter_paths
from quire.model.manifest import ForwardedForm
from quire.server.gateway.codecs.base import ClientRequest, Codec
from quire.server.gateway.codecs.bodies import encode_body
from quire.server.gateway.codecs.client_messages import ClientMessage
from quire.server.gateway.codecs.normal_form import extend_path, normalize_message
from quire.server.gateway.engine_variants import EngineVariant
from quire.server.gateway.log_renderer import render_client_message, render_from_log
from quire.server.gateway.matched_request import MatchedRequest
from quire.server.gateway.passthrough import build_listed_request
from quire.server.gateway.recognition import HistoryMatch
from quire.server.gateway.rendered_history import RenderedHistory
from quire.server.gateway.translation import add_unrecorded_messages, encode_translated, list_dropped
from quire.view.layout import RenderedRequest

APPEND_BATCH_MESSAGES = 500
"""Messages that are appended in one transaction; each one takes time on the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """The body to forward, and the conversation that its reply is recorded in."""

    content: bytes
    request: Request
    matched: MatchedRequest
    conversation: Conversation
    is_recorded: bool = True
    """Whether its reply is recorded."""
    history: RenderedHistory | None = None
    """The rendered history that it continues."""

    @property
    def match(self) -> HistoryMatch:
        return self.matched.match

    @property
    def is_fitted(self) -> bool:
        forwarded = self.request.assembly.forwarded
        return forwarded is not None and forwarded.form in ("fitted", "translated_fitted")

    @property
    def client_request(self) -> ClientRequest:
        return self.matched.client_request

    @property
    def target(self) -> Codec:
        """The codec of the upstream."""
        return self.matched.variant.target

    def compute_client_path(self, reply: Message) -> bytes | None:
        """Computes the client's path after the reply; None if the client does not send the whole conversation."""
        if self.match.client_path is None:
            return None
        return extend_path(self.matched.extend_client_path(self.match.client_path), [normalize_message(reply)])

    def build_next_match(self, reply: Entry, client_path: bytes | None) -> HistoryMatch:
        """Builds the match for the client's next request, which continues after this reply."""
        forwarded = self.request.assembly.forwarded
        list_tokens = forwarded.client_list_tokens if forwarded is not None else None
        return HistoryMatch(
            conversation=reply.conversation,
            branch=reply.branch,
            head_seq=reply.seq,
            head_path=reply.path,
            stored_end=len(self.client_request.messages) + 1,
            entry_range=(1, reply.seq),
            client_path=client_path,
            recorded_tokens=(list_tokens + (reply.tokens or 0), self.matched.message_counter.name)
            if list_tokens is not None
            else None,
        )

    async def extend_history(self, reply: Message, path: bytes, client_path: bytes | None) -> None:
        """Caches the rendered history with the recorded messages; `path` is the log's after the reply.

        While the client's path is the same, a short history is rendered from the client's own messages.
        """
        if self.history is None or (not self.history.paths and path == client_path):
            return
        messages = [*(each.message for each in self.matched.new_messages), reply]
        extended = await run_sized(measure_messages(messages), self._render_extended, self.history, messages)
        if extended is not None and extended.paths[-1] == path:
            variant = self.matched.variant
            variant.histories.replace(variant.tenant, variant.target.provider, self.match.head_path, extended)

    def _render_extended(self, history: RenderedHistory, messages: Sequence[Message]) -> RenderedHistory | None:
        counter = self.matched.message_counter
        paths = list(iter_paths([each.canonical_json() for each in messages], start=self.match.head_path))
        return history.extend([render_client_message(each, counter) for each in messages], paths, counter)


async def prepare_request(
    client_request: ClientRequest,
    match: HistoryMatch,
    variant: EngineVariant,
    *,
    upstream_model: str | None,
    spending_key: SpendingKey | None,
    origin: ConversationOrigin | None = None,
    may_fit: bool = True,
    force_fit: bool = False,
    forwards_reference: bool = False,
    is_recorded: bool = True,
) -> PreparedRequest:
    """Prepares a request with the client's list if it fits, else with one that does. Its call is charged to
    `spending_key`.

    `upstream_model` is the upstream's own name for the model, if it differs. Without `may_fit`, an overflow is the
    client's to resolve. `force_fit` rules out the client's list where fitting is possible. With `forwards_reference`,
    an upstream of the client's format adds the earlier messages itself. A request that is not recorded is not fitted:
    the log would have to have its messages first.
    """
    may_fit = may_fit and is_recorded
    if variant.target is client_request.codec and client_request.codec.has_unsendable(client_request):
        client_request = await run_sized(len(client_request.raw), client_request.codec.drop_unsendable, client_request)
    envelope = await variant.load_envelope(client_request)
    engine = variant.engine.with_changes(agent=envelope.agent, spending_key=spending_key)
    await engine.check_spend_cap(match.conversation)
    calibration = await engine.load_calibration(engine.policy.model)
    matched = MatchedRequest(
        client_request=client_request, match=match, variant=variant, envelope=envelope, calibration=calibration
    )
    await run_sized(matched.uncounted_bytes, matched.count_tokens)
    conversation = Conversation(engine, match.conversation, match.branch)
    request_id = new_id()
    needs_history = match.delta_only and not (forwards_reference and matched.is_native)
    if needs_history and not is_recorded:
        _check_unrecorded(matched)
    if needs_history or (may_fit and (force_fit or not matched.fits)):
        fitted = await _fit_request(matched, conversation, id=request_id, upstream_model=upstream_model, origin=origin)
        if fitted is not None:
            return replace(fitted, is_recorded=is_recorded)
    elif not may_fit:
        _check_window(matched)
    rendering = await render_from_log(matched, engine.store)
    form = _choose_native_form(client_request, upstream_model) if matched.is_native else "translated"
    size = 0 if form == "unchanged" and client_request.raw_digest is not None else len(client_request.raw)
    content = await run_sized(size, _encode_listed, matched, rendering.rendered_request, upstream_model)
    record = _encode_request_record(client_request)
    forwarded = await run_sized(size, _build_forwarded, form, content, matched, rendering.rendered_request, record)
    request = build_listed_request(matched, rendering, id=request_id, forwarded=forwarded)
    return PreparedRequest(
        content=content,
        request=_add_new_conversation(_add_record(request, record), match, origin),
        matched=matched,
        conversation=conversation,
        is_recorded=is_recorded,
        history=rendering.history,
    )


def _choose_native_form(client_request: ClientRequest, upstream_model: str | None) -> ForwardedForm:
    if client_request.dropped:
        return "edited"
    return "model_renamed" if upstream_model else "unchanged"


def _check_unrecorded(matched: MatchedRequest) -> None:
    """Raises `InvalidRequest` if the log would have to have the new messages before the request is sent."""
    if not _is_single_question(matched.new_messages):
        raise InvalidRequest(
            "A request with `store: false` is not recorded here (`keep_unstored`), so that it can continue a recorded "
            "reply only with one message of the user; send the whole history instead."
        )


def _is_single_question(messages: Sequence[ClientMessage]) -> bool:
    return len(messages) == 1 and messages[0].role == "user"


def _encode_listed(matched: MatchedRequest, rendered: RenderedRequest, upstream_model: str | None) -> bytes:
    """Encodes the client's own list: byte for byte, with only the model's name replaced, or translated."""
    client_request = matched.client_request
    if not matched.is_native:
        return encode_translated(matched, add_unrecorded_messages(matched, rendered), model=upstream_model)
    return encode_body({**client_request.body, "model": upstream_model}) if upstream_model else client_request.raw


def _encode_request_record(client_request: ClientRequest) -> bytes | None:
    """Encodes what later requests may read of this one, if they may refer to its reply."""
    record = client_request.codec.build_request_record(client_request) if client_request.is_stored else None
    return to_json(record, inf_nan_mode="constants") if record is not None else None


def _add_record(request: Request, record: bytes | None) -> Request:
    return request if record is None else replace(request, blobs=(*request.blobs, Blob("application/json", record)))


def _build_forwarded(
    form: ForwardedForm, content: bytes, matched: MatchedRequest, rendered: RenderedRequest, record: bytes | None
) -> ForwardedRequest:
    list_tokens = matched.stored_tokens + matched.new_tokens if matched.match.client_path is not None else None
    return ForwardedRequest(
        form=form,
        digest=matched.client_request.compute_digest(content),
        replayable=matched.envelope.replayable,
        client_list_tokens=list_tokens,
        unrecorded_messages=matched.match.stored_start or None,
        dropped=matched.client_request.dropped if matched.is_native else list_dropped(matched, rendered),
        request_blob=sha256(record).hexdigest() if record is not None else None,
    )


def _check_window(matched: MatchedRequest) -> None:
    """Raises `ContextOverflow` if the request certainly exceeds the window; an estimate is the upstream's to check."""
    window = matched.variant.engine.policy.window
    is_certain = matched.message_counter.token_counter.exact or not matched.is_native
    if is_certain and matched.tokens > window:
        raise _build_overflow(matched, room=window)


def _add_new_conversation(request: Request, match: HistoryMatch, origin: ConversationOrigin | None) -> Request:
    if not match.creates_conversation:
        return request
    created_at = now()
    record = ConversationRecord(match.conversation, "", created_at, created_at, origin)
    return replace(request, creates_conversation=record)


async def _fit_request(
    matched: MatchedRequest,
    conversation: Conversation,
    *,
    id: str,
    upstream_model: str | None,
    origin: ConversationOrigin | None,
) -> PreparedRequest | None:
    """Replaces the messages with those that fit; None if no valid request results or context management is off.

    A request that continues a recorded reply or a conversation cannot be sent without its history.
    """
    continues = matched.client_request.continues_recorded
    if not conversation.engine.policy.context_management_enabled and not continues:
        return None
    _check_envelope(matched)
    matched = await _store_new_messages(matched, conversation, origin)
    question = matched.new_messages[0].message if matched.new_messages else None
    try:
        request = await conversation.prepare(question)
    except InvalidRequest:
        if continues:
            raise
        return None
    if request.after != matched.match.head_path:
        raise StaleHead
    size = len(matched.client_request.raw)
    content = await run_sized(size, _encode_fitted, matched, request, upstream_model)
    form = "fitted" if matched.is_native else "translated_fitted"
    record = _encode_request_record(matched.client_request)
    rendered = request.assembly.rendered
    forwarded = await run_sized(size, _build_forwarded, form, content, matched, rendered, record)
    assembly = replace(request.assembly, forwarded=forwarded)
    request = _add_record(replace(request, id=id, strict_head=True, assembly=assembly), record)
    return PreparedRequest(content=content, request=request, matched=matched, conversation=conversation)


def _check_envelope(matched: MatchedRequest) -> None:
    """Raises `ContextOverflow` if instructions and tools, which are never shortened, fill the window."""
    room = matched.budget.max_input_tokens
    if matched.envelope.tokens >= room:
        raise _build_overflow(matched, room=room)


def _build_overflow(matched: MatchedRequest, *, room: int) -> ContextOverflow:
    envelope = matched.envelope
    largest = sorted(envelope.decisions, key=lambda decision: -decision.tokens)[:5]
    return ContextOverflow(
        needed_tokens=envelope.tokens + matched.stored_tokens + matched.new_tokens,
        available_tokens=room,
        largest_items=[(f"{decision.kind} {decision.name!r}", decision.tokens) for decision in largest],
    )


async def _store_new_messages(
    matched: MatchedRequest, conversation: Conversation, origin: ConversationOrigin | None
) -> MatchedRequest:
    """Creates the conversation and appends the new messages, except a single question.

    A question is recorded with its reply. A tool result belongs to the call before it and must be in the log first.
    """
    match, new = matched.match, matched.new_messages
    if match.creates_conversation:
        with suppress(ConversationExists):
            await conversation.engine.store.create_conversation(match.conversation, origin=origin)
        match = replace(match, creates_conversation=False)
    if new and not _is_single_question(new):
        stored = await _append_batches(conversation, [each.message for each in new], after=match.head_path)
        client_path = match.client_path
        if client_path is not None:
            client_path = await run_sized(len(matched.client_request.raw), matched.extend_client_path, client_path)
        match = replace(
            match,
            head_seq=stored[-1].seq,
            head_path=stored[-1].path,
            stored_end=match.stored_end + len(new),
            entry_range=(1 if match.entry_range is None else match.entry_range[0], stored[-1].seq),
            client_path=client_path,
            recorded_tokens=(matched.stored_tokens + matched.new_tokens, matched.message_counter.name),
        )
    return replace(matched, match=match)


async def _append_batches(conversation: Conversation, messages: Sequence[Message], *, after: bytes) -> list[Entry]:
    """Appends messages in batches, and returns the entries of the last; an interrupted append continues at a retry."""
    stored: list[Entry] = []
    for start in range(0, len(messages), APPEND_BATCH_MESSAGES):
        batch = messages[start : start + APPEND_BATCH_MESSAGES]
        stored = await conversation.append(*batch, after=stored[-1].path if stored else after)
    return stored


def _encode_fitted(matched: MatchedRequest, request: Request, upstream_model: str | None) -> bytes:
    rendered, client_request = request.assembly.rendered, matched.client_request
    if not matched.is_native:
        return encode_translated(matched, rendered, model=upstream_model)
    # The client's own instructions and tools replace the log's rendering of them.
    payload: dict[str, Any] = replace(rendered, system=None, tools=()).to_payload(load_blob=request.load_blob)
    stable = [wire for each in rendered.messages[: rendered.stable_messages] for wire in each.wire_messages]
    return client_request.codec.encode_fitted(client_request, payload, stable_prefix=stable, model=upstream_model)
