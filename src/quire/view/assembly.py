"""Assembly of one request: count, allocate the budget, select, then render and check.

`assemble` is pure: the same input and policy give the same request, byte for byte. The request always fits. It counts
and selects. The messages are laid out only when the request is sent. If the history exceeds the trigger, the assembly
also plans what to compact before the next request.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from quire.errors import ContextOverflow, InvalidRequest
from quire.model import Compaction, Entry, Span, Truncation
from quire.model.base import lazy_property
from quire.model.manifest import Decision, ForwardedRequest, Manifest
from quire.model.policy import Policy
from quire.view.batches import count_messages, list_seqs, sum_tokens
from quire.view.budget import Budget, Calibration, allocate_budget, build_slot_usage
from quire.view.compaction_plan import SUMMARY_NOTE_TOKENS, CompactionPlan, max_summary_tokens, plan_compaction
from quire.view.counted_input import CountedBlock, CountedInput, count_input
from quire.view.decisions import build_decisions, set_pending_span, sum_tokens_by_slot
from quire.view.inputs import ViewInput
from quire.view.layout import RENDERER_VERSION, RenderedRequest, render
from quire.view.recalled_messages import RecallCandidate
from quire.view.rendered import MessageCounter
from quire.view.selection import RecalledBlock, ViewSelection, select_content, select_recalled
from quire.view.strategies import get_strategy

FULL_SUMMARY_TOLERANCE = 1.5
"""Length up to which a summary is sent in full, relative to its share of the context window."""


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
    full_history_tokens: int
    """Tokens of the request with its whole history. Compared with the trigger."""
    forwarded: ForwardedRequest | None = None
    """How the gateway forwarded the request."""
    question_span: Span | None = None
    """Numbers of the pending messages, if they are stored before the reply."""
    provider_decisions: tuple[Decision, ...] = ()
    """What the provider left out of the request on its side."""

    @abstractmethod
    def render(self) -> RenderedRequest: ...

    @abstractmethod
    def build_decisions(self) -> tuple[Decision, ...]: ...

    @lazy_property
    def rendered(self) -> RenderedRequest:
        """The request as it is sent. A draft that is only compared with the trigger is never rendered."""
        return self.render()

    def with_record(
        self,
        *,
        branch: int | None = None,
        forwarded: ForwardedRequest | None = None,
        question_span: Span | None = None,
        provider_decisions: tuple[Decision, ...] = (),
    ) -> Self:
        """The same request, with these facts for its manifest. It is not rendered again."""
        changed = replace(
            self,
            branch=self.branch if branch is None else branch,
            forwarded=forwarded or self.forwarded,
            question_span=question_span or self.question_span,
            provider_decisions=provider_decisions or self.provider_decisions,
        )
        vars(changed)["rendered"] = self.rendered
        return changed

    @lazy_property
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
            decisions=(*decisions, *self.provider_decisions),
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

    def render(self) -> RenderedRequest:
        """Lays out the request, and validates it against the provider's rules and the budget."""
        rendered = render(self.counted_input, self.selection, self.message_counter, model=self.policy.model)
        problems = rendered.wire_format.check(rendered.to_payload())
        if rendered.tokens > self.budget.max_input_tokens:
            problems.append(f"it has {rendered.tokens} tokens, and the limit is {self.budget.max_input_tokens}")
        if problems:
            raise InvalidRequest(f"{rendered.wire_format.name} would reject the request: {'; '.join(problems)}.")
        return rendered

    def build_decisions(self) -> tuple[Decision, ...]:
        return build_decisions(self.view_input, self.counted_input, self.selection)

    def with_recalled(self, candidates: tuple[RecallCandidate, ...]) -> "ViewAssembly":
        """The same request with the candidates that fit into the tokens it leaves free."""
        counted_input = replace(self.counted_input, recall_candidates=candidates)
        selection = self.selection
        used_tokens = counted_input.required_tokens + sum_tokens(selection.history) + sum_tokens(selection.newest)
        used_tokens += sum_tokens(selection.pinned) - sum_tokens(counted_input.pinned)
        used_tokens += sum(counted.tokens for counted in selection.blocks if not counted.block.is_required)
        recalled = select_recalled(
            counted_input,
            selection.blocks,
            self.budget.max_input_tokens - used_tokens,
            self.budget,
            self.message_counter,
        )
        return replace(
            self,
            view_input=replace(self.view_input, recall_candidates=candidates),
            counted_input=counted_input,
            selection=replace(selection, recalled=recalled),
            full_history_tokens=_count_full_history(self.view_input, counted_input, selection.blocks, recalled),
        )

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the prefix that a compaction does not change."""
        return self.counted_input.prefix_tokens

    @property
    def needs_compaction(self) -> bool:
        """Whether the history must be compacted before the request is sent."""
        exceeds_trigger = self.full_history_tokens > self.budget.trigger_tokens
        return self.policy.context_management_enabled and (exceeds_trigger or self.counted_input.not_loaded is not None)

    def check_overflow(self) -> None:
        """Raises `ContextOverflow` if the history does not fit and context management, which would shorten it, is
        off."""
        excerpted = self.selection.excerpt_chars is not None
        if self.policy.context_management_enabled or not (excerpted or self.selection.omitted_history):
            return
        raise ContextOverflow(
            needed_tokens=self.counted_input.required_tokens + sum_tokens(self.counted_input.batches),
            available_tokens=self.budget.max_input_tokens,
            largest_items=self.counted_input.find_largest(),
        )

    @lazy_property
    def plan(self) -> CompactionPlan | None:
        """What to compact, if the history exceeds the trigger."""
        return self.build_plan(self.budget) if self.needs_compaction else None

    def plan_manually(self) -> CompactionPlan | None:
        """What to compact on request: down to the target, or to half of the full history if that is less. None if that
        frees nothing: a short history has fewer tokens than a summary and the tools that read what it replaces."""
        target_tokens = min(self.budget.target_tokens, self.full_history_tokens // 2)
        plan = self.build_plan(self.budget._replace(target_tokens=target_tokens))
        if plan is None or self.counted_input.not_loaded is not None:
            return plan
        new_tokens = SUMMARY_NOTE_TOKENS if plan.needs_summary and self.counted_input.summary is None else 0
        return plan if plan.freed_tokens > new_tokens else None

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
        planned = Compaction(
            number=1,
            covers=plan.covers,
            question=plan.question,
            preserved=plan.preserved,
            truncations=plan.truncations,
            cleared_through=plan.cleared_through,
            summary=summary,
        )
        return replace(plan, freed_tokens=max(0, self.full_history_tokens - self.count_after(planned)))

    def plan_truncations(self, truncations: Sequence[Truncation]) -> CompactionPlan:
        """A plan that adds truncations to the active compaction, and archives nothing."""
        counted, active = self.counted_input, self.view_input.compaction
        body = active.body if active is not None else None
        earlier = (body.truncations or ()) if isinstance(body, Compaction) else ()
        added = {each.message for each in truncations}
        return CompactionPlan(
            covers=counted.covers,
            question=counted.question,
            preserved=list_seqs(counted.preserved),
            truncations=(*(each for each in earlier if each.message not in added), *truncations),
            cleared_through=counted.cleared_through,
            cleared_results=0,
            target_tokens=self.budget.target_tokens,
            needs_summary=False,
        )

    def count_after(self, compaction: Compaction) -> int:
        """Tokens that the full history of this request would have with `compaction` as the active one, and with the
        blocks that were chosen for this request."""
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
        tools = view_input.tools if view_input.tools_after_compaction is None else view_input.tools_after_compaction
        changed = replace(view_input, tools=tools, compaction=entry, question=compaction.question, recall_candidates=())
        if covers is not None:
            # A pinned result stays with its call, which is in the same batch.
            batches = (*self.counted_input.pinned, *self.counted_input.batches)
            pinned = {seq for each in batches if not view_input.pins.isdisjoint(each.seqs) for seq in each.seqs}
            pinned = pinned.union(compaction.preserved or ()) - {compaction.question}
            loaded = (*view_input.pinned, *view_input.history)
            changed = replace(
                changed,
                pinned=tuple(each for each in loaded if each.seq in covers and each.seq in pinned),
                history=tuple(
                    each for each in view_input.history if each.seq not in covers or each.seq == compaction.question
                ),
                not_loaded=None,
            )
        counted_input = count_input(changed, self.message_counter, max_summary_tokens=_limit_full_summary(self.policy))
        return _count_history_tokens(counted_input, self.selection.blocks)


def _limit_full_summary(policy: Policy) -> int:
    """Tokens above which a summary exceeds its share, with a tolerance: a model does not count exactly."""
    return int(max_summary_tokens(policy.target_tokens) * FULL_SUMMARY_TOLERANCE)


def assemble(
    view_input: ViewInput, policy: Policy, message_counter: MessageCounter, *, calibration: Calibration | None = None
) -> ViewAssembly:
    counted_input = count_input(view_input, message_counter, max_summary_tokens=_limit_full_summary(policy))
    ratio = 1.0
    if calibration is not None:
        # Of the whole loaded history, though the request may show only the newest part of it.
        sections = (counted_input.pinned, counted_input.history, counted_input.newest)
        data_messages = sum(counted.message is not None for counted in counted_input.blocks)
        ratio = calibration.ratio_for(
            tokens=counted_input.required_tokens + counted_input.history_tokens + counted_input.newest_tokens,
            messages=data_messages + sum(map(count_messages, sections)),
            exact=message_counter.token_counter.exact,
        )
    budget = allocate_budget(policy, get_strategy(policy.strategy).shares, ratio=ratio)
    selection = select_content(counted_input, budget, message_counter)
    return ViewAssembly(
        conversation=view_input.conversation,
        branch=view_input.branch,
        head=view_input.head,
        policy=policy,
        message_counter=message_counter,
        ratio=ratio,
        budget=budget,
        full_history_tokens=_count_full_history(view_input, counted_input, selection.blocks, selection.recalled),
        view_input=view_input,
        counted_input=counted_input,
        selection=selection,
    )


def _count_full_history(
    view_input: ViewInput,
    counted_input: CountedInput,
    blocks: Sequence[CountedBlock],
    recalled: RecalledBlock | None,
) -> int:
    """Recalled messages only use tokens that would stay free, so they do not count towards the trigger, except inside a
    turn, where they stay until the next compaction."""
    tokens = _count_history_tokens(counted_input, blocks)
    if recalled is None:
        return tokens + sum(fitted.tokens for fitted in view_input.fixed_recall or ())
    return tokens + recalled.message.tokens if view_input.continues_turn else tokens


def _count_history_tokens(counted_input: CountedInput, blocks: Sequence[CountedBlock]) -> int:
    """Tokens of a request with the whole history and these blocks, without recalled messages."""
    optional = sum(counted.tokens for counted in blocks if not counted.block.is_required)
    return counted_input.required_tokens + optional + counted_input.history_tokens + counted_input.newest_tokens
