"""Compactions of one branch: execute a plan, emit its events, undo it, edit its summary."""

from quire.compaction.citations import check_citations
from quire.compaction.execution import CompactionJob, CompactionTrigger, execute_compaction, max_summary_tokens
from quire.engine.context import EngineContext
from quire.errors import InvalidRequest, SummaryFailed
from quire.log import Window
from quire.model import Compaction, Draft, Entry, Restore, TokenCount, Usage
from quire.model.events import CompactionFailed, CompactionStarted, ContextCompacted
from quire.view.assembly import ViewAssembly
from quire.view.compaction_plan import CompactionPlan
from quire.view.counted_input import count_summary


class Compactor:
    """Executes, undoes and edits the compactions of one branch."""

    def __init__(self, engine: EngineContext, conversation: str, branch: int) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch

    async def execute(
        self,
        plan: CompactionPlan,
        assembly: ViewAssembly,
        window: Window,
        *,
        trigger: CompactionTrigger,
        instructions: str | None = None,
    ) -> Entry | None:
        """Executes the plan, unless a hook vetoes it. If the model's summary fails, an extractive one is the
        fallback."""
        engine, conversation, branch = self._engine, self._conversation, self._branch
        if not await engine.hooks.run_before(conversation, plan):
            return None
        engine.emit(
            CompactionStarted(
                conversation=conversation, branch=branch, covers=plan.covers, freed_tokens=plan.freed_tokens
            )
        )
        job = CompactionJob(
            window=window,
            plan=plan,
            policy=engine.policy,
            full_history_tokens=assembly.full_history_tokens,
            prefix_tokens=assembly.prefix_tokens,
            count_after=assembly.count_after,
            trigger=trigger,
            instructions=instructions,
        )
        failures: list[SummaryFailed] = []
        billed: list[tuple[Usage, str | None]] = []
        entry = await execute_compaction(
            engine.store,
            job,
            message_counter=engine.message_counter,
            summarizer=engine.summarizer,
            on_failure=failures.append,
            on_usage=lambda usage, model: billed.append((usage, model)),
        )
        for failure in failures:
            await self._report_failure(failure)
        for usage, model in billed:
            await self._record_cost(usage, model)
        if entry is not None:
            engine.emit(ContextCompacted(conversation=conversation, branch=branch, entry=entry))
            await engine.hooks.run_after(conversation, entry)
        return entry

    async def _record_cost(self, usage: Usage, model: str | None) -> None:
        """Adds the cost of the summary to the conversation's spending, which `max_spend` caps."""
        cost = self._engine.config.estimate_cost(usage, model or self._engine.policy.model)
        if cost:
            await self._engine.store.add_cost(self._conversation, cost)

    async def _report_failure(self, failure: SummaryFailed) -> None:
        """Emits `CompactionFailed` and records the cost, since a rejected summary is billed too."""
        tokens = Usage(input_tokens=failure.input_tokens, output_tokens=failure.output_tokens)
        await self._record_cost(tokens, self._engine.summarizer.model.name if self._engine.summarizer else None)
        self._engine.emit(
            CompactionFailed(
                conversation=self._conversation, branch=self._branch, reason=failure.reason, detail=str(failure)
            )
        )

    async def undo(self) -> Entry:
        active = (await self._engine.store.get_branch(self._conversation, self._branch)).state.active_compaction
        if active is None:
            raise InvalidRequest("There is no compaction to undo.")
        return await self._append(Restore(compaction=active.seq))

    async def edit_summary(self, text: str) -> Entry:
        """Appends a compaction of the same span, with this text as its summary, that supersedes the active one."""
        window = await self._engine.store.read_window(self._conversation, branch=self._branch, max_tokens=0)
        body = window.compaction.body if window.compaction is not None else None
        if window.compaction is None or not isinstance(body, Compaction) or body.covers is None:
            raise InvalidRequest("The branch has no active summary to edit; compact it first.")
        self._check_summary_size(text)
        edited = Compaction(
            number=window.branch.state.compaction_count + 1,
            covers=body.covers,
            summary=text,
            sources=check_citations(text, range(1, window.branch.head_seq + 1)).sources,
            trigger="edit",
            strategy=body.strategy,
            tokens_before=body.tokens_after,
            supersedes=window.compaction.seq,
            truncations=body.truncations,
        )
        counter = self._engine.message_counter
        old, new = count_summary(body, counter), count_summary(edited, counter)
        change = new.tokens - old.tokens if old is not None and new is not None else 0
        edited = edited.model_copy(update={"tokens_after": max(0, body.tokens_after + change)})
        return await self._append(edited, tokens=new)

    def _check_summary_size(self, text: str) -> None:
        """Refuses a text above the share of the window that a written summary may have."""
        limit = max_summary_tokens(self._engine.policy.target_tokens)
        tokens = self._engine.message_counter.token_counter.count(text)
        if tokens > limit:
            raise InvalidRequest(
                f"The summary has {tokens:,} tokens, and a summary may have at most {limit:,} in this context window; "
                "shorten it."
            )

    async def _append(self, body: Compaction | Restore, *, tokens: TokenCount | None = None) -> Entry:
        draft = Draft(body=body, tokens=tokens)
        [entry] = await self._engine.store.append(self._conversation, draft, branch=self._branch)
        return entry
