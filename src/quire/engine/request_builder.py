"""Builds a request: assembles it, resolves the documents that the question names, and compacts until it fits."""

from collections.abc import Sequence

from quire.concurrency.worker_threads import run_sized
from quire.engine.assembler import AssembledRequest, Assembler
from quire.engine.compactor import Compactor
from quire.engine.context import EngineContext
from quire.engine.document_excerpts import trim_documents
from quire.engine.document_references import ReferenceResolver, ResolvedReferences
from quire.engine.request import Document, PendingMessage, Request
from quire.errors import ContextOverflow
from quire.log import Blob
from quire.model import Decision, Entry
from quire.model.context_events import ContextUsageUpdated
from quire.view.inputs import ContextBlock

MAX_COMPACTIONS_PER_REQUEST = 2
"""Compactions for one request. After them the request has what fits, or `ContextOverflow` names what does not."""


class RequestBuilder:
    """Builds the requests of one branch."""

    def __init__(
        self, engine: EngineContext, conversation: str, branch: int, *, assembler: Assembler, compactor: Compactor
    ) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch
        self._assembler, self._compactor = assembler, compactor
        self._reference_resolver = ReferenceResolver(engine)

    async def build(self, pending: tuple[PendingMessage, ...], documents: Sequence[Document]) -> Request:
        """Plans on counts: documents, references and compactions change what is counted. What is recalled and how it
        is laid out is decided once, at the end."""
        draft, compactions = await self._draft_with_summary(pending, documents)
        whole_documents = draft.context.blocks[len(draft.context.blocks) - len(documents) :]
        draft = await self._fit_documents(draft, whole_documents)
        references = await self._resolve_references(draft)
        decisions = references.decisions if references is not None else ()
        if references is not None:
            pending = (references.pending,)
            draft = await self._assembler.recount(draft, pending=pending, document_decisions=decisions)
            draft = await self._fit_documents(draft, whole_documents, decisions)
        for _ in range(MAX_COMPACTIONS_PER_REQUEST):
            plan = draft.assembly.plan
            if plan is None or self._engine.settings.compact_when == "ask":
                break
            entry = await self._compactor.execute(plan, draft.assembly, draft.window, trigger="threshold")
            compactions += [entry] if entry is not None else []
            draft = await self._assembler.draft(pending, context=draft.context, document_decisions=decisions)
            draft = await self._fit_documents(draft, whole_documents, decisions)
        draft.assembly.check_overflow()
        final = await self._assembler.add_recalled(draft)
        assembly = final.assembly
        self._engine.emit(
            ContextUsageUpdated(
                conversation=self._conversation,
                branch=self._branch,
                tokens=assembly.full_history_tokens,
                trigger_tokens=assembly.budget.trigger_tokens,
                window=self._engine.policy.window,
            )
        )
        size = sum([len(entry.raw) for entry in final.window.messages])
        await run_sized(size, lambda: assembly.rendered)
        quoted_texts = (*final.quoted_texts, *(references.texts if references is not None else ()))
        return Request(
            assembly=assembly,
            pending=pending,
            after=final.window.branch.head_path,
            blobs=tuple(Blob("text/plain", text.encode()) for text in quoted_texts),
            tools=final.context.tools,
            compactions=tuple(compactions),
            load_blob=self._engine.blobs.get,
        )

    async def _draft_with_summary(
        self, pending: tuple[PendingMessage, ...], documents: Sequence[Document]
    ) -> tuple[AssembledRequest, list[Entry]]:
        """Drafts the request. A summary that was written for a larger window and does not fit is shortened first;
        returns the entry of that, too."""
        try:
            return await self._assembler.draft(pending, documents=documents), []
        except ContextOverflow:
            is_enabled = self._engine.policy.context_management_enabled
            shortened = await self._compactor.shorten_summary() if is_enabled else None
            if shortened is None:
                raise
            return await self._assembler.draft(pending, documents=documents), [shortened]

    async def _fit_documents(
        self, draft: AssembledRequest, documents: Sequence[ContextBlock], decisions: Sequence[Decision] = ()
    ) -> AssembledRequest:
        """Trims those of the application's documents that the draft leaves out."""
        context = trim_documents(draft.assembly, draft.context, documents)
        if context is None:
            return draft
        return await self._assembler.recount(
            draft, pending=draft.pending, context=context, document_decisions=decisions
        )

    async def _resolve_references(self, draft: AssembledRequest) -> ResolvedReferences | None:
        """Resolves the documents that the question names; None if it names none."""
        pending, assembly, budget = draft.pending, draft.assembly, draft.assembly.budget
        documents = await self._reference_resolver.find_references(pending[0].message) if pending else []
        if not documents:
            return None
        used = assembly.full_history_tokens
        if assembly.needs_compaction:
            used = min(used, budget.target_tokens)
        return self._reference_resolver.resolve(
            pending[0].message, documents, remaining_tokens=max(0, budget.trigger_tokens - used)
        )
