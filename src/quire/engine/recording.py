"""Puts turns into the log: what was asked, what was answered, and the manifest of the request between them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256

from quire.engine.core import Core
from quire.engine.request import Asked, Request, numbered
from quire.errors import StaleHead
from quire.log import Turn
from quire.model import Draft, Entry, Manifest, TokenCount
from quire.view.calibration import observe
from quire.view.references import as_read
from quire.view.shapes import Reply


class Recorder:
    """Records for one branch."""

    def __init__(self, engine: Core, conversation: str, branch: int) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch

    def draft(self, asked: Asked, reply: Reply | None = None, *, unfinished: bool = False) -> Draft:
        meter = self._engine.meter
        tokens = meter.count(as_read(asked.message, asked.references, meter.text_of))
        return Draft(
            body=asked.message,
            tokens=TokenCount(tokens, meter.name),
            references=asked.references,
            usage=reply.usage if reply else None,
            unfinished=unfinished,
        )

    async def keep(self, request: Request) -> tuple[list[Entry], Request]:
        """What is asked goes into the log before it is sent; gives the request that only lacks its reply then."""
        if not request.pending:
            return [], request
        store, drafts = self._engine.store, list(map(self.draft, request.pending))
        quoted = {digest for draft in drafts for digest in draft.blobs()}
        for blob in request.blobs:
            if sha256(blob.data).hexdigest() in quoted:
                await store.put_blob(blob.data, media_type=blob.media_type)
        try:
            stored = await store.append(self._conversation, *drafts, branch=self._branch, after=request.after)
        except StaleHead:
            stored = await store.append(self._conversation, *drafts, branch=self._branch)
        assembly = request.assembly
        filed = replace(assembly, record=lambda: numbered(assembly.manifest, stored))
        return stored, replace(request, pending=(), after=stored[-1].path, assembly=filed)

    async def record(self, request: Request, answered: Asked, reply: Reply, *, unfinished: bool) -> list[Entry]:
        """The reply, what it answers if that is not kept yet, and the manifest, all of it or nothing."""
        turn = Turn(
            drafts=(*map(self.draft, request.pending), self.draft(answered, reply, unfinished=unfinished)),
            manifest=partial(_filed, request),
            blobs=request.blobs,
            calibration=await self._observed(request.manifest, reply),
            cost=self._engine.cost(reply.usage, request.manifest.policy.model),
            request=request.id,
            opens=request.opens,
            told=request.told,
        )
        store = self._engine.store
        try:
            return await store.record(self._conversation, turn, branch=self._branch, after=request.after)
        except StaleHead:
            if request.alone:
                raise
            # Someone else spoke in between; nothing of either is lost.
            return await store.record(self._conversation, turn, branch=self._branch)

    async def _observed(self, manifest: Manifest, reply: Reply) -> tuple[str, str] | None:
        """What the provider's report teaches about the model's counts; our own estimate teaches nothing."""
        if reply.usage is None or not reply.usage.input_tokens or reply.usage.estimated:
            return None
        model = manifest.policy.model
        known = await self._engine.calibration(model)
        learnt = observe(known, predicted=manifest.total, reported=reply.usage.input_tokens)
        self._engine.calibrated(model, learnt)
        # All turns of a tenant with a model would wait for this one row if each wrote it.
        settled = learnt.samples > UNSETTLED and abs(learnt.ratio - known.ratio) < STEADY
        return None if settled and learnt.samples % NOTED_EVERY else (model, learnt.canonical())


UNSETTLED, NOTED_EVERY, STEADY = 8, 16, 0.01
"""After so many reports only one of so many is written down, unless it moves the ratio by more than this."""


def _filed(request: Request, stored: Sequence[Entry]) -> Manifest:
    manifest = numbered(request.manifest, stored[: len(request.pending)])
    if manifest.sent is None or manifest.sent.listed is None:
        return manifest
    listed = manifest.sent.listed + (stored[-1].tokens or 0)
    return manifest.model_copy(update={"sent": manifest.sent.model_copy(update={"listed": listed})})
