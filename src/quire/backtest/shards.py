"""Backtests in shards, which jobs of several workers simulate: a selection is split, and the reports are merged.

The store has what to simulate and the merged report; a job has ids alone. A shard that is repeated counts once.
"""

import asyncio
from dataclasses import dataclass

from pydantic import TypeAdapter

from quire.backtest.conversation_sample import ConversationSelection, SelectedConversation
from quire.backtest.report import BacktestReport
from quire.backtest.runner import run_backtest
from quire.backtest.variants import BacktestVariant, combine_variants
from quire.engine.context import EngineContext
from quire.errors import InvalidRequest, QuireError, StoreError
from quire.log import MAIN_BRANCH
from quire.log.backtests import BacktestRecord, BacktestShard, NewBacktestShard, SqlBacktestStore

MAX_CONVERSATIONS = 10_000
"""Conversations of one backtest."""
MAX_SHARDS = 100
"""Shards of one backtest; few conversations are a shard each."""
MAX_SHARD_ATTEMPTS = 5
"""Starts of a shard before its backtest fails: a shard that ends its worker must not do so for ever."""
PROGRESS_SECONDS = 1.0
"""Interval at which a job stores its progress and finds out whether its backtest was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestSpec:
    """What a backtest compares. Names of projects and documents are not part of it: a purge does not reach it."""

    strategies: tuple[str, ...]
    windows: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    branch: int = MAIN_BRANCH
    is_sample: bool = False

    @property
    def variants(self) -> list[BacktestVariant]:
        return combine_variants(self.strategies, windows=self.windows, models=self.models)


_SPEC = TypeAdapter(BacktestSpec)
_CONVERSATIONS = TypeAdapter(tuple[SelectedConversation, ...])
_REPORT = TypeAdapter(BacktestReport)


def parse_spec(record: BacktestRecord) -> BacktestSpec:
    return _SPEC.validate_json(record.spec)


def parse_report(record: BacktestRecord) -> BacktestReport | None:
    """The report on the finished shards; None before the first."""
    return None if record.totals is None else _REPORT.validate_json(record.totals)


async def create_backtest(
    store: SqlBacktestStore, spec: BacktestSpec, selection: ConversationSelection
) -> BacktestRecord:
    """Stores a backtest, whose shards jobs simulate. Raises `InvalidRequest` for none or too many conversations."""
    conversations = selection.conversations
    if not conversations:
        raise InvalidRequest("There is no conversation to replay.")
    if len(conversations) > MAX_CONVERSATIONS:
        raise InvalidRequest(
            f"These are {len(conversations):,} conversations, and a backtest replays at most {MAX_CONVERSATIONS:,}; "
            "draw a sample."
        )
    size = -(-len(conversations) // MAX_SHARDS)
    slices = [conversations[first : first + size] for first in range(0, len(conversations), size)]
    shards = [NewBacktestShard(_CONVERSATIONS.dump_json(each).decode(), len(each)) for each in slices]
    return await store.create_backtest(_SPEC.dump_json(spec).decode(), shards)


async def run_shard(engine: EngineContext, store: SqlBacktestStore, id: str, shard: int) -> int:
    """Simulates a shard and adds its report to that of the backtest; returns the number of its conversations.

    It does nothing if the shard is finished. An error that a retry would repeat ends the backtest.
    """
    started = await store.start_backtest_shard(id, shard)
    if started is None:
        return 0
    if started.attempts > MAX_SHARD_ATTEMPTS:
        await store.fail_backtest(id, f"A shard of it failed {MAX_SHARD_ATTEMPTS} times; see the log of the workers.")
        return 0
    try:
        return await _simulate_shard(engine, store, id, shard, started)
    except StoreError:
        raise
    except QuireError as error:
        await store.fail_backtest(id, str(error))
        return 0


async def _simulate_shard(
    engine: EngineContext, store: SqlBacktestStore, id: str, shard: int, started: BacktestShard
) -> int:
    spec, conversations = _SPEC.validate_json(started.spec), _CONVERSATIONS.validate_json(started.selection)
    selection = ConversationSelection(conversations=conversations, is_sample=spec.is_sample)
    done = 0.0

    def set_done(value: float, _total: int) -> None:
        nonlocal done
        done = value

    simulation = asyncio.create_task(
        run_backtest(engine, spec.variants, selection, branch=spec.branch, on_progress=set_done)
    )
    try:
        while not (await asyncio.wait([simulation], timeout=PROGRESS_SECONDS))[0]:
            if not await store.update_backtest_shard(id, shard, done=done):
                return 0
    finally:
        simulation.cancel()
        await asyncio.wait([simulation])
    report = simulation.result()

    def merge(totals: str | None) -> str:
        merged = report
        if totals is not None:
            merged = _REPORT.validate_json(totals)
            merged.merge(report)
        return _REPORT.dump_json(merged).decode()

    count = len(conversations)
    return count if await store.finish_backtest_shard(id, shard, conversations=count, merge=merge) else 0
