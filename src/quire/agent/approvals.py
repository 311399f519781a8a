"""Who allows the calls of tools that ask for it, and what was allowed for good.

One value lasts as long as its permissions should: a session, usually. With nobody to ask, such a call is denied.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from quire.model import ToolCallPart


@dataclass(frozen=True, slots=True)
class Allow:
    """This call may be run."""


@dataclass(frozen=True, slots=True)
class AllowAlways:
    """This call, and every later one of the same tool."""


@dataclass(frozen=True, slots=True)
class Deny:
    """This call is not run; the model is told so, and the reason."""

    reason: str | None = None


Verdict = Allow | AllowAlways | Deny
Ask = Callable[[ToolCallPart], Awaitable[Verdict]]


class Approvals:
    def __init__(self, ask: Ask | None = None, *, always: Iterable[str] = ()) -> None:
        self._ask = ask
        self._always = set(always)

    @property
    def always(self) -> frozenset[str]:
        """The tools, by the names under which models call them, that nobody is asked about any more."""
        return frozenset(self._always)

    def granted(self, call: ToolCallPart) -> bool:
        return call.name in self._always

    async def verdict(self, call: ToolCallPart) -> Verdict:
        if self.granted(call):
            return Allow()
        if self._ask is None:
            return Deny("It needs to be allowed, and nobody is here to ask.")
        verdict = await self._ask(call)
        if isinstance(verdict, AllowAlways):
            self._always.add(call.name)
        return verdict
