"""Runs the calls of one reply, side by side. Each gets exactly one result, and these enter the log in the calls' order.

Whatever ends the turn, no call is left without an answer: one that is stopped, or was never run, gets a result that
says so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from quire.agent.approvals import Allow, AllowAlways, Approvals, Deny
from quire.agent.host import ToolRunner
from quire.agent.outcomes import failure
from quire.agent.waiting import Late, uninterrupted, within
from quire.model import Entry, Message, ToolCallPart, ToolResultPart
from quire.model.turns import ApprovalAsked, ToolAnswered, ToolCalled, TurnEvent

_LONGEST_ERROR = 2_000
_MOST_NAMES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What running calls takes: who runs them, who allows them, who is told, and where results are kept."""

    runners: Sequence[ToolRunner]
    approvals: Approvals
    seconds: float | None
    """The longest that a tool may take."""
    grace: float
    """How long a tool that is stopped is waited for."""
    append: Callable[..., Awaitable[list[Entry]]]
    emit: Callable[[TurnEvent], Awaitable[None]]
    """Tells, and waits until it was taken note of."""
    tell: Callable[[TurnEvent], None]


class Calls:
    def __init__(self, calls: Sequence[ToolCallPart], desk: Desk, *, offered: Sequence[str]) -> None:
        self._calls, self._desk, self._offered = calls, desk, offered
        self._results: list[ToolResultPart | None] = [None] * len(calls)
        self._running: dict[asyncio.Task[ToolResultPart], int] = {}
        self._told = 0
        self._answered: set[int] = set()
        self._kept = 0

    async def run(self) -> None:
        """Runs them all; if that is broken off, what is not answered by then is answered all the same."""
        try:
            for call in self._calls:
                self._told += 1
                await self._desk.emit(ToolCalled(call=call))
            for place, runner in await self._start_freely():
                await self._start_if_allowed(place, runner)
            while self._running:
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=self._running.__getitem__):
                    await self._settle(self._running.pop(task), task.result())
        except BaseException:
            await uninterrupted(self.abandon())
            raise

    async def abandon(self) -> None:
        """Stops what runs and answers what has no result yet."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        for task, place in self._running.items():
            done = not task.cancelled() and task.exception() is None
            self._results[place] = task.result() if done else _stopped(self._calls[place])
        self._running.clear()
        for call in self._calls[self._told :]:
            self._desk.tell(ToolCalled(call=call))
        self._told = len(self._calls)
        for place, call in enumerate(self._calls):
            result = self._results[place] = self._results[place] or _not_run(call)
            if place not in self._answered:
                self._desk.tell(ToolAnswered(call=call, result=result))
        await self._keep()

    async def _start_freely(self) -> list[tuple[int, ToolRunner]]:
        """Starts the calls that need nobody's leave, and gives the others."""
        others: list[tuple[int, ToolRunner]] = []
        for place, call in enumerate(self._calls):
            runner = self._runner(call)
            if runner is None:
                await self._settle(place, _unknown(call, self._offered))
            elif _needs_approval(runner, call):
                others.append((place, runner))
            else:
                self._start(place, runner)
        return others

    def _runner(self, call: ToolCallPart) -> ToolRunner | None:
        """Only what the model was told of is run: other tools are switched off, or not of this session."""
        if call.name not in self._offered:
            return None
        return next((runner for runner in self._desk.runners if runner.handles(call)), None)

    async def _start_if_allowed(self, place: int, runner: ToolRunner) -> None:
        call, approvals = self._calls[place], self._desk.approvals
        if not approvals.granted(call):
            await self._desk.emit(ApprovalAsked(call=call))
        verdict = await approvals.verdict(call)
        match verdict:
            case Allow() | AllowAlways():
                self._start(place, runner)
            case Deny(reason=reason):
                await self._settle(place, _denied(call, reason))
            case _:
                assert_never(verdict)

    def _start(self, place: int, runner: ToolRunner) -> None:
        task = asyncio.get_running_loop().create_task(self._run(self._calls[place], runner))
        self._running[task] = place

    async def _run(self, call: ToolCallPart, runner: ToolRunner) -> ToolResultPart:
        seconds = self._desk.seconds
        try:
            return _result(call, await within(seconds, _asked(runner, call), grace=self._desk.grace))
        except Late:
            return _failed(call, f"{call.name} gave no result within {seconds:g} s, and was stopped.")
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _raised(call, error)
        except Exception as error:  # noqa: BLE001  a tool may raise what it will, and the turn goes on
            return _raised(call, error)

    async def _settle(self, place: int, result: ToolResultPart) -> None:
        self._results[place] = result
        await uninterrupted(self._keep())
        self._answered.add(place)
        await self._desk.emit(ToolAnswered(call=self._calls[place], result=result))

    async def _keep(self) -> None:
        """Appends the results that are there, up to the first that is missing."""
        ready: list[Message] = []
        for result in self._results[self._kept :]:
            if result is None:
                break
            ready.append(Message(role="tool", parts=(result,)))
        if ready:
            await self._desk.append(*ready)
            self._kept += len(ready)


async def _asked(runner: ToolRunner, call: ToolCallPart) -> Message:
    return await runner.run(call)


def _needs_approval(runner: ToolRunner, call: ToolCallPart) -> bool:
    try:
        return runner.needs_approval(call)
    except Exception:  # noqa: BLE001  a question that cannot be answered is put to a person
        return True


def _result(call: ToolCallPart, answer: Message) -> ToolResultPart:
    """The result in a runner's answer, for this very call."""
    if len(answer.tool_results) != 1:
        return _failed(call, f"{call.name} gave no result that can be read.")
    return answer.tool_results[0].model_copy(update={"call_id": call.id})


def _raised(call: ToolCallPart, error: BaseException) -> ToolResultPart:
    """By name and message, without a trace: that is about the program, and not for the model."""
    said = f"{type(error).__name__}: {error}".removesuffix(": ")[:_LONGEST_ERROR]
    return _failed(call, f"{call.name} failed: {said}")


def _unknown(call: ToolCallPart, offered: Sequence[str]) -> ToolResultPart:
    names = ", ".join([*offered[:_MOST_NAMES], "…"] if len(offered) > _MOST_NAMES else offered)
    return _failed(call, f"There is no tool {call.name!r} here; {f'there are {names}' if names else 'there are none'}.")


def _denied(call: ToolCallPart, reason: str | None) -> ToolResultPart:
    said = f" They say: {reason}" if reason else ""
    return _failed(call, f"{call.name} was not run: the user did not allow it.{said}")


def _stopped(call: ToolCallPart) -> ToolResultPart:
    text = f"{call.name} was stopped before it gave a result; what it had done by then is not known."
    return _failed(call, text)


def _not_run(call: ToolCallPart) -> ToolResultPart:
    return _failed(call, f"{call.name} was not run: the turn was stopped before.")


def _failed(call: ToolCallPart, text: str) -> ToolResultPart:
    return failure(text).part(call.id)
