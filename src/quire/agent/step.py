"""One step of a turn: a model call with its retries, and the record of its reply.

Rate-limited calls are retried with exponential backoff, and a context overflow is compacted once and retried.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Generic

from quire.agent.cancellation import run_shielded
from quire.agent.event_queue import TurnEventQueue
from quire.agent.limits import TurnLimits
from quire.agent.protocols import RequestT, TurnHost
from quire.agent.reply_accumulator import ReplyAccumulator
from quire.agent.tool_calls import ToolCallBatch, ToolCallContext
from quire.errors import ModelContextOverflow, ModelError, ModelRateLimited, ModelTimeout, ModelUnavailable
from quire.llm import Model, Prompt, Reply, TextDelta, ThinkingDelta
from quire.model import DocumentReference, Entry, Message, Usage
from quire.model.events import ReplyRecorded, RequestPrepared, RetryScheduled, TextChunk, ThinkingChunk
from quire.view.assembly import Assembly
from quire.view.replies import estimate_usage


class StepRunner(Generic[RequestT]):
    """Runs one step: streams a reply, retries what can be retried, and records the reply, complete or not."""

    def __init__(
        self,
        host: TurnHost[RequestT],
        model: Model,
        limits: TurnLimits,
        events: TurnEventQueue,
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
            request = await run_shielded(self._host.reserve_spend(request))
            try:
                reply = await self._stream_reply(request, accumulator)
            except BaseException as error:
                if (
                    not isinstance(error, ModelError)
                    or not accumulator.is_empty
                    or not self._is_recoverable([*errors, error])
                ):
                    is_billed = not isinstance(error, ModelError) or isinstance(error, ModelTimeout)
                    await run_shielded(
                        self._record_partial_reply(request, accumulator, references, is_billed=is_billed)
                    )
                    raise
                await run_shielded(self._host.settle_spend(request, is_billed=False))
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
        return estimate_usage(
            message, model=self._model.name, manifest=assembly.manifest, counter=assembly.message_counter
        )

    async def _record_partial_reply(
        self,
        request: RequestT,
        accumulator: ReplyAccumulator,
        references: Sequence[DocumentReference],
        *,
        is_billed: bool,
    ) -> None:
        """Records what arrived of an interrupted reply. Its tool calls are not run; each gets a result that says so."""
        partial = accumulator.build_incomplete_message()
        if accumulator.reply is not None:
            reply = await self._record_reply(accumulator.reply, request, references)
        elif partial is not None:
            reply = await self._record_reply(Reply(partial, None, None), request, references, incomplete=True)
        else:
            await self._host.settle_spend(request, is_billed=is_billed)
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
        if isinstance(error, ModelContextOverflow) and not await self._host.correct_overflow(error, request=request):
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
