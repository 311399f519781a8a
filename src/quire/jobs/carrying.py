"""What every carrier of jobs is to those who have work for it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast

from quire.engine.core import Deferrer
from quire.jobs.job import Job, Kind


class Jobs(Protocol):
    """Takes jobs over, to be done by somebody, some time, at least once."""

    async def defer(self, jobs: Sequence[Job]) -> None: ...
    def deferrer(self, tenant: str) -> Deferrer: ...


def deferrer_for(defer: Callable[[Sequence[Job]], Awaitable[None]], tenant: str) -> Deferrer:
    async def deferred(kind: str, conversation: str, branch: int) -> None:
        await defer([Job(cast("Kind", kind), tenant, conversation, branch)])

    return deferred
