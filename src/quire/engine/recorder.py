"""Records questions and replies in the log, with the manifest of each request and the token calibration."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256

from quire.concurrency.worker_threads import measure_messages, run_sized
from quire.context.item_use import find_used_items, is_optional_item
from quire.engine.background_jobs import Work
from quire.engine.message_index import schedule_indexing
from quire.engine.reported_windows import is_credible
from quire.engine.request import PendingMessage, Request
from quire.engine.spending import reserve_spend
from quire.engine.state import EngineState
from quire.engine.turn_totals import deduplicate_references, read_turn_steps
from quire.errors import ModelContextOverflow, StaleHead
from quire.log import ReplyRecord
from quire.log.types import TurnLease
from quire.model import Draft, Entry, Manifest, Message, Span, TokenCount, TurnTotals, Usage
from quire.model.entry_metadata import DocumentReference
from quire.model.manifest import Decision
from quire.view.assembly import ViewAssembly
from quire.view.budget import MAX_RATIO, update_calibration
from quire.view.call_prices import Cost
from quire.view.decisions import set_pending_span
from quire.view.rendered import inline_documents
from quire.wire import Reply

_log = logging.getLogger(__name__)

OVERFLOW_RATIO_FACTOR = 1.25
"""Factor on the calibration ratio after an overflow error that reports no token count."""
CALIBRATION_MIN_SAMPLES = 8
"""Reports of a model after which the calibration counts as settled."""
CALIBRATION_SAVE_INTERVAL = 16
"""Reports between two writes of a settled calibration."""
CALIBRATION_MAX_DRIFT = 0.01
"""Change of the ratio above which even a settled calibration is written at once."""


def exceeds_background_threshold(engine: EngineState, tokens: int) -> bool:
    """Whether a history of this size is compacted in the background, before it must be."""
    policy, threshold = engine.policy, engine.settings.context_background_threshold
    if threshold is None or not engine.config.has_background_compaction:
        return False
    return tokens > min(policy.trigger_tokens, int(policy.window * threshold))


class Recorder:
    """Records questions and replies of one branch, with a `lease` only while the turn has it."""

    def __init__(self, engine: EngineState, conversation: str, branch: int, *, lease: TurnLease | None = None) -> None:
        self.engine, self.conversation, self.branch, self.lease = engine, conversation, branch, lease

    def make_draft(
        self,
        pending: PendingMessage,
        reply: Reply | None = None,
        *,
        incomplete: bool = False,
        turn: TurnTotals | None = None,
        cost: Cost | None = None,
    ) -> Draft:
        counter = self.engine.message_counter
        if pending.is_repeated and pending.message.role == "assistant":
            cost = Cost()
        tokens = pending.tokens
        if tokens is None or pending.references:
            tokens = counter.count(inline_documents(pending.message, pending.references, counter.load_text))
        return Draft(
            body=pending.message,
            tokens=TokenCount(tokens, counter.name),
            references=pending.references,
            written_tokens=counter.count(pending.message) if pending.references else None,
            usage=reply.usage if reply else None,
            incomplete=incomplete,
            turn=turn,
            cost_usd=cost.usd if cost is not None else None,
            cost_incomplete=cost is not None and not cost.is_complete,
        )

    async def make_drafts(self, pending: Sequence[PendingMessage]) -> list[Draft]:
        """Drafts of these messages. Counting their tokens may take a worker thread."""
        size = measure_messages(each.message for each in pending)
        return await run_sized(size, lambda: [self.make_draft(each) for each in pending])

    async def append(self, *messages: Message, after: bytes | None = None) -> list[Entry]:
        """Stores messages with their token counts. Raises `StaleHead` if `after` is not the path of the head."""
        pending = [PendingMessage(message) for message in messages]
        digests = [digest for each in pending for digest in each.blob_digests()]
        await self.engine.runtime.blobs.load(self.engine.store, [], digests)
        drafts = await self.make_drafts(pending)
        entries = await self.engine.store.append(
            self.conversation, *drafts, branch=self.branch, after=after, lease=self.lease
        )
        schedule_indexing(self.engine)
        return entries

    async def record(
        self, reply: Reply, *, request: Request, references: Sequence[DocumentReference] = (), incomplete: bool = False
    ) -> list[Entry]:
        """Stores the reply, its question and the manifest. A reply that calls no tools gets the totals of its turn."""
        cost, totals = self.engine.config.compute_cost(reply.usage, request.assembly.policy.model), None
        if not reply.message.tool_calls:
            steps = await read_turn_steps(
                self.engine.store, self.conversation, self.branch, last=request.assembly.head, request=request
            )
            totals = steps.add_up(self.engine.config, usage=reply.usage, cost=cost)
            references = [*steps.references, *references]
        answer = PendingMessage(reply.message, deduplicate_references(references))
        stored = await self.record_reply(request, answer, reply, incomplete=incomplete, turn=totals, cost=cost)
        schedule_indexing(self.engine)
        return stored

    async def reserve_spend(self, request: Request, *, choices: int = 1) -> Request:
        """Reserves the request's estimated cost under the spend caps, and the bytes that will be stored under the
        tenant's quota; `record` settles the reservation."""
        policy, sent = self.engine.policy, self.engine.runtime.sent_bodies.get(self.conversation)
        # A body is stored as its difference to the previous one.
        body_bytes = len(request.body or b"") - (len(sent.content) if sent is not None else 0)
        pending_bytes = measure_messages([each.message for each in request.pending])
        output_tokens = policy.reserved_response_tokens * choices
        reservation = await reserve_spend(
            self.engine,
            self.conversation,
            model=policy.model,
            input_tokens=request.tokens,
            output_tokens=output_tokens,
            stored_bytes=max(0, body_bytes) + pending_bytes + output_tokens,
        )
        return replace(request, reservation=reservation)

    async def settle_spend(self, request: Request, *, is_billed: bool, usage: Usage | None = None) -> None:
        """Settles the reservation of a request without a recorded reply. A billed call costs what its `usage` says,
        else its input."""
        if request.reservation is None:
            return
        cost = request.reservation.input_usd if is_billed else 0.0
        if usage is not None:
            cost = self.engine.config.compute_cost(usage, self.engine.policy.model).usd
        await self.engine.store.spending.settle(request.reservation.id, cost)

    async def correct_overflow(self, error: ModelContextOverflow, *, request: Request) -> bool:
        """Corrects the token calibration and the context window by the provider's overflow error of `request`.

        Returns False, and changes nothing, if the error contradicts Quire's own count. After True, a request that is
        prepared again is shorter.
        """
        engine, assembly = self.engine, request.assembly
        policy, counted_tokens = assembly.policy, assembly.rendered.tokens
        if not is_credible(error, counted_tokens=counted_tokens, policy=policy):
            _log.info("Overflow error ignored: it contradicts our count of %s tokens", counted_tokens)
            return False
        calibration = await engine.runtime.load_calibration(engine.store, policy.model)
        ratio = error.tokens / counted_tokens if error.tokens else assembly.ratio * OVERFLOW_RATIO_FACTOR
        engine.runtime.calibrations[policy.model] = calibration.with_ratio(
            min(MAX_RATIO, max(assembly.ratio, ratio)), tokens=counted_tokens, messages=len(assembly.rendered.messages)
        )
        window = error.window
        if window is None and not policy.has_known_window:
            # The refused request bounds a window that nothing else names.
            window = error.tokens or counted_tokens
        if window is not None and window < policy.window:
            engine.runtime.reported_windows.add(window, engine.config.endpoint)
        return True

    def defer_compaction(self, request: Request, stored: Sequence[Entry], compact: Work) -> None:
        """Starts a background compaction above the lower threshold, so that the next request need not wait for a
        summary."""
        tokens = request.assembly.full_history_tokens + sum(entry.tokens or 0 for entry in stored)
        if exceeds_background_threshold(self.engine, tokens):
            self.engine.runtime.jobs.enqueue("compact", self.conversation, self.branch, compact)

    async def record_question(self, request: Request) -> tuple[list[Entry], Request]:
        """Stores the pending messages before the request is sent. Returns the request with nothing pending."""
        if not request.pending:
            return [], request
        store, drafts, lease = self.engine.store, await self.make_drafts(request.pending), self.lease
        referenced = {digest for draft in drafts for digest in draft.blob_digests()}
        for blob in request.blobs:
            if sha256(blob.data).hexdigest() in referenced:
                await store.put_blob(blob.data, media_type=blob.media_type)
        try:
            stored = await store.append(
                self.conversation, *drafts, branch=self.branch, after=request.after, lease=lease
            )
        except StaleHead:
            request.check_unrecorded()
            stored = await store.append(self.conversation, *drafts, branch=self.branch, lease=lease)
        request.stored.extend(stored)
        assembly = request.assembly
        if not request.needs_compaction:
            assembly = assembly.with_record(question_span=Span(first=stored[0].seq, last=stored[-1].seq))
        return stored, replace(request, pending=(), after=stored[-1].path, assembly=assembly, branch=None, stored=[])

    async def record_reply(
        self,
        request: Request,
        message: PendingMessage,
        reply: Reply,
        *,
        incomplete: bool,
        turn: TurnTotals | None,
        cost: Cost,
    ) -> list[Entry]:
        """Stores the reply, its question if that is still pending, and the manifest, in one transaction.

        `turn` has the totals of the turn that the reply ends.
        """
        size = measure_messages([message.message])
        draft = await run_sized(size, self.make_draft, message, reply, incomplete=incomplete, turn=turn, cost=cost)
        decisions = None
        if isinstance(request.assembly, ViewAssembly):
            # Builds the manifest, which grows with the history.
            work = size + request.assembly.full_history_tokens
            decisions = await run_sized(work, _mark_used_items, request, request.assembly, message.message)
        masker, exchange, end = self.engine.store.masker, request.exchange, None
        if exchange is not None:
            outcome = exchange.outcome or ("broken" if incomplete else "answered")
            end = exchange.row, await exchange.build_end(outcome, has_entry=True)
        record = ReplyRecord(
            drafts=(*await self.make_drafts(request.pending), draft),
            build_manifest=partial(
                _finalize_manifest,
                request,
                decisions,
                is_masked=masker is not None and (exchange is None or exchange.is_masked),
                masked_digest=exchange.masked_digest if exchange is not None else None,
            ),
            blobs=request.blobs,
            calibration=await self._update_calibration(request, reply),
            cost=cost.usd,
            key_id=self.engine.config.key_id,
            reservation_id=request.reservation.id if request.reservation is not None else None,
            request_id=request.id,
            response_id=request.response_id,
            creates_conversation=request.creates_conversation,
            client_path=request.client_path,
            start_path=request.start_path,
            lease=self.lease,
            ends_turn=turn is not None,
            exchange=end,
        )
        store = self.engine.store
        try:
            stored = await store.record_reply(self.conversation, record, branch=self.branch, after=request.after)
        except StaleHead:
            if request.strict_head:
                raise
            request.check_unrecorded()
            # A concurrent append moved the head: record the reply after it, so that nothing is lost.
            stored = await store.record_reply(self.conversation, record, branch=self.branch)
        request.stored.extend(stored)
        if exchange is not None:
            exchange.is_ended = True
        return stored

    async def _update_calibration(self, request: Request, reply: Reply) -> tuple[str, str] | None:
        """Adds the reported usage of a request. Returns (model, JSON) if it is to be stored.

        Usage that Quire estimated itself is ignored.
        """
        if reply.usage is None or not reply.usage.input_tokens or reply.usage.estimated:
            return None
        model = request.assembly.policy.model
        previous = await self.engine.runtime.load_calibration(self.engine.store, model)
        current = update_calibration(
            previous,
            predicted=request.tokens,
            reported=reply.usage.input_tokens,
            messages=len(request.assembly.rendered.messages),
        )
        self.engine.runtime.calibrations[model] = current
        # Each tenant has one row per model: if every reply wrote it, concurrent turns would wait for its lock.
        drift = abs(current.ratio - previous.ratio)
        settled = current.samples > CALIBRATION_MIN_SAMPLES and drift < CALIBRATION_MAX_DRIFT
        return None if settled and current.samples % CALIBRATION_SAVE_INTERVAL else (model, current.canonical_json())


def _mark_used_items(request: Request, assembly: ViewAssembly, reply: Message) -> tuple[Decision, ...]:
    """The decisions of the request, with what the reply used of it."""
    decisions = request.manifest.decisions
    if not any(map(is_optional_item, decisions)):
        return decisions
    view_input = assembly.view_input
    question = next((each.text for each in reversed(view_input.pending) if each.role == "user"), None)
    if question is None:
        newest = next((entry for entry in reversed(view_input.history) if entry.role == "user"), None)
        question = newest.message.text if newest is not None else ""
    blocks = [counted.block for counted in assembly.selection.blocks]
    return find_used_items(decisions, blocks, question=question, reply=reply)


def _finalize_manifest(
    request: Request,
    decisions: tuple[Decision, ...] | None,
    stored: Sequence[Entry],
    *,
    is_masked: bool,
    masked_digest: str | None,
) -> Manifest:
    """Adds what is known only with the reply: what it used and its tokens, the pending messages' numbers, and whether
    the request is stored with masked secrets."""
    span, reply_tokens = None, stored[-1].tokens or 0
    if request.pending:
        span = Span(first=stored[0].seq, last=stored[len(request.pending) - 1].seq)
    manifest = request.manifest
    decisions = manifest.decisions if decisions is None else decisions
    if is_masked:
        changes = {"replayable": False, "masked_digest": masked_digest}
        forwarded = manifest.forwarded.model_copy(update=changes) if manifest.forwarded is not None else None
        manifest = manifest.model_copy(update={"masked": True, "forwarded": forwarded})
    if span is not None:
        decisions = set_pending_span(decisions, span)
    if decisions is not manifest.decisions:
        manifest = manifest.model_copy(update={"decisions": decisions})
    if manifest.forwarded is None or manifest.forwarded.client_list_tokens is None:
        return manifest
    tokens = manifest.forwarded.client_list_tokens + reply_tokens
    forwarded = manifest.forwarded.model_copy(update={"client_list_tokens": tokens})
    return manifest.model_copy(update={"forwarded": forwarded})
