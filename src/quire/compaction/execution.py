"""Executes a compaction plan: writes the summary and appends one entry to the log.

The model writes the summary. If that fails, the fallback extracts it. Single messages that are too large to stay whole
get summaries too, stored with their truncations, so that they replay: the view shows the beginning and the end of such
a message, and the summary between them. The single append is the only change to the log.
Optimistic concurrency: if another compaction was appended first, this one is refused and nothing changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

from quire.compaction.citations import find_cited_entries
from quire.compaction.summarizer import Summarizer
from quire.concurrency.worker_threads import measure_entries, run_in_worker, run_portable, run_sized
from quire.errors import StaleCompaction, SummaryFailed
from quire.log import Window
from quire.model import Compaction, Draft, Entry, Policy, Truncation, Usage
from quire.model.entry_metadata import sum_usage
from quire.store import SqlStore
from quire.view.call_prices import Cost, sum_costs
from quire.view.compaction_plan import CompactionPlan, max_summary_tokens
from quire.view.counted_input import count_summary
from quire.view.excerpts import measure_longest_text
from quire.view.rendered import MessageCounter
from quire.view.strategies import get_strategy
from quire.wire.tokens import TokenCounter

if TYPE_CHECKING:
    from quire.compaction.model_summary import ModelSummary

SHORT_SUMMARY_TOKENS = 300
"""Tokens of the short level of a summary. A summary of up to twice as many has no short level."""
MAX_MESSAGE_SUMMARIES = 4
"""Messages that one compaction summarizes. The others are excerpted."""
MIN_SUMMARIZED_CHARS = 400
"""Limit in characters below which a message is excerpted: there is no room for a summary."""
SUMMARY_CHARS_SHARE = 0.5
"""Share of a truncated message that its summary may use."""
CHARS_PER_TOKEN = 4
"""Estimate of the characters in one token of a summary."""

_MESSAGE_PROMPT = """\
You summarize one long message of a conversation. The model that continues it sees your summary between the beginning \
and the end of the message. Say what the message contains and what it asks for, in the order of the message: names, \
numbers, dates, paths, commands and errors verbatim."""

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
    compute_cost: Callable[[Usage, str | None], Cost]
    """Cost of a call for a summary by its usage and model."""
    billed: tuple[tuple[Usage, str | None], ...] = ()
    """Usage and model of calls that were made for the compaction before it."""
    instructions: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenSummary:
    text: str | None
    sources: tuple[int, ...] = ()
    model: str | None = None
    usage: Usage | None = None
    failures: tuple[str, ...] = ()


async def execute_compaction(
    store: SqlStore,
    job: CompactionJob,
    *,
    message_counter: MessageCounter,
    summarizer: Summarizer | None,
    on_failure: Callable[[SummaryFailed], None],
    on_usage: Callable[[Usage, str | None], None],
) -> Entry | None:
    """Appends the compaction and returns its entry, or None if another compaction was first, or if a manual one would
    free nothing because its summary is as long as what it replaces.

    `on_usage` gets the tokens and the model of a written summary, which are billed in both cases. The entry has the
    cost of all attempts.
    """
    billed = [*job.billed]

    def add_usage(usage: Usage, model: str | None) -> None:
        billed.append((usage, model))
        on_usage(usage, model)

    def add_failure(failure: SummaryFailed) -> None:
        if failure.input_tokens or failure.output_tokens:
            usage = Usage(input_tokens=failure.input_tokens, output_tokens=failure.output_tokens)
            billed.append((usage, summarizer.model.name if summarizer is not None else None))
        on_failure(failure)

    written = await _write_summary(store, job, message_counter, summarizer, add_failure)
    if written.usage is not None:
        add_usage(written.usage, written.model)
    counter, active = message_counter.token_counter, _active_compaction(job.window)
    # The active compaction may have summaries of the same messages at the same length.
    known = {(each.message, each.max_chars): each for each in (active and active.truncations) or ()}
    truncations = tuple(known.get((each.message, each.max_chars), each) for each in job.plan.truncations)
    if summarizer is not None and truncations and get_strategy(job.policy.strategy).summarizes:
        messages = await summarize_messages(
            truncations, job.window.messages, summarizer=summarizer, counter=counter, on_failure=add_failure
        )
        truncations = messages.truncations
        for usage, model in messages.usages:
            add_usage(usage, model)
    short = None
    if active is not None and active.summary == written.text:
        short = active.short_summary
    elif written.text is not None:
        from quire.compaction.extractive_summary import shorten_summary

        short = await run_in_worker(shorten_summary, written.text, max_tokens=SHORT_SUMMARY_TOKENS, counter=counter)
    compaction = await run_sized(
        measure_entries(job.window.messages), _build_compaction, job, written, truncations, short, billed
    )
    is_loaded = job.window.not_loaded is None
    if job.trigger == "manual" and is_loaded and compaction.tokens_after >= compaction.tokens_before:
        return None
    branch = job.window.branch
    try:
        draft = Draft(body=compaction, tokens=count_summary(compaction, message_counter))
        [entry] = await store.append(branch.conversation, draft, branch=branch.number)
    except StaleCompaction:
        return None
    return entry


async def _write_summary(
    store: SqlStore,
    job: CompactionJob,
    message_counter: MessageCounter,
    summarizer: Summarizer | None,
    on_failure: Callable[[SummaryFailed], None],
) -> _WrittenSummary:
    active, covers, branch = _active_compaction(job.window), job.plan.covers, job.window.branch
    previous = active.summary if active is not None else None
    entries: list[Entry] = []
    if job.plan.needs_summary and covers is not None:
        # Messages that the plan covers and the active compaction does not.
        head = branch.state.active_compaction
        covered = head.covers if head is not None else None
        first = covers.first if covered is None or covers.first < covered.first else covered.last + 1
        entries = await store.read_range(
            branch.conversation, branch=branch.number, first=first, last=covers.last, kinds=["message"]
        )
    if not entries:
        return _WrittenSummary(
            text=previous,
            sources=tuple(sorted(find_cited_entries(previous or "", last_entry=branch.head_seq))),
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

    text = await run_portable(
        measure_entries(entries),
        extract_summary,
        entries,
        previous=previous,
        max_tokens=max_tokens,
        counter=message_counter.token_counter,
        instructions=job.instructions,
    )
    sources = tuple(sorted(find_cited_entries(text, last_entry=branch.head_seq)))
    return _WrittenSummary(text=text, sources=sources, failures=failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSummaries:
    """Truncations with their summaries, and what these cost."""

    truncations: tuple[Truncation, ...]
    written: "tuple[ModelSummary, ...]" = ()

    @property
    def usages(self) -> list[tuple[Usage, str]]:
        return [(each.usage, each.model) for each in self.written if each.usage is not None]


async def summarize_messages(
    truncations: Sequence[Truncation],
    entries: Sequence[Entry],
    *,
    summarizer: Summarizer,
    counter: TokenCounter,
    on_failure: Callable[[SummaryFailed], None],
) -> MessageSummaries:
    """Adds a summary to each truncation of a message of the user or the assistant. `entries` are their messages.

    Tool results are excerpted: a tool can be called again, and the model can read them by number.
    """
    # Most commands summarize nothing, and the import takes long.
    from quire.compaction.model_summary import summarize

    by_seq = {entry.seq: entry for entry in entries}
    finished: list[Truncation] = []
    written: list[ModelSummary] = []
    for truncation in truncations:
        entry = by_seq.get(truncation.message)
        if (
            entry is None
            or entry.kind != "message"
            or entry.role not in ("user", "assistant")
            or truncation.summary is not None
            or len(written) >= MAX_MESSAGE_SUMMARIES
            or truncation.max_chars < MIN_SUMMARIZED_CHARS
            or truncation.max_chars >= await run_portable(len(entry.raw), _measure_entry, entry)
        ):
            finished.append(truncation)
            continue
        try:
            summary = await summarize(
                replace(summarizer, prompt=_MESSAGE_PROMPT),
                [entry],
                previous=None,
                instructions=None,
                target_tokens=int(truncation.max_chars * SUMMARY_CHARS_SHARE) // CHARS_PER_TOKEN,
                counter=counter,
            )
        except SummaryFailed as failure:
            on_failure(failure)
            finished.append(truncation)
            continue
        written.append(summary)
        fits = len(summary.text) <= truncation.max_chars * SUMMARY_CHARS_SHARE * 1.5
        finished.append(truncation.model_copy(update={"summary": summary.text}) if fits else truncation)
    return MessageSummaries(truncations=tuple(finished), written=tuple(written))


def _measure_entry(entry: Entry) -> int:
    return measure_longest_text(entry.message)


def _active_compaction(window: Window) -> Compaction | None:
    body = window.compaction.body if window.compaction is not None else None
    return body if isinstance(body, Compaction) else None


def _build_compaction(
    job: CompactionJob,
    written: _WrittenSummary,
    truncations: tuple[Truncation, ...],
    short_summary: str | None,
    billed: Sequence[tuple[Usage, str | None]],
) -> Compaction:
    branch, plan = job.window.branch, job.plan
    usages, cost = [usage for usage, _ in billed], sum_costs(job.compute_cost(*each) for each in billed)
    compaction = Compaction(
        number=branch.state.compaction_count + 1,
        covers=plan.covers,
        question=plan.question,
        preserved=plan.preserved or None,
        summary=written.text,
        short_summary=short_summary,
        sources=written.sources,
        trigger=job.trigger,
        strategy=job.policy.strategy,
        model=written.model,
        tokens_before=job.full_history_tokens,
        supersedes=branch.state.active_compaction.seq if branch.state.active_compaction is not None else None,
        truncations=truncations or None,
        cleared_through=plan.cleared_through,
        cleared_results=plan.cleared_results or None,
        instructions=job.instructions,
        failures=written.failures or None,
        invalidated_tokens=max(0, job.full_history_tokens - job.prefix_tokens),
        usage=usages[0] if len(usages) == 1 else sum_usage(usages) if usages else None,
        cost_usd=cost.usd if billed else None,
        cost_incomplete=None if cost.is_complete else True,
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
