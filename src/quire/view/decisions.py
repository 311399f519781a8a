"""Decision rows of a manifest: one per candidate, by section of the layout. Adjacent messages with the same key share a
row."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

from quire.model import Span
from quire.model.manifest import Decision, DecisionReason
from quire.model.policy import Slot
from quire.view.batches import MessageBatch
from quire.view.counted_input import CountedInput
from quire.view.inputs import ViewInput, hash_text
from quire.view.layout import SECTIONS, RequestSection
from quire.view.recalled_messages import RecallCandidate
from quire.view.rendered import RenderedMessage
from quire.view.selection import ViewSelection

MAX_CACHED_ROWS = 10_000
"""Rows of excluded messages in the LRU cache: the requests of a conversation have many of them in common."""
_PENDING_SEQ = 2**62
"""Sort key of pending messages, which are not in the log yet: after every stored message."""


class _RowKey(NamedTuple):
    slot: Slot
    reason: DecisionReason
    included: bool = True
    excerpt_chars: int | None = None
    turn_excerpt_chars: int | None = None
    max_results: int | None = None
    summarized_by: int | None = None
    pending: bool | None = None


def build_decisions(
    view_input: ViewInput, counted_input: CountedInput, selection: ViewSelection
) -> tuple[Decision, ...]:
    """One row per candidate, by section. The loaded messages of history and newest turn are one run in log order."""
    question = {counted_input.question} if counted_input.question is not None else set[int]()
    # Archived messages that have separate rows, because they stay in the view or are recall candidates.
    separate = {seq for batch in counted_input.pinned for seq in batch.seqs} | question
    separate |= {candidate.entry.seq for candidate in counted_input.recall_candidates}
    summary, compaction = counted_input.summary, counted_input.compaction
    summary_rows: list[Decision] = []
    if summary is not None and compaction is not None:
        summary_rows.append(
            Decision(
                slot="summary",
                kind="summary",
                included=True,
                reason="summary",
                tokens=summary.tokens,
                span=Span(first=compaction.seq, last=compaction.seq),
                summary_level=counted_input.summary_level,
            )
        )
    rows: dict[RequestSection, Iterable[Decision]] = {
        "system": _decide_blocks(counted_input, selection, "system"),
        "tools": [
            Decision(
                slot="tools",
                kind="tool",
                included=True,
                reason=reason,
                tokens=tokens,
                name=tool.name,
                blob=hash_text(tool.canonical_json()),
                score=score,
            )
            for (tool, reason, score), tokens in counted_input.tools
        ],
        "memory": _decide_blocks(counted_input, selection, "memory"),
        "references": _decide_blocks(counted_input, selection, "references"),
        "pinned": _decide_pinned(counted_input, selection),
        "summary": summary_rows,
        "history": (
            *_exclude_messages(counted_input.covers, "archived", except_for=separate),
            *_exclude_messages(counted_input.not_loaded, "over_budget", except_for=question),
        ),
        "recall": (*_decide_blocks(counted_input, selection, "recall"), *_decide_recalled(counted_input, selection)),
        "newest": _split_document_rows(_decide_messages(view_input, counted_input, selection), view_input),
    }
    decisions = (*chain.from_iterable(rows[section] for section in SECTIONS), *view_input.earlier_decisions)
    if not view_input.learned:
        return decisions
    return tuple(
        row
        if (rank := view_input.learned.get((row.kind, row.name or ""))) is None or row.score is None
        else row.model_copy(update={"learned": rank})
        for row in decisions
    )


def set_pending_span(decisions: Iterable[Decision], span: Span) -> tuple[Decision, ...]:
    """Sets the entry numbers of rows that were pending when the request was made. A row may start before them."""
    return tuple(
        row.model_copy(update={"span": Span(first=row.span.first if row.span else span.first, last=span.last)})
        if row.pending
        else row
        for row in decisions
    )


def sum_tokens_by_slot(decisions: Iterable[Decision], *, total_tokens: int) -> dict[Slot, int]:
    """Tokens of each slot; they add up to the request's total.

    The newest turn carries the tokens that belong to no candidate: they prime the reply, or are of a response format.
    """
    used: defaultdict[Slot, int] = defaultdict(int)
    for decision in decisions:
        if decision.included:
            used[decision.slot] += decision.tokens
    used["newest"] += total_tokens - sum(used.values())
    return used


def _decide_blocks(counted_input: CountedInput, selection: ViewSelection, slot: Slot) -> Iterator[Decision]:
    chosen = {id(counted) for counted in selection.blocks}
    for counted in counted_input.blocks:
        block = counted.block
        if block.slot == slot:
            included = id(counted) in chosen
            yield Decision(
                slot=slot,
                kind=block.kind,
                included=included,
                reason=block.reason if included else "over_budget",
                tokens=counted.tokens,
                name=block.name,
                blob=block.blob,
                score=block.score,
                excerpt_chars=block.excerpt_chars,
            )


def _decide_recalled(counted_input: CountedInput, selection: ViewSelection) -> Iterator[Decision]:
    """Recalled messages in log order. Then the candidates that did not fit, best first."""
    included = selection.recalled.candidates if selection.recalled is not None else ()
    overhead = (
        selection.recalled.message.tokens - sum(fitted.tokens for fitted in included) if selection.recalled else 0
    )
    for index, fitted in enumerate(sorted(included, key=lambda fitted: fitted.candidate.entry.seq)):
        yield _recall_decision(fitted.candidate, included=True, tokens=fitted.tokens + (overhead if index == 0 else 0))
    taken = {fitted.candidate.entry.seq for fitted in included}
    for candidate in counted_input.recall_candidates:
        if candidate.entry.seq not in taken:
            yield _recall_decision(candidate, included=False, tokens=0)


def _recall_decision(candidate: RecallCandidate, *, included: bool, tokens: int) -> Decision:
    seq = candidate.entry.seq
    return Decision(
        slot="recall",
        kind="message",
        included=included,
        reason="recalled" if included else "over_budget",
        tokens=tokens,
        span=Span(first=seq, last=seq),
        score=candidate.score,
        excerpt_spans=candidate.excerpt_ranges if included else None,
    )


def _exclude_messages(span: Span | None, reason: DecisionReason, *, except_for: Collection[int]) -> Iterator[Decision]:
    """Rows of the messages in a range, except those with separate rows."""
    if span is None:
        return
    start, last = span.first, span.last
    for seq in [*sorted(seq for seq in except_for if start <= seq <= last), last + 1]:
        if start < seq:
            yield _exclude_range(start, seq - 1, reason)
        start = seq + 1


@lru_cache(maxsize=MAX_CACHED_ROWS)
def _exclude_range(first: int, last: int, reason: DecisionReason) -> Decision:
    span = Span(first=first, last=last)
    return Decision(slot="messages", kind="message", included=False, reason=reason, span=span)


def _decide_messages(
    view_input: ViewInput, counted_input: CountedInput, selection: ViewSelection
) -> Iterator[Decision]:
    """Rows of all loaded messages in log order, then of pending messages."""
    newest = _RowKey("newest", "newest")
    if selection.excerpt_chars is not None:
        newest = _RowKey(
            "newest", "excerpted", turn_excerpt_chars=selection.excerpt_chars, max_results=selection.max_results
        )
    over_budget = _RowKey("messages", "over_budget", included=False)
    # Results of the newest step that are left out, and are in the log already.
    included = {each.seq for each in selection.newest[-1].messages}
    omitted_results = [
        (each.seq, each, over_budget)
        for each in counted_input.newest[-1].messages
        if each.seq is not None and each.seq not in included
    ]
    keyed = [
        *_key_batches((*selection.omitted_history, *selection.omitted_steps), over_budget),
        *omitted_results,
        *(
            (rendered.seq or 0, rendered, _RowKey("messages", "orphaned", included=False))
            for rendered in counted_input.orphan_results
        ),
        *_key_reduced(counted_input, selection.history, _RowKey("messages", "recent"), view_input.pins),
        *_key_reduced(counted_input, selection.newest, newest),
    ]
    # Stable sort: a stub has no sequence number, so it sorts with the message before it and stays behind it.
    keyed.sort(key=itemgetter(0))
    for key, run in groupby(keyed, key=itemgetter(2)):
        yield _build_row([rendered for _, rendered, _ in run], key)


def _key_reduced(
    counted_input: CountedInput,
    batches: Sequence[MessageBatch],
    key: _RowKey,
    pins: frozenset[int] = frozenset(),
) -> Iterator[tuple[int, RenderedMessage, _RowKey]]:
    """Keys of batches. Messages that the active compaction reduces are `cleared` or `excerpted`."""
    compaction = counted_input.compaction
    calls = (bool(batch.messages[0].call_ids) for batch in batches for _ in batch.messages)
    for calls_tools, (seq, rendered, message_key) in zip(calls, _key_batches(batches, key, pins), strict=True):
        limit = counted_input.reductions.get(rendered.seq) if rendered.seq is not None else None
        if rendered.seq is not None and rendered.seq == counted_input.question:
            # A separate row: the messages between it and the next one are archived.
            reason = "question"
        elif limit is None or (limit == 0 and not calls_tools):
            yield seq, rendered, message_key
            continue
        else:
            reason = "cleared" if limit == 0 else "excerpted"
        summarized_by = None
        if compaction is not None and rendered.seq in counted_input.message_summaries:
            summarized_by = compaction.seq
        yield seq, rendered, message_key._replace(reason=reason, excerpt_chars=limit, summarized_by=summarized_by)


def _split_document_rows(rows: Iterable[Decision], view_input: ViewInput) -> Iterator[Decision]:
    """Splits the documents that the question contains into their own rows, unless the question was excerpted.

    A listed document is not in the question: its row has the tokens that its text would take, and adds nothing.
    """
    *others, question = rows
    yield from others
    document_decisions = view_input.document_decisions
    document_tokens = sum(row.tokens for row in document_decisions if row.included)
    if question.turn_excerpt_chars is None and document_tokens <= question.tokens:
        # A recorded question counts its documents itself.
        tokens = question.tokens - document_tokens
        other_documents = max(0, view_input.document_tokens + (question.document_tokens or 0) - document_tokens)
        yield question.model_copy(update={"tokens": tokens, "document_tokens": other_documents or None})
        yield from document_decisions
    else:
        yield question
        yield from (row.model_copy(update={"tokens": 0}) if row.included else row for row in document_decisions)


def _key_batches(
    batches: Iterable[MessageBatch], key: _RowKey, pins: frozenset[int] = frozenset()
) -> Iterator[tuple[int, RenderedMessage, _RowKey]]:
    pinned, pending = key._replace(reason="pinned"), key._replace(pending=True)
    for batch in batches:
        batch_seq = next((rendered.seq for rendered in reversed(batch.messages) if rendered.seq is not None), None)
        for rendered in batch.messages:
            if batch_seq is None:
                yield _PENDING_SEQ, rendered, pending
            else:
                yield rendered.seq or batch_seq, rendered, pinned if rendered.seq in pins else key


def _build_row(run: Sequence[RenderedMessage], key: _RowKey) -> Decision:
    stored = [rendered.seq for rendered in run if rendered.seq is not None]
    return Decision(
        slot=key.slot,
        kind="message",
        included=key.included,
        reason=key.reason,
        tokens=sum(rendered.tokens for rendered in run),
        span=Span(first=stored[0], last=stored[-1]) if stored else None,
        excerpt_chars=key.excerpt_chars,
        turn_excerpt_chars=key.turn_excerpt_chars,
        max_results=key.max_results,
        summarized_by=key.summarized_by,
        document_tokens=sum(rendered.document_tokens for rendered in run) or None,
        pending=key.pending,
    )


def _decide_pinned(counted_input: CountedInput, selection: ViewSelection) -> Iterator[Decision]:
    """Archived messages that are pinned or have priority. Messages of a batch share a row if their numbers are
    consecutive and they are reduced alike."""
    included = {batch.messages[0].seq: batch for batch in selection.pinned}
    for counted in counted_input.pinned:
        first = counted.messages[0].seq
        batch = included.get(first, counted)
        key = _RowKey("messages", "priority" if counted_input.pins.isdisjoint(batch.seqs) else "pinned")
        if first in included:
            max_results = counted_input.pinned_results.get(first or 0)
            key = key._replace(turn_excerpt_chars=selection.pinned_excerpt_chars, max_results=max_results)
        else:
            key = _RowKey("messages", "over_budget", included=False)
        run: list[RenderedMessage] = []
        run_key = key
        for rendered in batch.messages:
            row_key = key._replace(excerpt_chars=0) if rendered.seq in counted_input.pinned_stubs else key
            follows = rendered.seq is None or not run or rendered.seq == (run[-1].seq or 0) + 1
            if run and (not follows or row_key != run_key):
                yield _build_row(run, run_key)
                run = []
            run.append(rendered)
            run_key = row_key
        yield _build_row(run, run_key)
