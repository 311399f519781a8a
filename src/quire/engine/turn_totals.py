"""Totals of a turn: its model calls, usage, cost, compactions and document references, read from the log.

A turn may consist of many steps, each recorded by its own request. The reply that ends it carries the totals.
"""

from collections.abc import Sequence
from typing import NamedTuple

from quire.engine.config import EngineConfig
from quire.engine.request import Request
from quire.model import Compaction, Entry, TurnTotals, Usage
from quire.model.entry_metadata import DocumentReference, EntryMetadata, sum_usage
from quire.store import SqlStore
from quire.view.call_prices import Cost, sum_costs

_MAX_COMPACTIONS_BEFORE_QUESTION = 8
"""Entries before a question that are searched for the compactions made for its first request."""


class TurnSteps(NamedTuple):
    """What the log holds of a turn: its replies, and the compactions made for its requests."""

    replies: tuple[Entry, ...] = ()
    compactions: tuple[Entry, ...] = ()

    @property
    def references(self) -> list[DocumentReference]:
        """The documents that tools read or found, in order."""
        return [reference for reply in self.replies for reference in reply.metadata.references or ()]

    def add_up(self, config: EngineConfig, *, usage: Usage | None = None, cost: Cost | None = None) -> TurnTotals:
        """Totals of these steps and, with a `cost`, of a reply that is not in the log yet."""
        usages = [*(reply.metadata.usage for reply in self.replies), usage]
        model = config.settings.model

        def read_cost(each: EntryMetadata | Compaction, model: str) -> Cost:
            if each.cost_usd is not None:
                return Cost(each.cost_usd, not each.cost_incomplete)
            return config.compute_cost(each.usage, model)

        costs = [] if cost is None else [cost]
        costs += [read_cost(reply.metadata, model) for reply in self.replies]
        costs += [
            read_cost(body, body.model or model)
            for entry in self.compactions
            if isinstance(body := entry.body, Compaction) and (body.usage is not None or body.cost_usd is not None)
        ]
        total = sum_costs(costs)
        return TurnTotals(
            steps=len(self.replies) + (cost is not None),
            usage=sum_usage([each for each in usages if each is not None]),
            cost_usd=total.usd,
            compactions=tuple(entry.seq for entry in self.compactions) or None,
            cost_incomplete=None if total.is_complete else True,
        )


def deduplicate_references(references: Sequence[DocumentReference]) -> tuple[DocumentReference, ...]:
    """Each document once, as the first call referred to it."""
    return tuple({each.path: each for each in reversed(references)}.values())[::-1]


async def read_turn_steps(
    store: SqlStore, conversation: str, branch: int, *, last: int | None = None, request: Request | None = None
) -> TurnSteps:
    """Reads the steps since the newest question, up to entry `last`. A `request` that sends the question needs no
    read."""
    if request is not None:
        pending = request.pending
        sends_question = pending[-1].message.role == "user" if pending else request.assembly.question_span is not None
        # The request is the first step of its turn, or of its conversation.
        if sends_question or request.creates_conversation is not None:
            return TurnSteps(compactions=request.compactions)
    newest = await store.read_tail(conversation, 1, branch=branch, last=last, kinds=["message"], roles=["user"])
    question = newest[0].seq if newest else 0
    replies = await store.read_range(
        conversation, branch=branch, first=question + 1, last=last, kinds=["message"], roles=["assistant"]
    )
    compactions = await store.read_range(
        conversation,
        branch=branch,
        first=max(1, question - _MAX_COMPACTIONS_BEFORE_QUESTION),
        last=last,
        kinds=["compaction"],
    )
    # The compactions after the question, and the ones right before it that its first request needed.
    first, by_seq = question, {entry.seq: entry for entry in compactions}
    while (earlier := by_seq.get(first - 1)) is not None:
        if not isinstance(body := earlier.body, Compaction) or body.trigger not in ("threshold", "overflow"):
            break
        first -= 1
    return TurnSteps(tuple(replies), tuple(entry for entry in compactions if entry.seq >= first))
