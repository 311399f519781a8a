"""One attempt at a job: done, to be tried again after a while, or given up. The same for every carrier."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.jobs.job import Job, Kind
from quire.jobs.telling import tell
from quire.jobs.workshop import REFUSED, Workshop

ATTEMPTS = 5
"""Then a job is given up; the sweep may find it again."""


class Tried(NamedTuple):
    then: tuple[Job, ...] = ()
    """What the job called for."""
    again_in: float | None = None
    """So many seconds, if it is to be tried once more."""


@dataclass(slots=True)
class Tally:
    """How many jobs of each kind came to what."""

    done: Counter[Kind] = field(default_factory=Counter["Kind"])
    failed: Counter[Kind] = field(default_factory=Counter["Kind"])
    """Given up, or left to be tried again."""

    @property
    def total(self) -> int:
        return self.done.total() + self.failed.total()


class Attempts:
    """Tries jobs in a workshop, tells what came of them, and counts."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self.tally = Tally()

    async def attempt(self, job: Job, number: int) -> Tried:
        began = time.monotonic()
        try:
            outcome = await self._workshop.do(job)
        except asyncio.CancelledError:
            tell("job_released", job=job, attempt=number)
            raise
        except REFUSED as error:
            self.tally.done[job.kind] += 1
            tell("job_refused", job=job, error=error, attempt=number)
            return Tried()
        except Exception as error:  # noqa: BLE001 (whatever it is, the worker goes on, and others take their turn)
            self.tally.failed[job.kind] += 1
            wait = back_off(number) if number < ATTEMPTS else None
            tell("job_failed" if wait is not None else "job_given_up", job=job, error=error, attempt=number, wait=wait)
            return Tried(again_in=wait)
        self.tally.done[job.kind] += 1
        tell("job_done", job=job, made=outcome.done, seconds=round(time.monotonic() - began, 3), attempt=number)
        return Tried(outcome.then)


def back_off(number: int) -> float:
    """5 seconds after the first attempt, then five times as long each time: in all about a quarter of an hour."""
    return float(5**number)
