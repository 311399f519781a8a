"""Shared by the benchmarks: interleaved timing, tables, and goals with an exit code."""

import argparse
import asyncio
import inspect
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

TimedFunction = Callable[[], Awaitable[Any] | Any]


async def time_rounds(*timed: TimedFunction, rounds: int) -> list[list[float]]:
    """Times each function in milliseconds, interleaved, so that a slow moment of the machine affects all of them."""
    taken: list[list[float]] = [[] for _ in timed]
    for _ in range(rounds):
        for times, work in zip(taken, timed, strict=True):
            start = time.perf_counter()
            outcome = work()
            if inspect.isawaitable(outcome):
                await outcome
            times.append((time.perf_counter() - start) * 1_000)
    return taken


async def time_medians(*timed: TimedFunction, rounds: int) -> list[float]:
    return [statistics.median(times) for times in await time_rounds(*timed, rounds=rounds)]


async def time_ratio(ours: TimedFunction, theirs: TimedFunction, *, rounds: int) -> tuple[float, float]:
    """Returns our median, and the median of the ratio of our time to theirs per round."""
    mine, yours = await time_rounds(ours, theirs, rounds=rounds)
    return statistics.median(mine), statistics.median(a / b for a, b in zip(mine, yours, strict=True))


@dataclass
class Report:
    name: str
    goals: list[tuple[str, float, float, bool]] = field(default_factory=list)

    def print_table(self, title: str, header: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
        cells = [
            header,
            *(tuple(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row) for row in rows),
        ]
        widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
        print(f"\n{title}")
        for row in cells:
            print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))

    def require_at_most(self, measure: str, value: float, goal: float) -> None:
        self.goals.append((measure, value, goal, value <= goal))

    def print_goals_and_exit(self) -> None:
        """Prints one line per goal; the exit code is 0 if all were met."""
        print()
        for measure, value, goal, met in self.goals:
            print(f"{self.name}.{measure}: {value:.2f} (goal <= {goal:.2f}) {'ok' if met else 'short'}")
        sys.exit(0 if all(met for *_, met in self.goals) else 1)


def run_benchmark(run: Callable[..., Coroutine[Any, Any, Report]]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute")
    asyncio.run(run(quick=parser.parse_args().quick)).print_goals_and_exit()
