"""Compactions of one branch: execute a plan, emit its events, undo it, edit its summary."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Literal

from quire.compaction.citations import check_citations
from quire.compaction.execution import CompactionJob, CompactionTrigger, execute_compaction, summarize_messages
from quire.concurrency.worker_threads import run_in_worker
from quire.engine.assembler import AssembledRequest
from quire.engine.spending import check_spend_cap
from quire.engine.state import EngineState
from quire.engine.summarizer_spending import load_summarizer, record_summarizer_cost, reserve_summarizer_spend
from quire.engine.topic_indexer import schedule_topics
from quire.errors import InvalidRequest, SummaryFailed
from quire.log import Window
from quire.model import Compaction, Draft, Entry, Restore, TokenCount, Truncation, Usage
from quire.model.context_events import CompactionFailed, CompactionStarted, ContextCompacted
from quire.view.assembly import ViewAssembly
from quire.view.call_prices import Cost
from quire.view.compaction_plan import CompactionPlan, max_summary_tokens
from quire.view.counted_input import count_summary
from quire.view.strategies import get_strategy

if TYPE_CHECKING:
    from quire.compaction.model_summary import ModelSummary

SUMMARIZED_QUESTION_SHARE = 0.75
"""Length of a summarized question relative to the longest excerpt that fits. A summary may have more tokens than the
text that it replaces."""


class Compactor:
    """Executes, undoes and edits the compactions of one branch."""

    def __init__(self, engine: EngineState, conversation: str, branch: int) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch

    async def execute(
        self,
        plan: CompactionPlan,
        assembly: ViewAssembly,
        window: Window,
        *,
        trigger: CompactionTrigger,
        instructions: str | None = None,
        billed: Sequence[tuple[Usage, str | None]] = (),
    ) -> Entry | None:
        """Executes the plan, unless a hook vetoes it. If the model's summary fails, an extractive one is the
        fallback. `billed` are calls that the plan needed, whose cost is recorded already."""
        engine, conversation, branch = self._engine, self._conversation, self._branch
        if not await engine.hooks.run_before(conversation, plan):
            return None
        engine.runtime.emit(
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
            input_price=engine.config.model_spec.input_price,
            compute_cost=self._compute_cost,
            billed=tuple(billed),
            instructions=instructions,
        )
        failures: list[SummaryFailed] = []
        usages: list[tuple[Usage, str | None]] = []
        calls_model = plan.needs_summary or any(each.summary is None for each in plan.truncations)
        async with self._reserve_spend(job.full_history_tokens if calls_model else 0, plan.target_tokens):
            entry = await execute_compaction(
                engine.store,
                job,
                message_counter=engine.message_counter,
                summarizer=await load_summarizer(engine),
                on_failure=failures.append,
                on_usage=lambda usage, model: usages.append((usage, model)),
            )
            for failure in failures:
                await self._report_failure(failure)
            for usage, model in usages:
                await record_summarizer_cost(engine, self._conversation, usage, model=model)
        if entry is not None:
            engine.runtime.emit(ContextCompacted(conversation=conversation, branch=branch, entry=entry))
            await engine.hooks.run_after(conversation, entry)
            schedule_topics(engine, conversation, branch)
        return entry

    async def summarize_question(self, question: Entry, current: AssembledRequest) -> Entry | None:
        """Summarizes a recorded question that alone exceeds the budget, so that the request has its beginning, its end
        and a summary, or None if no model can, and an excerpt takes its place."""
        engine, assembly, summarizer = self._engine, current.assembly, await load_summarizer(self._engine)
        max_chars = assembly.selection.excerpt_chars
        if summarizer is None or max_chars is None or not get_strategy(engine.policy.strategy).summarizes:
            return None
        failures: list[SummaryFailed] = []
        async with self._reserve_spend(question.tokens or 0, assembly.budget.target_tokens):
            summaries = await summarize_messages(
                [Truncation(message=question.seq, max_chars=max(1, int(max_chars * SUMMARIZED_QUESTION_SHARE)))],
                [question],
                summarizer=summarizer,
                counter=engine.message_counter.token_counter,
                on_failure=failures.append,
            )
            for failure in failures:
                await self._report_failure(failure)
            for usage, model in summaries.usages:
                await record_summarizer_cost(engine, self._conversation, usage, model=model)
        if summaries.truncations[0].summary is None:
            return None
        plan = assembly.plan_truncations(summaries.truncations)
        return await self.execute(plan, assembly, current.window, trigger="overflow", billed=[*summaries.usages])

    async def summarize(self, entries: Sequence[Entry], *, previous: str | None, target_tokens: int) -> "ModelSummary":
        """Summarizes messages without a compaction, under the spend caps. Raises `SummaryFailed`."""
        from quire.compaction.model_summary import summarize

        engine, summarizer = self._engine, await load_summarizer(self._engine)
        if summarizer is None:
            raise SummaryFailed("unavailable", "No model is named that writes summaries; set `summarizer`.")
        await check_spend_cap(engine, self._conversation)
        async with self._reserve_spend(sum(entry.tokens or 0 for entry in entries) + 1, target_tokens):
            try:
                summary = await summarize(
                    summarizer,
                    entries,
                    previous=previous,
                    instructions=None,
                    target_tokens=target_tokens,
                    counter=engine.message_counter.token_counter,
                )
            except SummaryFailed as failure:
                await self._report_failure(failure)
                raise
            await record_summarizer_cost(engine, self._conversation, summary.usage or Usage(), model=summary.model)
        return summary

    def _reserve_spend(self, input_tokens: int, target_tokens: int) -> AbstractAsyncContextManager[None]:
        output_tokens = max_summary_tokens(target_tokens)
        return reserve_summarizer_spend(
            self._engine, self._conversation, input_tokens=input_tokens, output_tokens=output_tokens
        )

    def _compute_cost(self, usage: Usage, model: str | None) -> Cost:
        return self._engine.config.compute_cost(usage, model or self._engine.policy.model)

    async def _report_failure(self, failure: SummaryFailed) -> None:
        """Emits `CompactionFailed` and records the cost, since a rejected summary is billed too."""
        tokens = Usage(input_tokens=failure.input_tokens, output_tokens=failure.output_tokens)
        model = self._engine.summarizer.model.name if self._engine.summarizer else None
        await record_summarizer_cost(self._engine, self._conversation, tokens, model=model)
        self._engine.runtime.emit(
            CompactionFailed(
                conversation=self._conversation, branch=self._branch, reason=failure.reason, detail=str(failure)
            )
        )

    async def undo(self) -> Entry:
        active = (await self._engine.store.get_branch(self._conversation, self._branch)).state.active_compaction
        if active is None:
            raise InvalidRequest("There is no compaction to undo.")
        return await self._append(Restore(compaction=active.seq))

    async def redo(self) -> Entry:
        """Appends the compaction that was undone last once more. An agent's own one is in its list as it was."""
        store, undone = self._engine.store, list[Compaction]()
        by_seq: dict[int, Compaction] = {}
        for entry in await store.read_range(self._conversation, branch=self._branch, kinds=("compaction", "restore")):
            match entry.body:
                case Compaction():
                    by_seq[entry.seq] = entry.body
                    if undone and _is_same(entry.body, undone[-1]):
                        undone.pop()
                    else:
                        undone.clear()
                case Restore():
                    undone.append(by_seq[entry.body.compaction])
                case _:
                    pass
        if not undone:
            raise InvalidRequest("There is no undone compaction; one that was made since takes its place.")
        state = (await store.get_branch(self._conversation, self._branch)).state
        active = state.active_compaction.seq if state.active_compaction is not None else None
        body = undone[-1].model_copy(update={"number": state.compaction_count + 1, "supersedes": active})
        return await self._append(body, tokens=count_summary(body, self._engine.message_counter))

    async def edit_summary(self, text: str) -> Entry:
        """Appends a compaction of the same span, with this text as its summary, that supersedes the active one."""
        window = await self._engine.store.read_window(self._conversation, branch=self._branch, max_tokens=0)
        if window.compaction is None or not isinstance(body := window.compaction.body, Compaction) or not body.covers:
            raise InvalidRequest("The branch has no active summary to edit; compact it first.")
        if not text.strip():
            raise InvalidRequest("The summary is empty; write one, or undo the compaction.")
        limit = max_summary_tokens(self._engine.policy.target_tokens)
        tokens = self._engine.message_counter.token_counter.count(text)
        if tokens > limit:
            raise InvalidRequest(
                f"The summary has {tokens:,} tokens, and a summary may have at most {limit:,} in this context window; "
                "shorten it."
            )
        return await self._replace_summary(window, body, text, trigger="edit")

    async def shorten_summary(self) -> Entry | None:
        """Shortens the active summary by extraction to its share of the context window, which may be smaller than the
        window that the summary was written for. None if it is not longer, or if context management is off."""
        engine = self._engine
        if not engine.policy.context_management_enabled:
            return None
        window = await engine.store.read_window(self._conversation, branch=self._branch, max_tokens=0)
        if window.compaction is None or not isinstance(body := window.compaction.body, Compaction) or not body.summary:
            return None
        limit, counter = max_summary_tokens(engine.policy.target_tokens), engine.message_counter.token_counter
        if counter.count(body.summary) <= limit:
            return None
        from quire.compaction.extractive_summary import extract_summary

        text = await run_in_worker(extract_summary, (), previous=body.summary, max_tokens=limit, counter=counter)
        entry = await self._replace_summary(window, body, text, trigger="overflow")
        engine.runtime.emit(ContextCompacted(conversation=self._conversation, branch=self._branch, entry=entry))
        return entry

    async def _replace_summary(
        self, window: Window, body: Compaction, text: str, *, trigger: Literal["edit", "overflow"]
    ) -> Entry:
        edited = Compaction(
            number=window.branch.state.compaction_count + 1,
            covers=body.covers,
            question=body.question,
            preserved=body.preserved,
            summary=text,
            sources=check_citations(text, range(1, window.branch.head_seq + 1)).sources,
            trigger=trigger,
            strategy=body.strategy,
            tokens_before=body.tokens_after,
            supersedes=window.compaction.seq if window.compaction is not None else None,
            truncations=body.truncations,
            cleared_through=body.cleared_through,
        )
        counter = self._engine.message_counter
        old, new = count_summary(body, counter), count_summary(edited, counter)
        change = new.tokens - old.tokens if old is not None and new is not None else 0
        edited = edited.model_copy(update={"tokens_after": max(0, body.tokens_after + change)})
        return await self._append(edited, tokens=new)

    async def _append(self, body: Compaction | Restore, *, tokens: TokenCount | None = None) -> Entry:
        draft = Draft(body=body, tokens=tokens)
        [entry] = await self._engine.store.append(self._conversation, draft, branch=self._branch)
        return entry


def _is_same(compaction: Compaction, other: Compaction) -> bool:
    """Whether one is the other again: only its number and what it supersedes differ."""
    changed = {"number": other.number, "supersedes": other.supersedes}
    return compaction.model_copy(update=changed) == other
