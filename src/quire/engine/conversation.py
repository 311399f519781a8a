"""`Conversation`: append messages, prepare requests that fit the window, record replies, compact, explain."""

from collections.abc import Sequence

from quire.compaction.execution import CompactionTrigger
from quire.context.items import ResolvedSessionItem
from quire.context.tool_search import TOOL_SEARCH, parse_tool_search
from quire.engine.assembler import AssembledRequest, Assembler
from quire.engine.builtin_tools import BuiltinTools, deduplicate_references
from quire.engine.compactor import Compactor
from quire.engine.context import EngineContext
from quire.engine.context_gatherer import ContextGatherer
from quire.engine.document_references import ReferenceResolver, ResolvedReferences
from quire.engine.recall import Recall
from quire.engine.recorder import Recorder
from quire.engine.request import Document, PendingMessage, Request, ToolOutcome, parse_reply, to_message
from quire.engine.session_items import SessionItems
from quire.ledger import ManifestChange, Replay, diff_manifests, find_decision, replay
from quire.log import MAIN_BRANCH, Blob
from quire.model import ContextItem, Decision, Entry, Manifest, Message, Pin, ToolCallPart, Unpin
from quire.model.entries import DocumentReference
from quire.model.events import ContextUsageUpdated
from quire.view.budget import UsageReport
from quire.view.compaction_plan import CompactionPlan
from quire.view.strategies import get_strategy

MAX_COMPACTIONS_PER_REQUEST = 2
"""Compactions for one request. After them the request has what fits, or `ContextOverflow` names what does not."""


class Conversation:
    """One branch of a conversation, and the requests made from it."""

    def __init__(self, engine: EngineContext, id: str, branch: int = MAIN_BRANCH) -> None:
        self.engine, self.id, self.branch = engine, id, branch
        gatherer, self._recall = ContextGatherer(engine), Recall(engine)
        self._compactor = Compactor(engine, id, branch)
        self._assembler = Assembler(engine, id, branch, gatherer=gatherer, recall=self._recall)
        self._reference_resolver = ReferenceResolver(engine)
        self._recorder = Recorder(engine, id, branch)
        self._session_items = SessionItems(engine, id, branch, count_tokens=gatherer.count_tool_tokens)
        self._builtin_tools = BuiltinTools(engine, id, branch, recall=self._recall)

    async def append(self, *messages: Message | str, after: bytes | None = None) -> list[Entry]:
        """Stores messages with their token counts, without a model call.

        With `after`, the path of the head that the caller read, it raises `StaleHead` if the branch has moved on
        (optimistic concurrency).
        """
        pending = [PendingMessage(message) for message in map(to_message, messages)]
        await self.engine.load_blobs([], digests=[digest for each in pending for digest in each.blob_digests()])
        drafts = [self._recorder.make_draft(each) for each in pending]
        return await self.engine.store.append(self.id, *drafts, branch=self.branch, after=after)

    async def prepare(
        self, message: Message | str | Sequence[Message | str] | None = None, *, documents: Sequence[Document] = ()
    ) -> Request:
        """Builds the request that sends `message`, or that continues from the log as it is.

        The request fits the window. If the history exceeds the trigger, the older part is compacted first. A single
        message is stored with its reply; a sequence, such as tool results, is stored at once, because results belong
        to the call before them.
        """
        await self.engine.check_spend_cap(self.id)
        pending = await self._to_pending(message)
        draft = await self._assembler.assemble(pending, documents=documents)
        references = await self._resolve_references(pending, draft)
        decisions = references.decisions if references is not None else ()
        if references is not None:
            pending = (references.pending,)
            draft = await self._assembler.assemble(pending, context=draft.context, document_decisions=decisions)
        compactions: list[Entry] = []
        for _ in range(MAX_COMPACTIONS_PER_REQUEST):
            if draft.assembly.plan is None:
                break
            plan = draft.assembly.plan
            entry = await self._compactor.execute(plan, draft.assembly, draft.window, trigger="threshold")
            compactions += [entry] if entry is not None else []
            draft = await self._assembler.assemble(pending, context=draft.context, document_decisions=decisions)
        assembly = draft.assembly
        self.engine.emit(
            ContextUsageUpdated(
                conversation=self.id,
                branch=self.branch,
                tokens=assembly.full_history_tokens,
                trigger_tokens=assembly.budget.trigger_tokens,
                window=self.engine.policy.window,
            )
        )
        quoted_texts = (*draft.quoted_texts, *(references.texts if references is not None else ()))
        return Request(
            assembly=assembly,
            pending=pending,
            after=draft.window.branch.head_path,
            blobs=tuple(Blob("text/plain", text.encode()) for text in quoted_texts),
            tools=draft.context.tools,
            compactions=tuple(compactions),
            load_blob=self.engine.blobs.get,
        )

    async def _to_pending(self, message: Message | str | Sequence[Message | str] | None) -> tuple[PendingMessage, ...]:
        """The messages to store with the reply. A sequence is stored at once, so nothing of it is pending."""
        if message is None:
            return ()
        if isinstance(message, Message | str):
            return (PendingMessage(to_message(message)),)
        if message:
            await self.append(*message)
        return ()

    async def _resolve_references(
        self, pending: tuple[PendingMessage, ...], draft: AssembledRequest
    ) -> ResolvedReferences | None:
        """Resolves the documents that the question names; None if it names none."""
        documents = await self._reference_resolver.find_references(pending[0].message) if pending else []
        if not documents:
            return None
        assembly, budget = draft.assembly, draft.assembly.budget
        used = (
            min(assembly.full_history_tokens, budget.target_tokens)
            if assembly.needs_compaction
            else assembly.full_history_tokens
        )
        return self._reference_resolver.resolve(
            pending[0].message, documents, remaining_tokens=max(0, budget.trigger_tokens - used)
        )

    async def record(
        self,
        response: object,
        *,
        request: Request,
        references: Sequence[DocumentReference] = (),
        incomplete: bool = False,
    ) -> Entry:
        """Stores the reply, its question, and the manifest of the `request` that it answers.

        Accepts an OpenAI or Anthropic response, as an object or a dict, a `Message`, or plain text. `references` are
        the documents that built-in tools read for this reply (`run_tool`). Pass `incomplete` for a reply that was
        interrupted.
        """
        reply = parse_reply(response)
        answer = PendingMessage(reply.message, deduplicate_references(references))
        stored = await self._recorder.record_reply(request, answer, reply, incomplete=incomplete)
        await self._session_items.add_tools(request.tools.added_items if request.tools is not None else ())
        self._defer_compaction(request.assembly.full_history_tokens + sum(entry.tokens or 0 for entry in stored))
        return stored[-1]

    async def record_question(self, request: Request) -> tuple[list[Entry], Request]:
        """Stores the request's question before it is sent, so that it is not lost if no reply comes.

        Returns the entries, and the request to record the reply for.
        """
        return await self._recorder.record_question(request)

    def _defer_compaction(self, tokens: int) -> None:
        """Starts a background compaction above the lower threshold, so that the next request need not wait for a
        summary."""
        if self._exceeds_background_threshold(tokens):
            self.engine.runtime.jobs.enqueue("compact", self.id, self.branch, self.compact_if_needed)

    def _exceeds_background_threshold(self, tokens: int) -> bool:
        policy, threshold = self.engine.policy, self.engine.settings.context_background_threshold
        if threshold is None or not self.engine.config.has_background_compaction:
            return False
        return tokens > min(policy.trigger_tokens, int(policy.window * threshold))

    async def compact_if_needed(self) -> Entry | None:
        """The background job "compact"; returns None if the branch is below the background threshold."""
        current = await self._assembler.assemble_current()
        if not self._exceeds_background_threshold(current.assembly.full_history_tokens):
            return None
        await self.engine.check_spend_cap(self.id)
        return await self._compact_now("background")

    async def plan_compaction(self) -> CompactionPlan | None:
        """What a manual compaction would do now. Changes nothing."""
        return (await self._assembler.assemble_current()).assembly.plan_manually()

    async def compact(self, *, instructions: str | None = None, trigger: CompactionTrigger = "manual") -> Entry | None:
        """Compacts now, regardless of usage; `instructions` name what the summary must contain.

        Returns None if there is nothing to compact, or if a concurrent compaction came first. `trigger` is recorded
        with the compaction.
        """
        await self.engine.check_spend_cap(self.id)
        return await self._compact_now(trigger, instructions)

    async def undo_compaction(self) -> Entry:
        """Undoes the active compaction: the view is again what it was before."""
        return await self._compactor.undo()

    async def edit_summary(self, text: str) -> Entry:
        """Replaces the active summary; the old one stays in the log, and `undo_compaction` restores it."""
        return await self._compactor.edit_summary(text)

    async def _compact_now(self, trigger: CompactionTrigger, instructions: str | None = None) -> Entry | None:
        current = await self._assembler.assemble_current()
        assembly = current.assembly
        plan = assembly.build_plan(assembly.budget) if trigger == "background" else assembly.plan_manually()
        if plan is None:
            return None
        entry = await self._compactor.execute(
            plan, assembly, current.window, trigger=trigger, instructions=instructions
        )
        if trigger == "background" and get_strategy(self.engine.policy.strategy).recalls:
            # No request waits now, so index what was archived for recall.
            await self._recall.index_cache.update(current.window.branch)
        return entry

    async def usage(self) -> UsageReport:
        """Token usage of the next request, before the user's message, and the number that triggers a compaction."""
        manifest, policy = await self.preview(), self.engine.policy
        return UsageReport(
            slots=manifest.slots,
            total_tokens=manifest.full_history_tokens,
            window=policy.window,
            reserved=policy.reserved_response_tokens,
            trigger_tokens=manifest.trigger_tokens,
            exact=manifest.exact,
        )

    async def items(self) -> list[ResolvedSessionItem]:
        """The rules, references and tools of the session."""
        return await self._session_items.items()

    async def add_item(self, item: ContextItem | str) -> ContextItem:
        """Adds one of the agent's rules, references or tools to the session, by name."""
        return await self._session_items.add(item)

    async def remove_item(self, item: ContextItem | str) -> ContextItem:
        """Removes an item from the session, however it was added."""
        return await self._session_items.remove(item)

    async def run_tool(self, call: ToolCallPart, *, request: Request) -> ToolOutcome:
        """Runs a call of one of Quire's built-in tools, which the model made in its reply to `request`.

        Append the message of the outcome, and pass its references on to `record` with the next reply.
        """
        if call.name == TOOL_SEARCH.name and request.tools is not None:
            search = parse_tool_search(call.arguments)
            if search is None:
                return ToolOutcome(Message.tool(call.id, "tool_search needs a `query`.", is_error=True))
            return ToolOutcome(Message.tool(call.id, await self._session_items.search_tools(search, request.tools)))
        result = await self._builtin_tools.run(call.name, call.arguments, recalled_texts=request.list_recalled_texts)
        return ToolOutcome(Message.tool(call.id, result.text, is_error=result.is_error), result.references)

    async def preview(self, message: Message | str = "") -> Manifest:
        """The manifest that a request with this message would have now. Changes nothing."""
        return (await self._assembler.assemble((PendingMessage(to_message(message)),))).assembly.manifest

    async def pin(self, number: int) -> None:
        """Pins a message: it stays in every request verbatim, whatever is compacted."""
        await self.engine.store.append(self.id, Pin(message=number), branch=self.branch)

    async def unpin(self, number: int) -> None:
        await self.engine.store.append(self.id, Unpin(message=number), branch=self.branch)

    async def fork(self, at: int, *, name: str | None = None) -> "Conversation":
        """Creates a branch that shares every entry up to and including `at`."""
        branch = await self.engine.store.fork(self.id, at=at, branch=self.branch, name=name)
        return Conversation(self.engine, self.id, branch.number)

    async def messages(self) -> list[Entry]:
        """All messages of the branch, archived or not, oldest first."""
        return await self.engine.store.read_range(self.id, branch=self.branch, kinds=["message"])

    async def manifest(self, reply: int) -> Manifest:
        """The manifest of the request that entry `reply` answered."""
        return await self.engine.store.get_manifest(self.id, reply, branch=self.branch)

    async def replay(self, reply: int) -> Replay:
        """Rebuilds the request that entry `reply` answered, and compares it with its recorded digest."""
        manifest = await self.manifest(reply)
        for row in manifest.included:
            if row.span is not None:
                entries = await self.engine.store.read_range(
                    self.id, branch=self.branch, first=row.span.first, last=row.span.last
                )
                await self.engine.load_blobs(entries)
        return await replay(self.engine.store, manifest, load_blob=self.engine.blobs.get)

    async def diff(self, reply: int, other: int) -> list[ManifestChange]:
        """The changes between the requests of two replies."""
        return diff_manifests(await self.manifest(reply), await self.manifest(other))

    async def why(self, item: int | str, *, reply: int) -> Decision:
        """The decision that included or excluded a message (by number) or an item (by name) in that request."""
        return find_decision(await self.manifest(reply), item)
