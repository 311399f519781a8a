"""Compaction plans: what to compact when a history exceeds the trigger. Pure.

First, old tool outputs become stubs. If that is not enough, the strategy chooses a cut point: messages before it are
archived, and huge messages after it become excerpts. A plan changes nothing; the engine executes or previews it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.errors import IllegalCut
from quire.model import Span, Truncation
from quire.model.policy import Policy
from quire.view.batches import MessageBatch, flatten_batches
from quire.view.budget import Budget
from quire.view.counted_input import CountedInput
from quire.view.cut_points import find_cut_keeping, find_legal_cuts
from quire.view.excerpts import excerpt_message
from quire.view.rendered import MessageCounter, RenderedMessage
from quire.view.strategies import Strategy, get_strategy

SUMMARY_NOTE_TOKENS = 64
"""Tokens reserved for the first summary note, where there is no summary yet."""

MIN_STUBBED_OUTPUT_TOKENS = 120
"""Minimum tokens of a tool output to be replaced by a stub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What the next compaction does. `covers` includes what the active compaction covers already."""

    covers: Span | None
    truncations: tuple[Truncation, ...]
    freed_tokens: int = 0
    """Tokens that the full history loses. A new summary is assumed to have the size of the one that it replaces."""
    target_tokens: int
    needs_summary: bool


def plan_compaction(
    counted_input: CountedInput,
    budget: Budget,
    *,
    policy: Policy,
    message_counter: MessageCounter,
    full_history_tokens: int,
) -> CompactionPlan | None:
    """Plans stubs, and a cut if they do not reach the target. None if nothing can be cut or truncated."""
    saved_tokens = _count_stub_savings(counted_input, policy, message_counter)
    stubbed_tokens = full_history_tokens - sum(saved_tokens.values())
    if saved_tokens and counted_input.not_loaded is None and stubbed_tokens <= budget.target_tokens:
        return CompactionPlan(
            covers=counted_input.covers,
            truncations=_merge_truncations(counted_input, dict.fromkeys(saved_tokens, 0), counted_input.covers),
            target_tokens=budget.target_tokens,
            needs_summary=False,
        )
    return _plan_cut(counted_input, budget, policy, saved_tokens)


def _count_stub_savings(counted_input: CountedInput, policy: Policy, message_counter: MessageCounter) -> dict[int, int]:
    """Tokens that a stub saves for each old tool output, by sequence number; recent messages are not touched."""
    old = min(len(counted_input.history), find_cut_keeping(counted_input.batches, policy.recent_messages_to_keep))
    saved_tokens: dict[int, int] = {}
    for rendered in flatten_batches(counted_input.history[:old]):
        if rendered.seq is not None and _is_large_output(rendered) and rendered.seq not in counted_input.truncations:
            stub = message_counter.render_message(excerpt_message(rendered.message, 0, seq=rendered.seq))
            saved_tokens[rendered.seq] = rendered.tokens - stub.tokens
    return saved_tokens


def _is_large_output(rendered: RenderedMessage) -> bool:
    return rendered.role == "tool" and rendered.tokens > MIN_STUBBED_OUTPUT_TOKENS


def _plan_cut(
    counted_input: CountedInput, budget: Budget, policy: Policy, saved_tokens: Mapping[int, int]
) -> CompactionPlan | None:
    strategy, batches = get_strategy(policy.strategy), counted_input.batches
    reduced = [_subtract_stubbed(batch, saved_tokens) for batch in batches]
    summary_tokens = 0 if counted_input.summary else SUMMARY_NOTE_TOKENS
    max_tokens = budget.target_tokens - counted_input.required_tokens - summary_tokens
    cut = _choose_cut(strategy, reduced, max_tokens=max_tokens, policy=policy)
    archived = _find_archived(counted_input, batches[:cut])
    limits = _limit_messages(counted_input.history[cut:], saved_tokens, max_tokens)
    if archived is None and not limits:
        return None
    covers = archived or counted_input.covers
    return CompactionPlan(
        covers=covers,
        truncations=_merge_truncations(counted_input, limits, covers),
        target_tokens=budget.target_tokens,
        needs_summary=strategy.summarizes and archived is not None,
    )


def _choose_cut(strategy: Strategy, batches: Sequence[MessageBatch], *, max_tokens: int, policy: Policy) -> int:
    legal_cuts = find_legal_cuts(batches, policy)
    cut = strategy.choose_cut(batches, legal_cuts=legal_cuts, max_tokens=max_tokens, policy=policy)
    if cut not in legal_cuts:
        raise IllegalCut(
            f"The strategy {strategy.name!r} chose the cut {cut}, but the legal cuts are {legal_cuts[0]} to "
            f"{legal_cuts[-1]}; its `choose_cut` must return one of `legal_cuts`."
        )
    return cut


def _find_archived(counted_input: CountedInput, cut_batches: Sequence[MessageBatch]) -> Span | None:
    """What the compaction covers if these batches are archived; None if nothing is added to the active one."""
    seqs = [seq for batch in cut_batches for seq in batch.seqs]
    if counted_input.not_loaded is not None:
        seqs.append(counted_input.not_loaded.last)
    return Span(first=min(counted_input.first_seq, *seqs), last=max(seqs)) if seqs else None


def _limit_messages(
    batches: Sequence[MessageBatch], saved_tokens: Mapping[int, int], max_tokens: int
) -> dict[int, int]:
    """Maximum characters of the messages after the cut that become stubs (0) or excerpts, by sequence number."""
    limits: dict[int, int] = {}
    for rendered in flatten_batches(batches):
        if rendered.seq is None:
            continue
        if rendered.seq in saved_tokens:
            limits[rendered.seq] = 0
        elif rendered.tokens > max(SUMMARY_NOTE_TOKENS, max_tokens // 2):
            limits[rendered.seq] = max(0, max_tokens)
    return limits


def _subtract_stubbed(batch: MessageBatch, saved_tokens: Mapping[int, int]) -> MessageBatch:
    saved = sum(saved_tokens.get(seq, 0) for seq in batch.seqs)
    return batch._replace(tokens=batch.tokens - saved) if saved else batch


def _merge_truncations(
    counted_input: CountedInput, limits: Mapping[int, int], covers: Span | None
) -> tuple[Truncation, ...]:
    """Adds new limits to the truncations of the active compaction, which stay unless their message is archived."""
    merged = {**counted_input.truncations, **limits}
    return tuple(
        Truncation(message=seq, max_chars=merged[seq]) for seq in sorted(merged) if covers is None or seq not in covers
    )
