"""Executes a compaction plan: writes the summary and appends one entry to the log.

The model writes the summary; if that fails, the fallback extracts it. The single append is the only change to the log.
Optimistic concurrency: if another compaction was appended first, this one is refused and nothing changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from quire.compaction.citations import find_cited_entries
from quire.compaction.message_summaries import MessageSummaries, carry_summaries, summarize_messages
from quire.compaction.summarizer import Summarizer
from quire.errors import StaleCompaction, SummaryFailed
from quire.log import LogStore, Window
from quire.log.worker_threads import run_in_worker
from quire.model import Compaction, Draft, Entry, Policy, Truncation, Usage
from quire.view.compaction_plan import CompactionPlan, max_summary_tokens
from quire.view.counted_input import count_summary
from quire.view.rendered import MessageCounter
from quire.view.strategies import get_strategy
from quire.view.tokens import TokenCounter

SHORT_SUMMARY_TOKENS = 300
"""Tokens of the short level of a summary. A summary of up to twice as many has no short level."""

CompactionTrigger = Literal["threshold", "background", "manual", "overflow", "edit", "model"]


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
    input_price: Decimal | None = None
    """US dollars per million input tokens of the model that answers."""
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
    messages = await _summarize_large_messages(job, message_counter, summarizer, on_failure)
    for usage, model in messages.usages:
        on_usage(usage, model)
    active = _active_compaction(job.window)
    if active is not None and active.summary == written.text:
        short = active.short_summary
    else:
        short = await run_in_worker(_shorten_summary, written.text, message_counter.token_counter)
    compaction = _build_compaction(job, written, messages.truncations, short)
    branch = job.window.branch
    try:
        draft = Draft(body=compaction, tokens=count_summary(compaction, message_counter))
        [entry] = await store.append(branch.conversation, draft, branch=branch.number)
    except StaleCompaction:
        return None
    return entry


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
                summarizer,
                entries,
                previous=previous,
                instructions=job.instructions,
                target_tokens=max_tokens,
                counter=message_counter.token_counter,
            )
            return _WrittenSummary(text=summary.text, sources=summary.sources, model=summary.model, usage=summary.usage)
        except SummaryFailed as failure:
            on_failure(failure)
            failures = (failure.reason,)
    from quire.compaction.extractive_summary import extract_summary

    # In a thread: extraction from many messages takes long enough to block the event loop.
    text = await run_in_worker(
        extract_summary,
        entries,
        previous=previous,
        max_tokens=max_tokens,
        counter=message_counter.token_counter,
        instructions=job.instructions,
    )
    sources = tuple(sorted(find_cited_entries(text, last_entry=job.window.branch.head_seq)))
    return _WrittenSummary(text=text, sources=sources, failures=failures)


async def _summarize_large_messages(
    job: CompactionJob,
    message_counter: MessageCounter,
    summarizer: Summarizer | None,
    on_failure: Callable[[SummaryFailed], None],
) -> MessageSummaries:
    """Adds summaries to the plan's truncations, where the strategy and a model allow it."""
    active = _active_compaction(job.window)
    truncations = carry_summaries(job.plan.truncations, active.truncations if active is not None else None)
    if summarizer is None or not truncations or not get_strategy(job.policy.strategy).summarizes:
        return MessageSummaries(truncations=truncations)
    return await summarize_messages(
        truncations,
        job.window.messages,
        summarizer=summarizer,
        counter=message_counter.token_counter,
        on_failure=on_failure,
    )


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


def _shorten_summary(summary: str | None, counter: TokenCounter) -> str | None:
    """The short level of a summary; None if the summary is short itself."""
    from quire.compaction.extractive_summary import shorten_summary

    if summary is None or counter.count(summary) <= 2 * SHORT_SUMMARY_TOKENS:
        return None
    return shorten_summary(summary, max_tokens=SHORT_SUMMARY_TOKENS, counter=counter) or None


def _active_compaction(window: Window) -> Compaction | None:
    body = window.compaction.body if window.compaction is not None else None
    return body if isinstance(body, Compaction) else None


def _previous_summary(window: Window) -> str | None:
    active = _active_compaction(window)
    return active.summary if active is not None else None


def _build_compaction(
    job: CompactionJob,
    written_summary: _WrittenSummary,
    truncations: tuple[Truncation, ...],
    short_summary: str | None,
) -> Compaction:
    branch, plan = job.window.branch, job.plan
    compaction = Compaction(
        number=branch.state.compaction_count + 1,
        covers=plan.covers,
        question=plan.question,
        preserved=plan.preserved or None,
        summary=written_summary.text,
        short_summary=short_summary,
        sources=written_summary.sources,
        trigger=job.trigger,
        strategy=job.policy.strategy,
        model=written_summary.model,
        tokens_before=job.full_history_tokens,
        supersedes=branch.state.active_compaction.seq if branch.state.active_compaction is not None else None,
        truncations=truncations or None,
        cleared_through=plan.cleared_through,
        cleared_results=plan.cleared_results or None,
        instructions=job.instructions,
        failures=written_summary.failures or None,
        invalidated_tokens=max(0, job.full_history_tokens - job.prefix_tokens),
        usage=written_summary.usage,
    )
    tokens_after = job.count_after(compaction)
    price = job.input_price
    savings = None if price is None else float(price) * max(0, job.full_history_tokens - tokens_after) / 1_000_000
    return compaction.model_copy(
        update={
            "tokens_after": tokens_after,
            "savings_per_request": None if savings is None else round(savings, 6),
        }
    )
