"""Approval of tool calls: decisions about single calls, and tools that are always allowed.

An `Approvals` value lives as long as its permissions should, usually a session. Without a callback, every call that
needs approval is denied.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from quire.agent.function_tools import call_function
from quire.model import ToolCallPart


@dataclass(frozen=True, slots=True)
class Allow:
    """Run this call."""


@dataclass(frozen=True, slots=True)
class AllowAlways:
    """Run this call and every later call of the same tool."""


@dataclass(frozen=True, slots=True)
class Deny:
    """Do not run this call. The model gets an error result with the reason."""

    reason: str | None = None


ApprovalDecision = Allow | AllowAlways | Deny
ApprovalCallback = Callable[[ToolCallPart], Awaitable[ApprovalDecision]]
ApprovalFunction = Callable[[ToolCallPart], bool | ApprovalDecision | Awaitable[bool | ApprovalDecision]]
"""An application's function that decides about a call, async or blocking. True runs the call, False denies it."""


def to_approval_callback(approve: ApprovalFunction) -> ApprovalCallback:
    """Adapts an application's function. Whatever it returns other than True or a decision denies the call."""

    async def ask(call: ToolCallPart) -> ApprovalDecision:
        decision = await call_function(approve, call)
        if isinstance(decision, ApprovalDecision):
            return decision
        return Allow() if decision is True else Deny()

    return ask


class Approvals:
    def __init__(self, ask: ApprovalCallback | None = None, *, always_allowed: Iterable[str] = ()) -> None:
        self._ask = ask
        self._always_allowed = set(always_allowed)

    @property
    def always_allowed(self) -> frozenset[str]:
        """Wire names of the tools whose calls run without a further approval."""
        return frozenset(self._always_allowed)

    def is_allowed(self, call: ToolCallPart) -> bool:
        return call.name in self._always_allowed

    async def decide(self, call: ToolCallPart) -> ApprovalDecision:
        """Requests a decision, unless the tool is always allowed, and remembers `AllowAlways`."""
        if self.is_allowed(call):
            return Allow()
        if self._ask is None:
            return Deny("It needs approval, and this session has no way to request one.")
        decision = await self._ask(call)
        if isinstance(decision, AllowAlways):
            self._always_allowed.add(call.name)
        return decision
