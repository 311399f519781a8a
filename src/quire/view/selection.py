"""Selection of the content of a request: required content first, then the newest turn, then what fits.

A newest turn that exceeds the window is excerpted. If nothing readable would remain, the steps between its question
and its newest step are left out, and then some of the newest calls with their results.

Optional blocks are added by score up to their slot's limit. Documents may also use tokens that the whole history leaves
free below the trigger. History is added newest first and stops at the first batch that does not fit, so that it has no
gaps. Recalled messages use the tokens that remain.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from quire.errors import ContextOverflow
from quire.model.policy import Slot
from quire.view.batches import MessageBatch, flatten_batches, narrow_batch, sum_tokens
from quire.view.budget import Budget
from quire.view.counted_input import CountedBlock, CountedInput
from quire.view.excerpts import MIN_EXCERPT_CHARS, excerpt_message, find_largest_limit, measure_longest_text
from quire.view.recalled_messages import FittedCandidate, fit_candidates, render_fitted
from quire.view.rendered import MessageCounter, RenderedMessage

PINNED_SHARE = 0.5
"""Share of the tokens left by required content that pinned messages use, if the newest turn does not fit otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSelection:
    blocks: tuple[CountedBlock, ...]
    """In the order of the input."""
    pinned: tuple[MessageBatch, ...]
    """All pinned messages, unless the newest turn would not fit."""
    pinned_excerpt_chars: int | None
    """Maximum characters of each text of the pinned messages, if the newest turn would not fit."""
    history: tuple[MessageBatch, ...]
    omitted_history: tuple[MessageBatch, ...]
    newest: tuple[MessageBatch, ...]
    omitted_steps: tuple[MessageBatch, ...]
    """Steps of the newest turn between its question and its newest step, if they exceed the budget."""
    recalled: "RecalledBlock | None"
    excerpt_chars: int | None
    """Maximum characters of each text of the newest turn, if that turn alone exceeds the budget."""
    max_results: int | None
    """Number of results of the newest step that are included, if not all fit."""


class FittedTurn(NamedTuple):
    """The newest turn as far as it fits."""

    batches: tuple[MessageBatch, ...]
    omitted_steps: tuple[MessageBatch, ...] = ()
    excerpt_chars: int | None = None
    max_results: int | None = None


class RecalledBlock(NamedTuple):
    """Recalled messages, and the one rendered message that contains them."""

    candidates: tuple[FittedCandidate, ...]
    message: RenderedMessage


def select_content(counted_input: CountedInput, budget: Budget, message_counter: MessageCounter) -> ViewSelection:
    available = budget.max_input_tokens - counted_input.required_tokens
    pinned, pinned_limit = counted_input.pinned, None
    newest = _fit_newest_turn(counted_input, available, message_counter)
    if newest is None and pinned:
        available += sum_tokens(pinned)
        pinned, pinned_limit = _fit_pinned(pinned, int(available * PINNED_SHARE), message_counter)
        available -= sum_tokens(pinned)
        newest = _fit_newest_turn(counted_input, available, message_counter)
    if newest is None:
        raise ContextOverflow(
            needed_tokens=counted_input.required_tokens + counted_input.newest_tokens,
            available_tokens=budget.max_input_tokens,
            largest_items=counted_input.find_largest(),
        )
    available -= sum_tokens(newest.batches)
    blocks, block_tokens = _select_blocks(counted_input, available, budget)
    available -= block_tokens
    # The newest batches that fit.
    first = 0
    if counted_input.history_tokens <= available:
        available -= counted_input.history_tokens
    else:
        first = len(counted_input.history)
        while first > 0 and counted_input.history[first - 1].tokens <= available:
            first -= 1
            available -= counted_input.history[first].tokens
    recalled = select_recalled(counted_input, blocks, available, budget, message_counter)
    return ViewSelection(
        blocks=blocks,
        pinned=pinned,
        pinned_excerpt_chars=pinned_limit,
        history=counted_input.history[first:],
        omitted_history=counted_input.history[:first],
        newest=newest.batches,
        omitted_steps=newest.omitted_steps,
        recalled=recalled,
        excerpt_chars=newest.excerpt_chars,
        max_results=newest.max_results,
    )


def count_spare_tokens(counted_input: CountedInput, budget: Budget) -> int:
    """Tokens below the trigger that neither required content nor the whole history nor recall needs."""
    if budget.has_own_shares or counted_input.not_loaded is not None:
        return 0
    used = counted_input.required_tokens + counted_input.history_tokens + counted_input.newest_tokens
    if counted_input.compaction is not None:
        used += budget.recall_tokens
    return max(0, budget.trigger_tokens - used)


def _select_blocks(
    counted_input: CountedInput, available_tokens: int, budget: Budget
) -> tuple[tuple[CountedBlock, ...], int]:
    used: defaultdict[Slot, int] = defaultdict(int)
    for counted in counted_input.blocks:
        if counted.block.is_required:
            used[counted.block.slot] += counted.tokens
    optional = [counted for counted in counted_input.blocks if not counted.block.is_required]
    chosen: set[int] = set()
    taken, spare = 0, count_spare_tokens(counted_input, budget)
    for counted in sorted(optional, key=lambda each: -(each.block.score or 0)):
        slot = counted.block.slot
        fits_slot = used[slot] + counted.tokens <= budget.limit_for(slot)
        fits_spare = counted.block.uses_spare_tokens and taken + counted.tokens <= spare
        if (fits_slot or fits_spare) and taken + counted.tokens <= available_tokens:
            used[slot] += counted.tokens
            taken += counted.tokens
            chosen.add(id(counted))
    return tuple(each for each in counted_input.blocks if each.block.is_required or id(each) in chosen), taken


def select_recalled(
    counted_input: CountedInput,
    blocks: tuple[CountedBlock, ...],
    available_tokens: int,
    budget: Budget,
    message_counter: MessageCounter,
) -> RecalledBlock | None:
    """Fits recalled messages into the recall slot, after its blocks.

    They use only tokens below the trigger, so that what a compaction freed stays free. Inside a turn below the target,
    so that they do not bring the next compaction closer.
    """
    fixed = counted_input.fixed_recall
    if fixed is not None:
        rendered = message_counter.render_data(render_fitted(fixed)) if fixed else None
        return RecalledBlock(fixed, rendered) if rendered is not None and rendered.tokens <= available_tokens else None
    used = sum(counted.tokens for counted in blocks if counted.block.slot == "recall")
    max_tokens = min(available_tokens, budget.limit_for("recall") - used, budget.recall_tokens)
    limit = budget.target_tokens if counted_input.continues_turn else budget.trigger_tokens
    max_tokens = min(max_tokens, limit - (budget.max_input_tokens - available_tokens))
    fitted = fit_candidates(
        counted_input.recall_candidates, max_tokens=max_tokens, counter=message_counter.token_counter
    )
    while fitted:
        rendered = message_counter.render_data(render_fitted(fitted))
        if rendered.tokens <= max_tokens:
            return RecalledBlock(tuple(fitted), rendered)
        fitted.pop()
    return None


def _fit_pinned(
    pinned: tuple[MessageBatch, ...], max_tokens: int, message_counter: MessageCounter
) -> tuple[tuple[MessageBatch, ...], int | None]:
    """Pinned messages as excerpts of one length; without the largest ones if even that exceeds the tokens."""
    while pinned:
        limit = _find_excerpt_limit(pinned, max_tokens, message_counter)
        if limit is not None:
            return excerpt_batches(pinned, limit, message_counter), limit
        largest = max(pinned, key=lambda batch: batch.tokens)
        pinned = tuple(batch for batch in pinned if batch is not largest)
    return (), None


def _fit_newest_turn(
    counted_input: CountedInput, available_tokens: int, message_counter: MessageCounter
) -> FittedTurn | None:
    """The newest turn, reduced as little as possible, or None if not even its smallest form fits."""
    turn = counted_input.newest
    if counted_input.newest_tokens <= available_tokens:
        return FittedTurn(turn)
    limit = _find_excerpt_limit(turn, available_tokens, message_counter)
    newest = turn[-1]
    question = turn[:1] if len(turn) > 1 and turn[0].starts_with_user else ()
    omitted = turn[len(question) : -1]
    if omitted and (limit is None or limit < MIN_EXCERPT_CHARS):
        turn = (*question, newest)
        limit = _find_excerpt_limit(turn, available_tokens, message_counter)
    else:
        omitted = ()
    calls = len(newest.messages[0].call_ids)
    if calls > 1 and (limit is None or limit < MIN_EXCERPT_CHARS):
        for chars in (MIN_EXCERPT_CHARS, 0):
            *others, excerpt = excerpt_batches(turn, chars, message_counter)
            remaining = available_tokens - sum_tokens(others)
            # The largest number of results that fit, by bisection.
            low, high = 0, calls - 1
            while low < high:
                middle = (low + high + 1) // 2
                if narrow_batch(excerpt, middle, message_counter).tokens <= remaining:
                    low = middle
                else:
                    high = middle - 1
            if low:
                batches = (*others, narrow_batch(excerpt, low, message_counter))
                return FittedTurn(batches, omitted, excerpt_chars=chars, max_results=low)
    if limit is None:
        return None
    return FittedTurn(excerpt_batches(turn, limit, message_counter), omitted, excerpt_chars=limit)


def _find_excerpt_limit(
    batches: tuple[MessageBatch, ...], max_tokens: int, message_counter: MessageCounter
) -> int | None:
    """The largest number of characters of each text with which the batches fit, or None if they fit with none."""
    longest = max((measure_longest_text(each.message) for each in flatten_batches(batches)), default=0)
    return find_largest_limit(
        lambda limit: sum_tokens(excerpt_batches(batches, limit, message_counter)),
        max_chars=longest,
        max_tokens=max_tokens,
    )


def excerpt_batches(
    batches: tuple[MessageBatch, ...], max_chars: int, message_counter: MessageCounter
) -> tuple[MessageBatch, ...]:
    return tuple(
        MessageBatch.from_messages(
            *(
                message_counter.render_changed(each, excerpt_message(each.message, max_chars, seq=each.seq))
                for each in batch.messages
            )
        )
        for batch in batches
    )
