"""Builds a request: assembles it, resolves the documents that the question names, and compacts until it fits."""

from collections.abc import Callable, Sequence

from quire.concurrency.worker_threads import run_sized
from quire.engine.assembler import AssembledRequest, Assembler
from quire.engine.compactor import Compactor
from quire.engine.document_references import ReferenceResolver, trim_documents
from quire.engine.request import Document, PendingMessage, Request
from quire.engine.spending import check_spend_cap
from quire.engine.state import EngineState
from quire.errors import ContextOverflow
from quire.log import Blob, Branch
from quire.model import Decision, Entry, Message
from quire.model.context_events import ContextUsageUpdated
from quire.view.assembly import ViewAssembly
from quire.view.budget import MAX_UNKNOWN_WINDOW_CONTENT
from quire.view.inputs import ContextBlock

LAYOUT_SPEEDUP = 8
"""How many times faster messages are laid out and checked than they were counted and rendered."""
MAX_COMPACTIONS_PER_REQUEST = 2
"""Compactions for one request. After them the request has what fits, or `ContextOverflow` names what does not."""


class RequestBuilder:
    """Builds the requests of one branch."""

    def __init__(
        self, engine: EngineState, conversation: str, branch: int, *, assembler: Assembler, compactor: Compactor
    ) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch
        self._assembler, self._compactor = assembler, compactor
        self._reference_resolver = ReferenceResolver(engine)

    async def check_spend_cap(self) -> None:
        await check_spend_cap(self._engine, self._conversation)

    async def build(
        self,
        pending: tuple[PendingMessage, ...],
        documents: Sequence[Document] = (),
        *,
        decisions: tuple[Decision, ...] = (),
        read_branch: Branch | None = None,
        defers_compaction: bool = False,
    ) -> Request:
        """Plans on counts: documents, references and compactions change what is counted. What is recalled and how it
        is laid out is decided once, at the end. `decisions` are about documents in a question that is recorded. With
        `defers_compaction`, a request that must be compacted first says so instead."""
        compactions: list[Entry] = []
        try:
            draft = await self._assembler.draft(
                pending, documents=documents, document_decisions=decisions, read_branch=read_branch
            )
        except ContextOverflow:
            # A summary that was written for a larger window may not fit.
            shortened = await self._compactor.shorten_summary()
            if shortened is None:
                raise
            compactions.append(shortened)
            draft = await self._assembler.draft(pending, documents=documents, document_decisions=decisions)
        whole_documents = draft.context.blocks[len(draft.context.blocks) - len(documents) :]
        draft = await self._fit_documents(draft, whole_documents, decisions)
        document_texts: tuple[str, ...] = ()
        named = await self._reference_resolver.find_references(pending[0].message) if pending else []
        if named:
            assembly, budget = draft.assembly, draft.assembly.budget
            used = assembly.full_history_tokens
            if assembly.needs_compaction:
                used = min(used, budget.target_tokens)
            max_tokens = budget.max_input_tokens if assembly.policy.has_known_window else MAX_UNKNOWN_WINDOW_CONTENT
            references = self._reference_resolver.resolve(
                pending[0].message,
                named,
                remaining_tokens=min(max_tokens, max(0, budget.trigger_tokens - used)),
                uncontested_tokens=min(max_tokens, max(0, budget.target_tokens - used)),
            )
            pending, decisions, document_texts = (references.pending,), references.decisions, references.texts
            draft = await self._assembler.recount(draft, pending=pending, document_decisions=decisions)
            draft = await self._fit_documents(draft, whole_documents, decisions)
        for _ in range(MAX_COMPACTIONS_PER_REQUEST):
            plan = await draft.plan_compaction()
            if plan is None or self._engine.settings.compact_when == "ask":
                break
            if pending and defers_compaction:
                return self._build_request(draft, compactions, document_texts, needs_compaction=True)
            entry = await self._compactor.execute(plan, draft.assembly, draft.window, trigger="threshold")
            compactions += [entry] if entry is not None else []
            draft = await self._assembler.draft(pending, context=draft.context, document_decisions=decisions)
            draft = await self._fit_documents(draft, whole_documents, decisions)
        draft.assembly.check_overflow()
        final = await self._assembler.add_recalled(draft)
        assembly = final.assembly
        self._engine.runtime.emit(
            ContextUsageUpdated(
                conversation=self._conversation,
                branch=self._branch,
                tokens=assembly.full_history_tokens,
                trigger_tokens=assembly.budget.trigger_tokens,
                window=self._engine.policy.window,
            )
        )
        await run_sized(final.size // LAYOUT_SPEEDUP, lambda: assembly.rendered)
        return self._build_request(final, compactions, document_texts)

    def _build_request(
        self,
        final: AssembledRequest,
        compactions: Sequence[Entry],
        document_texts: Sequence[str],
        *,
        needs_compaction: bool = False,
    ) -> Request:
        quoted_texts = (*final.quoted_texts, *document_texts)
        return Request(
            assembly=final.assembly,
            pending=final.pending,
            after=final.window.branch.head_path,
            branch=final.window.branch,
            blobs=tuple(Blob("text/plain", text.encode()) for text in quoted_texts),
            tools=final.context.tools,
            compactions=tuple(compactions),
            needs_compaction=needs_compaction,
            load_blob=self._engine.runtime.blobs.get,
        )

    async def _fit_documents(
        self, draft: AssembledRequest, documents: Sequence[ContextBlock], decisions: Sequence[Decision] = ()
    ) -> AssembledRequest:
        """Trims the application's documents that the draft leaves out."""
        size = sum(len(document.text) for document in documents)
        context = await run_sized(size, trim_documents, draft.assembly, draft.context, documents)
        if context is None:
            return draft
        return await self._assembler.recount(
            draft, pending=draft.pending, context=context, document_decisions=decisions
        )


class TurnRequests:
    """The first request of a turn. Its question is recorded before the history is compacted: the summary may take
    minutes, in which the process may end."""

    def __init__(self, get_builder: Callable[[], RequestBuilder]) -> None:
        self._get_builder = get_builder

    async def build(self, message: Message) -> Request:
        """The request that sends this question, or what is to be recorded of it before a compaction."""
        builder = self._get_builder()
        await builder.check_spend_cap()
        return await builder.build((PendingMessage(message),), defers_compaction=True)

    async def rebuild(self, request: Request) -> Request:
        """Compacts the history of a request whose question is recorded, and builds it again."""
        assembly = request.assembly
        decisions = assembly.view_input.document_decisions if isinstance(assembly, ViewAssembly) else ()
        return await self._get_builder().build((), decisions=decisions)
