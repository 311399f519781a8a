"""Assembly of one request: count, allocate the budget, select, render, check.

`assemble` is pure: the same input and policy give the same request, byte for byte. The request always fits. If the
history exceeds the trigger, the assembly also plans what to compact before the next request.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

from quire.errors import ContextOverflow, InvalidRequest
from quire.model import Compaction, Entry, Span
from quire.model.manifest import Decision, ForwardedRequest, Manifest
from quire.model.policy import Policy
from quire.view.budget import Budget, allocate_budget, build_slot_usage
from quire.view.compaction_plan import CompactionPlan, plan_compaction
from quire.view.counted_input import CountedInput, count_input
from quire.view.decisions import build_decisions, set_pending_span, sum_tokens_by_slot
from quire.view.inputs import ViewInput
from quire.view.layout import RENDERER_VERSION, RenderedRequest, render
from quire.view.rendered import MessageCounter
from quire.view.selection import ViewSelection, select_content
from quire.view.strategies import get_strategy


@dataclass(frozen=True, kw_only=True)
class Assembly(ABC):
    """A request, and what its manifest is built from."""

    conversation: str
    branch: int
    head: int
    policy: Policy
    message_counter: MessageCounter
    ratio: float
    budget: Budget
    rendered: RenderedRequest
    full_history_tokens: int
    """Tokens of the request with its whole history. Compared with the trigger."""
    forwarded: ForwardedRequest | None = None
    """How the gateway forwarded the request."""
    question_span: Span | None = None
    """Numbers of the pending messages, if they are stored before the reply."""

    @abstractmethod
    def build_decisions(self) -> tuple[Decision, ...]: ...

    @cached_property
    def manifest(self) -> Manifest:
        """The record of how the request was built. Built on first access: it takes as long as the assembly itself, and
        no request waits for it."""
        decisions = self.build_decisions()
        if self.question_span is not None:
            decisions = set_pending_span(decisions, self.question_span)
        return Manifest(
            renderer=RENDERER_VERSION,
            conversation=self.conversation,
            branch=self.branch,
            head=self.head,
            policy=self.policy,
            counter=self.message_counter.name,
            exact=self.message_counter.token_counter.exact,
            ratio=self.ratio,
            slots=build_slot_usage(self.budget, sum_tokens_by_slot(decisions, total_tokens=self.rendered.tokens)),
            total_tokens=self.rendered.tokens,
            full_history_tokens=self.full_history_tokens,
            max_input_tokens=self.budget.max_input_tokens,
            trigger_tokens=self.budget.trigger_tokens,
            decisions=decisions,
            stable_messages=self.rendered.stable_messages,
            digest=self.rendered.digest,
            forwarded=self.forwarded,
        )


@dataclass(frozen=True, kw_only=True)
class ViewAssembly(Assembly):
    """A request assembled from a view input."""

    view_input: ViewInput
    counted_input: CountedInput
    selection: ViewSelection

    def build_decisions(self) -> tuple[Decision, ...]:
        return build_decisions(self.view_input, self.counted_input, self.selection)

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the prefix that a compaction does not change."""
        return self.counted_input.prefix_tokens

    @property
    def needs_compaction(self) -> bool:
        """Whether the history must be compacted before the request is sent."""
        exceeds_trigger = self.full_history_tokens > self.budget.trigger_tokens
        return self.policy.context_management_enabled and (exceeds_trigger or self.counted_input.not_loaded is not None)

    @cached_property
    def plan(self) -> CompactionPlan | None:
        """What to compact, if the history exceeds the trigger."""
        return self.build_plan(self.budget) if self.needs_compaction else None

    def plan_manually(self) -> CompactionPlan | None:
        """What to compact on request: down to the target, or to half of the full history if that is less."""
        return self.build_plan(
            self.budget._replace(target_tokens=min(self.budget.target_tokens, self.full_history_tokens // 2))
        )

    def build_plan(self, budget: Budget) -> CompactionPlan | None:
        """What to compact down to the target of `budget`, regardless of the trigger."""
        plan = plan_compaction(
            self.counted_input,
            budget,
            policy=self.policy,
            message_counter=self.message_counter,
            full_history_tokens=self.full_history_tokens,
        )
        if plan is None:
            return None
        active = self.view_input.compaction.body if self.view_input.compaction is not None else None
        summary = active.summary if isinstance(active, Compaction) else None
        planned = Compaction(number=1, covers=plan.covers, truncations=plan.truncations, summary=summary)
        return replace(plan, freed_tokens=max(0, self.full_history_tokens - self.count_after(planned)))

    def count_after(self, compaction: Compaction) -> int:
        """Tokens that the full history of this request would have with `compaction` as the active one.

        The newest turn and the chosen blocks are those of this request.
        """
        view_input, covers = self.view_input, compaction.covers
        entry = Entry(
            conversation=view_input.conversation,
            branch=view_input.branch,
            seq=view_input.head + 1,
            kind="compaction",
            role=None,
            author="engine",
            created_at=0,
            digest=b"",
            path=b"",
            tokens=None,
            counter=None,
            raw=compaction.canonical_json(),
            raw_metadata=None,
            purged_at=None,
        )
        changed = replace(view_input, compaction=entry, recall_candidates=())
        if covers is not None:
            pinned = self._list_pinned_seqs()
            changed = replace(
                changed,
                pinned=(
                    *view_input.pinned,
                    *(each for each in view_input.history if each.seq in covers and each.seq in pinned),
                ),
                history=tuple(each for each in view_input.history if each.seq not in covers),
                not_loaded=None,
            )
        counted_input = count_input(changed, self.message_counter)
        unchanged = sum(counted.tokens for counted in self.selection.blocks if not counted.block.is_required)
        unchanged += sum(batch.tokens for batch in self.selection.newest)
        return counted_input.required_tokens + unchanged + sum(batch.tokens for batch in counted_input.history)

    def _list_pinned_seqs(self) -> set[int]:
        """Numbers of the pinned messages of the history, each with its whole batch."""
        pins = self.view_input.pins
        return {seq for batch in self.counted_input.history if not pins.isdisjoint(batch.seqs) for seq in batch.seqs}


def assemble(
    view_input: ViewInput, policy: Policy, message_counter: MessageCounter, *, ratio: float = 1.0
) -> ViewAssembly:
    counted_input = count_input(view_input, message_counter)
    budget = allocate_budget(policy, get_strategy(policy.strategy).shares, ratio=ratio)
    selection = select_content(counted_input, budget, message_counter)
    rendered = render(counted_input, selection, message_counter, model=policy.model)
    assembly = ViewAssembly(
        conversation=view_input.conversation,
        branch=view_input.branch,
        head=view_input.head,
        policy=policy,
        message_counter=message_counter,
        ratio=ratio,
        budget=budget,
        rendered=rendered,
        full_history_tokens=_count_full_history(rendered, selection),
        view_input=view_input,
        counted_input=counted_input,
        selection=selection,
    )
    _check_assembly(assembly)
    return assembly


def _count_full_history(rendered: RenderedRequest, selection: ViewSelection) -> int:
    """Recalled messages only use tokens that would stay free, so they do not count towards the trigger."""
    recalled_tokens = selection.recalled.message.tokens if selection.recalled is not None else 0
    return rendered.tokens - recalled_tokens + sum(batch.tokens for batch in selection.omitted_history)


def _check_assembly(assembly: ViewAssembly) -> None:
    """Validates the final payload against the provider's rules and the budget."""
    rendered, max_input_tokens = assembly.rendered, assembly.budget.max_input_tokens
    if not assembly.policy.context_management_enabled and assembly.full_history_tokens > max_input_tokens:
        raise ContextOverflow(
            needed_tokens=assembly.full_history_tokens,
            available_tokens=max_input_tokens,
            largest_items=assembly.counted_input.find_largest(),
        )
    problems = rendered.wire_format.check(rendered.to_payload())
    if rendered.tokens > max_input_tokens:
        problems.append(f"it has {rendered.tokens} tokens, and the limit is {max_input_tokens}")
    if problems:
        raise InvalidRequest(f"{rendered.wire_format.name} would reject the request: {'; '.join(problems)}.")
