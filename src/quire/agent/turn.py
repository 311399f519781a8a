"""The turn loop (agent loop): from a question through model calls and tool calls to the final answer.

`run_turn` is an async generator of events. A turn consists of steps, each one model call and the tool calls of its
reply. Rate-limited calls are retried with exponential backoff, and a context overflow is compacted once and retried.
However a turn ends, the log holds the question, what arrived of the reply, and one result for every tool call.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Generic

from quire.agent.approvals import Approvals
from quire.agent.cancellation import run_shielded
from quire.agent.limits import TurnLimits
from quire.agent.protocols import RequestT, ToolRunner, TurnHost
from quire.agent.reply_accumulator import ReplyAccumulator
from quire.agent.tool_calls import BuiltinToolRunner, ToolCallBatch, ToolCallContext
from quire.errors import ModelContextOverflow, ModelError, ModelRateLimited, ModelUnavailable, QuireError
from quire.llm import Model, Prompt, Reply, TextDelta, ThinkingDelta
from quire.model import Entry, Message, ToolCallPart, Usage
from quire.model.entries import DocumentReference
from quire.model.events import (
    QuestionRecorded,
    ReplyRecorded,
    RequestPrepared,
    RetryScheduled,
    TextChunk,
    ThinkingChunk,
    TurnEnded,
    TurnEndReason,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    sum_usage,
)
from quire.view.assembly import Assembly
from quire.view.rendered import MessageCounter
from quire.view.replies import estimate_usage
from quire.view.tokens import counter_for
from quire.view.wire_formats.fields import to_safe_name

_TRUNCATED_FINISH_REASONS = ("length", "max_tokens")
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
    stopper = asyncio.get_running_loop().create_task(_cancel_on_stop(worker, stop)) if stop is not None else None
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
        await run_shielded(_wait_for_end(worker))


async def _cancel_on_stop(worker: asyncio.Task[None], stop: asyncio.Event) -> None:
    await stop.wait()
    worker.cancel()


async def _wait_for_end(worker: asyncio.Task[None]) -> None:
    await asyncio.wait([worker])


class _TurnTask(Generic[RequestT]):
    """The work of a turn. It runs in its own task, so every way a consumer can stop arrives as a cancellation."""

    def __init__(
        self,
        host: TurnHost[RequestT],
        model: Model,
        runners: Sequence[ToolRunner],
        approvals: Approvals,
        limits: TurnLimits,
        events: "TurnEventQueue",
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
        try:
            self._events.emit_nowait(await self._run_to_end(message))
        finally:
            self._events.close()

    async def _run_to_end(self, message: Message | None) -> TurnEnded | TurnFailed:
        usages = self._steps.usages
        try:
            reason = await self._run_steps(await self._record_question(message))
        except asyncio.CancelledError:
            reason = "stopped"
        except QuireError as error:
            return TurnFailed(error=error, steps=len(usages), usage=sum_usage(usages))
        return TurnEnded(reason=reason, steps=len(usages), usage=sum_usage(usages))

    async def _record_question(self, message: Message | None) -> RequestT:
        """Prepares the first request and records the question, even if preparing the request fails."""
        try:
            await self._events.emit(TurnStarted(message=message))
            request = await self._host.prepare(message)
        except BaseException:
            if message is not None:
                self._emit_question_recorded(await run_shielded(self._host.append(message)))
            raise
        entries, request = await run_shielded(self._host.record_question(request))
        self._emit_question_recorded(entries)
        return request

    def _emit_question_recorded(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._events.emit_nowait(QuestionRecorded(entry=entry))

    async def _run_steps(self, request: RequestT) -> TurnEndReason:
        references: Sequence[DocumentReference] = ()
        for step in range(self._limits.max_steps):
            if step > 0:
                request = await self._host.prepare()
            reply, request = await self._steps.run_step(request, references)
            if not reply.message.tool_calls:
                return _get_end_reason(reply)
            references = await self._run_tools(reply.message.tool_calls, request)
        return "max_steps"

    async def _run_tools(self, calls: Sequence[ToolCallPart], request: RequestT) -> list[DocumentReference]:
        """Runs the tool calls of the reply to `request`; returns the documents that built-in tools read or found."""
        builtin = BuiltinToolRunner(self._host, request)
        context = replace(self._tool_context, runners=(*self._tool_context.runners, builtin))
        await ToolCallBatch(calls, context, tool_names=_list_tool_names(request.assembly)).run()
        return builtin.references


class StepRunner(Generic[RequestT]):
    """Runs one step: streams a reply, retries what can be retried, and records the reply, complete or not."""

    def __init__(
        self,
        host: TurnHost[RequestT],
        model: Model,
        limits: TurnLimits,
        events: "TurnEventQueue",
        tool_context: ToolCallContext,
    ) -> None:
        self._host, self._model, self._limits = host, model, limits
        self._events, self._tool_context = events, tool_context
        self.usages: list[Usage] = []
        """Token usage of each reply so far."""

    async def run_step(self, request: RequestT, references: Sequence[DocumentReference] = ()) -> tuple[Reply, RequestT]:
        """Returns the reply and the request it answers, which differs from `request` after a retry.

        `references` are the documents that the tools of the previous step read; they are recorded with the reply.
        """
        errors: list[ModelError] = []
        compactions: tuple[Entry, ...] = ()
        while True:
            await self._events.emit(self._build_prepared_event(request, compactions))
            accumulator = ReplyAccumulator()
            try:
                reply = await self._stream_reply(request, accumulator)
            except BaseException as error:
                if (
                    not isinstance(error, ModelError)
                    or not accumulator.is_empty
                    or not self._is_recoverable([*errors, error])
                ):
                    await run_shielded(self._record_partial_reply(request, accumulator, references))
                    raise
                errors.append(error)
            else:
                return await run_shielded(self._record_reply(reply, request, references)), request
            request, compactions = await self._recover(errors, request)

    async def _stream_reply(self, request: RequestT, accumulator: ReplyAccumulator) -> Reply:
        async with aclosing(self._model.stream(self._build_prompt(request))) as chunks:
            async for chunk in chunks:
                accumulator.add(chunk)
                if isinstance(chunk, TextDelta):
                    await self._events.emit(TextChunk(chunk.text))
                elif isinstance(chunk, ThinkingDelta):
                    await self._events.emit(ThinkingChunk(chunk.text))
        if accumulator.reply is None:
            raise ModelUnavailable(f"The stream of {self._model.name} ended before its reply was complete; retry.")
        return accumulator.reply

    def _build_prompt(self, request: RequestT) -> Prompt:
        rendered = request.assembly.rendered
        return Prompt(
            system=rendered.system,
            messages=tuple(item.message for item in rendered.messages),
            tools=rendered.tools,
            max_tokens=self._limits.max_reply_tokens,
            timeout=self._limits.model_idle_seconds,
            load_blob=request.load_blob,
        )

    def _build_prepared_event(self, request: RequestT, compactions: Sequence[Entry]) -> RequestPrepared:
        manifest = request.assembly.manifest
        return RequestPrepared(
            step=len(self.usages) + 1,
            tokens=manifest.total_tokens,
            window=manifest.policy.window,
            trigger_tokens=manifest.trigger_tokens,
            exact=manifest.exact,
            compactions=(*compactions, *request.compactions),
        )

    async def _record_reply(
        self, reply: Reply, request: RequestT, references: Sequence[DocumentReference], *, incomplete: bool = False
    ) -> Reply:
        usage = reply.usage or self._estimate_usage(request.assembly, reply.message)
        reply = reply._replace(usage=usage)
        entry = await self._host.record(reply, request=request, references=references, incomplete=incomplete)
        self.usages.append(usage)
        self._events.emit_nowait(
            ReplyRecorded(entry=entry, usage=usage, finish_reason=reply.finish_reason, incomplete=incomplete)
        )
        return reply

    def _estimate_usage(self, assembly: Assembly, message: Message) -> Usage:
        counter = MessageCounter(counter_for(assembly.manifest.policy.model), assembly.rendered.wire_format)
        return estimate_usage(message, model=self._model.name, manifest=assembly.manifest, counter=counter)

    async def _record_partial_reply(
        self, request: RequestT, accumulator: ReplyAccumulator, references: Sequence[DocumentReference]
    ) -> None:
        """Records what arrived of an interrupted reply. Its tool calls are not run; each gets a result that says so."""
        partial = accumulator.build_incomplete_message()
        if accumulator.reply is not None:
            reply = await self._record_reply(accumulator.reply, request, references)
        elif partial is not None:
            reply = await self._record_reply(Reply(partial, None, None), request, references, incomplete=True)
        else:
            return
        await ToolCallBatch(reply.message.tool_calls, self._tool_context, tool_names=()).cancel()

    def _is_recoverable(self, errors: Sequence[ModelError]) -> bool:
        if isinstance(errors[-1], ModelContextOverflow):
            return sum(isinstance(error, ModelContextOverflow) for error in errors) == 1
        return self._get_retry_delay(errors) is not None

    async def _recover(self, errors: Sequence[ModelError], request: RequestT) -> tuple[RequestT, tuple[Entry, ...]]:
        """Returns the request to retry with, and the compaction made for it: waits after a rate limit, compacts after
        an overflow. Raises the last error where the retry would send the same bytes again."""
        error, delay_seconds = errors[-1], self._get_retry_delay(errors)
        if delay_seconds is not None:
            await self._events.emit(RetryScheduled(error=error, delay_seconds=delay_seconds))
            await asyncio.sleep(delay_seconds)
            return await self._host.prepare(), ()
        if not request.assembly.manifest.policy.context_management_enabled:
            raise error
        compaction = await self._host.compact(trigger="overflow")
        new_request = await self._host.prepare()
        if new_request.assembly.rendered.digest == request.assembly.rendered.digest:
            raise error
        return new_request, (compaction,) if compaction is not None else ()

    def _get_retry_delay(self, errors: Sequence[ModelError]) -> float | None:
        """Backoff in seconds; None if the last error is no rate limit or the retries are used up."""
        *earlier, last = errors
        attempt = sum(isinstance(error, ModelRateLimited) for error in earlier)
        return self._limits.get_retry_delay(last, attempt=attempt) if isinstance(last, ModelRateLimited) else None


class TurnEventQueue:
    """Queue of events from a turn to its one consumer, with backpressure."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[TurnEvent | None] = asyncio.Queue()

    async def emit(self, event: TurnEvent) -> None:
        """Queues an event and waits until the consumer has handled it, so that a UI shows what led to an approval
        prompt before the prompt."""
        self.emit_nowait(event)
        await self._queue.join()

    def emit_nowait(self, event: TurnEvent) -> None:
        """Queues an event without waiting: for events of an interrupted turn, whose consumer may be gone."""
        self._queue.put_nowait(event)

    def close(self) -> None:
        """Marks the end of the events."""
        self._queue.put_nowait(None)

    async def get(self) -> TurnEvent | None:
        """Waits for the next event; None at the end."""
        return await self._queue.get()

    def ack(self) -> None:
        """Marks the last event as handled."""
        self._queue.task_done()


def _list_tool_names(assembly: Assembly) -> list[str]:
    """Names of the offered tools, as the model sees them on the wire."""
    return [to_safe_name(tool.name) for tool in assembly.rendered.tools]


def _get_end_reason(reply: Reply) -> TurnEndReason:
    if (reply.finish_reason or "").lower() in _TRUNCATED_FINISH_REASONS:
        return "truncated"
    return "answered" if reply.message.text.strip() else "empty"
