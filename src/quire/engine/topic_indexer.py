"""Writes topic indexes: what a model finds in archived messages, when no request waits.

After a compaction a background job reads the messages that no index covers yet, in batches, and appends one index for
each. A batch that the model cannot index is covered too, with the reasons, so that it is paid for once. If the model
cannot be reached, the job ends, and the next one continues there.
"""

from collections.abc import Sequence
from functools import partial

from quire.compaction.summarizer import Summarizer
from quire.compaction.summarizer_caller import SummarizerCaller
from quire.concurrency.worker_threads import measure_entries, run_portable
from quire.engine.message_index import index_messages
from quire.engine.spending import check_spend_cap
from quire.engine.state import EngineState
from quire.engine.summarizer_spending import load_summarizer, record_summarizer_cost, reserve_summarizer_spend
from quire.errors import ModelContextOverflow, SummaryFailed, SummaryFailureReason
from quire.model import Entry, Span, Topic, TopicIndex, Usage
from quire.model.entry_metadata import sum_usage
from quire.store import SqlStore
from quire.view.call_prices import Cost, sum_costs

MAX_ATTEMPTS = 2
"""Calls for one batch whose answers are no topics."""
MAX_FAILED_BATCHES = 3
"""Batches in a row without topics after which the job ends: the model may not be able to write them."""
MAX_BATCHES = 50
"""Batches of one job."""
MAX_HALVINGS = 4
"""How often a batch is halved because the provider rejects it as too long."""
READ_MESSAGES = 256
"""Messages that are read at once, from which a batch takes the first."""

TRANSIENT_FAILURES: frozenset[SummaryFailureReason] = frozenset({"rate_limited", "timed_out", "unavailable", "invalid"})
"""Failures that say nothing about the batch: the model could not be reached, or refused the key."""


def schedule_topics(engine: EngineState, conversation: str, branch: int) -> None:
    """Starts the background job for a branch, if the settings have it on."""
    if engine.config.has_topic_index:
        work = partial(index_topics, engine, conversation, branch)
        engine.runtime.jobs.enqueue("index_topics", conversation, branch, work)


async def find_unread(store: SqlStore, conversation: str, branch: int) -> Span | None:
    """The archived range of the branch after the last one that an index covers."""
    active = (await store.get_branch(conversation, branch)).state.active_compaction
    if active is None or active.covers is None:
        return None
    newest = await store.read_tail(conversation, 1, branch=branch, kinds=["topic_index"])
    first = active.covers.first
    for entry in newest:
        if isinstance(entry.body, TopicIndex):
            first = max(first, entry.body.covers.last + 1)
    return Span(first=first, last=active.covers.last) if first <= active.covers.last else None


async def index_topics(engine: EngineState, conversation: str, branch: int) -> int:
    """Indexes what no index covers yet, and returns the number of topics.

    Raises `SummaryFailed` if the model cannot be reached. What was indexed before stays.
    """
    summarizer = await load_summarizer(engine) if engine.config.has_topic_index else None
    unread = await find_unread(engine.store, conversation, branch) if summarizer is not None else None
    if summarizer is None or unread is None:
        return 0
    first, count, failed = unread.first, 0, 0
    try:
        for _ in range(MAX_BATCHES):
            read = await engine.store.read_range(
                conversation, branch=branch, first=first, last=unread.last, kinds=["message"], limit=READ_MESSAGES
            )
            if not read:
                break
            first = read[-1].seq + 1
            entries = [entry for entry in read if entry.purged_at is None and entry.role != "system"]
            if entries:
                index = await _write_index(engine, summarizer, conversation, entries)
                await _append(engine.store, conversation, branch, index, entries)
                first, count = index.covers.last + 1, count + len(index.topics)
                failed = failed + 1 if index.failures and not index.topics else 0
                if failed == MAX_FAILED_BATCHES:
                    break
    finally:
        if count:
            await index_messages(engine, conversations=[conversation])
    return count


async def _write_index(
    engine: EngineState, summarizer: Summarizer, conversation: str, entries: Sequence[Entry]
) -> TopicIndex:
    """The index of the first of these messages, under the spend caps. Its cost is recorded, whatever comes of it."""
    # Most commands index nothing, and the import takes long.
    from quire.compaction.topic_writer import BatchLimits, plan_batch, write_topics

    failures: list[SummaryFailureReason] = []
    usages: list[Usage] = []
    costs: list[Cost] = []
    topics, halvings, model = tuple[Topic, ...](), 0, summarizer.model.name
    size, counter = measure_entries(entries), summarizer.token_counter
    limits = BatchLimits.create(summarizer)
    max_tokens, answer_tokens = limits.message_tokens, limits.answer_tokens
    chunk = await run_portable(size, plan_batch, entries, max_tokens=max_tokens, counter=counter)
    while len(failures) < MAX_ATTEMPTS:
        await check_spend_cap(engine, conversation)
        caller = SummarizerCaller(summarizer)
        async with reserve_summarizer_spend(
            engine, conversation, input_tokens=chunk.tokens, output_tokens=answer_tokens
        ):
            try:
                topics = await write_topics(caller, chunk.messages, max_tokens=answer_tokens)
            except SummaryFailed as failure:
                if failure.reason in TRANSIENT_FAILURES:
                    raise
                failures.append(failure.reason)
            except ModelContextOverflow as exc:
                halvings += 1
                if halvings > MAX_HALVINGS:
                    raise SummaryFailed("overflow", str(exc)) from exc
                max_tokens = chunk.tokens // 2
                chunk = await run_portable(size, plan_batch, entries, max_tokens=max_tokens, counter=counter)
            else:
                break
            finally:
                if caller.usage is not None:
                    usages.append(caller.usage)
                    costs.append(await record_summarizer_cost(engine, conversation, caller.usage, model=model))
    cost = sum_costs(costs)
    return TopicIndex(
        covers=Span(first=entries[0].seq, last=chunk.messages[-1].seq),
        topics=topics,
        model=model,
        failures=tuple(failures) or None,
        usage=usages[0] if len(usages) == 1 else sum_usage(usages) if usages else None,
        cost_usd=cost.usd if costs else None,
        cost_incomplete=True if costs and not cost.is_complete else None,
    )


async def _append(store: SqlStore, conversation: str, branch: int, index: TopicIndex, entries: Sequence[Entry]) -> None:
    """Appends an index, and purges it if one of its messages was purged while the model read them."""
    [appended] = await store.append(conversation, index, branch=branch)
    read = [entry.seq for entry in entries if entry.seq in index.covers]
    if any(entry.purged_at is not None for entry in await store.get_entries(conversation, read, branch=branch)):
        await store.purge(conversation, [appended.seq], branch=branch)
