"""Runs the tool calls of one reply concurrently; results are appended to the log in the order of the calls.

Invariant: every call gets exactly one result, however the turn ends. A call that was cancelled or never run gets an
error result that says so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, assert_never

from quire.agent.approvals import Allow, AllowAlways, Approvals, Deny
from quire.agent.protocols import RequestT, ToolRunner, TurnHost
from quire.agent.tool_results import describe_exception, make_tool_error
from quire.concurrency.cancellation import ToolTimeout, run_shielded, run_with_timeout
from quire.context.builtin_tool_schemas import Remember
from quire.model import Entry, Message, ToolCallPart, ToolResultPart
from quire.model.entry_metadata import DocumentReference
from quire.model.events import ApprovalRequested, ToolCalled, ToolCompleted, TurnEvent

_MAX_LISTED_TOOLS = 20
"""Maximum tool names listed in the error for an unknown tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallContext:
    """Dependencies of tool calls: runners, approvals, timeouts, the log, and the event queue."""

    runners: Sequence[ToolRunner]
    approvals: Approvals
    timeout_seconds: float | None
    """Seconds one tool call may take."""
    grace_seconds: float
    """Seconds to wait for a cancelled tool to end."""
    append: Callable[..., Awaitable[list[Entry]]]
    emit: Callable[[TurnEvent], Awaitable[None]]
    """Emits an event and waits until the consumer has handled it."""
    emit_nowait: Callable[[TurnEvent], None]


class ToolCallBatch:
    """The tool calls of one reply."""

    def __init__(self, calls: Sequence[ToolCallPart], context: ToolCallContext, *, tool_names: Sequence[str]) -> None:
        self._calls, self._context, self._tool_names = calls, context, tool_names
        self._results: list[ToolResultPart | None] = [None] * len(calls)
        self._running: dict[asyncio.Task[ToolResultPart], int] = {}
        self._announced_count = 0
        self._completed: set[int] = set()
        self._appended_count = 0

    async def run(self) -> None:
        """Runs all calls. If interrupted, it still gives every remaining call a result."""
        try:
            for call in self._calls:
                self._announced_count += 1
                await self._context.emit(ToolCalled(call=call))
            awaiting_approval: list[tuple[int, ToolRunner]] = []
            for index, call in enumerate(self._calls):
                # Only an offered tool is run. Another one is disabled or not of this session.
                runners = self._context.runners if call.name in self._tool_names else ()
                runner = next((each for each in runners if each.handles(call)), None)
                if runner is None:
                    listed = self._tool_names[:_MAX_LISTED_TOOLS]
                    names = ", ".join([*listed, "…"] if len(self._tool_names) > len(listed) else listed)
                    available = f"available tools: {names}" if names else "no tools are available"
                    await self._complete(index, _make_error(call, f"There is no tool {call.name!r}; {available}."))
                    continue
                try:
                    needs_approval = runner.needs_approval(call)
                except Exception:  # noqa: BLE001  if the rule fails, a person decides
                    needs_approval = True
                if needs_approval:
                    awaiting_approval.append((index, runner))
                else:
                    self._start(index, runner)
            for index, runner in awaiting_approval:
                await self._start_after_approval(index, runner)
            while self._running:
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=self._running.__getitem__):
                    await self._complete(self._running.pop(task), task.result())
        except BaseException:
            await run_shielded(self.cancel())
            raise

    async def cancel(self) -> None:
        """Cancels running calls and gives an error result to every call that has no result yet."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        for task, index in self._running.items():
            call = self._calls[index]
            unknown = f"{call.name} was cancelled before it gave a result; its effects until then are unknown."
            done = not task.cancelled() and task.exception() is None
            self._results[index] = task.result() if done else _make_error(call, unknown)
        self._running.clear()
        for call in self._calls[self._announced_count :]:
            self._context.emit_nowait(ToolCalled(call=call))
        self._announced_count = len(self._calls)
        for index, call in enumerate(self._calls):
            not_run = f"{call.name} was not run: the turn was stopped first."
            result = self._results[index] = self._results[index] or _make_error(call, not_run)
            if index not in self._completed:
                self._context.emit_nowait(ToolCompleted(call=call, result=result))
        await self._append_ready_results()

    async def _start_after_approval(self, index: int, runner: ToolRunner) -> None:
        call, approvals = self._calls[index], self._context.approvals
        if not approvals.is_allowed(call):
            await self._context.emit(ApprovalRequested(call=call))
        decision = await approvals.decide(call)
        match decision:
            case Allow() | AllowAlways():
                self._start(index, runner)
            case Deny(reason=reason):
                explanation = f" Reason: {reason}" if reason else ""
                denied = f"{call.name} was not run: the user denied it.{explanation}"
                await self._complete(index, _make_error(call, denied))
            case _:
                assert_never(decision)

    def _start(self, index: int, runner: ToolRunner) -> None:
        task = asyncio.get_running_loop().create_task(self._run_call(self._calls[index], runner))
        self._running[task] = index

    async def _run_call(self, call: ToolCallPart, runner: ToolRunner) -> ToolResultPart:
        seconds = self._context.timeout_seconds
        try:
            message = await run_with_timeout(seconds, runner.run(call), grace_seconds=self._context.grace_seconds)
            if len(message.tool_results) != 1:
                return _make_error(call, f"{call.name} gave no valid result: exactly one is expected.")
            return message.tool_results[0].model_copy(update={"call_id": call.id})
        except ToolTimeout:
            return _make_error(call, f"{call.name} gave no result within {seconds:g} s and was cancelled.")
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _make_error(call, f"{call.name} failed: {describe_exception(error)}")
        except Exception as error:  # noqa: BLE001  a tool may raise anything; the turn continues
            return _make_error(call, f"{call.name} failed: {describe_exception(error)}")

    async def _complete(self, index: int, result: ToolResultPart) -> None:
        self._results[index] = result
        await run_shielded(self._append_ready_results())
        self._completed.add(index)
        await self._context.emit(ToolCompleted(call=self._calls[index], result=result))

    async def _append_ready_results(self) -> None:
        """Appends results to the log up to the first missing one, so that they are in the order of the calls."""
        ready: list[Message] = []
        for result in self._results[self._appended_count :]:
            if result is None:
                break
            ready.append(Message(role="tool", parts=(result,)))
        if ready:
            await self._context.append(*ready)
            self._appended_count += len(ready)


@dataclass(frozen=True, slots=True)
class BuiltinToolRunner(Generic[RequestT]):
    """Runs the built-in tools that the reply to a request called, and collects the documents that they read.

    They change nothing outside Quire, so they need no approval, except `remember`: a memory outlives its conversation,
    and a document that the model read may have dictated it.
    """

    host: TurnHost[RequestT]
    request: RequestT
    references: list[DocumentReference] = field(default_factory=list[DocumentReference])

    def handles(self, call: ToolCallPart) -> bool:
        return True

    def needs_approval(self, call: ToolCallPart) -> bool:
        return call.name == Remember.tool_name

    async def run(self, call: ToolCallPart) -> Message:
        outcome = await self.host.run_tool(call, request=self.request)
        self.references.extend(outcome.references)
        return outcome.message


def _make_error(call: ToolCallPart, text: str) -> ToolResultPart:
    return make_tool_error(text).to_part(call.id)
