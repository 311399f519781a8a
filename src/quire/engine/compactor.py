"""Compactions of one branch: carried out, told of, taken back, put in other words."""

from quire.compaction.citations import checked
from quire.compaction.run import Order, Trigger, carry_out
from quire.engine.core import Core
from quire.errors import InvalidRequest, SummaryFailed
from quire.log import Window
from quire.model import Compaction, Draft, Entry, Restore, TokenCount, Usage
from quire.model.events import CompactionFailed, CompactionStarted, ContextCompacted
from quire.view.assemble import Assembly
from quire.view.gather import summary_tokens
from quire.view.plans import Plan


class Compactor:
    def __init__(self, engine: Core, conversation: str, branch: int) -> None:
        self._engine, self._conversation, self._branch = engine, conversation, branch

    async def carry_out(
        self, plan: Plan, assembly: Assembly, window: Window, *, trigger: Trigger, instructions: str | None = None
    ) -> Entry | None:
        """Compacts as planned. A failed summary changes nothing; one that does without a model takes its place."""
        engine, conversation, branch = self._engine, self._conversation, self._branch
        if not await engine.hooks.before(conversation, plan):
            return None
        engine.tell(CompactionStarted(conversation=conversation, branch=branch, covers=plan.covers, tokens=plan.tokens))
        order = Order(
            window=window,
            plan=plan,
            policy=engine.policy,
            wanted=assembly.wanted,
            fixed=assembly.fixed,
            trigger=trigger,
            instructions=instructions,
        )
        failures: list[SummaryFailed] = []
        entry = await carry_out(
            engine.store, order, meter=engine.meter, summarizer=engine.summarizer, failed=failures.append
        )
        for failure in failures:
            await self._tell_failure(failure)
        body = entry.body if entry is not None else None
        if isinstance(body, Compaction) and body.usage is not None:
            await self._spend(body.usage, body.model)
        if entry is not None:
            engine.tell(ContextCompacted(conversation=conversation, branch=branch, entry=entry))
            await engine.hooks.after(conversation, entry)
        return entry

    async def _spend(self, usage: Usage, model: str | None) -> None:
        """A summary costs too, and is counted against the conversation's cap."""
        cost = self._engine.cost(usage, model or self._engine.policy.model)
        if cost:
            await self._engine.store.spend(self._conversation, cost)

    async def _tell_failure(self, failure: SummaryFailed) -> None:
        """A summary that was refused has cost something all the same."""
        tokens = Usage(input_tokens=failure.input_tokens, output_tokens=failure.output_tokens)
        await self._spend(tokens, self._engine.summarizer.model.name if self._engine.summarizer else None)
        self._engine.tell(
            CompactionFailed(
                conversation=self._conversation, branch=self._branch, reason=failure.reason, detail=str(failure)
            )
        )

    async def undo(self) -> Entry:
        active = (await self._engine.store.branch(self._conversation, self._branch)).state.active
        if active is None:
            raise InvalidRequest("There is no compaction to undo.")
        return await self._append(Restore(compaction=active.seq))

    async def edit_summary(self, text: str) -> Entry:
        """A new compaction of the same range, over the old one."""
        window = await self._engine.store.window(self._conversation, branch=self._branch, max_tokens=0)
        body = window.compaction.body if window.compaction is not None else None
        if window.compaction is None or not isinstance(body, Compaction) or body.covers is None:
            raise InvalidRequest("There is no summary to edit.")
        edited = Compaction(
            number=window.branch.state.compactions + 1,
            covers=body.covers,
            summary=text,
            sources=checked(text, range(1, window.branch.head_seq + 1)).sources,
            trigger="edit",
            strategy=body.strategy,
            tokens_before=body.tokens_after,
            tokens_after=body.tokens_after,
            supersedes=window.compaction.seq,
            shortened=body.shortened,
        )
        return await self._append(edited, tokens=summary_tokens(edited, self._engine.meter))

    async def _append(self, body: Compaction | Restore, *, tokens: TokenCount | None = None) -> Entry:
        draft = Draft(body=body, tokens=tokens)
        [entry] = await self._engine.store.append(self._conversation, draft, branch=self._branch)
        return entry
