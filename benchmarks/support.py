"""What the benchmarks share: timing two things side by side, a table, and goals that a run meets or falls short of."""

import argparse
import asyncio
import inspect
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

Timed = Callable[[], Awaitable[Any] | Any]


async def rounds_of(*timed: Timed, rounds: int) -> list[list[float]]:
    """Milliseconds of each, taken in turn, so that a slow moment of the machine meets them alike."""
    taken: list[list[float]] = [[] for _ in timed]
    for _ in range(rounds):
        for times, work in zip(taken, timed, strict=True):
            start = time.perf_counter()
            outcome = work()
            if inspect.isawaitable(outcome):
                await outcome
            times.append((time.perf_counter() - start) * 1_000)
    return taken


async def medians(*timed: Timed, rounds: int) -> list[float]:
    return [statistics.median(times) for times in await rounds_of(*timed, rounds=rounds)]


async def ratio(ours: Timed, theirs: Timed, *, rounds: int) -> tuple[float, float]:
    """Our median, and the median of our time over theirs, round by round."""
    mine, yours = await rounds_of(ours, theirs, rounds=rounds)
    return statistics.median(mine), statistics.median(a / b for a, b in zip(mine, yours, strict=True))


@dataclass
class Report:
    name: str
    goals: list[tuple[str, float, float, bool]] = field(default_factory=list)

    def table(self, title: str, header: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
        cells = [
            header,
            *(tuple(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row) for row in rows),
        ]
        widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
        print(f"\n{title}")
        for row in cells:
            print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))

    def at_most(self, measure: str, value: float, goal: float) -> None:
        self.goals.append((measure, value, goal, value <= goal))

    def finish(self) -> None:
        """One line a goal; the exit code says whether all were met."""
        print()
        for measure, value, goal, met in self.goals:
            print(f"{self.name}.{measure}: {value:.2f} (goal <= {goal:.2f}) {'ok' if met else 'short'}")
        sys.exit(0 if all(met for *_, met in self.goals) else 1)


def main(run: Callable[..., Coroutine[Any, Any, Report]]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute")
    asyncio.run(run(quick=parser.parse_args().quick)).finish()
