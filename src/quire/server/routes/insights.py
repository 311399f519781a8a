"""Insights: usage from the roll-up, findings, and documents that are used together."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from quire.engine import Engine
from quire.engine.source_scan import find_sources, read_findings
from quire.findings.report import FindingsReport
from quire.schemas.findings import ScanReportSchema
from quire.schemas.stats import DocumentGraphSchema, StatsSchema, load_stats
from quire.server.dependencies import SearchEngine, StateDep
from quire.usage.insights import count_usage
from quire.usage.report import USAGE_GROUPINGS, UsageGrouping

router = APIRouter(prefix="/api/stats", tags=["stats"])

MAX_TIME_MICROS = 253_402_300_800_000_000
"""The year 10,000."""
MAX_INLINE_BATCHES = 4
"""Batches of entries that are counted while a reader waits."""


@router.get("")
async def read_stats(
    engine: SearchEngine,
    by: Annotated[
        list[UsageGrouping] | None, Query(max_length=6, description="Dimensions to group by. Default: all.")
    ] = None,
    since: Annotated[
        int | None,
        Query(
            ge=0,
            le=MAX_TIME_MICROS,
            description="Earliest time, in microseconds since 1970, in whole UTC days. Default: the last 30 days.",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of rows of each list.")] = 10,
) -> StatsSchema:
    """Reads tokens, cost, cache share, compactions and recall of the tenant, the items in use, and the turns that cost
    most. It reads a roll-up, so it is quick for any number of turns."""
    await _count_inline(engine)
    return await load_stats(engine.store, since=since, groupings=by or USAGE_GROUPINGS, limit=limit)


@router.get("/findings", response_model=ScanReportSchema)
async def list_findings(engine: SearchEngine, state: StateDep) -> FindingsReport:
    """Lists what imported sessions cost and wasted, the most expensive first, each with its evidence. Files that their
    program will delete are listed on the server of the user alone."""
    await _count_inline(engine)
    found = await run_in_threadpool(find_sources, state.environ) if state.is_local else []
    return await read_findings(engine.store, found)


@router.get("/references")
async def read_document_graph(
    engine: SearchEngine, limit: Annotated[int, Query(ge=1, le=1_000, description="Maximum number of pairs.")] = 100
) -> DocumentGraphSchema:
    """Lists pairs of documents that the same conversations use, those with the most conversations first."""
    await _count_inline(engine)
    pairs = await engine.store.usage.read_document_pairs(limit=limit)
    return DocumentGraphSchema(
        documents=sorted({name for each in pairs for name in (each.first, each.second)}), pairs=pairs
    )


async def _count_inline(engine: Engine) -> None:
    """Counts a bounded part of what the roll-up lacks now, and the rest in the background."""
    await count_usage(engine.store.usage, max_batches=MAX_INLINE_BATCHES)
    if await engine.store.usage.has_uncounted():
        engine.runtime.jobs.enqueue("count_usage", "", 0, partial(count_usage, engine.store.usage))
