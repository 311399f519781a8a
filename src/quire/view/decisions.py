"""Decisions: for every candidate one, in the order of the request; neighbouring messages with the same share a row."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from quire.model import Span
from quire.model.manifest import Decision, Reason
from quire.model.policy import Slot
from quire.view.batches import Batch
from quire.view.gather import Gathered
from quire.view.leaves import Leaf
from quire.view.material import Material, text_digest
from quire.view.recalled import Candidate
from quire.view.select import Selection


def decide(material: Material, gathered: Gathered, selection: Selection) -> tuple[Decision, ...]:
    return (
        *_blocks(gathered, selection, "system"),
        *_tools(gathered),
        *_blocks(gathered, selection, "memory"),
        *_blocks(gathered, selection, "references"),
        *_pinned(gathered),
        *_summary(gathered),
        *_archived(gathered),
        *_unread(material.unread),
        *_blocks(gathered, selection, "recall"),
        *_recalled(gathered, selection),
        *_with_documents(_loaded(material, gathered, selection), material.quoted),
        *material.decided,
    )


def used_by_slot(decisions: Iterable[Decision]) -> dict[Slot, int]:
    used: defaultdict[Slot, int] = defaultdict(int)
    for decision in decisions:
        if decision.included:
            used[decision.slot] += decision.tokens
    return used


def _blocks(gathered: Gathered, selection: Selection, slot: Slot) -> Iterator[Decision]:
    chosen = {id(counted) for counted in selection.blocks}
    for counted in gathered.blocks:
        block = counted.block
        if block.slot == slot:
            included = id(counted) in chosen
            yield Decision(
                slot=slot,
                what=block.what,
                included=included,
                reason=block.reason if included else "over_budget",
                tokens=counted.tokens,
                name=block.name,
                blob=block.blob,
                score=block.score,
            )


def _tools(gathered: Gathered) -> Iterator[Decision]:
    for (tool, reason, score), tokens in gathered.tools:
        yield Decision(
            slot="tools",
            what="tool",
            included=True,
            reason=reason,
            tokens=tokens,
            name=tool.name,
            blob=text_digest(tool.canonical()),
            score=score,
        )


def _summary(gathered: Gathered) -> Iterator[Decision]:
    if gathered.summary is not None and gathered.compaction is not None:
        place = Span(first=gathered.compaction.seq, last=gathered.compaction.seq)
        tokens = gathered.summary.tokens
        yield Decision(slot="summary", what="summary", included=True, reason="summary", tokens=tokens, span=place)


def _archived(gathered: Gathered) -> Iterator[Decision]:
    """What the compaction covers, around the messages that are pinned or recalled all the same."""
    covers = gathered.covers
    if covers is None:
        return
    pinned = {seq for batch in gathered.pinned for seq in batch.seqs}
    shown = sorted(pinned | _recallable(gathered))
    start = covers.first
    for seq in [*shown, covers.last + 1]:
        if start < seq:
            yield _left_out(Span(first=start, last=seq - 1), "archived")
        start = seq + 1


def _recallable(gathered: Gathered) -> set[int]:
    return {candidate.entry.seq for candidate in gathered.recalled}


def _recalled(gathered: Gathered, selection: Selection) -> Iterator[Decision]:
    """The messages that are shown again in the order of the log; then those that had no room, the best first."""
    shown = selection.recalled.shown if selection.recalled is not None else ()
    frame = selection.recalled.leaf.tokens - sum(fitted.tokens for fitted in shown) if selection.recalled else 0
    for place, fitted in enumerate(sorted(shown, key=lambda fitted: fitted.candidate.entry.seq)):
        yield _recall(fitted.candidate, included=True, tokens=fitted.tokens + (frame if place == 0 else 0))
    taken = {fitted.candidate.entry.seq for fitted in shown}
    for candidate in gathered.recalled:
        if candidate.entry.seq not in taken:
            yield _recall(candidate, included=False, tokens=0)


def _recall(candidate: Candidate, *, included: bool, tokens: int) -> Decision:
    seq = candidate.entry.seq
    return Decision(
        slot="recall",
        what="message",
        included=included,
        reason="recalled" if included else "over_budget",
        tokens=tokens,
        span=Span(first=seq, last=seq),
        score=candidate.score,
        pieces=candidate.pieces if included else None,
    )


def _unread(unread: Span | None) -> Iterator[Decision]:
    if unread is not None:
        yield _left_out(unread, "over_budget")


def _left_out(span: Span, reason: Reason) -> Decision:
    return Decision(slot="messages", what="message", included=False, reason=reason, span=span)


def _loaded(material: Material, gathered: Gathered, selection: Selection) -> Iterator[Decision]:
    """All messages that were loaded, in the order of the log, and what is not in it yet."""
    fates = [
        *_fates(selection.left_behind, _Fate("messages", "over_budget", included=False)),
        *((leaf.seq or 0, leaf, _Fate("messages", "incomplete", included=False)) for leaf in gathered.incomplete),
        *_shown(gathered, selection, material.pins),
        *_fates(selection.newest, _newest(selection)),
    ]
    # Stable: a stub, which has no number of its own, stays behind the message whose number it goes by.
    fates.sort(key=itemgetter(0))
    for fate, run in groupby(fates, key=itemgetter(2)):
        yield _row([leaf for _, leaf, _ in run], fate)


def _shown(gathered: Gathered, selection: Selection, pins: frozenset[int]) -> Iterator[tuple[int, Leaf, "_Fate"]]:
    """The history, where the active compaction shortens some of it and says so."""
    for place, leaf, fate in _fates(selection.history, _Fate("messages", "recent"), pins):
        limit = gathered.shortened.get(leaf.seq) if leaf.seq is not None else None
        if limit is None:
            yield place, leaf, fate
        else:
            yield place, leaf, fate._replace(reason="cleared" if limit == 0 else "excerpted", excerpt=limit)


def _with_documents(rows: Iterable[Decision], quoted: Sequence[Decision]) -> Iterator[Decision]:
    """The documents that the question carries have rows of their own, unless it had to be excerpted with them."""
    *others, asked = rows
    yield from others
    within = sum(row.tokens for row in quoted)
    if asked.excerpt is None and within <= asked.tokens:
        yield asked.model_copy(update={"tokens": asked.tokens - within})
        yield from quoted
    else:
        yield asked
        yield from (row.model_copy(update={"tokens": 0}) for row in quoted)


class _Fate(NamedTuple):
    slot: Slot
    reason: Reason
    included: bool = True
    excerpt: int | None = None
    asked: bool | None = None


def _newest(selection: Selection) -> _Fate:
    if selection.excerpt is None:
        return _Fate("newest", "newest")
    return _Fate("newest", "excerpted", excerpt=selection.excerpt)


def _fates(
    batches: Iterable[Batch], fate: _Fate, pins: frozenset[int] = frozenset()
) -> Iterator[tuple[int, Leaf, _Fate]]:
    pinned, asked = fate._replace(reason="pinned"), fate._replace(asked=True)
    for batch in batches:
        place = next((leaf.seq for leaf in reversed(batch.leaves) if leaf.seq is not None), None)
        for leaf in batch.leaves:
            if place is None:
                yield _AFTER_ALL, leaf, asked
            else:
                yield leaf.seq or place, leaf, pinned if leaf.seq in pins else fate


_AFTER_ALL = 2**62


def _row(run: Sequence[Leaf], fate: _Fate) -> Decision:
    stored = [leaf.seq for leaf in run if leaf.seq is not None]
    return Decision(
        slot=fate.slot,
        what="message",
        included=fate.included,
        reason=fate.reason,
        tokens=sum(leaf.tokens for leaf in run),
        span=Span(first=stored[0], last=stored[-1]) if stored else None,
        excerpt=fate.excerpt,
        asked=fate.asked,
    )


def _pinned(gathered: Gathered) -> Iterator[Decision]:
    """Archived messages that are shown all the same; of a batch in the log, only what follows on is one row."""
    for batch in gathered.pinned:
        run: list[Leaf] = []
        for leaf in batch.leaves:
            if run and leaf.seq is not None and leaf.seq != (run[-1].seq or 0) + 1:
                yield _row(run, _Fate("messages", "pinned"))
                run = []
            run.append(leaf)
        yield _row(run, _Fate("messages", "pinned"))
