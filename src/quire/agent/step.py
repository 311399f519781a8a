"""One step of a turn: a model call with its retries, the accumulator of its streamed reply, and the record of it.

Rate-limited calls are retried with exponential backoff, and a context overflow is compacted once and retried.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, assert_never

from quire.agent.limits import TurnLimits
from quire.agent.protocols import RequestT, TurnHost
from quire.agent.tool_calls import ToolCallBatch, ToolCallContext
from quire.concurrency.cancellation import run_shielded
from quire.errors import ModelContextOverflow, ModelError, ModelRateLimited, ModelTimeout, ModelUnavailable
from quire.llm import Model, ModelChunk, Prompt, Reply, TextDelta, ThinkingDelta, ToolCallDelta
from quire.model import DocumentReference, Entry, Message, Part, TextPart, ThinkingPart, ToolCallPart, Usage
from quire.model.base import replace_lone_surrogates
from quire.model.events import ReplyRecorded, RequestPrepared, RetryScheduled, TextChunk, ThinkingChunk, TurnEvent
from quire.wire.replies import TextPieces, drop_incomplete_calls, estimate_usage


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


@dataclass(slots=True)
class _TextAccumulator:
    part_class: type[TextPart | ThinkingPart]
    text: TextPieces = field(default_factory=TextPieces)

    def to_part(self) -> Part:
        return self.part_class(text=self.text.join())


@dataclass(slots=True)
class _ToolCallAccumulator:
    id: str = ""
    name: str = ""
    arguments: TextPieces = field(default_factory=TextPieces)

    def add(self, delta: ToolCallDelta) -> None:
        self.id = delta.id or self.id
        self.name += delta.name or ""
        self.arguments.add(delta.arguments)

    def to_part(self) -> Part:
        return ToolCallPart(
            id=replace_lone_surrogates(self.id),
            name=replace_lone_surrogates(self.name),
            arguments=self.arguments.join(),
        )


class ReplyAccumulator:
    """Accumulates the chunks of one stream, and can build the incomplete message of an interrupted one.

    `reply` is set once the stream has delivered the complete reply.
    """

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self._parts: list[_TextAccumulator | _ToolCallAccumulator] = []
        self._calls: dict[int, _ToolCallAccumulator] = {}

    def add(self, chunk: ModelChunk) -> None:
        match chunk:
            case TextDelta(text=text):
                self._add_text(TextPart, text)
            case ThinkingDelta(text=text):
                self._add_text(ThinkingPart, text)
            case ToolCallDelta():
                if chunk.index not in self._calls:
                    self._calls[chunk.index] = _ToolCallAccumulator()
                    self._parts.append(self._calls[chunk.index])
                self._calls[chunk.index].add(chunk)
            case Reply():
                self.reply = chunk
            case _:
                assert_never(chunk)

    @property
    def is_empty(self) -> bool:
        return self.reply is None and not self._parts

    def build_incomplete_message(self) -> Message | None:
        """Returns what has arrived, without incomplete tool calls; None if that is nothing."""
        parts = tuple(each.to_part() for each in self._parts)
        message = drop_incomplete_calls(Message(role="assistant", parts=parts))
        return message if message.parts else None

    def _add_text(self, part_class: type[TextPart | ThinkingPart], text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _TextAccumulator) or last.part_class is not part_class:
            last = _TextAccumulator(part_class)
            self._parts.append(last)
        last.text.add(text)


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
            rendered, manifest = request.assembly.rendered, request.assembly.manifest
            prepared = RequestPrepared(
                step=len(self.usages) + 1,
                tokens=manifest.total_tokens,
                window=manifest.policy.window,
                trigger_tokens=manifest.trigger_tokens,
                exact=manifest.exact,
                compactions=(*compactions, *request.compactions),
            )
            await self._events.emit(prepared)
            prompt = Prompt(
                system=rendered.system,
                messages=tuple(item.message for item in rendered.messages),
                tools=rendered.tools,
                max_tokens=self._limits.max_reply_tokens,
                timeout=self._limits.model_idle_seconds,
                load_blob=request.load_blob,
            )
            accumulator = ReplyAccumulator()
            request = await run_shielded(self._host.recorder.reserve_spend(request))
            try:
                async with aclosing(self._model.stream(prompt)) as chunks:
                    async for chunk in chunks:
                        accumulator.add(chunk)
                        if isinstance(chunk, TextDelta):
                            await self._events.emit(TextChunk(chunk.text))
                        elif isinstance(chunk, ThinkingDelta):
                            await self._events.emit(ThinkingChunk(chunk.text))
                reply = accumulator.reply
                if reply is None:
                    raise ModelUnavailable(
                        f"The stream of {self._model.name} ended before its reply was complete; retry."
                    )
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
                await run_shielded(self._host.recorder.settle_spend(request, is_billed=False))
                errors.append(error)
            else:
                return await run_shielded(self._record_reply(reply, request, references)), request
            request, compactions = await self._recover(errors, request)

    async def _record_reply(
        self, reply: Reply, request: RequestT, references: Sequence[DocumentReference], *, incomplete: bool = False
    ) -> Reply:
        usage = reply.usage or estimate_usage(
            request.assembly.manifest,
            model=self._model.name,
            output_tokens=request.assembly.message_counter.count(reply.message),
        )
        reply = reply._replace(usage=usage)
        entry = await self._host.record(reply, request=request, references=references, incomplete=incomplete)
        self.usages.append(usage)
        self._events.emit_nowait(
            ReplyRecorded(entry=entry, usage=usage, finish_reason=reply.finish_reason, incomplete=incomplete)
        )
        return reply

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
            await self._host.recorder.settle_spend(request, is_billed=is_billed)
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
        recorder = self._host.recorder
        if isinstance(error, ModelContextOverflow) and not await recorder.correct_overflow(error, request=request):
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
