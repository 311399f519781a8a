"""Plans: what to compact when a history has outgrown its trigger. Pure; the first rungs of the ladder.

First old tool outputs become stubs. If that is not enough, the older part is cut off where the strategy says, and what
is huge among the rest is shown as an excerpt. A plan changes nothing: the engine carries it out, or shows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.model import Shortened, Span
from quire.model.policy import Policy
from quire.view.batches import Batch
from quire.view.budget import Budget
from quire.view.cuts import last_cut_keeping, legal_cuts
from quire.view.excerpts import excerpt
from quire.view.gather import Gathered
from quire.view.leaves import Leaf, Meter
from quire.view.strategies import Strategy

NOTE = 64
"""Tokens for the note that stands in place of what is cut off, where there is none yet."""

OUTPUT = 120
"""A tool output of fewer tokens is not worth a stub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`covers` is what the next compaction covers, the present one's part included; `tokens` is what it frees."""

    covers: Span | None
    shortened: tuple[Shortened, ...]
    tokens: int
    target: int
    summarize: bool


def plan(
    gathered: Gathered, budget: Budget, *, strategy: Strategy, policy: Policy, meter: Meter, wanted: int
) -> Plan | None:
    """None where nothing may be cut and nothing is worth shortening."""
    stubs = _stubs(gathered, policy, meter)
    freed = sum(leaf.tokens - stub.tokens for leaf, stub in stubs)
    if stubs and gathered.unread is None and wanted - freed <= budget.target:
        return Plan(
            covers=gathered.covers,
            shortened=_shortened(gathered, {leaf.seq: 0 for leaf, _ in stubs if leaf.seq is not None}),
            tokens=freed,
            target=budget.target,
            summarize=False,
        )
    return _cut(gathered, budget, strategy, policy, stubs)


def _stubs(gathered: Gathered, policy: Policy, meter: Meter) -> list[tuple[Leaf, Leaf]]:
    """Old tool outputs and what they would become; the newest messages keep theirs."""
    turns = [*gathered.history, *gathered.newest]
    old = min(len(gathered.history), last_cut_keeping(turns, policy.recent_messages_to_keep))
    return [
        (leaf, meter.leaf(excerpt(leaf.message, 0, number=leaf.seq), seq=leaf.seq))
        for batch in gathered.history[:old]
        for leaf in batch.leaves
        if leaf.role == "tool" and leaf.seq is not None and leaf.tokens > OUTPUT and leaf.seq not in gathered.shortened
    ]


def _cut(
    gathered: Gathered, budget: Budget, strategy: Strategy, policy: Policy, stubs: Sequence[tuple[Leaf, Leaf]]
) -> Plan | None:
    spared = {leaf.seq: leaf.tokens - stub.tokens for leaf, stub in stubs}
    turns = [*gathered.history, *gathered.newest]
    lighter = [_lighter(batch, spared) for batch in turns]
    legal = legal_cuts(lighter, policy)
    room = budget.target - gathered.required - (0 if gathered.summary else NOTE)
    place = strategy.cut(lighter, legal=legal, room=room, policy=policy)
    cut_off = [seq for batch in turns[:place] for seq in batch.seqs]
    if gathered.unread is not None:
        cut_off.append(gathered.unread.last)
    kept = [leaf for batch in gathered.history[place:] for leaf in batch.leaves if leaf.seq is not None]
    limits = {leaf.seq: 0 for leaf in kept if leaf.seq in spared}
    limits |= {leaf.seq: room for leaf in kept if leaf.seq not in limits and leaf.tokens > max(NOTE, room // 2)}
    shortened = _shortened(gathered, {seq: limit for seq, limit in limits.items() if seq is not None})
    if not cut_off and not limits:
        return None
    covers = Span(first=min(gathered.first, *cut_off), last=max(cut_off)) if cut_off else gathered.covers
    return Plan(
        covers=covers,
        shortened=tuple(each for each in shortened if covers is None or each.message not in covers),
        tokens=sum(batch.tokens for batch in turns[:place]),
        target=budget.target,
        summarize=strategy.summarizes and bool(cut_off),
    )


def _lighter(batch: Batch, spared: dict[int | None, int]) -> Batch:
    saved = sum(spared.get(leaf.seq, 0) for leaf in batch.leaves)
    return batch._replace(tokens=batch.tokens - saved) if saved else batch


def _shortened(gathered: Gathered, limits: dict[int, int]) -> tuple[Shortened, ...]:
    """What is shortened already stays so, and what comes to it."""
    known = gathered.shortened | {seq: max(0, limit) for seq, limit in limits.items()}
    return tuple(Shortened(message=seq, limit=known[seq]) for seq in sorted(known))
