"""Selection of the content of a request: required content first, then the newest turn, then what fits.

Optional blocks are added by score up to their slot's limit. History is added newest first and stops at the first batch
that does not fit, so that it has no gaps. Recalled messages use the tokens that remain.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from quire.errors import ContextOverflow
from quire.model.policy import Slot
from quire.view.batches import MessageBatch, flatten_batches, sum_tokens
from quire.view.budget import Budget
from quire.view.counted_input import CountedBlock, CountedInput
from quire.view.excerpts import excerpt_message, find_largest_limit, measure_longest_text
from quire.view.recalled_messages import FittedCandidate, fit_candidates, render_fitted
from quire.view.rendered import MessageCounter, RenderedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSelection:
    blocks: tuple[CountedBlock, ...]
    """In the order of the input."""
    history: tuple[MessageBatch, ...]
    omitted_history: tuple[MessageBatch, ...]
    newest: tuple[MessageBatch, ...]
    recalled: "RecalledBlock | None"
    excerpt_chars: int | None
    """Maximum characters of each text of the newest turn, if that turn alone exceeds the budget."""


class RecalledBlock(NamedTuple):
    """Recalled messages, and the one rendered message that contains them."""

    candidates: tuple[FittedCandidate, ...]
    message: RenderedMessage


def select_content(counted_input: CountedInput, budget: Budget, message_counter: MessageCounter) -> ViewSelection:
    available = budget.max_input_tokens - counted_input.required_tokens
    newest, limit = _fit_newest_turn(counted_input, available, budget, message_counter)
    available -= sum_tokens(newest)
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
        history=counted_input.history[first:],
        omitted_history=counted_input.history[:first],
        newest=newest,
        recalled=recalled,
        excerpt_chars=limit,
    )


def _select_blocks(
    counted_input: CountedInput, available_tokens: int, budget: Budget
) -> tuple[tuple[CountedBlock, ...], int]:
    used: defaultdict[Slot, int] = defaultdict(int)
    for counted in counted_input.blocks:
        if counted.block.is_required:
            used[counted.block.slot] += counted.tokens
    optional = [counted for counted in counted_input.blocks if not counted.block.is_required]
    chosen: set[int] = set()
    taken = 0
    for counted in sorted(optional, key=lambda each: -(each.block.score or 0)):
        slot = counted.block.slot
        if used[slot] + counted.tokens <= budget.limit_for(slot) and taken + counted.tokens <= available_tokens:
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

    Inside a turn they use only tokens below the target, so that they do not bring the next compaction closer.
    """
    fixed = counted_input.fixed_recall
    if fixed is not None:
        rendered = message_counter.render_data(render_fitted(fixed)) if fixed else None
        return RecalledBlock(fixed, rendered) if rendered is not None and rendered.tokens <= available_tokens else None
    used = sum(counted.tokens for counted in blocks if counted.block.slot == "recall")
    max_tokens = min(available_tokens, budget.limit_for("recall") - used, budget.recall_tokens)
    if counted_input.continues_turn:
        max_tokens = min(max_tokens, budget.target_tokens - (budget.max_input_tokens - available_tokens))
    fitted = fit_candidates(
        counted_input.recall_candidates, max_tokens=max_tokens, counter=message_counter.token_counter
    )
    while fitted:
        rendered = message_counter.render_data(render_fitted(fitted))
        if rendered.tokens <= max_tokens:
            return RecalledBlock(tuple(fitted), rendered)
        fitted.pop()
    return None


def _fit_newest_turn(
    counted_input: CountedInput, available_tokens: int, budget: Budget, message_counter: MessageCounter
) -> tuple[tuple[MessageBatch, ...], int | None]:
    if counted_input.newest_tokens <= available_tokens:
        return counted_input.newest, None

    def tokens(limit: int) -> int:
        return sum_tokens(excerpt_batches(counted_input.newest, limit, message_counter))

    max_chars = max(measure_longest_text(rendered.message) for rendered in flatten_batches(counted_input.newest))
    limit = find_largest_limit(tokens, max_chars=max_chars, max_tokens=available_tokens)
    if limit is None:
        needed = counted_input.required_tokens + counted_input.newest_tokens
        raise ContextOverflow(
            needed_tokens=needed, available_tokens=budget.max_input_tokens, largest_items=counted_input.find_largest()
        )
    return excerpt_batches(counted_input.newest, limit, message_counter), limit


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
