"""Carries a plan out: a summary by the model, or by extraction where that fails, and one entry in the log.

The log is changed by that one append alone. Until it, and if it is refused because another compaction came first,
log and view are what they were.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from quire.compaction.citations import cited
from quire.errors import StaleCompaction, SummaryFailed
from quire.llm import Model
from quire.log import Store, Window
from quire.model import Compaction, Draft, Entry, Policy, Usage
from quire.view.gather import summary_tokens
from quire.view.leaves import Meter
from quire.view.models import facts
from quire.view.plans import Plan

Trigger = Literal["threshold", "background", "manual", "overflow", "edit", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarizer:
    """The model that writes summaries, and the limits that hold for it."""

    model: Model
    window: int
    reserve: int = 0
    timeout: float | None = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A compaction to be made: of which window, after which plan, for which request."""

    window: Window
    plan: Plan
    policy: Policy
    wanted: int
    """The tokens of the request that it is made for."""
    fixed: int
    """Of these, the tokens before the first that it changes: what the provider's cache keeps."""
    trigger: Trigger
    instructions: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    text: str | None
    sources: tuple[int, ...] = ()
    model: str | None = None
    usage: Usage | None = None
    failures: tuple[str, ...] = ()


async def carry_out(
    store: Store,
    order: Order,
    *,
    meter: Meter,
    summarizer: Summarizer | None,
    failed: Callable[[SummaryFailed], None],
) -> Entry | None:
    """The compaction's entry; None if another came first."""
    written = await _summary(store, order, meter, summarizer, failed)
    compaction = _compaction(order, written, meter)
    branch = order.window.branch
    try:
        draft = Draft(body=compaction, tokens=summary_tokens(compaction, meter))
        [entry] = await store.append(branch.conversation, draft, branch=branch.number)
    except StaleCompaction:
        return None
    return entry


def summary_limit(plan: Plan) -> int:
    """A summary may take a quarter of what the request is brought down to."""
    return max(120, plan.target // 4)


async def _summary(
    store: Store, order: Order, meter: Meter, summarizer: Summarizer | None, failed: Callable[[SummaryFailed], None]
) -> _Written:
    previous = _previous(order.window)
    block = await _block(store, order) if order.plan.summarize else []
    if not block:
        return _Written(text=previous, sources=tuple(sorted(cited(previous or "", last=order.window.branch.head_seq))))
    limit = summary_limit(order.plan)
    failures: tuple[str, ...] = ()
    if summarizer is not None:
        from quire.compaction.summarize import summarize

        try:
            made = await summarize(
                summarizer.model,
                block,
                previous=previous,
                instructions=order.instructions,
                limit=limit,
                window=summarizer.window,
                reserve=summarizer.reserve,
                counter=meter.counter,
                timeout=summarizer.timeout,
            )
            return _Written(text=made.text, sources=made.sources, model=made.model, usage=made.usage)
        except SummaryFailed as failure:
            failed(failure)
            failures = (failure.reason,)
    from quire.compaction.extract import extractive_summary

    # In a thread: a long block takes a while, and the loop has other conversations to serve.
    text = await asyncio.to_thread(
        extractive_summary,
        block,
        previous=previous,
        limit=limit,
        counter=meter.counter,
        instructions=order.instructions,
    )
    sources = tuple(sorted(cited(text, last=order.window.branch.head_seq)))
    return _Written(text=text, sources=sources, failures=failures)


async def _block(store: Store, order: Order) -> list[Entry]:
    """The messages that the active compaction does not cover yet and the next one will."""
    covers, active = order.plan.covers, order.window.branch.state.active
    if covers is None:
        return []
    done = active.covers if active is not None else None
    first = covers.first if done is None or covers.first < done.first else done.last + 1
    branch = order.window.branch
    return await store.range(
        branch.conversation, branch=branch.number, first=first, last=covers.last, kinds=["message"]
    )


def _previous(window: Window) -> str | None:
    body = window.compaction.body if window.compaction is not None else None
    return body.summary if isinstance(body, Compaction) else None


def _compaction(order: Order, written: _Written, meter: Meter) -> Compaction:
    branch, plan = order.window.branch, order.plan
    summary = meter.counter.count(written.text) if written.text else 0
    after = max(0, order.wanted - plan.tokens + summary)
    price = facts(order.policy.model).input_price
    return Compaction(
        number=branch.state.compactions + 1,
        covers=plan.covers,
        summary=written.text,
        sources=written.sources,
        trigger=order.trigger,
        strategy=order.policy.strategy,
        model=written.model,
        tokens_before=order.wanted,
        tokens_after=after,
        supersedes=branch.state.active.seq if branch.state.active is not None else None,
        shortened=plan.shortened or None,
        instructions=order.instructions,
        failures=written.failures or None,
        invalidated=max(0, order.wanted - order.fixed),
        saves=None if price is None else round(float(price) * max(0, order.wanted - after) / 1_000_000, 6),
        usage=written.usage,
    )
