"""Prepare a recognized request: the body to forward, and the manifest that records how it was made.

A request that fits is passed through byte for byte, or translated if the upstream uses another format. One that does
not fit is fitted: Quire replaces its messages with those that fit the window. All other fields stay unchanged.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from quire.access.spending import SpendingKey
from quire.concurrency.worker_threads import measure_messages, run_sized
from quire.engine import Conversation
from quire.engine.recorder import Recorder
from quire.engine.request import PendingMessage, Request
from quire.engine.spending import check_spend_cap
from quire.errors import ContextOverflow, ConversationExists, InvalidRequest, StaleHead
from quire.log import Blob, Branch, ConversationOrigin, ConversationRecord
from quire.model import CHAIN_ROOT, Decision, Entry, ForwardedRequest, Message, Span, iter_paths, next_path
from quire.model.ids import new_id, now
from quire.model.manifest import FITTED_FORMS, ForwardedForm
from quire.proxy.edited_requests import EditedRequest, apply_edits
from quire.proxy.engine_variants import EngineVariant, RecognizedRequest, render_client_message
from quire.proxy.recognition import HistoryMatch, digest_keys
from quire.proxy.rendered_history import RenderedHistory
from quire.proxy.replay_rendering import render_from_log
from quire.proxy.translation import add_unrecorded_messages, encode_translated, list_dropped
from quire.view.assembly import Assembly
from quire.view.layout import RenderedRequest
from quire.wire.client_messages import ClientMessage, ParsedMessage, compute_client_paths, normalize_message
from quire.wire.codec import ClientRequest, Codec, parse_body

APPEND_BATCH_MESSAGES = 500
"""Messages that are appended in one transaction. Each one takes time on the event loop."""


@dataclass(frozen=True, kw_only=True)
class ClientAssembly(Assembly):
    """A request as the client sent it, whose manifest needs no read of the history that it repeats.

    The manifest is the same as for the request built from the log, so a replay reproduces it. Where the client's JSON
    differs from what the log can reproduce, `replayable` is false, and only the digest of the body identifies what was
    sent.
    """

    recognized: RecognizedRequest
    listed: RenderedRequest

    def render(self) -> RenderedRequest:
        return self.listed

    def build_decisions(self) -> tuple[Decision, ...]:
        """The decisions of the envelope, and the ones for the stored and the new messages."""
        recognized, span = self.recognized, self.recognized.match.entry_range
        stored, new = recognized.stored_tokens, recognized.new_tokens
        rows: list[Decision] = []
        if span is not None:
            # Tool results share a row with the stored call that they answer.
            joins = recognized.answers_stored_call
            rows.append(_build_row(stored + (new if joins else 0), Span(first=span[0], last=span[1]), pending=joins))
        if recognized.new_messages and not (span is not None and recognized.answers_stored_call):
            rows.append(_build_row(new, None, pending=True))
        return (*recognized.envelope.decisions, *recognized.edit_decisions, *rows)


def _build_row(tokens: int, span: Span | None, *, pending: bool) -> Decision:
    """A decision about messages of a client's list."""
    return Decision(
        slot="newest" if pending else "messages",
        kind="message",
        included=True,
        reason="newest" if pending else "recent",
        tokens=tokens,
        span=span,
        pending=pending or None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """The body to forward, and the recorder of its reply."""

    content: bytes
    request: Request
    recognized: RecognizedRequest
    recorder: Recorder
    history: RenderedHistory | None = None
    """The rendered history that it continues."""

    @property
    def match(self) -> HistoryMatch:
        return self.recognized.match

    @property
    def is_fitted(self) -> bool:
        forwarded = self.request.assembly.forwarded
        return forwarded is not None and forwarded.form in FITTED_FORMS

    @property
    def client_request(self) -> ClientRequest:
        return self.recognized.client_request

    @property
    def target(self) -> Codec:
        """The codec of the upstream."""
        return self.recognized.variant.target

    def compute_client_path(self, reply: Message) -> bytes | None:
        """Computes the client's path after the reply, or None if the client does not send the whole conversation."""
        if self.match.client_path is None:
            return None
        if self._joins_reply:
            *before, last = self.client_request.messages
            joined = last.message.model_copy(update={"parts": (*last.message.parts, *reply.parts)})
            path = compute_client_paths(before)[-1] if before else CHAIN_ROOT
            return next_path(path, normalize_message(joined).canonical_json())
        path = self.recognized.extend_client_path(self.match.client_path)
        return next_path(path, normalize_message(reply).canonical_json())

    @property
    def _joins_reply(self) -> bool:
        """Whether the reply is one message with the client's last: a list may end with a compaction item."""
        messages = self.client_request.messages
        return self.client_request.codec.joins_replies and bool(messages) and messages[-1].role == "assistant"

    def build_next_match(
        self, stored: Sequence[Entry], reply_message: Message, client_path: bytes | None
    ) -> HistoryMatch:
        """Builds the match for the client's next request, which continues after this reply, the last entry."""
        reply = stored[-1]
        entries, tail_digests = self._build_tail(stored, reply_message) if client_path is None else ((), ())
        forwarded = self.request.assembly.forwarded
        list_tokens = forwarded.client_list_tokens if forwarded is not None else None
        return HistoryMatch(
            conversation=reply.conversation,
            branch=reply.branch,
            head_seq=reply.seq,
            head_path=reply.path,
            stored_start=self.match.stored_start if self.match.compaction is not None else 0,
            stored_end=len(self.client_request.messages) + (0 if self._joins_reply else 1),
            entry_range=(self._find_list_start(reply), reply.seq),
            compaction=self.match.compaction,
            client_path=client_path,
            recorded_tokens=(list_tokens + (reply.tokens or 0), self.recognized.message_counter.name)
            if list_tokens is not None
            else None,
            was_fitted=self.is_fitted,
            entries=entries,
            tail_digests=tail_digests,
            start_path=self.match.start_path,
            delta_only=self.match.delta_only,
        )

    def _build_tail(self, stored: Sequence[Entry], reply: Message) -> tuple[tuple[Entry, ...], tuple[bytes, ...]]:
        """The stored messages of a list that begins after its conversation, with the digests of their match keys."""
        match, masker = self.match, self.recorder.engine.store.masker
        sent = self.client_request.messages[match.stored_start :]
        entries = (*match.entries, *stored)
        # Messages may be stored before the request is sent, or on a fork; and a masked message has another key.
        is_whole = len(entries) == len(sent) + 1 and {each.branch for each in stored} == {match.branch}
        if masker is not None or match.compaction is not None or not match.entries or not is_whole:
            return (), ()
        return entries, digest_keys([*sent, ParsedMessage(reply)])

    def _find_list_start(self, reply: Entry) -> int:
        """Number of the first stored message in the client's list."""
        if self.match.compaction is None:
            return 1
        if self.match.entry_range is not None:
            return self.match.entry_range[0]
        return max(1, reply.seq - len(self.request.pending))

    async def extend_history(self, reply: Message, path: bytes, client_path: bytes | None) -> None:
        """Caches the rendered history with the recorded messages; `path` is the log's after the reply.

        While the client's path is the same, a short history is rendered from the client's own messages.
        """
        if self.history is None or (not self.history.paths and path == client_path):
            return
        recognized = self.recognized
        messages = [*(each.message for each in recognized.new_messages), reply]
        history, counter, head_path = self.history, recognized.message_counter, self.match.head_path

        def extend() -> RenderedHistory | None:
            paths = list(iter_paths([each.canonical_json().encode() for each in messages], start=head_path))
            return history.extend([*recognized.rendered_new, render_client_message(reply, counter)], paths, counter)

        extended = await run_sized(measure_messages(messages), extend)
        if extended is not None and extended.paths[-1] == path:
            variant = recognized.variant
            variant.histories.replace(variant.tenant, variant.target.name, head_path, extended)


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
) -> PreparedRequest:
    """Prepares a request with the client's list if it fits, else with one that does. Its call is charged to
    `spending_key`.

    `upstream_model` is the upstream's own name for the model, if it differs. Without `may_fit`, an overflow is the
    client's to resolve. `force_fit` rules out the client's list where fitting is possible. With `forwards_reference`,
    an upstream of the client's format adds the earlier messages itself.
    """
    if variant.target is client_request.codec and client_request.codec.has_unsendable(client_request):
        client_request = await run_sized(len(client_request.raw), client_request.codec.drop_unsendable, client_request)
    edits = EditedRequest(client_request=client_request, match=match)
    if variant.target is client_request.codec:
        edits = await apply_edits(client_request, match, variant.engine)
        client_request, match = edits.client_request, edits.match
    envelope = await variant.load_envelope(client_request)
    engine = variant.get_engine(envelope, spending_key)
    await check_spend_cap(engine, match.conversation)
    calibration = await engine.runtime.load_calibration(engine.store, engine.policy.model)
    recognized = RecognizedRequest(
        client_request=client_request,
        match=match,
        variant=variant,
        envelope=envelope,
        calibration=calibration,
        edit_decisions=edits.decisions,
        edit_tokens=edits.tokens,
    )
    await run_sized(recognized.uncounted_bytes, recognized.count_tokens)
    recorder = Recorder(engine, match.conversation, match.branch)
    request_id = new_id()
    needs_history = match.delta_only and not (forwards_reference and recognized.is_native)
    if needs_history or (may_fit and (force_fit or not recognized.fits)):
        fitted = await _fit_request(recognized, recorder, id=request_id, upstream_model=upstream_model, origin=origin)
        if fitted is not None:
            return fitted
    elif not may_fit and (recognized.message_counter.token_counter.exact or not recognized.is_native):
        # An estimate is the upstream's to check.
        _check_room(recognized, tokens=recognized.tokens, room=engine.policy.window)
    return await _send_list(
        recognized, recorder, id=request_id, upstream_model=upstream_model, origin=origin, branch=edits.branch
    )


async def _send_list(
    recognized: RecognizedRequest,
    recorder: Recorder,
    *,
    id: str,
    upstream_model: str | None,
    origin: ConversationOrigin | None,
    branch: Branch | None,
) -> PreparedRequest:
    """Prepares the request with the client's own list: unchanged, with another name of the model, or translated."""
    client_request, match, engine = recognized.client_request, recognized.match, recorder.engine
    rendering = await render_from_log(recognized, engine.store)
    form: ForwardedForm = "translated"
    if recognized.is_native:
        is_edited = client_request.is_edited or client_request.dropped
        form = "edited" if is_edited else "model_renamed" if upstream_model else "unchanged"
    size = 0 if form == "unchanged" and client_request.raw_digest is not None else len(client_request.raw)
    rendered, record = rendering.rendered_request, _encode_request_record(client_request)

    def encode() -> tuple[bytes, ForwardedRequest]:
        content = client_request.raw
        if not recognized.is_native:
            listed = add_unrecorded_messages(recognized, rendered)
            content = encode_translated(recognized, listed, model=upstream_model)
        elif upstream_model:
            body = parse_body(client_request.raw) if client_request.is_edited else client_request.body
            content = client_request.codec.encode_body({**body, "model": upstream_model})
        return content, _build_forwarded(form, content, recognized, rendered, record)

    content, forwarded = await run_sized(size, encode)
    replayable = forwarded.replayable and rendering.replayable and match.stored_start == 0 and not match.delta_only
    assembly = ClientAssembly(
        conversation=match.conversation,
        branch=match.branch,
        head=match.head_seq,
        policy=engine.policy,
        message_counter=recognized.message_counter,
        ratio=recognized.ratio,
        budget=recognized.budget,
        listed=rendered,
        full_history_tokens=recognized.tokens,
        forwarded=forwarded.model_copy(update={"replayable": replayable}),
        recognized=recognized,
    )
    created_at = now()
    pending = tuple(
        [
            PendingMessage(each.message, is_repeated=True, tokens=tokens)
            for each, tokens in zip(recognized.new_messages, recognized.new_counts, strict=True)
        ]
    )
    request = Request(
        assembly=assembly,
        pending=pending,
        after=match.head_path,
        branch=branch,
        blobs=(*recognized.envelope.blobs, *_to_blobs(record)),
        id=id,
        strict_head=True,
        body=content,
        creates_conversation=ConversationRecord(match.conversation, "", created_at, created_at, origin)
        if match.creates_conversation
        else None,
    )
    return PreparedRequest(
        content=content,
        request=request,
        recognized=recognized,
        recorder=recorder,
        history=rendering.history,
    )


def _is_single_question(messages: Sequence[ClientMessage]) -> bool:
    return len(messages) == 1 and messages[0].role == "user"


def _encode_request_record(client_request: ClientRequest) -> bytes | None:
    """Encodes what later requests may read of this one, if they may refer to its reply."""
    record = client_request.codec.build_request_record(client_request) if client_request.is_stored else None
    return to_json(record, inf_nan_mode="constants") if record is not None else None


def _to_blobs(record: bytes | None) -> tuple[Blob, ...]:
    return () if record is None else (Blob("application/json", record),)


def _build_forwarded(
    form: ForwardedForm, content: bytes, recognized: RecognizedRequest, rendered: RenderedRequest, record: bytes | None
) -> ForwardedRequest:
    list_tokens = recognized.stored_tokens + recognized.new_tokens if recognized.match.client_path is not None else None
    return ForwardedRequest(
        form=form,
        digest=recognized.client_request.compute_digest(content),
        replayable=recognized.envelope.replayable,
        client_list_tokens=list_tokens,
        unrecorded_messages=recognized.match.stored_start or None,
        compaction=recognized.match.compaction,
        dropped=recognized.client_request.dropped if recognized.is_native else list_dropped(recognized, rendered),
        request_blob=sha256(record).hexdigest() if record is not None else None,
    )


async def _fit_request(
    recognized: RecognizedRequest,
    recorder: Recorder,
    *,
    id: str,
    upstream_model: str | None,
    origin: ConversationOrigin | None,
) -> PreparedRequest | None:
    """Replaces the messages with those that fit, or None if no valid request results or context management is off.

    A request that continues a recorded reply or a conversation cannot be sent without its history.
    """
    continues = recognized.client_request.continues_recorded
    if not recorder.engine.policy.context_management_enabled and not continues:
        return None
    # Instructions and tools are never shortened, and some room must be left for messages.
    _check_room(recognized, tokens=recognized.envelope.tokens + 1, room=recognized.budget.max_input_tokens)
    recognized = await _store_new_messages(recognized, recorder, origin)
    pending = tuple(PendingMessage(each.message) for each in recognized.new_messages[:1])
    try:
        builder = Conversation(recorder.engine, recorder.conversation, recorder.branch).request_builder
        request = await builder.build(pending, read_branch=recognized.match.read_branch)
    except InvalidRequest:
        if continues:
            raise
        return None
    if request.after != recognized.match.head_path:
        raise StaleHead
    client_request, rendered, load_blob = recognized.client_request, request.assembly.rendered, request.load_blob
    record = _encode_request_record(client_request)

    def encode() -> tuple[bytes, ForwardedRequest]:
        if not recognized.is_native:
            content = encode_translated(recognized, rendered, model=upstream_model)
            return content, _build_forwarded("translated_fitted", content, recognized, rendered, record)
        # The client's own instructions and tools replace the log's rendering of them.
        payload: dict[str, Any] = replace(rendered, system=None, tools=()).to_payload(load_blob=load_blob)
        stable = [wire for each in rendered.messages[: rendered.stable_messages] for wire in each.wire_messages]
        content = client_request.codec.encode_fitted(
            client_request, payload, stable_prefix=stable, model=upstream_model
        )
        return content, _build_forwarded("fitted", content, recognized, rendered, record)

    content, forwarded = await run_sized(len(client_request.raw), encode)
    assembly = request.assembly.with_record(forwarded=forwarded)
    blobs = (*request.blobs, *_to_blobs(record))
    request = replace(request, id=id, strict_head=True, assembly=assembly, blobs=blobs, body=content)
    return PreparedRequest(content=content, request=request, recognized=recognized, recorder=recorder)


def _check_room(recognized: RecognizedRequest, *, tokens: int, room: int) -> None:
    """Raises `ContextOverflow` with the largest items of the envelope if these tokens exceed the room."""
    if tokens > room:
        envelope = recognized.envelope
        largest = sorted(envelope.decisions, key=lambda decision: -decision.tokens)[:5]
        raise ContextOverflow(
            needed_tokens=envelope.tokens + recognized.stored_tokens + recognized.new_tokens,
            available_tokens=room,
            largest_items=[(f"{decision.kind} {decision.name!r}", decision.tokens) for decision in largest],
        )


async def _store_new_messages(
    recognized: RecognizedRequest, recorder: Recorder, origin: ConversationOrigin | None
) -> RecognizedRequest:
    """Creates the conversation and appends the new messages, except a single question.

    A question is recorded with its reply. A tool result belongs to the call before it and must be in the log first.
    """
    match, new = recognized.match, recognized.new_messages
    if match.creates_conversation:
        with suppress(ConversationExists):
            await recorder.engine.store.create_conversation(match.conversation, origin=origin)
        match = replace(match, creates_conversation=False)
    if new and not _is_single_question(new):
        stored: list[Entry] = []
        # An append that is interrupted between two batches continues at a retry.
        for start in range(0, len(new), APPEND_BATCH_MESSAGES):
            batch = [each.message for each in new[start : start + APPEND_BATCH_MESSAGES]]
            stored = await recorder.append(*batch, after=stored[-1].path if stored else match.head_path)
        client_path = match.client_path
        if client_path is not None:
            client_path = await run_sized(
                len(recognized.client_request.raw), recognized.extend_client_path, client_path
            )
        match = replace(
            match,
            read_branch=None,
            head_seq=stored[-1].seq,
            head_path=stored[-1].path,
            stored_end=match.stored_end + len(new),
            entry_range=(1 if match.entry_range is None else match.entry_range[0], stored[-1].seq),
            client_path=client_path,
            recorded_tokens=(recognized.stored_tokens + recognized.new_tokens, recognized.message_counter.name),
        )
    return replace(recognized, match=match)
