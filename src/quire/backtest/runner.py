"""Runs a backtest, whole or in shards which jobs of several workers simulate.

Conversation after conversation is simulated with all variants step by step, so that each entry is read once. For
shards, a selection is split, and the reports are merged. The store has what to simulate and the merged report. A job
has ids alone. A shard that is repeated counts once.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import TypeAdapter

from quire.backtest.needs import NeedFinder
from quire.backtest.recording import Recording, open_recording
from quire.backtest.report import BacktestReport, ConversationSteps, VariantReport
from quire.backtest.selection import BacktestVariant, ConversationSelection, SelectedConversation, combine_variants
from quire.backtest.simulation import SimulatedStep, open_simulation
from quire.engine.config import EngineConfig
from quire.engine.state import EngineState
from quire.errors import ConversationNotFound, InvalidRequest, QuireError, StoreError
from quire.log import MAIN_BRANCH
from quire.store import SqlStore
from quire.store.backtests import (
    BacktestRecord,
    BacktestShard,
    NewBacktestShard,
)
from quire.view.budget import Calibration

MAX_CONVERSATIONS = 10_000
"""Conversations of one backtest."""
MAX_SHARDS = 100
"""Shards of one backtest. Few conversations are a shard each."""
MAX_SHARD_ATTEMPTS = 5
"""Starts of a shard before its backtest fails: a shard that ends its worker must not do so for ever."""
PROGRESS_SECONDS = 1.0
"""Interval at which a job stores its progress and finds out whether its backtest was deleted."""

ProgressCallback = Callable[[float, int], None]
"""Called with the simulated conversations, the one in progress as a fraction, and their total."""
StepCallback = Callable[[str, BacktestVariant, SimulatedStep], None]
"""Called with the conversation's id, the variant and the step."""


class _Candidate(NamedTuple):
    variant: BacktestVariant
    config: EngineConfig
    calibration: Calibration


async def run_backtest(
    engine: EngineState,
    variants: Sequence[BacktestVariant],
    selection: ConversationSelection,
    *,
    branch: int = MAIN_BRANCH,
    on_progress: ProgressCallback | None = None,
    on_step: StepCallback | None = None,
) -> BacktestReport:
    """Simulates the conversations with each variant. Reads the store, writes nothing to it and calls no model."""
    configured: list[_Candidate] = []
    for variant in variants:
        config = engine.config.with_changes(**variant.changes)
        configured.append(
            _Candidate(variant, config, await engine.runtime.load_calibration(engine.store, config.settings.model))
        )
    report = BacktestReport(
        [
            VariantReport(
                each.variant, each.config.settings.model, each.config.policy.window, each.config.model_spec.has_price
            )
            for each in configured
        ],
        is_sample=selection.is_sample,
    )
    for position, drawn in enumerate(selection.conversations):
        try:
            is_purged = await engine.store.is_purged(drawn.id)
            recording = None if is_purged else await open_recording(engine.store, drawn.id, branch)
        except ConversationNotFound:
            recording = None
        if recording is None:
            report.skipped += 1
            continue

        def notify(fraction: float, position: int = position) -> None:
            if on_progress is not None:
                on_progress(position + fraction, len(selection.conversations))

        simulated = await _simulate(recording, configured, on_fraction=notify, on_step=on_step)
        if not simulated[0].steps:
            report.skipped += 1
            continue
        report.conversations += 1
        for variant_report, steps in zip(report.variants, simulated, strict=True):
            variant_report.add(steps, weight=drawn.weight)
    return report


async def _simulate(
    recording: Recording,
    configured: Sequence[_Candidate],
    *,
    on_fraction: Callable[[float], None],
    on_step: StepCallback | None,
) -> list[ConversationSteps]:
    simulated = [ConversationSteps() for _ in configured]
    finder = NeedFinder()
    async with AsyncExitStack() as stack:
        simulations = [
            await stack.enter_async_context(open_simulation(each.config, recording, calibration=each.calibration))
            for each in configured
        ]
        async for step in recording.steps():
            needs = finder.find(step)
            for each, simulation, steps in zip(configured, simulations, simulated, strict=True):
                result = await simulation.simulate(step, needs)
                steps.add(result)
                if on_step is not None:
                    on_step(recording.conversation, each.variant, result)
            on_fraction(step.reply.seq / recording.head)
    return simulated


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


async def create_backtest(store: SqlStore, spec: BacktestSpec, selection: ConversationSelection) -> BacktestRecord:
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
    return await store.backtests.create(_SPEC.dump_json(spec).decode(), shards)


async def run_shard(engine: EngineState, store: SqlStore, id: str, shard: int) -> int:
    """Simulates a shard and adds its report to the report of the backtest. Returns the number of its conversations.

    It does nothing if the shard is finished. An error that a retry would repeat ends the backtest.
    """
    started = await store.backtests.start_shard(id, shard)
    if started is None:
        return 0
    if started.attempts > MAX_SHARD_ATTEMPTS:
        await store.backtests.fail(id, f"A shard of it failed {MAX_SHARD_ATTEMPTS} times; see the log of the workers.")
        return 0
    try:
        return await _simulate_shard(engine, store, id, shard, started)
    except StoreError:
        raise
    except QuireError as error:
        await store.backtests.fail(id, str(error))
        return 0


async def _simulate_shard(engine: EngineState, store: SqlStore, id: str, shard: int, started: BacktestShard) -> int:
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
            if not await store.backtests.update_shard(id, shard, done=done):
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
    return count if await store.backtests.finish_shard(id, shard, conversations=count, merge=merge) else 0
