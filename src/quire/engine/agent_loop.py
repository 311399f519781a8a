"""The library's agent loop: `Conversation.send` and `Conversation.stream`, turns with the application's functions.

The loop itself is `quire.agent.turn.run_turn`. This module opens the model that the settings name, runs the loop, and
collects the events of a turn into its result.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from quire.agent.approvals import ApprovalFunction, Approvals, to_approval_callback
from quire.agent.function_tools import FunctionTool, FunctionToolRunner
from quire.agent.limits import build_turn_limits
from quire.agent.protocols import TurnHost
from quire.agent.turn import run_turn
from quire.engine.request import Request
from quire.engine.state import EngineState
from quire.engine.turn_totals import deduplicate_references, read_turn_steps
from quire.llm import Model
from quire.model import Entry, Message, Usage
from quire.model.entry_metadata import DocumentReference
from quire.model.events import ContextSuggestion, ReplyRecorded, TurnEnded, TurnEndReason, TurnEvent, TurnFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """The end of a turn. Its totals cover the whole turn, from the question on, also if it was continued."""

    reason: TurnEndReason
    reply: Entry | None
    """The last reply, the answer if `reason` is `answered`, or None if no reply came."""
    steps: int
    """Number of model calls."""
    usage: Usage
    """Sum over all model calls."""
    cost_usd: float
    """Cost of the model calls and of the summaries, in US dollars, or 0 if no price is known."""
    references: tuple[DocumentReference, ...]
    """Documents that the tools read or found."""
    compactions: tuple[int, ...]
    """Entry numbers of the compactions made during the turn."""
    suggestion: ContextSuggestion | None = None
    """A change of the context that the turn suggests; at most one, and each once."""

    @property
    def text(self) -> str:
        """Text of the last reply."""
        return self.reply.message.text if self.reply is not None else ""


async def stream_turn(
    open_host: Callable[[Model], TurnHost[Request]],
    engine: EngineState,
    message: Message | str | None,
    *,
    functions: Sequence[FunctionTool],
    approve: ApprovalFunction | None,
    max_steps: int | None,
    max_cost: float | None,
    model: Model | None,
) -> AsyncGenerator[TurnEvent]:
    """Runs a turn in which the model may call `functions`, and yields its events.

    `open_host` returns the conversation for the model that answers; its requests offer the functions.
    """
    if max_cost is not None:
        engine.config.require_prices()
    async with AsyncExitStack() as stack:
        if model is None:
            endpoint, wire_format = engine.config.endpoint, engine.config.policy.wire_format
            # In a thread, because the first one imports the HTTP client.
            client = await asyncio.to_thread(
                engine.runtime.model_for, endpoint.model, endpoint.base_url or None, wire_format
            )
            # Entered for the whole turn, so that its steps share connections.
            model = await stack.enter_async_context(client)
        events = run_turn(
            open_host(model),
            message,
            model=model,
            runners=[FunctionToolRunner(functions)],
            approvals=Approvals(to_approval_callback(approve)) if approve is not None else None,
            limits=build_turn_limits(engine.settings, max_steps=max_steps, max_cost=max_cost),
        )
        async for event in await stack.enter_async_context(aclosing(events)):
            yield event


async def collect_turn(
    engine: EngineState, conversation: str, branch: int, events: AsyncGenerator[TurnEvent]
) -> TurnResult:
    """Runs a turn to its end. Raises the error of a turn that failed."""
    reply: Entry | None = None
    reason: TurnEndReason = "stopped"
    suggestion: ContextSuggestion | None = None
    async with aclosing(events):
        async for event in events:
            match event:
                case ReplyRecorded(entry=entry):
                    reply = entry
                case TurnEnded():
                    reason, suggestion = event.reason, event.suggestion
                case TurnFailed(error=error):
                    raise error
                case _:
                    pass
    # The answer has the totals. A turn that ended without an answer is added up.
    totals = reply.metadata.turn if reply is not None else None
    references = (reply.metadata.references or ()) if reply is not None else ()
    if totals is None:
        steps = await read_turn_steps(engine.store, conversation, branch)
        totals, references = steps.add_up(engine.config), deduplicate_references(steps.references)
    return TurnResult(
        reason=reason,
        reply=reply,
        steps=totals.steps,
        usage=totals.usage,
        cost_usd=totals.cost_usd,
        references=references,
        compactions=totals.compactions or (),
        suggestion=suggestion,
    )
