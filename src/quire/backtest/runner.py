"""Runs a backtest: conversation after conversation, all variants step by step, so that each entry is read once."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from quire.backtest.conversation_sample import ConversationSelection
from quire.backtest.needs import NeedFinder
from quire.backtest.recorded_steps import Recording, RecordingStore, open_recording
from quire.backtest.report import BacktestReport, ConversationSteps, VariantReport
from quire.backtest.simulation import SimulatedStep, open_simulation
from quire.backtest.variants import BacktestVariant
from quire.engine.config import EngineConfig
from quire.engine.context import EngineContext
from quire.errors import ConversationNotFound
from quire.log import MAIN_BRANCH
from quire.view.calibration import Calibration

ProgressCallback = Callable[[float, int], None]
"""Called with the simulated conversations, the one in progress as a fraction, and their total."""
StepCallback = Callable[[str, BacktestVariant, SimulatedStep], None]
"""Called with the conversation's id, the variant and the step."""


class _Candidate(NamedTuple):
    variant: BacktestVariant
    config: EngineConfig
    calibration: Calibration


async def run_backtest(
    engine: EngineContext,
    variants: Sequence[BacktestVariant],
    selection: ConversationSelection,
    *,
    branch: int = MAIN_BRANCH,
    on_progress: ProgressCallback | None = None,
    on_step: StepCallback | None = None,
) -> BacktestReport:
    """Simulates the conversations with each variant. Reads the store, writes nothing to it and calls no model."""
    configured = [await _configure(engine, variant) for variant in variants]
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
        recording = await _open_unless_purged(engine.store, drawn.id, branch)
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


async def _open_unless_purged(store: RecordingStore, conversation: str, branch: int) -> Recording | None:
    try:
        return None if await store.is_purged(conversation) else await open_recording(store, conversation, branch)
    except ConversationNotFound:
        return None


async def _configure(engine: EngineContext, variant: BacktestVariant) -> _Candidate:
    config = engine.config.with_changes(**variant.changes)
    return _Candidate(variant, config, await engine.load_calibration(config.settings.model))


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
