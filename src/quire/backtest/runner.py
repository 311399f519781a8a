"""Runs a backtest.

Conversation after conversation is simulated with all variants step by step, so that each entry is read once.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from quire.backtest.needs import NeedFinder
from quire.backtest.recording import Recording, open_recording
from quire.backtest.report import BacktestReport, ConversationSteps, VariantReport
from quire.backtest.selection import BacktestVariant, ConversationSelection
from quire.backtest.simulation import SimulatedStep, open_simulation
from quire.engine.config import EngineConfig
from quire.engine.state import EngineState
from quire.errors import ConversationNotFound
from quire.log import MAIN_BRANCH
from quire.view.budget import Calibration

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
