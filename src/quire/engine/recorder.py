"""Records questions and replies in the log, with the manifest of each request and the token calibration."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256

from quire.engine.context import EngineContext
from quire.engine.request import PendingMessage, Request
from quire.errors import StaleHead
from quire.log import ReplyRecord
from quire.log.types import TurnLease
from quire.log.worker_threads import measure_messages, run_sized
from quire.model import Draft, Entry, Manifest, Span, TokenCount, TurnTotals
from quire.view.calibration import update_calibration
from quire.view.decisions import set_pending_span
from quire.view.references import inline_documents
from quire.view.wire_formats import Reply

CALIBRATION_MIN_SAMPLES = 8
"""Reports of a model after which the calibration counts as settled."""
CALIBRATION_SAVE_INTERVAL = 16
"""Reports between two writes of a settled calibration."""
CALIBRATION_MAX_DRIFT = 0.01
"""Change of the ratio above which even a settled calibration is written at once."""


class Recorder:
    """Records questions and replies of one branch; with a `lease`, those of the turn that has it."""

    def __init__(
        self, engine: EngineContext, conversation: str, branch: int, *, lease: TurnLease | None = None
    ) -> None:
        self._engine, self._conversation, self._branch, self._lease = engine, conversation, branch, lease

    def make_draft(
        self,
        pending: PendingMessage,
        reply: Reply | None = None,
        *,
        incomplete: bool = False,
        turn: TurnTotals | None = None,
    ) -> Draft:
        counter = self._engine.message_counter
        tokens = counter.count(inline_documents(pending.message, pending.references, counter.load_text))
        return Draft(
            body=pending.message,
            tokens=TokenCount(tokens, counter.name),
            references=pending.references,
            written_tokens=counter.count(pending.message) if pending.references else None,
            usage=reply.usage if reply else None,
            incomplete=incomplete,
            turn=turn,
        )

    async def make_drafts(self, pending: Sequence[PendingMessage]) -> list[Draft]:
        """Drafts of these messages; counting their tokens may take a worker thread."""
        size = measure_messages(each.message for each in pending)
        return await run_sized(size, lambda: [self.make_draft(each) for each in pending])

    async def record_question(self, request: Request) -> tuple[list[Entry], Request]:
        """Stores the pending messages before the request is sent; returns the request with nothing pending."""
        if not request.pending:
            return [], request
        store, drafts, lease = self._engine.store, await self.make_drafts(request.pending), self._lease
        referenced = {digest for draft in drafts for digest in draft.blob_digests()}
        for blob in request.blobs:
            if sha256(blob.data).hexdigest() in referenced:
                await store.put_blob(blob.data, media_type=blob.media_type)
        try:
            stored = await store.append(
                self._conversation, *drafts, branch=self._branch, after=request.after, lease=lease
            )
        except StaleHead:
            stored = await store.append(self._conversation, *drafts, branch=self._branch, lease=lease)
        assembly = replace(request.assembly, question_span=Span(first=stored[0].seq, last=stored[-1].seq))
        return stored, replace(request, pending=(), after=stored[-1].path, assembly=assembly)

    async def record_reply(
        self, request: Request, message: PendingMessage, reply: Reply, *, incomplete: bool, turn: TurnTotals | None
    ) -> list[Entry]:
        """Stores the reply, its question if that is still pending, and the manifest, in one transaction.

        `turn` has the totals of the turn that the reply ends.
        """
        size = measure_messages([message.message])
        draft = await run_sized(size, self.make_draft, message, reply, incomplete=incomplete, turn=turn)
        record = ReplyRecord(
            drafts=(*await self.make_drafts(request.pending), draft),
            build_manifest=partial(_finalize_manifest, request),
            blobs=request.blobs,
            calibration=await self._update_calibration(request, reply),
            cost=self._engine.config.estimate_cost(reply.usage, request.manifest.policy.model),
            key_id=self._engine.config.key_id,
            reservation_id=request.reservation.id if request.reservation is not None else None,
            request_id=request.id,
            response_id=request.response_id,
            creates_conversation=request.creates_conversation,
            client_path=request.client_path,
            lease=self._lease,
            ends_turn=turn is not None,
        )
        store = self._engine.store
        try:
            return await store.record_reply(self._conversation, record, branch=self._branch, after=request.after)
        except StaleHead:
            if request.strict_head:
                raise
            # A concurrent append moved the head: record the reply after it, so that nothing is lost.
            return await store.record_reply(self._conversation, record, branch=self._branch)

    async def _update_calibration(self, request: Request, reply: Reply) -> tuple[str, str] | None:
        """Adds the reported usage of a request; returns (model, JSON) if it is to be stored.

        Usage that Quire estimated itself is ignored.
        """
        if reply.usage is None or not reply.usage.input_tokens or reply.usage.estimated:
            return None
        model = request.manifest.policy.model
        previous = await self._engine.load_calibration(model)
        current = update_calibration(
            previous,
            predicted=request.tokens,
            reported=reply.usage.input_tokens,
            messages=len(request.assembly.rendered.messages),
        )
        self._engine.set_calibration(model, current)
        # Each tenant has one row per model: if every reply wrote it, concurrent turns would wait for its lock.
        drift = abs(current.ratio - previous.ratio)
        settled = current.samples > CALIBRATION_MIN_SAMPLES and drift < CALIBRATION_MAX_DRIFT
        return None if settled and current.samples % CALIBRATION_SAVE_INTERVAL else (model, current.canonical_json())


def _finalize_manifest(request: Request, stored: Sequence[Entry]) -> Manifest:
    """Adds what is known only after storing: the pending messages' numbers, and the tokens of the reply."""
    manifest = request.manifest
    if request.pending:
        span = Span(first=stored[0].seq, last=stored[len(request.pending) - 1].seq)
        manifest = manifest.model_copy(update={"decisions": set_pending_span(manifest.decisions, span)})
    if manifest.forwarded is None or manifest.forwarded.client_list_tokens is None:
        return manifest
    tokens = manifest.forwarded.client_list_tokens + (stored[-1].tokens or 0)
    forwarded = manifest.forwarded.model_copy(update={"client_list_tokens": tokens})
    return manifest.model_copy(update={"forwarded": forwarded})
