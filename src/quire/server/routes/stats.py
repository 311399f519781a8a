"""Insights: usage from the roll-up, and documents that are used together."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from quire.engine import Engine
from quire.log.usage.insights import count_usage, read_insights
from quire.log.usage.report import USAGE_GROUPINGS, UsageGrouping
from quire.schemas.stats import DocumentGraphSchema, StatsSchema
from quire.server.dependencies import ReadCaller, StateDep, engine_for_caller

router = APIRouter(prefix="/api/stats", tags=["stats"])

MAX_TIME_MICROS = 253_402_300_800_000_000
"""The year 10,000."""
MAX_INLINE_BATCHES = 4
"""Batches of entries that are counted while a reader waits."""


@router.get("")
async def read_stats(
    caller: ReadCaller,
    server_state: StateDep,
    by: Annotated[
        list[UsageGrouping] | None, Query(max_length=6, description="Dimensions to group by; by default all.")
    ] = None,
    since: Annotated[
        int | None,
        Query(
            ge=0,
            le=MAX_TIME_MICROS,
            description="Earliest time, in microseconds since 1970; whole days in UTC. By default the last 30 days.",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of rows of each list.")] = 10,
) -> StatsSchema:
    """Reads tokens, cost, cache share, compactions and recall of the tenant, the items in use, and the turns that cost
    most. It reads a roll-up, so it is quick for any number of turns."""
    engine = engine_for_caller(server_state, caller)
    await _count_inline(engine)
    insights = await read_insights(engine.store, since=since, groupings=by or USAGE_GROUPINGS, limit=limit)
    ids = {turn.conversation for turn in insights.report.turns}
    records = await engine.store.fill_titles(*[await engine.store.get_conversation(each) for each in sorted(ids)])
    return StatsSchema.from_insights(insights, records)


@router.get("/references")
async def read_document_graph(
    caller: ReadCaller,
    server_state: StateDep,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Maximum number of pairs.")] = 100,
) -> DocumentGraphSchema:
    """Lists pairs of documents that the same conversations use, those with the most conversations first."""
    engine = engine_for_caller(server_state, caller)
    await _count_inline(engine)
    return DocumentGraphSchema.from_pairs(await engine.store.read_document_pairs(limit=limit))


async def _count_inline(engine: Engine) -> None:
    """Counts a bounded part of what the roll-up lacks now, and the rest in the background."""
    await count_usage(engine.store, max_batches=MAX_INLINE_BATCHES)
    if await engine.store.has_uncounted():
        engine.runtime.jobs.enqueue("count_usage", "", 0, partial(count_usage, engine.store))
