"""One reply of the model: asked for, heard, and in the log.

Asks again where a call failed before a word was said and can be mended: a throttled one after a while, and one that
exceeded the window, as only the provider could see, once, with a shorter history. What was heard is kept in any case.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Generic

from quire.agent.calling import Calls, Desk
from quire.agent.hearing import Heard
from quire.agent.host import Host, R
from quire.agent.telling import Telling
from quire.agent.turn_limits import TurnLimits
from quire.agent.waiting import uninterrupted
from quire.errors import ModelError, ModelOverflow, ModelThrottled, ModelUnavailable
from quire.llm import Model, Prompt, Reply, TextDelta, ThinkingDelta
from quire.model import Entry, Message, Usage
from quire.model.turns import ReplyKept, RequestPrepared, Retrying, Text, Thinking
from quire.view.assemble import Assembly
from quire.view.tokens import counter_for


class Replies(Generic[R]):
    def __init__(self, host: Host[R], model: Model, limits: TurnLimits, telling: Telling, desk: Desk) -> None:
        self._host, self._model, self._limits, self._telling, self._desk = host, model, limits, telling, desk
        self.usages: list[Usage] = []
        """What each reply took, so far."""

    async def reply(self, request: R) -> tuple[Reply, R]:
        """The reply, and the request that it answers: where a call had to be mended, that is another than the first."""
        failed: list[ModelError] = []
        compacted: tuple[Entry, ...] = ()
        while True:
            await self._telling.emit(self._prepared(request, compacted))
            heard = Heard()
            try:
                reply = await self._listen(request, heard)
            except BaseException as error:
                if not isinstance(error, ModelError) or not heard.silent or not self._mendable([*failed, error]):
                    await uninterrupted(self._keep_heard(request, heard))
                    raise
                failed.append(error)
            else:
                return await uninterrupted(self._keep(reply, request)), request
            request, compacted = await self._mended(failed, request)

    async def _listen(self, request: R, heard: Heard) -> Reply:
        async with aclosing(self._model.stream(self._prompt(request))) as chunks:
            async for chunk in chunks:
                heard.add(chunk)
                if isinstance(chunk, TextDelta):
                    await self._telling.emit(Text(chunk.text))
                elif isinstance(chunk, ThinkingDelta):
                    await self._telling.emit(Thinking(chunk.text))
        if heard.reply is None:
            raise ModelUnavailable(f"{self._model.name} broke off its reply; ask again.")
        return heard.reply

    def _prompt(self, request: R) -> Prompt:
        pages = request.assembly.pages
        return Prompt(
            system=pages.system,
            messages=tuple(leaf.message for leaf in pages.leaves),
            tools=pages.tools,
            max_tokens=self._limits.reply_tokens,
            timeout=self._limits.silence_seconds,
            load=request.load,
        )

    def _prepared(self, request: R, compacted: Sequence[Entry]) -> RequestPrepared:
        manifest = request.assembly.manifest
        return RequestPrepared(
            step=len(self.usages) + 1,
            tokens=manifest.total,
            window=manifest.policy.window,
            trigger=manifest.trigger,
            exact=manifest.exact,
            compacted=(*compacted, *request.compacted),
        )

    async def _keep(self, reply: Reply, request: R, *, unfinished: bool = False) -> Reply:
        usage = reply.usage or _estimate(self._model.name, request.assembly, reply.message)
        reply = reply._replace(usage=usage)
        entry = await self._host.record(reply, request=request, unfinished=unfinished)
        self.usages.append(usage)
        self._telling.tell(ReplyKept(entry=entry, usage=usage, finish=reply.finish, unfinished=unfinished))
        return reply

    async def _keep_heard(self, request: R, heard: Heard) -> None:
        """Keeps what had come when it was broken off; its calls are answered, and not run."""
        said = heard.unfinished()
        if heard.reply is not None:
            reply = await self._keep(heard.reply, request)
        elif said is not None:
            reply = await self._keep(Reply(said, None, None), request, unfinished=True)
        else:
            return
        await Calls(reply.message.tool_calls, self._desk, offered=()).abandon()

    def _mendable(self, failed: Sequence[ModelError]) -> bool:
        if isinstance(failed[-1], ModelOverflow):
            return sum(isinstance(error, ModelOverflow) for error in failed) == 1
        return self._wait(failed) is not None

    async def _mended(self, failed: Sequence[ModelError], request: R) -> tuple[R, tuple[Entry, ...]]:
        """Another request to try, and the compaction that was made for it."""
        error, seconds = failed[-1], self._wait(failed)
        if seconds is not None:
            await self._telling.emit(Retrying(error=error, seconds=seconds))
            await asyncio.sleep(seconds)
            return await self._host.prepare(), ()
        if not request.assembly.manifest.policy.context_management_enabled:
            raise error
        compaction = await self._host.compact(trigger="overflow")
        fresh = await self._host.prepare()
        if fresh.assembly.pages.digest == request.assembly.pages.digest:
            raise error
        return fresh, (compaction,) if compaction is not None else ()

    def _wait(self, failed: Sequence[ModelError]) -> float | None:
        """Seconds until a throttled call is repeated; None if the last was not, or has been repeated too often."""
        *before, last = failed
        repeated = sum(isinstance(error, ModelThrottled) for error in before)
        return self._limits.wait(last, retry=repeated) if isinstance(last, ModelThrottled) else None


def _estimate(model: str, assembly: Assembly, message: Message) -> Usage:
    """Where the provider reported nothing: what the request counts, corrected by its earlier reports, and the reply."""
    manifest, shape = assembly.manifest, assembly.pages.shape
    read = round(manifest.total * manifest.ratio)
    written = shape.count_units(shape.units(message), counter_for(manifest.policy.model))
    return Usage(model=model, input_tokens=read, output_tokens=written, estimated=True)
