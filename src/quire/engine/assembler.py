"""Assembles one request: loads the window, pins and recall candidates, and passes them to `quire.view.assembly`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

from quire.concurrency.worker_threads import measure_entries, measure_messages, run_sized
from quire.context.tools import ToolSet
from quire.engine.context_gatherer import ContextGatherer, RequestContext
from quire.engine.reading_tools import ReadingTools, lists_documents
from quire.engine.recall import Recall
from quire.engine.request import Document, PendingMessage
from quire.engine.state import EngineState
from quire.errors import EntryNotFound, InvalidRequest
from quire.log import Branch, Window
from quire.model import Entry, Message
from quire.model.manifest import Decision
from quire.view.assembly import ViewAssembly, assemble
from quire.view.compaction_plan import CompactionPlan
from quire.view.inputs import ContextBlock, SelectedTool, ViewInput
from quire.view.recalled_messages import FittedCandidate, restore_candidate
from quire.view.rendered import inline_documents
from quire.view.strategies import priority_shares_for

RECENT_TURNS = 2
"""Turns before a question whose text helps to select rules, references and tools."""
MAX_BATCH_ENTRIES = 200
"""Entries read on each side of a pinned tool call or result to find the rest of its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledRequest:
    """An assembly with what it was built from: the window of the log, and the context around its messages."""

    assembly: ViewAssembly
    window: Window
    context: RequestContext
    pending: tuple[PendingMessage, ...]
    pinned: tuple[Entry, ...]
    """Archived messages that stay in the view."""
    fixed_recall: tuple[FittedCandidate, ...] | None
    """Recalled messages that the turn keeps from its earlier request, or None if they are still to be chosen."""
    size: int
    """Bytes of its messages, for `run_sized`."""

    async def plan_compaction(self) -> CompactionPlan | None:
        """What to compact, if the history exceeds the trigger."""
        return await run_sized(self.size, lambda: self.assembly.plan)

    async def plan_manually(self) -> CompactionPlan | None:
        """What to compact on request."""
        return await run_sized(self.size, self.assembly.plan_manually)

    @property
    def quoted_texts(self) -> tuple[str, ...]:
        """Texts in the request that are not in the log: context blocks and tool definitions. They are stored as
        blobs."""
        texts = [block.text for block in self.context.blocks]
        return (*texts, *[tool.canonical_json() for tool in self.context.tools.definitions])


class Assembler:
    """Assembles requests for one branch: `draft` reads and counts, `recount` counts again, `add_recalled` ends it."""

    def __init__(
        self, engine: EngineState, conversation: str, branch: int, *, gatherer: ContextGatherer, recall: Recall
    ) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch
        self._gatherer, self._recall = gatherer, recall
        self._reading_tools = ReadingTools(engine, count_tokens=gatherer.count_tool_tokens)

    async def assemble(self, pending: Sequence[PendingMessage] = ()) -> AssembledRequest:
        """The request for the log as it is, with these messages."""
        return await self.add_recalled(await self.draft(pending))

    async def draft(
        self,
        pending: Sequence[PendingMessage] = (),
        *,
        documents: Sequence[Document] = (),
        context: RequestContext | None = None,
        document_decisions: Sequence[Decision] = (),
        read_branch: Branch | None = None,
    ) -> AssembledRequest:
        """Reads the window and counts the request, without recalled messages: they need no tokens that would have to be
        freed. Pass `context` to reuse what was gathered for the same question before, and `read_branch` if the row of
        the branch was just read."""
        engine, pending = self._engine, tuple(pending)
        window = await engine.runtime.read_window(
            engine.store,
            self._conversation,
            self._branch,
            max_tokens=engine.policy.max_input_tokens,
            read_branch=read_branch,
        )
        if context is None:
            base_context = await self._gatherer.gather(
                window.branch, await _find_question(pending, window), recent=partial(_recent_texts, window, pending)
            )
            blocks = [
                ContextBlock(
                    slot="recall" if each.recalled else "references",
                    kind="document" if each.recalled else "reference",
                    name=each.name,
                    text=each.text,
                    reason="recalled" if each.recalled else "referenced",
                    is_required=False,
                    uses_spare_tokens=True,
                )
                for each in documents
            ]
            context = base_context.with_blocks(*blocks)
        # A pin that belongs to a tool call brings its whole batch, since providers reject half of one. The messages
        # that a compaction preserves are whole batches.
        by_seq: dict[int, Entry] = {}
        active = window.branch.state.active_compaction
        preserved = (active.preserved or ()) if active is not None else ()
        for entry in window.pinned:
            if window.question is not None and entry.seq == window.question.seq:
                continue
            by_seq[entry.seq] = entry
            if entry.seq not in preserved and (entry.role == "tool" or '"tool_call"' in entry.raw):
                by_seq.update((each.seq, each) for each in await self._load_tool_batch(entry))
        pinned = [by_seq[seq] for seq in sorted(by_seq)]
        fixed_recall = await self._load_fixed_recall(window) if _continues_turn(window, pending) else None
        attached = [digest for each in pending for digest in each.blob_digests()]
        await engine.runtime.blobs.load(engine.store, [*window.messages, *pinned], attached)
        return await self._count(window, context, pending, tuple(pinned), fixed_recall, document_decisions)

    async def recount(
        self,
        draft: AssembledRequest,
        *,
        pending: tuple[PendingMessage, ...],
        context: RequestContext | None = None,
        document_decisions: Sequence[Decision] = (),
    ) -> AssembledRequest:
        """Counts a draft again with other pending messages or another context, on the same window."""
        context = context or draft.context
        return await self._count(draft.window, context, pending, draft.pinned, draft.fixed_recall, document_decisions)

    async def add_recalled(self, draft: AssembledRequest) -> AssembledRequest:
        """Ends a request: adds the archived messages that are relevant to its question, as far as tokens are free."""
        if draft.fixed_recall is not None:
            return draft
        window = draft.window
        in_request = [entry.seq for entry in (*draft.pinned, *filter(None, [window.question]))]
        candidates = await self._recall.find_candidates(
            window, await _find_question(draft.pending, window), exclude=in_request
        )
        if not candidates:
            return draft
        size = sum([len(candidate.entry.raw) for candidate in candidates])
        return replace(draft, assembly=await run_sized(size, draft.assembly.with_recalled, candidates))

    async def _count(
        self,
        window: Window,
        context: RequestContext,
        pending: tuple[PendingMessage, ...],
        pinned: tuple[Entry, ...],
        fixed_recall: tuple[FittedCandidate, ...] | None,
        document_decisions: Sequence[Decision],
    ) -> AssembledRequest:
        engine, policy, counter = self._engine, self._engine.policy, self._engine.message_counter
        listed = lists_documents(window.messages, pending)
        searches = window.compaction is not None or context.omits_memories
        tools = self._reading_tools.offer(context.tools, archived=searches, listed=listed)
        # The messages begin inside of a turn whose question is archived: it comes with them.
        history = window.messages
        if window.question is not None:
            history = tuple(sorted((window.question, *history), key=attrgetter("seq")))
        priorities: dict[int, int] = {}
        if priority_shares_for(policy):
            stored = window.branch.state.priorities
            priorities = {each.message: each.priority for each in stored if each.priority is not None}
        augmented = tuple(inline_documents(each.message, each.references, counter.load_text) for each in pending)
        view_input = ViewInput(
            conversation=self._conversation,
            branch=self._branch,
            head=window.branch.head_seq,
            blocks=context.blocks,
            tools=_to_tools(tools),
            tools_after_compaction=_to_tools(self._reading_tools.offer(tools, archived=True, listed=listed)),
            compaction=window.compaction,
            pinned=pinned,
            not_loaded=window.not_loaded,
            history=history,
            question=window.question.seq if window.question is not None else None,
            pins=frozenset(window.branch.state.pins),
            drops=window.branch.state.dropped,
            priorities=priorities,
            pending=augmented,
            document_tokens=sum(
                counter.count(message) - counter.count(each.message)
                for message, each in zip(augmented, pending, strict=True)
                if each.references
            ),
            document_decisions=tuple(document_decisions),
            recall_candidates=tuple(fitted.candidate for fitted in fixed_recall or ()),
            continues_turn=_continues_turn(window, pending),
            fixed_recall=fixed_recall,
            learned=context.learned,
            earlier_decisions=context.decisions,
        )
        calibration = await engine.runtime.load_calibration(engine.store, policy.model)
        size = sum([len(entry.raw) for entry in (*history, *pinned)]) + measure_messages(view_input.pending)
        assembly = await run_sized(size, assemble, view_input, policy, counter, calibration=calibration)
        return AssembledRequest(
            assembly=assembly,
            window=window,
            context=replace(context, tools=tools),
            pending=pending,
            pinned=pinned,
            fixed_recall=fixed_recall,
            size=size,
        )

    async def draft_current(self) -> AssembledRequest:
        """The draft for the log as it is: answers its newest message if that is unanswered, else has an empty
        question."""
        try:
            return await self.draft()
        except InvalidRequest:
            return await self.draft((PendingMessage(Message.user("")),))

    async def _load_fixed_recall(self, window: Window) -> tuple[FittedCandidate, ...] | None:
        """The recalled messages of the turn's request before this one, or None if they are to be chosen again, because
        there was none or because a compaction came after it."""
        active = window.branch.state.active_compaction
        if active is None or not active.hides_content:
            return None
        reply = next((entry for entry in reversed(window.messages) if entry.role == "assistant"), None)
        if reply is None or reply.seq < active.seq:
            return None
        store = self._engine.store
        try:
            manifest = await store.get_manifest(self._conversation, reply.seq, branch=self._branch)
        except EntryNotFound:
            return None
        rows = {
            row.span.first: row
            for row in manifest.included
            if row.slot == "recall" and row.kind == "message" and row.span is not None
        }
        entries = await store.get_entries(self._conversation, list(rows), branch=self._branch) if rows else []
        return await run_sized(
            sum(len(entry.raw) for entry in entries),
            lambda: tuple(
                restore_candidate(entry, score=row.score or 0.0, excerpt_ranges=row.excerpt_spans, tokens=row.tokens)
                for entry in entries
                if entry.purged_at is None and (row := rows[entry.seq])
            ),
        )

    async def _load_tool_batch(self, entry: Entry) -> list[Entry]:
        """The tool call and all of its results, given either the call or one of the results."""
        neighbours = await self._engine.store.read_range(
            self._conversation,
            branch=self._branch,
            first=max(1, entry.seq - MAX_BATCH_ENTRIES),
            last=entry.seq + MAX_BATCH_ENTRIES,
            kinds=["message"],
        )
        place = next(index for index, each in enumerate(neighbours) if each.seq == entry.seq)
        start = place
        while start > 0 and neighbours[start].role == "tool":
            start -= 1
        end = max(place, start) + 1
        while end < len(neighbours) and neighbours[end].role == "tool":
            end += 1
        return neighbours[start:end]


async def _find_question(pending: Sequence[PendingMessage], window: Window) -> str:
    """The text that the request answers: the pending message, else the newest user message in the log."""
    if pending:
        return pending[-1].message.text
    newest = next((entry for entry in reversed(window.messages) if entry.role == "user"), window.question)
    return await run_sized(len(newest.raw), lambda: newest.message.text) if newest is not None else ""


def _continues_turn(window: Window, pending: Sequence[PendingMessage]) -> bool:
    """Whether the request continues a turn, after results of its tools."""
    return not pending and bool(window.messages) and window.messages[-1].role != "user"


async def _recent_texts(window: Window, pending: Sequence[PendingMessage]) -> list[str]:
    """Texts of the turns before the question, newest first. They stay the same during the turn."""
    messages = window.messages
    if not pending:
        start = next((index for index in reversed(range(len(messages))) if messages[index].role == "user"), 0)
        messages = messages[:start]
    dialogue = [entry for entry in messages[-3 * RECENT_TURNS :] if entry.role in ("user", "assistant")]
    recent = dialogue[: -RECENT_TURNS - 1 : -1]
    return await run_sized(measure_entries(recent), lambda: [text for entry in recent if (text := entry.message.text)])


def _to_tools(tools: ToolSet) -> tuple[SelectedTool, ...]:
    return tuple([SelectedTool(tool.definition, tool.reason, tool.score) for tool in tools.tools])
