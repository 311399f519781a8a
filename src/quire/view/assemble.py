"""The path of one request: gather, count, allot, select, render, check.

`assemble` is pure: the same material and policy give the same request, to the byte. It always gives one that fits, and
with it, where the history has outgrown the trigger, the plan of what to compact before the next.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from quire.errors import ContextOverflow, InvalidRequest
from quire.model import Span
from quire.model.manifest import Manifest
from quire.model.policy import Policy
from quire.view.budget import Budget, allot, slot_uses
from quire.view.cuts import legal_cuts
from quire.view.decisions import decide, used_by_slot
from quire.view.gather import Gathered, gather
from quire.view.leaves import Meter
from quire.view.material import Material
from quire.view.pages import Pages, render
from quire.view.select import select
from quire.view.strategies import Strategy, strategy_named

NOTE = 64
"""Tokens for the note that stands in place of what is cut off, where there is none yet."""

RENDERER = 1
"""Changes whenever the same decisions would give other bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to compact: the messages in `covers`, how many tokens they have, and what the rest should come down to."""

    covers: Span
    tokens: int
    target: int
    summarize: bool


@dataclass(frozen=True, kw_only=True)
class Assembly:
    pages: Pages
    plan: Plan | None
    wanted: int
    """What the request would have been with the whole history: the number that is held against the trigger."""
    budget: Budget
    record: Callable[[], Manifest]

    @cached_property
    def manifest(self) -> Manifest:
        """The record of how the request came about, written when it is first asked for."""
        return self.record()


def assemble(material: Material, policy: Policy, meter: Meter, *, ratio: float = 1.0) -> Assembly:
    strategy = strategy_named(policy.strategy)
    gathered = gather(material, meter)
    budget = allot(policy, strategy.shares, ratio=ratio)
    selection = select(gathered, budget, meter)
    pages = render(policy.model, gathered, selection, meter)
    wanted = pages.tokens + sum(batch.tokens for batch in selection.left_behind)
    if not policy.context_management_enabled and wanted > budget.room:
        raise ContextOverflow(needed=wanted, room=budget.room, largest=gathered.largest())
    _check(pages, meter, budget)
    outgrown = wanted > budget.trigger or gathered.unread is not None
    plan = _plan(gathered, budget, strategy, policy) if outgrown and policy.context_management_enabled else None

    def record() -> Manifest:
        decisions = decide(material, gathered, selection)
        return Manifest(
            renderer=RENDERER,
            conversation=material.conversation,
            branch=material.branch,
            head=material.head,
            policy=policy,
            counter=meter.name,
            exact=meter.counter.exact,
            ratio=ratio,
            slots=slot_uses(budget, used_by_slot(decisions)),
            total=pages.tokens,
            wanted=wanted,
            room=budget.room,
            trigger=budget.trigger,
            decisions=decisions,
            stable=pages.stable,
            digest=pages.digest,
        )

    return Assembly(pages=pages, plan=plan, wanted=wanted, budget=budget, record=record)


def _plan(gathered: Gathered, budget: Budget, strategy: Strategy, policy: Policy) -> Plan | None:
    """What the strategy would cut off; None where nothing may be."""
    turns = [*gathered.history, *gathered.newest]
    legal = legal_cuts(turns, policy)
    room = budget.target - gathered.required - (0 if gathered.summary else NOTE)
    place = strategy.cut(turns, legal=legal, room=room, policy=policy)
    cut_off = [seq for batch in turns[:place] for seq in batch.seqs]
    if gathered.unread is not None:
        cut_off.append(gathered.unread.last)
    if not cut_off:
        return None
    return Plan(
        covers=Span(first=min(gathered.first, *cut_off), last=max(cut_off)),
        tokens=sum(batch.tokens for batch in turns[:place]),
        target=budget.target,
        summarize=strategy.summarizes,
    )


def _check(pages: Pages, meter: Meter, budget: Budget) -> None:
    """Last, and on what is about to be sent."""
    problems = meter.shape.check(pages.payload())
    if pages.tokens > budget.room:
        problems.append(f"it has {pages.tokens} tokens, and the room is {budget.room}")
    if problems:
        raise InvalidRequest(f"The request is not one that {meter.shape.name} would take: {'; '.join(problems)}.")
