"""Starts, lists, reads and deletes backtests over HTTP."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from quire.backtest import MAX_VARIANTS, select_conversations
from quire.backtest.runner import BacktestSpec, create_backtest
from quire.jobs import Job
from quire.lab.schemas import BacktestJobListSchema, BacktestJobSchema, BacktestResultSchema
from quire.log import MAIN_BRANCH
from quire.model.ids import now
from quire.model.policy import MAX_MODEL_NAME_CHARS
from quire.server.caller import Caller
from quire.server.dependencies import ReadCaller, StateDep, WriteCaller
from quire.server.state import ServerState
from quire.store import SqlStore
from quire.store.backtests import BacktestRecord

router = APIRouter(prefix="/api/backtests", tags=["backtests"])

MAX_SAMPLE = 1_000
"""Conversations that a request may draw."""
MAX_NAMED_CONVERSATIONS = 1_000
MAX_WINDOW_TOKENS = 100_000_000
STALLED_MICROSECONDS = 60_000_000
"""Time without progress after which a reader enqueues the jobs again: a process that ends loses its jobs."""

BacktestId = Annotated[str, Path(min_length=1, max_length=100, description="ID of the backtest.")]
StrategyName = Annotated[str, Field(min_length=1, max_length=100)]
WindowTokens = Annotated[int, Field(ge=500, le=MAX_WINDOW_TOKENS)]
ModelName = Annotated[str, Field(min_length=1, max_length=MAX_MODEL_NAME_CHARS)]
ConversationName = Annotated[str, Field(min_length=1, max_length=200)]


class NewBacktest(BaseModel):
    """Every combination of strategy, context window and model is simulated."""

    model_config = ConfigDict(extra="forbid")

    strategies: list[StrategyName] = Field(["discard", "summarize", "hybrid"], min_length=1, max_length=MAX_VARIANTS)
    windows: list[WindowTokens] = Field([], max_length=MAX_VARIANTS, description="Default: each model's window.")
    models: list[ModelName] = Field([], max_length=MAX_VARIANTS, description="By default the one in the settings.")
    conversations: list[ConversationName] = Field([], max_length=MAX_NAMED_CONVERSATIONS, description="By default all.")
    project: str | None = Field(None, min_length=1, max_length=500, description="Replay conversations of a project.")
    sample: int | None = Field(
        100, ge=1, le=MAX_SAMPLE, description="Number of conversations to draw at random. null replays all of them."
    )
    seed: int | None = Field(None, ge=0, le=2**31 - 1, description="Draws the same sample again.")
    branch: int = Field(MAIN_BRANCH, ge=0, le=2**31 - 1)


@router.post("", status_code=202)
async def start_backtest(caller: WriteCaller, server_state: StateDep, new: NewBacktest) -> BacktestJobSchema:
    """Starts to replay stored conversations under other strategies, windows and models, without calling a model.

    It runs as background jobs, on PostgreSQL spread over the workers. Poll its progress. A tenant has one at a time.
    """
    spec = BacktestSpec(
        strategies=tuple(new.strategies), windows=tuple(new.windows), models=tuple(new.models), branch=new.branch
    )
    _ = spec.variants  # Raises an error for an unknown strategy, or for too many combinations.
    store = _store_for(server_state, caller)
    selection = await select_conversations(
        store, new.conversations, project=new.project, sample=new.sample, seed=new.seed
    )
    record = await create_backtest(store, replace(spec, is_sample=selection.is_sample), selection)
    await _defer_shards(server_state, store, record)
    return BacktestJobSchema.from_record(record)


@router.get("")
async def list_backtests(caller: ReadCaller, server_state: StateDep) -> BacktestJobListSchema:
    """The stored backtests, the newest first."""
    records = await _store_for(server_state, caller).backtests.list()
    return BacktestJobListSchema(items=[BacktestJobSchema.from_record(each) for each in records])


@router.get("/{backtest}")
async def get_backtest(caller: ReadCaller, server_state: StateDep, backtest: BacktestId) -> BacktestResultSchema:
    """The progress of a backtest, and its result as far as it is computed."""
    store = _store_for(server_state, caller)
    record = await store.backtests.get(backtest)
    if record.is_running and record.updated_at < now() - STALLED_MICROSECONDS:
        await _defer_shards(server_state, store, record)
    return BacktestResultSchema.from_record(record)


@router.delete("/{backtest}", status_code=204)
async def delete_backtest(caller: WriteCaller, server_state: StateDep, backtest: BacktestId) -> None:
    """Cancels a backtest if it runs, and deletes it."""
    await _store_for(server_state, caller).backtests.delete(backtest)


def _store_for(server_state: ServerState, caller: Caller) -> SqlStore:
    return server_state.store.for_tenant(caller.tenant)


async def _defer_shards(server_state: ServerState, store: SqlStore, record: BacktestRecord) -> None:
    """Enqueues the jobs of all shards that are not finished; jobs that wait already are not enqueued twice."""
    if server_state.jobs is not None:
        shards = await store.backtests.list_shards(record.id)
        await server_state.jobs.defer([Job("backtest", store.tenant, record.id, shard) for shard in shards])
