"""Executes a compaction plan: writes the summary and appends one entry to the log.

The model writes the summary; if that fails, the fallback extracts it. The single append is the only change to the log.
Optimistic concurrency: if another compaction was appended first, this one is refused and nothing changes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from quire.compaction.citations import find_cited_entries
from quire.errors import StaleCompaction, SummaryFailed
from quire.llm import Model
from quire.log import LogStore, Window
from quire.model import Compaction, Draft, Entry, Policy, Usage
from quire.view.compaction_plan import CompactionPlan
from quire.view.counted_input import count_summary
from quire.view.model_specs import model_spec_for
from quire.view.rendered import MessageCounter

MIN_SUMMARY_TOKENS = 120
"""Tokens that a summary may use in the smallest window."""

CompactionTrigger = Literal["threshold", "background", "manual", "overflow", "edit", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarizer:
    """The model that writes summaries, and its limits. `timeout` is in seconds, for each call."""

    model: Model
    window: int
    reserved_tokens: int = 0
    timeout: float | None = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob:
    """A compaction to execute: its window, plan and policy, and the size of the request that it is for."""

    window: Window
    plan: CompactionPlan
    policy: Policy
    full_history_tokens: int
    """Tokens of the request with its whole history."""
    prefix_tokens: int
    """Tokens of the unchanged prefix, which stay in the provider's prompt cache."""
    count_after: Callable[[Compaction], int]
    """Counts the same request with a compaction applied."""
    trigger: CompactionTrigger
    instructions: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenSummary:
    text: str | None
    sources: tuple[int, ...] = ()
    model: str | None = None
    usage: Usage | None = None
    failures: tuple[str, ...] = ()


async def execute_compaction(
    store: LogStore,
    job: CompactionJob,
    *,
    message_counter: MessageCounter,
    summarizer: Summarizer | None,
    on_failure: Callable[[SummaryFailed], None],
    on_usage: Callable[[Usage, str | None], None],
) -> Entry | None:
    """Appends the compaction and returns its entry; None if another compaction was first.

    `on_usage` gets the tokens and the model of a written summary, which are billed in both cases.
    """
    written = await _write_summary(store, job, message_counter, summarizer, on_failure)
    if written.usage is not None:
        on_usage(written.usage, written.model)
    compaction = _build_compaction(job, written)
    branch = job.window.branch
    try:
        draft = Draft(body=compaction, tokens=count_summary(compaction, message_counter))
        [entry] = await store.append(branch.conversation, draft, branch=branch.number)
    except StaleCompaction:
        return None
    return entry


def max_summary_tokens(target_tokens: int) -> int:
    """A summary may use a quarter of the target tokens."""
    return max(MIN_SUMMARY_TOKENS, target_tokens // 4)


async def _write_summary(
    store: LogStore,
    job: CompactionJob,
    message_counter: MessageCounter,
    summarizer: Summarizer | None,
    on_failure: Callable[[SummaryFailed], None],
) -> _WrittenSummary:
    previous = _previous_summary(job.window)
    entries = await _load_messages(store, job) if job.plan.needs_summary else []
    if not entries:
        return _WrittenSummary(
            text=previous,
            sources=tuple(sorted(find_cited_entries(previous or "", last_entry=job.window.branch.head_seq))),
        )
    max_tokens = max_summary_tokens(job.plan.target_tokens)
    failures: tuple[str, ...] = ()
    if summarizer is not None:
        from quire.compaction.model_summary import summarize

        try:
            summary = await summarize(
                summarizer.model,
                entries,
                previous=previous,
                instructions=job.instructions,
                target_tokens=max_tokens,
                window=summarizer.window,
                reserved_tokens=summarizer.reserved_tokens,
                counter=message_counter.token_counter,
                timeout=summarizer.timeout,
            )
            return _WrittenSummary(text=summary.text, sources=summary.sources, model=summary.model, usage=summary.usage)
        except SummaryFailed as failure:
            on_failure(failure)
            failures = (failure.reason,)
    from quire.compaction.extractive_summary import extract_summary

    # In a thread: extraction from many messages takes long enough to block the event loop.
    text = await asyncio.to_thread(
        extract_summary,
        entries,
        previous=previous,
        max_tokens=max_tokens,
        counter=message_counter.token_counter,
        instructions=job.instructions,
    )
    sources = tuple(sorted(find_cited_entries(text, last_entry=job.window.branch.head_seq)))
    return _WrittenSummary(text=text, sources=sources, failures=failures)


async def _load_messages(store: LogStore, job: CompactionJob) -> list[Entry]:
    """Messages that the plan covers and the active compaction does not."""
    covers, active = job.plan.covers, job.window.branch.state.active_compaction
    if covers is None:
        return []
    covered = active.covers if active is not None else None
    first = covers.first if covered is None or covers.first < covered.first else covered.last + 1
    branch = job.window.branch
    return await store.read_range(
        branch.conversation, branch=branch.number, first=first, last=covers.last, kinds=["message"]
    )


def _previous_summary(window: Window) -> str | None:
    body = window.compaction.body if window.compaction is not None else None
    return body.summary if isinstance(body, Compaction) else None


def _build_compaction(job: CompactionJob, written_summary: _WrittenSummary) -> Compaction:
    branch, plan = job.window.branch, job.plan
    compaction = Compaction(
        number=branch.state.compaction_count + 1,
        covers=plan.covers,
        summary=written_summary.text,
        sources=written_summary.sources,
        trigger=job.trigger,
        strategy=job.policy.strategy,
        model=written_summary.model,
        tokens_before=job.full_history_tokens,
        supersedes=branch.state.active_compaction.seq if branch.state.active_compaction is not None else None,
        truncations=plan.truncations or None,
        instructions=job.instructions,
        failures=written_summary.failures or None,
        invalidated_tokens=max(0, job.full_history_tokens - job.prefix_tokens),
        usage=written_summary.usage,
    )
    tokens_after = job.count_after(compaction)
    price = model_spec_for(job.policy.model).input_price
    savings = None if price is None else float(price) * max(0, job.full_history_tokens - tokens_after) / 1_000_000
    return compaction.model_copy(
        update={
            "tokens_after": tokens_after,
            "savings_per_request": None if savings is None else round(savings, 6),
        }
    )
