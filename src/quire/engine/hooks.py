"""Hooks: what a program may do just before and just after a compaction."""

from collections.abc import Awaitable, Callable

from quire.model import Entry
from quire.view.plans import Plan

Before = Callable[[str, Plan], Awaitable[bool]]
"""Gets the conversation's id and the plan; False keeps the compaction from being made."""
After = Callable[[str, Entry], Awaitable[None]]
"""Gets the conversation's id and the compaction's entry."""


class Hooks:
    def __init__(self) -> None:
        self._before: list[Before] = []
        self._after: list[After] = []

    def before_compaction(self, hook: Before) -> Before:
        """Registers a hook; also as a decorator."""
        self._before.append(hook)
        return hook

    def after_compaction(self, hook: After) -> After:
        self._after.append(hook)
        return hook

    async def before(self, conversation: str, plan: Plan) -> bool:
        return all([await hook(conversation, plan) for hook in self._before])

    async def after(self, conversation: str, entry: Entry) -> None:
        for hook in self._after:
            await hook(conversation, entry)
