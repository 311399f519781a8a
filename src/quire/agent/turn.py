"""The turn loop (agent loop): from a question through model calls and tool calls to the final answer.

`run_turn` is an async generator of events. A turn consists of steps, each one model call and the tool calls of its
reply. However a turn ends, the log holds the question, what arrived of the reply, and one result for every tool call.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Generic

from quire.agent.approvals import Approvals
from quire.agent.limits import TurnLimits
from quire.agent.protocols import RequestT, ToolRunner, TurnHost
from quire.agent.step import StepRunner, TurnEventQueue
from quire.agent.tool_calls import BuiltinToolRunner, ToolCallBatch, ToolCallContext
from quire.concurrency.cancellation import run_shielded
from quire.errors import QuireError
from quire.llm import Model
from quire.model import Entry, Message
from quire.model.entry_metadata import DocumentReference, sum_usage
from quire.model.events import QuestionRecorded, TurnEnded, TurnEndReason, TurnEvent, TurnFailed, TurnStarted
from quire.model.finish_reasons import is_truncated
from quire.wire.fields import to_safe_name

_TRUNCATED_FINISH_REASONS = ("length", "max_tokens", "max_output_tokens")
"""Finish reasons of providers for a reply that reached its token limit."""


async def run_turn(
    host: TurnHost[RequestT],
    message: Message | str | None = None,
    *,
    model: Model,
    runners: Sequence[ToolRunner] = (),
    approvals: Approvals | None = None,
    limits: TurnLimits | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncGenerator[TurnEvent, None]:
    """Runs one turn and yields its events. Without `message` it continues from the log as it is.

    Backpressure: each step waits until the consumer has taken the event before. Setting `stop` ends the turn with its
    last events; cancelling the consumer, or closing the generator (`contextlib.aclosing`), ends it without them. Either
    way, before this returns, the partial reply is recorded and marked incomplete, tools are cancelled, and every tool
    call has a result.
    """
    events = TurnEventQueue()
    question = Message.user(message) if isinstance(message, str) else message
    turn = _TurnTask(host, model, runners, approvals or Approvals(), limits or TurnLimits(), events)
    worker = asyncio.get_running_loop().create_task(turn.run(question))

    async def cancel_on_stop(stop: asyncio.Event) -> None:
        await stop.wait()
        worker.cancel()

    stopper = asyncio.get_running_loop().create_task(cancel_on_stop(stop)) if stop is not None else None
    try:
        while (event := await events.get()) is not None:
            yield event
            events.ack()
        await asyncio.wait([worker])
        if not worker.cancelled():
            worker.result()
    finally:
        if stopper is not None:
            stopper.cancel()
        worker.cancel()
        await run_shielded(asyncio.wait([worker]))


class _TurnTask(Generic[RequestT]):
    """The work of a turn. It runs in its own task, so every way a consumer can stop arrives as a cancellation."""

    def __init__(
        self,
        host: TurnHost[RequestT],
        model: Model,
        runners: Sequence[ToolRunner],
        approvals: Approvals,
        limits: TurnLimits,
        events: TurnEventQueue,
    ) -> None:
        self._host, self._limits, self._events = host, limits, events
        self._tool_context = ToolCallContext(
            runners=runners,
            approvals=approvals,
            timeout_seconds=limits.tool_seconds,
            grace_seconds=limits.stop_grace_seconds,
            append=host.append,
            emit=events.emit,
            emit_nowait=events.emit_nowait,
        )
        self._steps = StepRunner(host, model, limits, events, self._tool_context)

    async def run(self, message: Message | None) -> None:
        usages = self._steps.usages
        reason: TurnEndReason = "stopped"
        suggestion = None
        try:
            with suppress(asyncio.CancelledError):
                reason = await self._run_steps(await self._record_question(message))
                if reason == "answered":
                    with suppress(QuireError):  # The answer is recorded, whether or not something can be suggested.
                        suggestion = await self._host.suggest()
            self._events.emit_nowait(
                TurnEnded(reason=reason, steps=len(usages), usage=sum_usage(usages), suggestion=suggestion)
            )
        except QuireError as error:
            self._events.emit_nowait(TurnFailed(error=error, steps=len(usages), usage=sum_usage(usages)))
        finally:
            self._events.close()

    async def _record_question(self, message: Message | None) -> RequestT:
        """Prepares the first request and records the question, even if preparing the request fails. It is recorded
        before a compaction, whose summary may take minutes."""
        try:
            await self._events.emit(TurnStarted(message=message))
            requests = self._host.turn_requests
            request = await (self._host.prepare() if message is None else requests.build(message))
        except BaseException:
            if message is not None:
                self._emit_question_recorded(await run_shielded(self._host.append(message)))
            raise
        entries, request = await run_shielded(self._host.record_question(request))
        self._emit_question_recorded(entries)
        return await requests.rebuild(request) if request.needs_compaction else request

    def _emit_question_recorded(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._events.emit_nowait(QuestionRecorded(entry=entry))

    async def _run_steps(self, request: RequestT) -> TurnEndReason:
        references: Sequence[DocumentReference] = ()
        max_cost = self._limits.max_cost
        cost_before = 0.0 if max_cost is None else await self._host.cost()
        for step in range(self._limits.max_steps):
            if step > 0:
                if max_cost is not None and await self._host.cost() - cost_before >= max_cost:
                    return "max_cost"
                request = await self._host.prepare()
            reply, request = await self._steps.run_step(request, references)
            if not reply.message.tool_calls:
                if is_truncated(reply.finish_reason):
                    return "truncated"
                return "answered" if reply.message.text.strip() else "empty"
            # The built-in tools also collect the documents that they read or found, for the record of the next reply.
            builtin = BuiltinToolRunner(self._host, request)
            context = replace(self._tool_context, runners=(*self._tool_context.runners, builtin))
            # Names of the offered tools, as the model sees them on the wire.
            names = [to_safe_name(tool.name) for tool in request.assembly.rendered.tools]
            await ToolCallBatch(reply.message.tool_calls, context, tool_names=names).run()
            references = builtin.references
        return "max_steps"
