"""The turn loop: ask, hear the reply, run the tools that it calls, and again, until a reply calls none.

Each step leaves the log valid, so that a turn can end at any moment. The question is kept before the model is asked,
and the context is checked before every call of the model.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from quire.agent.approvals import Approvals
from quire.agent.calling import Calls, Desk
from quire.agent.host import Host, R, ToolRunner
from quire.agent.replies import Replies
from quire.agent.telling import Telling
from quire.agent.turn_limits import TurnLimits
from quire.agent.waiting import uninterrupted
from quire.errors import QuireError
from quire.llm import Model, Reply
from quire.model import Entry, Message, ToolCallPart
from quire.model.turns import EndReason, QuestionKept, TurnEnded, TurnEvent, TurnFailed, TurnStarted, total_usage
from quire.view.assemble import Assembly
from quire.view.shapes.fields import safe_name

_CUT_OFF = ("length", "max_tokens")
"""How providers call a reply that had no tokens left."""


async def turn(
    host: Host[R],
    message: Message | str | None = None,
    *,
    model: Model,
    runners: Sequence[ToolRunner] = (),
    approvals: Approvals | None = None,
    limits: TurnLimits | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncGenerator[TurnEvent, None]:
    """Asks `message`, or goes on from the log as it is, and gives what happens until the turn is over.

    Each step waits until the event before was taken. Setting `stop` ends the turn with its last events; cancelling the
    consumer, or closing the generator (`contextlib.aclosing`), ends it without them. Either way what had come of a
    reply is kept, marked as unfinished, tools are stopped, and every call has its answer, before this returns.
    """
    telling = Telling()
    asked = Message.user(message) if isinstance(message, str) else message
    under_way = _Turn(host, model, runners, approvals or Approvals(), limits or TurnLimits(), telling)
    worker = asyncio.get_running_loop().create_task(under_way.run(asked))
    stopper = asyncio.get_running_loop().create_task(_stop(worker, stop)) if stop is not None else None
    try:
        while (event := await telling.next()) is not None:
            yield event
            telling.taken()
        await asyncio.wait([worker])
        if not worker.cancelled():
            worker.result()
    finally:
        if stopper is not None:
            stopper.cancel()
        worker.cancel()
        await uninterrupted(_end_of(worker))


async def _stop(worker: asyncio.Task[None], stop: asyncio.Event) -> None:
    await stop.wait()
    worker.cancel()


async def _end_of(worker: asyncio.Task[None]) -> None:
    await asyncio.wait([worker])


@dataclass(frozen=True, slots=True)
class _Own:
    """Quire's own tools, which the host runs: they change nothing outside, so nobody is asked."""

    answer: Callable[[ToolCallPart], Awaitable[Message]]

    def handles(self, call: ToolCallPart) -> bool:
        return True

    def needs_approval(self, call: ToolCallPart) -> bool:
        return False

    async def run(self, call: ToolCallPart) -> Message:
        return await self.answer(call)


class _Turn(Generic[R]):
    """A turn under way, in a task of its own: in whichever way its consumer goes, here it is a cancellation."""

    def __init__(
        self,
        host: Host[R],
        model: Model,
        runners: Sequence[ToolRunner],
        approvals: Approvals,
        limits: TurnLimits,
        telling: Telling,
    ) -> None:
        self._host, self._limits, self._telling = host, limits, telling
        self._desk = Desk(
            runners=(*runners, _Own(host.run_tool)),
            approvals=approvals,
            seconds=limits.tool_seconds,
            grace=limits.stop_seconds,
            append=host.append,
            emit=telling.emit,
            tell=telling.tell,
        )
        self._replies = Replies(host, model, limits, telling, self._desk)

    async def run(self, message: Message | None) -> None:
        try:
            self._telling.tell(await self._ending(message))
        finally:
            self._telling.end()

    async def _ending(self, message: Message | None) -> TurnEnded | TurnFailed:
        usages = self._replies.usages
        try:
            reason = await self._answered(await self._ask(message))
        except asyncio.CancelledError:
            reason = "stopped"
        except QuireError as error:
            return TurnFailed(error=error, steps=len(usages), usage=total_usage(usages))
        return TurnEnded(reason=reason, steps=len(usages), usage=total_usage(usages))

    async def _ask(self, message: Message | None) -> R:
        """The first request, its question in the log; there it goes, whatever prevents the request."""
        try:
            await self._telling.emit(TurnStarted(message=message))
            request = await self._host.prepare(message)
        except BaseException:
            if message is not None:
                self._tell_kept(await uninterrupted(self._host.append(message)))
            raise
        entries, request = await uninterrupted(self._host.keep(request))
        self._tell_kept(entries)
        return request

    def _tell_kept(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._telling.tell(QuestionKept(entry=entry))

    async def _answered(self, request: R) -> EndReason:
        for step in range(self._limits.steps):
            if step > 0:
                request = await self._host.prepare()
            reply, request = await self._replies.reply(request)
            if not reply.message.tool_calls:
                return _reason(reply)
            await Calls(reply.message.tool_calls, self._desk, offered=_offered(request.assembly)).run()
        return "steps"


def _offered(assembly: Assembly) -> list[str]:
    """The tools that the model was told of, by the names under which it was."""
    return [safe_name(tool.name) for tool in assembly.pages.tools]


def _reason(reply: Reply) -> EndReason:
    if (reply.finish or "").lower() in _CUT_OFF:
        return "truncated"
    return "answered" if reply.message.text.strip() else "empty"
