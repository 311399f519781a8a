"""The path of one request: gather, count, allot, select, render, check.

`assemble` is pure: the same material and policy give the same request, to the byte. It always gives one that fits, and
with it, where the history has outgrown the trigger, the plan of what to compact before the next.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from quire.errors import ContextOverflow, InvalidRequest
from quire.model.manifest import Manifest
from quire.model.policy import Policy
from quire.view.budget import Budget, allot, slot_uses
from quire.view.decisions import decide, used_by_slot
from quire.view.gather import gather
from quire.view.leaves import Meter
from quire.view.material import Material
from quire.view.pages import Pages, render
from quire.view.plans import Plan
from quire.view.plans import plan as make_plan
from quire.view.select import select
from quire.view.strategies import strategy_named

RENDERER = 1
"""Changes whenever the same decisions would give other bytes."""


@dataclass(frozen=True, kw_only=True)
class Assembly:
    pages: Pages
    wanted: int
    """What the request would have been with the whole history: the number that is held against the trigger."""
    budget: Budget
    fixed: int
    """Tokens before the first that a compaction changes."""
    outgrown: bool
    """Whether the history must be compacted before the request is sent."""
    record: Callable[[], Manifest]
    planned: Callable[[Budget], Plan | None]

    @cached_property
    def plan(self) -> Plan | None:
        """What to compact, if the history has outgrown the trigger."""
        return self.planned(self.budget) if self.outgrown else None

    def plan_by_hand(self) -> Plan | None:
        """What to compact when someone asks for it: down to half of what there is, if that is less than the target."""
        return self.planned(self.budget._replace(target=min(self.budget.target, self.wanted // 2)))

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
    # What is recalled takes only what the rest leaves, so it is no reason to compact.
    recalled = selection.recalled.leaf.tokens if selection.recalled is not None else 0
    wanted = pages.tokens - recalled + sum(batch.tokens for batch in selection.left_behind)
    if not policy.context_management_enabled and wanted > budget.room:
        raise ContextOverflow(needed=wanted, room=budget.room, largest=gathered.largest())
    _check(pages, meter, budget)
    outgrown = wanted > budget.trigger or gathered.unread is not None

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

    return Assembly(
        pages=pages,
        wanted=wanted,
        budget=budget,
        fixed=gathered.fixed,
        outgrown=outgrown and policy.context_management_enabled,
        record=record,
        planned=partial(make_plan, gathered, strategy=strategy, policy=policy, meter=meter, wanted=wanted),
    )


def _check(pages: Pages, meter: Meter, budget: Budget) -> None:
    """Last, and on what is about to be sent."""
    problems = meter.shape.check(pages.payload())
    if pages.tokens > budget.room:
        problems.append(f"it has {pages.tokens} tokens, and the room is {budget.room}")
    if problems:
        raise InvalidRequest(f"The request is not one that {meter.shape.name} would take: {'; '.join(problems)}.")
