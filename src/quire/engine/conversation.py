"""`Conversation`: append messages, prepare requests that fit the window, record replies, compact, explain."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.agent.protocols import ToolOutcome
from quire.compaction.execution import CompactionTrigger
from quire.concurrency.worker_threads import run_sized
from quire.context.items import ResolvedSessionItem
from quire.context.selection import list_candidates
from quire.context.tools import TOOL_SEARCH, parse_tool_search
from quire.engine.assembler import Assembler
from quire.engine.builtin_tools import BuiltinTools
from quire.engine.compactor import Compactor
from quire.engine.context_gatherer import ContextGatherer, SessionItems
from quire.engine.memory_writer import remember_frequent_documents
from quire.engine.message_index import index_messages, schedule_indexing
from quire.engine.message_input import MessageInput, parse_message_list, parse_messages, parse_question, parse_reply
from quire.engine.recall import Recall
from quire.engine.recorder import Recorder, exceeds_background_threshold
from quire.engine.request import Document, PendingMessage, Request
from quire.engine.request_builder import RequestBuilder, TurnRequests
from quire.engine.search import EVERY_MESSAGE, MessageFilter, MessageSearchResult, search_messages
from quire.engine.spending import check_spend_cap
from quire.engine.state import EngineState
from quire.errors import ContextOverflow, InvalidRequest
from quire.llm import Model
from quire.log import MAIN_BRANCH
from quire.log.types import MessageKey, TurnLease
from quire.model import (
    ContextItem,
    Decision,
    Drop,
    Entry,
    Manifest,
    Message,
    Pin,
    Priority,
    ToolCallPart,
    Topic,
    Undrop,
    Unpin,
)
from quire.model.base import lazy_property
from quire.model.entry_bodies import MAX_PRIORITY, MIN_PRIORITY
from quire.model.entry_metadata import DocumentReference
from quire.usage.insights import count_usage
from quire.view.assembly import ViewAssembly
from quire.view.budget import UsageReport
from quire.view.compaction_plan import CompactionPlan

if TYPE_CHECKING:
    from quire.agent.approvals import ApprovalFunction
    from quire.agent.function_tools import FunctionTool
    from quire.engine.agent_loop import TurnResult
    from quire.ledger import ManifestChange, Replay
    from quire.ledger.cache_history import CacheReport
    from quire.model.events import ContextSuggestion, TurnEvent
    from quire.search.catalog import SearchOrder


class Conversation:
    """One branch of a conversation, and the requests made from it."""

    def __init__(
        self, engine: EngineState, id: str, branch: int = MAIN_BRANCH, *, lease: TurnLease | None = None
    ) -> None:
        self.engine, self.id, self.branch = engine, id, branch
        self.recorder = Recorder(engine, id, branch, lease=lease)
        self.turn_requests = TurnRequests(lambda: self.request_builder)
        self._is_own: bool | None = None

    # What a conversation that only records never builds.

    @lazy_property
    def _gatherer(self) -> ContextGatherer:
        return ContextGatherer(self.engine)

    @lazy_property
    def _compactor(self) -> Compactor:
        return Compactor(self.engine, self.id, self.branch)

    @lazy_property
    def _assembler(self) -> Assembler:
        return Assembler(self.engine, self.id, self.branch, gatherer=self._gatherer, recall=Recall(self.engine))

    @lazy_property
    def request_builder(self) -> RequestBuilder:
        """Builds the requests of `prepare`, which checks the spend cap first."""
        return RequestBuilder(self.engine, self.id, self.branch, assembler=self._assembler, compactor=self._compactor)

    @lazy_property
    def _session_items(self) -> SessionItems:
        return SessionItems(self.engine, self.id, self.branch, count_tokens=self._gatherer.count_tool_tokens)

    async def send(
        self,
        message: MessageInput | None = None,
        *,
        tools: "Sequence[FunctionTool | Callable[..., Any]]" = (),
        approve: "ApprovalFunction | None" = None,
        max_steps: int | None = None,
        max_cost: float | None = None,
        model: Model | None = None,
    ) -> "TurnResult":
        """Runs a turn to its answer: sends the message, runs the tools that the model calls, and sends their results,
        until a reply calls none. If `max_steps` or `max_cost` ends it earlier, `reason` of the result says so.

        Args:
            message: The question, as text, `Message`, or a dict as in a provider's API. Without one, the turn continues
                from the log as it is.
            tools: Functions, plain or made with `quire.tool`.
            approve: Called with each call that needs approval. Returns True to run it, False or
                `quire.Deny(reason)` to deny it. Without it, such calls are denied.
            max_steps: Maximum model calls. Default: the setting of this name.
            max_cost: US dollars after which no further step begins, summaries included.
            model: Answers in place of the model that the settings name.
        """
        from quire.engine.agent_loop import collect_turn

        events = self.stream(message, tools=tools, approve=approve, max_steps=max_steps, max_cost=max_cost, model=model)
        return await collect_turn(self.engine, self.id, self.branch, events)

    def stream(
        self,
        message: MessageInput | None = None,
        *,
        tools: "Sequence[FunctionTool | Callable[..., Any]]" = (),
        approve: "ApprovalFunction | None" = None,
        max_steps: int | None = None,
        max_cost: float | None = None,
        model: Model | None = None,
    ) -> "AsyncGenerator[TurnEvent]":
        """Runs a turn like `send`, and yields its events (`quire.events`) as they happen.

        Takes the arguments of `send`.

        The last event is `TurnEnded`, or `TurnFailed` with the error. Closing the iterator stops the turn: what has
        arrived of the reply is recorded, and every tool call has a result.
        """
        from quire.agent.function_tools import to_function_tools
        from quire.engine.agent_loop import stream_turn

        functions = to_function_tools(tools)
        return stream_turn(
            partial(self._for_turn, functions),
            self.engine,
            parse_question(message) if message is not None else None,
            functions=functions,
            approve=approve,
            max_steps=max_steps,
            max_cost=max_cost,
            model=model,
        )

    def _for_turn(self, functions: "Sequence[FunctionTool]", model: Model) -> "Conversation":
        """The same conversation, whose requests offer these functions and the built-in tools, since a turn runs both.
        Unless another summarizer is named, the model that answers writes the summaries too."""
        agent, settings = self.engine.agent, self.engine.settings
        offered = agent.with_tools(*agent.tools, *(each.offered_tool for each in functions))
        engine = self.engine.with_changes(agent=offered, runs_turns=True)
        if engine.summarizer is None and settings.summarizer is None:
            engine = engine.with_changes(summarizer=model)
        return Conversation(engine, self.id, self.branch)

    async def append(self, *messages: MessageInput, after: bytes | None = None) -> list[Entry]:
        """Stores messages with their token counts, without a model call.

        Args:
            messages: Messages in their order: `Message`, or dicts as in a provider's API. A text is a message of the
                user.
            after: Path of the head that the caller read. If the branch has moved on, `StaleHead` is raised
                (optimistic concurrency).
        """
        return await self.recorder.append(*parse_message_list(messages), after=after)

    async def prepare(
        self, message: MessageInput | Sequence[MessageInput] | None = None, *, documents: Sequence[Document] = ()
    ) -> Request:
        """Builds the request that sends `message`, or that continues from the log as it is.

        The request fits the window. If the history exceeds the trigger, the older part is compacted first, or omitted
        if compactions need the user's consent (`compact_when`). A single message is stored with its reply. A sequence,
        such as tool results, is stored at once, because results belong to the call before them.

        Args:
            message: The question, as text, `Message`, or a dict as in a provider's API, or a list of several messages
                such as tool results. Without one, the request continues from the log as it is.
            documents: Documents for this request, in the tokens that the rest leaves free.
        """
        messages = parse_message_list(message) if message is not None else []
        await check_spend_cap(self.engine, self.id)
        pending: tuple[PendingMessage, ...] = ()
        if len(messages) == 1 and isinstance(message, Message | str | Mapping):
            pending = (PendingMessage(messages[0]),)
        elif messages:
            await self.recorder.append(*messages)
        request = await self.request_builder.build(pending, documents)
        await check_spend_cap(self.engine, self.id, input_tokens=request.tokens)
        return request

    async def record(
        self,
        response: object,
        *,
        request: Request,
        references: Sequence[DocumentReference] = (),
        incomplete: bool = False,
    ) -> Entry:
        """Stores the reply, its question, and the manifest of the `request` that it answers.

        A reply that calls no tools ends its turn: it gets the references and totals of all steps.

        Args:
            response: An OpenAI or Anthropic response as an object or a dict, a message of the assistant, or plain text.
            request: The request that it answers.
            references: Documents that built-in tools read for this reply (`run_tool`).
            incomplete: Whether the reply was interrupted.
        """
        await self._take_over()
        stored = await self.recorder.record(
            parse_reply(response), request=request, references=references, incomplete=incomplete
        )
        if request.tools is not None and request.tools.added_items:
            await self._session_items.add_tools(request.tools.added_items)
        await remember_frequent_documents(self.engine, self.id, self.branch, stored)
        if stored[-1].metadata.turn is not None and list_candidates(self.engine.agent):
            # The next selection learns from what this turn used.
            usage = self.engine.store.usage
            self.engine.runtime.jobs.enqueue("count_usage", "", 0, partial(count_usage, usage), delay_seconds=0.5)
        self.recorder.defer_compaction(request, stored, partial(self.compact, trigger="background"))
        return stored[-1]

    async def record_question(self, request: Request) -> tuple[list[Entry], Request]:
        """Stores the request's question before it is sent, so that it is not lost if no reply comes.

        Returns the entries, and the request to record the reply for. A question that alone exceeds the budget is
        summarized, if a model is available, and the request is built again.

        Args:
            request: The request that is about to be sent.
        """
        await self._take_over()
        entries, recorded = await self.recorder.record_question(request)
        schedule_indexing(self.engine)
        await remember_frequent_documents(self.engine, self.id, self.branch, entries)
        assembly = request.assembly
        is_excerpted = isinstance(assembly, ViewAssembly) and assembly.selection.excerpt_chars is not None
        if len(entries) != 1 or not is_excerpted or self.engine.settings.compact_when == "ask":
            return entries, recorded
        compaction = await self._compactor.summarize_question(entries[0], await self._assembler.draft_current())
        if compaction is None:
            return entries, recorded
        await self.recorder.settle_spend(request, is_billed=False)
        rebuilt = await self.prepare()
        return entries, replace(rebuilt, compactions=(*request.compactions, compaction, *rebuilt.compactions))

    async def _take_over(self) -> None:
        """Makes an agent's conversation Quire's own, which it is once it is continued here."""
        if self._is_own is None and (await self.engine.store.get_conversation(self.id)).owner is not None:
            await self.engine.store.take_over(self.id)
        self._is_own = True

    async def plan_compaction(self) -> CompactionPlan | None:
        """What a manual compaction would do now, or None if it would free nothing. Changes nothing."""
        return await (await self._assembler.draft_current()).plan_manually()

    async def compact(self, *, instructions: str | None = None, trigger: CompactionTrigger = "manual") -> Entry | None:
        """Compacts now, regardless of usage.

        Returns None if that would free no tokens, or if a concurrent compaction came first.

        Args:
            instructions: What the summary must contain.
            trigger: Recorded with the compaction. With `background`, only a branch above
                `context_background_threshold` is compacted, and none of a conversation that an agent owns.
        """
        if trigger == "background" and (await self.engine.store.get_conversation(self.id)).owner is not None:
            return None
        try:
            current = await self._assembler.draft_current()
        except ContextOverflow:
            shortened = await self._compactor.shorten_summary()
            if shortened is None:
                raise
            return shortened
        assembly, is_background = current.assembly, trigger == "background"
        if is_background and not exceeds_background_threshold(self.engine, assembly.full_history_tokens):
            return None
        await check_spend_cap(self.engine, self.id)
        if is_background:
            plan = await run_sized(current.size, assembly.build_plan, assembly.budget)
        else:
            plan = await current.plan_manually()
        if plan is None:
            return None
        entry = await self._compactor.execute(
            plan, assembly, current.window, trigger=trigger, instructions=instructions
        )
        if is_background:
            # No request waits now, so index what was archived for recall.
            await index_messages(self.engine, conversations=[self.id])
        return entry

    async def undo_compaction(self) -> Entry:
        """Undoes the active compaction: the view is again what it was before."""
        return await self._compactor.undo()

    async def redo_compaction(self) -> Entry:
        """Makes the compaction that was undone last active again, unless another one was made since."""
        return await self._compactor.redo()

    async def edit_summary(self, text: str) -> Entry:
        """Replaces the active summary. The old one stays in the log, and `undo_compaction` restores it.

        Args:
            text: The new summary.
        """
        return await self._compactor.edit_summary(text)

    async def search(
        self,
        query: str,
        *,
        where: MessageFilter = EVERY_MESSAGE,
        order: "SearchOrder" = "relevance",
        min_score: float = 0.0,
        limit: int = 20,
    ) -> MessageSearchResult:
        """Searches the messages of this conversation, archived or not, on all its branches.

        Args:
            query: Words to look for. With embeddings, messages of a similar meaning are found too.
            where: Filters, which apply before the best messages are selected.
            order: `relevance`, `newest` or `oldest` first.
            min_score: Only messages with at least this score, from 0 to 1.
            limit: Maximum number of messages.
        """
        own = where.model_copy(update={"conversations": (self.id,)})
        return await search_messages(self.engine, query, where=own, order=order, min_score=min_score, limit=limit)

    async def usage(self) -> UsageReport:
        """Token usage of the next request, before the user's message, and the number that triggers a compaction. With
        context management off, the number above which a request is refused. Inside a turn, the next request is the one
        that answers the newest message. Of a history too long to be read whole, the stored counts are summed."""
        assembly = (await self._assembler.draft_current()).assembly
        asks_first = self.engine.settings.compact_when == "ask"
        usage = UsageReport.from_manifest(assembly.manifest, asks_first=asks_first)
        if (span := assembly.counted_input.not_loaded) is None:
            return usage
        unread = await self.engine.store.sum_message_tokens(self.id, branch=self.branch, span=span)
        return usage._replace(total_tokens=usage.total_tokens + unread, exact=False)

    async def items(self) -> list[ResolvedSessionItem]:
        """The rules, references and tools of the session."""
        return await self._session_items.items()

    async def add_item(self, item: ContextItem | str) -> ContextItem:
        """Adds one of the agent's rules, references or tools to the session, by name.

        Args:
            item: Name of the item, or the item.
        """
        return await self._session_items.add(item)

    async def remove_item(self, item: ContextItem | str) -> ContextItem:
        """Removes an item from the session, however it was added.

        Args:
            item: Name of the item, or the item.
        """
        return await self._session_items.remove(item)

    async def run_tool(self, call: ToolCallPart, *, request: Request) -> ToolOutcome:
        """Runs a call of one of Quire's built-in tools, which the model made in its reply to `request`.

        Append the message of the outcome, and pass its references on to `record` with the next reply.

        Args:
            call: A call from the reply.
            request: The request that the reply answered.
        """
        if call.name == TOOL_SEARCH.name and request.tools is not None:
            search = parse_tool_search(call.arguments)
            if search is None:
                return ToolOutcome(Message.tool(call.id, "tool_search needs a `query`.", is_error=True))
            return ToolOutcome(Message.tool(call.id, await self._session_items.search_tools(search, request.tools)))
        result = await BuiltinTools(self.engine, self.id, self.branch).run(
            call.name, call.arguments, recalled_texts=request.list_recalled_texts
        )
        return ToolOutcome(Message.tool(call.id, result.text, is_error=result.is_error), result.references)

    async def preview(self, message: MessageInput = "") -> Manifest:
        """The manifest that a request with this message would have now. Changes nothing.

        Args:
            message: The message that it would send.
        """
        pending = [PendingMessage(each) for each in parse_messages(message)]
        return (await self._assembler.assemble(pending)).assembly.manifest

    async def suggest(self) -> "ContextSuggestion | None":
        """A change of the context that the turn before suggests: an item that its question names and the request
        lacked, or one of the session that no answer used. Each is suggested once."""
        from quire.engine.suggestions import find_suggestion

        return await find_suggestion(self.engine, self.id, self.branch)

    async def fork(self, seq: int, *, name: str | None = None) -> "Conversation":
        """Creates a branch that shares every entry up to and including `seq`.

        Args:
            seq: Number of the last entry that both branches share.
            name: Name of the branch.
        """
        branch = await self.engine.store.fork(self.id, at=seq, branch=self.branch, name=name)
        return Conversation(self.engine, self.id, branch.number)

    async def list_topics(self, seq: int) -> list[Topic]:
        """Topics by which search and recall find a message: a model's words, with the setting `topic_index`.

        Args:
            seq: The message's number in the conversation.
        """
        if not self.engine.settings.topic_index:
            return []
        [entry] = await self.engine.store.get_entries(self.id, [seq], branch=self.branch)
        key = MessageKey(self.id, entry.branch, seq)
        return (await self.engine.store.message_index.find_topics([key])).get(key, [])

    async def cost(self) -> float:
        """Cost of the conversation so far, with its summaries and what was imported, in US dollars. Model calls without
        a price count 0."""
        return await self.engine.store.get_conversation_cost(self.id)

    async def pin(self, seq: int) -> None:
        """Pins a message: it stays in every request verbatim, whatever is compacted.

        Args:
            seq: Number of the message in the branch.
        """
        await self.engine.store.append(self.id, Pin(message=seq), branch=self.branch)

    async def unpin(self, seq: int) -> None:
        """Removes the pin of a message: compactions may cover it again.

        Args:
            seq: Number of the message in the branch.
        """
        await self.engine.store.append(self.id, Unpin(message=seq), branch=self.branch)

    async def drop(self, seq: int, *, reason: str | None = None, now: bool = False) -> None:
        """Drops a message from later requests: a stub names it, and it can still be read and restored.

        An agent that keeps its own list is sent the stub too, at the next moment at which its prompt cache is cold
        anyway, or `now`.

        Args:
            seq: Number of the message in the branch.
            reason: Stored with the entry, and in the stub.
            now: Whether an agent that keeps its own list gets the stub before its prompt cache is cold.
        """
        entry = await self.engine.store.get_entry(self.id, seq, branch=self.branch)
        if entry.role not in ("user", "assistant", "tool"):
            raise InvalidRequest(f"#{seq} is not a message of the user, the model or a tool, so it cannot be dropped.")
        await self.engine.store.append(
            self.id, Drop(message=seq, reason=reason or None, now=now or None), branch=self.branch
        )

    async def restore(self, seq: int, *, now: bool = False) -> None:
        """Brings a message back: one that was dropped as it was, one that a compaction archived as a pinned message.

        Args:
            seq: Number of the message in the branch.
            now: As for `drop`.
        """
        state = (await self.engine.store.get_branch(self.id, self.branch)).state
        if seq in state.dropped:
            await self.engine.store.append(self.id, Undrop(message=seq, now=now or None), branch=self.branch)
        elif seq not in state.pins:
            await self.pin(seq)

    async def set_priority(self, seq: int, priority: int | None) -> None:
        """Sets the priority of a message.

        The next compaction of the `hybrid` strategy archives messages of low priority first, and preserves messages
        of high priority verbatim as far as their shares reach. A message that is archived already has no priority to
        set: no compaction brings it back.

        Args:
            seq: Number of the message in the branch.
            priority: 1 to 10, or None for the default, 5.
        """
        if priority is not None and not MIN_PRIORITY <= priority <= MAX_PRIORITY:
            raise InvalidRequest(f"A priority is a number from {MIN_PRIORITY} to {MAX_PRIORITY}, not {priority}.")
        entry = await self.engine.store.get_entry(self.id, seq, branch=self.branch)
        if entry.kind != "message":
            raise InvalidRequest(f"#{seq} is not a message, so it has no priority.")
        active = (await self.engine.store.get_branch(self.id, self.branch)).state.active_compaction
        in_view = (*(active.preserved or ()), active.question) if active is not None else ()
        if priority and active is not None and active.covers and seq in active.covers and seq not in in_view:
            raise InvalidRequest(
                f"#{seq} is archived, and a priority does not bring it back; pin it, or undo the compaction first."
            )
        await self.engine.store.append(self.id, Priority(message=seq, priority=priority), branch=self.branch)

    async def messages(self) -> list[Entry]:
        """All messages of the branch, archived or not, oldest first."""
        return await self.engine.store.read_range(self.id, branch=self.branch, kinds=["message"])

    async def manifest(self, reply_seq: int) -> Manifest:
        """The manifest of the request that a reply answered.

        Args:
            reply_seq: Number of the reply that answered the request.
        """
        return await self.engine.store.get_manifest(self.id, reply_seq, branch=self.branch)

    async def replay(self, reply_seq: int) -> "Replay":
        """Returns the request that a reply answered as it was sent, if its bytes are stored, and rebuilds it from
        the log.

        Args:
            reply_seq: Number of the reply that answered the request.
        """
        from quire.ledger import load_sent_body, replay

        blobs, manifest = self.engine.runtime.blobs, await self.manifest(reply_seq)
        for row in manifest.included:
            if row.span is not None:
                entries = await self.engine.store.read_range(
                    self.id, branch=self.branch, first=row.span.first, last=row.span.last
                )
                await blobs.load(self.engine.store, entries)
        rebuilt = await replay(self.engine.store, manifest, load_blob=blobs.get)
        return replace(rebuilt, sent_body=await load_sent_body(self.engine.store, manifest, reply_seq))

    async def diff(self, reply_seq: int, other_seq: int) -> "list[ManifestChange]":
        """The changes between the requests of two replies.

        Args:
            reply_seq: Number of the reply that answered the request.
            other_seq: Number of the reply to compare with.
        """
        from quire.ledger import diff_manifests

        return diff_manifests(await self.manifest(reply_seq), await self.manifest(other_seq))

    async def cache_breaks(self, reply_seq: int | None = None) -> "CacheReport":
        """Where the provider's prompt cache broke and why: in the newest requests, or in the request of one reply.

        Args:
            reply_seq: Number of a reply. Default: the newest requests.
        """
        from quire.ledger.cache_history import load_cache_report

        return await load_cache_report(
            self.engine.store,
            self.id,
            branch=self.branch,
            reply=reply_seq,
            compute_cost=self.engine.config.compute_cost,
        )

    async def why(self, item: int | str, *, reply_seq: int) -> Decision:
        """The decision that included or excluded a message or an item in that request.

        Args:
            item: Number of a message, or name of an item.
            reply_seq: Number of the reply that answered the request.
        """
        from quire.ledger import find_decision

        return find_decision(await self.manifest(reply_seq), item)
