"""Compaction plans: what to compact when a history exceeds the trigger. Pure.

First, tool results are cleared from the oldest on: each becomes a stub. If that is not enough, the strategy chooses a
cut point: messages before it are archived, except system messages of the application and messages of high priority,
which stay in the view, and for which the cut makes room. A cut inside the newest turn preserves the turn's question.
The newest results stay whole if they fit without the older messages. A plan changes nothing; the engine executes or
previews it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.errors import IllegalCut
from quire.model import Span, Truncation
from quire.model.policy import Policy
from quire.view.batches import MessageBatch, flatten_batches, list_seqs, sum_tokens
from quire.view.budget import Budget
from quire.view.counted_input import CountedInput
from quire.view.excerpts import (
    MIN_EXCERPT_CHARS,
    clear_message,
    excerpt_message,
    find_largest_limit,
    measure_longest_text,
)
from quire.view.rendered import MessageCounter, RenderedMessage
from quire.view.strategies import (
    Strategy,
    classify_batch,
    find_cut_keeping,
    find_legal_cuts,
    get_strategy,
    priority_shares_for,
    select_preserved,
)

SUMMARY_NOTE_TOKENS = 64
"""Tokens reserved for the first summary note, where there is no summary yet."""
MIN_SUMMARY_TOKENS = 120
"""Tokens that a summary may use in the smallest window."""
NEWEST_BATCH_SHARE = 0.5
"""Share of the tokens available for messages above which the newest step is most of the request."""
ENVIRONMENT_SHARE = 0.25
"""Share of the input tokens that system messages of the application may use after they are archived."""
FOLDED_TURN_SHARE = 0.5
"""Share of the tokens below the target that older steps may use after a cut inside a turn. A cut frees more than a
clearing, so that most compactions of a turn are clearings, which need no summary."""


def max_summary_tokens(target_tokens: int) -> int:
    """A summary may use a quarter of the target tokens."""
    return max(MIN_SUMMARY_TOKENS, target_tokens // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What the next compaction does. `covers` includes what the active compaction covers already."""

    covers: Span | None
    question: int | None
    """Number of the covered question that stays in the view, because the cut is inside its turn."""
    preserved: tuple[int, ...]
    """Numbers of the covered messages that stay in the view because of their priority."""
    truncations: tuple[Truncation, ...]
    cleared_through: int | None
    """Tool results up to this number are stubs."""
    cleared_results: int
    """Tool results that become stubs."""
    freed_tokens: int = 0
    """Tokens that the full history loses. A new summary is assumed to have the size of the one that it replaces."""
    target_tokens: int
    needs_summary: bool


class _ClearedResults(NamedTuple):
    through: int | None
    """Number of the last message of the last cleared batch."""
    results: int
    saved_tokens: int


_NOTHING_CLEARED = _ClearedResults(None, 0, 0)


def plan_compaction(
    counted_input: CountedInput,
    budget: Budget,
    *,
    policy: Policy,
    message_counter: MessageCounter,
    full_history_tokens: int,
) -> CompactionPlan | None:
    """None if nothing can be cleared, cut or truncated."""
    planner = _Planner(counted_input, budget, policy, message_counter)
    return planner.plan(full_history_tokens)


class _Planner:
    def __init__(
        self, counted_input: CountedInput, budget: Budget, policy: Policy, message_counter: MessageCounter
    ) -> None:
        self._input, self._budget, self._policy, self._counter = counted_input, budget, policy, message_counter
        self._excerpt_limits = self._limit_newest_batch()
        self._batches = [
            batch
            if self._excerpt_limits.keys().isdisjoint(batch.seqs)
            else MessageBatch.from_messages(
                *(
                    self._excerpt(each, self._excerpt_limits[each.seq]) if each.seq in self._excerpt_limits else each
                    for each in batch.messages
                )
            )
            for batch in counted_input.batches
        ]

    def plan(self, full_history_tokens: int) -> CompactionPlan | None:
        target, trigger = self._budget.target_tokens, self._budget.trigger_tokens
        tokens = full_history_tokens - sum_tokens(self._input.batches) + sum_tokens(self._batches)
        cleared = self._clear(self._batches, tokens - target)
        # Inside a turn a clearing is enough above the target, because a cut costs a summary and more of the cached
        # prefix, and the newest results are often most of the request.
        max_tokens = (target + trigger) // 2 if self._input.continues_turn else target
        available = self._budget.max_input_tokens - self._input.required_tokens
        if self._input.continues_turn and self._batches[-1].tokens > available * NEWEST_BATCH_SHARE:
            max_tokens = self._budget.max_input_tokens
        if self._input.not_loaded is None and tokens - cleared.saved_tokens <= max_tokens:
            return self._build_plan(None, None, (), cleared, self._excerpt_limits, needs_summary=False)
        return self._plan_cut()

    def _plan_cut(self) -> CompactionPlan | None:
        strategy = get_strategy(self._policy.strategy)
        summary_tokens = 0 if self._input.summary else SUMMARY_NOTE_TOKENS
        prioritized = self._select_prioritized()
        reserved_tokens = sum_tokens(prioritized.values())
        max_tokens = self._budget.target_tokens - self._required_tokens - summary_tokens
        # Prioritized batches are paid for on either side of the cut, so they cost nothing when it is chosen.
        reduced = [
            batch._replace(tokens=0) if prioritized.keys() & batch.seqs else self._reduce_batch(batch)
            for batch in self._batches
        ]
        cut = self._choose_cut(strategy, reduced, max_tokens - reserved_tokens)
        turn_start = len(self._input.history)
        # Low batches after a cut before the newest turn do not hold it back.
        last_cut = min(turn_start, find_legal_cuts(self._batches, self._policy)[-1])
        while 0 < cut < last_cut and classify_batch(self._batches[cut], self._input.priorities) == "low":
            cut += 1
        if cut > turn_start:
            # Chosen again, with tokens reserved for the turn's question and a summary of full size.
            summary, newest_tokens = self._input.summary, reduced[-1].tokens
            fixed_tokens = self._required_tokens - (summary.tokens if summary else 0) + reduced[turn_start].tokens
            fixed_tokens += max_summary_tokens(self._budget.target_tokens) + reserved_tokens
            available = self._budget.target_tokens - fixed_tokens - newest_tokens
            turn_tokens = newest_tokens + max(0, int(available * FOLDED_TURN_SHARE))
            cut = max(turn_start + 1, self._choose_cut(strategy, reduced, turn_tokens))
        # The question of the newest turn stays in the view if the cut is inside the turn.
        question = self._input.question if cut == 0 else None
        first = self._input.newest[0]
        if cut > turn_start and first.starts_with_user and first.seqs:
            question = first.seqs[0]
        archived = self._find_archived(self._input.batches[:cut], question)
        later = {seq for batch in self._batches[cut:] for seq in batch.seqs}
        preserved = [batch for number, batch in prioritized.items() if number not in later]
        max_tokens -= sum_tokens(preserved)
        rest = self._batches[cut:]
        question_tokens = sum(batch.tokens for batch in self._input.batches[:cut] if question in batch.seqs)
        cleared = self._clear(rest, question_tokens + sum_tokens(rest) - max_tokens)
        # Messages after the cut that are too large to preserve are excerpted.
        min_large_tokens = max(SUMMARY_NOTE_TOKENS, max_tokens // 2)
        limits = {
            each.seq: max(1, max_tokens)
            for each in flatten_batches(self._input.history[cut:])
            if each.seq is not None and each.tokens > min_large_tokens
        }
        limits |= self._excerpt_limits
        needs_summary = strategy.summarizes and archived is not None
        return self._build_plan(archived, question, list_seqs(preserved), cleared, limits, needs_summary=needs_summary)

    @property
    def _required_tokens(self) -> int:
        """Tokens that every request needs, without the messages that the active compaction preserves: each cut chooses
        them again."""
        return self._input.required_tokens - sum_tokens(self._input.preserved)

    def _select_prioritized(self) -> dict[int, MessageBatch]:
        """Batches that stay in the view because of their role or priority, wherever the cut is, by their first number.

        Prioritized ones use only tokens below the target that remain after a summary of full size and what stays in any
        case: the newest messages, the question and pinned messages. A truncated batch is too large to stay whole.
        """
        counted, target = self._input, self._budget.target_tokens
        environment = self._select_environment()
        shares = priority_shares_for(self._policy)
        if not counted.priorities or not shares:
            return environment
        last_cut, turn_start = find_legal_cuts(self._batches, self._policy)[-1], len(counted.history)
        summary_tokens = counted.summary.tokens if counted.summary is not None else 0
        max_tokens = target - max_summary_tokens(target) - self._required_tokens + summary_tokens
        max_tokens -= sum_tokens(environment.values())
        candidates = [batch for batch in counted.preserved if environment.keys().isdisjoint(batch.seqs)]
        for index, batch in enumerate(self._batches):
            if environment.keys() & batch.seqs:
                continue
            if index >= last_cut or index == turn_start or not counted.pins.isdisjoint(batch.seqs):
                max_tokens -= batch.tokens
            elif counted.truncations.keys().isdisjoint(batch.seqs):
                candidates.append(batch)
        selected = select_preserved(
            sorted(candidates, key=lambda batch: batch.seqs[:1]),
            counted.priorities,
            shares=shares,
            max_input_tokens=self._budget.max_input_tokens,
            max_tokens=max_tokens,
        )
        return environment | {batch.seqs[0]: batch for batch in selected}

    def _select_environment(self) -> dict[int, MessageBatch]:
        """System messages of the application by number, such as an agent's description of its environment.

        The oldest come first, so that each cut chooses the same ones again. A system message after results of tools is
        a reminder, and is archived with them.
        """
        max_tokens = int(self._budget.max_input_tokens * ENVIRONMENT_SHARE)
        environment: dict[int, MessageBatch] = {}
        for batch in (*self._input.preserved, *self._batches):
            is_own = batch.messages[0].role == "system" and bool(batch.seqs) and self._input.pins.isdisjoint(batch.seqs)
            if is_own and batch.tokens <= max_tokens:
                environment[batch.seqs[0]] = batch
                max_tokens -= batch.tokens
        return environment

    def _choose_cut(self, strategy: Strategy, batches: Sequence[MessageBatch], max_tokens: int) -> int:
        legal_cuts = find_legal_cuts(batches, self._policy)
        cut = strategy.choose_cut(batches, legal_cuts=legal_cuts, max_tokens=max_tokens, policy=self._policy)
        if cut not in legal_cuts:
            raise IllegalCut(
                f"The strategy {strategy.name!r} chose the cut {cut}, but the legal cuts are {legal_cuts[0]} to "
                f"{legal_cuts[-1]}; its `choose_cut` must return one of `legal_cuts`."
            )
        return cut

    def _find_archived(self, cut_batches: Sequence[MessageBatch], question: int | None) -> Span | None:
        """What the compaction covers if these batches are archived, or None if nothing is added to the active one."""
        covers, not_loaded = self._input.covers, self._input.not_loaded
        seqs = [seq for batch in cut_batches for seq in batch.seqs if seq != question]
        if not_loaded is not None:
            seqs.append(not_loaded.last)
        if not seqs:
            return None
        if question is not None:
            seqs.append(question)
        last = max([*seqs, covers.last] if covers is not None else seqs)
        return Span(first=min(self._input.first_seq, *seqs), last=last)

    def _limit_newest_batch(self) -> dict[int, int]:
        """Maximum characters of the newest tool results, by number, if they do not fit next to what every request has.

        The call is shortened with them where nothing of the results would remain.
        """
        batch = self._input.batches[-1]
        if not batch.messages[0].call_ids or not batch.seqs:
            return {}
        question = self._input.newest[0]
        max_tokens = self._budget.max_input_tokens - self._input.required_tokens
        max_tokens -= question.tokens if question.starts_with_user else 0
        if get_strategy(self._policy.strategy).summarizes:
            # A summary may be written, or grow.
            summary_tokens = self._input.summary.tokens if self._input.summary else 0
            max_tokens -= max(0, max_summary_tokens(self._budget.target_tokens) - summary_tokens)
        if batch.tokens <= max_tokens:
            return {}
        call, *results = batch.messages
        shortened, limit = results, self._find_limit(results, max_tokens - call.tokens)
        if limit < MIN_EXCERPT_CHARS:
            # With fewer characters than that the results are too many, and the selection includes some of them.
            shortened, limit = batch.messages, max(MIN_EXCERPT_CHARS, self._find_limit(batch.messages, max_tokens))
        truncations = self._input.truncations
        return {
            each.seq: limit
            for each in shortened
            if each.seq and measure_longest_text(each.message) > limit < truncations.get(each.seq, limit + 1)
        }

    def _find_limit(self, messages: Sequence[RenderedMessage], max_tokens: int) -> int:
        """The largest number of characters of each text with which the messages fit, or 0 if they do not."""
        longest = max(measure_longest_text(each.message) for each in messages)
        return (
            find_largest_limit(
                lambda limit: sum(self._excerpt(each, limit).tokens for each in messages),
                max_chars=longest,
                max_tokens=max_tokens,
            )
            or 0
        )

    def _excerpt(self, rendered: RenderedMessage, max_chars: int) -> RenderedMessage:
        excerpt = excerpt_message(rendered.message, max_chars, seq=rendered.seq)
        return self._counter.render_changed(rendered, excerpt)

    def _clear(self, batches: Sequence[MessageBatch], excess_tokens: int) -> _ClearedResults:
        """Clears batches from the oldest on until they have `excess_tokens` fewer tokens. The newest stay whole."""
        cleared = _NOTHING_CLEARED
        for batch in batches[: find_cut_keeping(batches, self._policy.min_recent_messages_to_keep)]:
            if cleared.saved_tokens >= excess_tokens:
                break
            reduced = self._reduce_batch(batch)
            if reduced.tokens < batch.tokens:
                pairs = zip(batch.messages, reduced.messages, strict=True)
                results = sum(old is not new and old.role == "tool" for old, new in pairs)
                saved_tokens = cleared.saved_tokens + batch.tokens - reduced.tokens
                cleared = _ClearedResults(max(batch.seqs), cleared.results + results, saved_tokens)
        return cleared

    def _reduce_batch(self, batch: MessageBatch) -> MessageBatch:
        """The batch with its tool results cleared. The newest batch, and messages that are cleared or pinned already,
        stay unchanged."""
        call = batch.messages[0]
        if not call.call_ids or not batch.seqs or batch.messages is self._batches[-1].messages:
            return batch
        calls, reductions, protected = call.message.tool_calls, self._input.reductions, self._input.protected
        messages = [
            each
            if each.seq is None or each.seq in protected or reductions.get(each.seq) == 0
            else self._counter.render_changed(each, clear_message(each.message, seq=each.seq, calls=calls))
            for each in batch.messages
        ]
        return MessageBatch.from_messages(*messages)

    def _build_plan(
        self,
        archived: Span | None,
        question: int | None,
        preserved: tuple[int, ...],
        cleared: _ClearedResults,
        limits: Mapping[int, int],
        *,
        needs_summary: bool,
    ) -> CompactionPlan | None:
        if archived is None and not limits and not cleared.results:
            return None
        covers = archived or self._input.covers
        cleared_through = max(self._input.cleared_through or 0, cleared.through or 0)
        # The truncations of the active compaction stay until their message is archived or cleared.
        calling = [batch for batch in self._input.batches if batch.messages[0].call_ids]
        cleared_seqs = {seq for batch in calling for seq in batch.seqs if seq <= cleared_through}
        max_chars = {**self._input.truncations, **limits}
        return CompactionPlan(
            covers=covers,
            question=question if archived is not None else self._input.question,
            preserved=preserved if archived is not None else list_seqs(self._input.preserved),
            truncations=tuple(
                Truncation(message=seq, max_chars=max_chars[seq])
                for seq in sorted(max_chars.keys() - cleared_seqs)
                if covers is None or seq not in covers
            ),
            cleared_through=cleared_through or None,
            cleared_results=cleared.results,
            target_tokens=self._budget.target_tokens,
            needs_summary=needs_summary,
        )
