"""The summarizer of an engine with what is known about its provider, and the spending of its calls."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from quire.compaction.summarizer import Summarizer
from quire.concurrency.cancellation import run_shielded
from quire.engine.spending import reserve_spend
from quire.engine.state import EngineState
from quire.model import Usage
from quire.view.call_prices import Cost


async def load_summarizer(engine: EngineState) -> Summarizer | None:
    """The summarizer with what is known about its provider: the ratio of reported to counted tokens, and a smaller
    window, if it is the model that answers and its provider reported one."""
    summarizer = engine.summarizer
    if summarizer is None:
        return None
    calibration = await engine.runtime.load_calibration(engine.store, summarizer.model.name)
    exact = summarizer.token_counter.exact
    ratio = calibration.ratio_for(tokens=summarizer.window, messages=1, exact=exact)
    window = summarizer.window
    if summarizer.model.name == engine.policy.model:
        window = min(window, engine.policy.window)
    return replace(summarizer, window=window, ratio=max(summarizer.ratio, ratio))


@asynccontextmanager
async def reserve_summarizer_spend(
    engine: EngineState, conversation: str, *, input_tokens: int, output_tokens: int
) -> AsyncGenerator[None]:
    """Reserves the estimated cost of the calls under the spend caps, until their actual cost is recorded. Interrupted
    calls cost their input. Without input tokens no model is called."""
    reservation = None
    if engine.summarizer is not None and input_tokens:
        # A summary that cannot be recorded would be paid for in vain.
        await engine.store.check_recordable()
        reservation = await run_shielded(
            reserve_spend(
                engine,
                conversation,
                model=engine.summarizer.model.name,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
            )
        )
    cost = reservation.input_usd if reservation is not None else 0.0
    try:
        yield
        cost = 0.0
    finally:
        if reservation is not None:
            await run_shielded(engine.store.spending.settle(reservation.id, cost))


async def record_summarizer_cost(
    engine: EngineState, conversation: str, usage: Usage, *, model: str | None = None
) -> Cost:
    """Adds the cost of calls to the conversation's spending, which spend caps limit."""
    cost = engine.config.compute_cost(usage, model or engine.policy.model)
    if cost.usd:
        await engine.store.spending.add_cost(conversation, cost.usd, key_id=engine.config.key_id)
    return cost
