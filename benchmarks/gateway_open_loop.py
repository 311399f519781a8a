"""Open-loop load of `gateway.py` by k6: latency at half of each server's capacity, compared with the bare proxy's.

Clients in a closed loop wait for a slow server, and so hide its queue; here turns start at a constant rate. k6 has to
be on the PATH (https://grafana.com/docs/k6/latest/set-up/install-k6/); without it the rows are left out.
"""

import asyncio
import json
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gateway_clients import QUESTION_TEXT, SYSTEM_PROMPT, TURNS_PER_CONVERSATION
from gateway_processes import ServerProcess
from quire.model.ids import new_id
from support import Report

SCRIPT = Path(__file__).with_suffix(".js")
CAPACITY_SHARE = 0.5
WARM_UP_SECONDS = 3.0


class LoadSummary(NamedTuple):
    turns: int
    p50_ms: float
    p99_ms: float
    failed: int
    dropped: int
    """Turns that could not start, because all of k6's virtual users were waiting."""


class AddedLatency(NamedTuple):
    """Medians over the rounds."""

    rate: float
    p50_ms: float
    p99_ms: float
    bare_p99_ms: float
    failed: int
    dropped: int

    @property
    def added_p99_ms(self) -> float:
        return self.p99_ms - self.bare_p99_ms


async def run_k6(server: ServerProcess, key: str, *, rate: float, seconds: float) -> LoadSummary:
    variables = {
        "PORT": server.port, "KEY": key, "RATE": rate, "SECONDS": seconds, "RUN": new_id(),
        "TURNS": TURNS_PER_CONVERSATION, "SYSTEM_PROMPT": SYSTEM_PROMPT, "QUESTION": QUESTION_TEXT,
    }  # fmt: skip
    given = [option for name, value in variables.items() for option in ("--env", f"{name}={value}")]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "k6", "run", "--quiet", "--no-usage-report", *given, "-", stdin=pipe, stdout=pipe, stderr=pipe
    )
    output, errors = await process.communicate(SCRIPT.read_bytes())
    if process.returncode != 0:
        raise RuntimeError(f"k6 failed: {errors.decode()[-1_000:]}")
    return LoadSummary(**json.loads(output))


async def measure_added_latency(
    server: ServerProcess, bare: ServerProcess, key: str, *, rate: float, rounds: int, seconds: float
) -> AddedLatency:
    """Alternates with the bare proxy at the same rate."""
    found: tuple[list[LoadSummary], list[LoadSummary]] = ([], [])
    for each in (server, bare):
        await run_k6(each, key, rate=rate, seconds=WARM_UP_SECONDS)
    for _ in range(rounds):
        for each, summaries in zip((server, bare), found, strict=True):
            summaries.append(await run_k6(each, key, rate=rate, seconds=seconds))
    ours, theirs = found
    return AddedLatency(
        rate=rate,
        p50_ms=statistics.median(each.p50_ms for each in ours),
        p99_ms=statistics.median(each.p99_ms for each in ours),
        bare_p99_ms=statistics.median(each.p99_ms for each in theirs),
        failed=sum(each.failed for each in ours),
        dropped=sum(each.dropped for each in ours),
    )


async def compare_open_loop(
    report: Report,
    servers: Mapping[str, ServerProcess],
    key: str,
    *,
    capacities: Mapping[str, float],
    rounds: int,
    seconds: float,
) -> None:
    if shutil.which("k6") is None:
        print("\nOpen-loop load is left out: k6 is not installed.")
        return
    found = {
        name: await measure_added_latency(
            servers[name],
            servers["bare"],
            key,
            rate=CAPACITY_SHARE * capacities[name],
            rounds=rounds,
            seconds=seconds,
        )
        for name in ("gateway", "litellm")
        if name in servers
    }
    columns = ("server", "turns/s", "p50", "p99", "p99 of bare", "p99 added", "failed", "dropped")
    report.print_table(
        f"Open loop at half of each server's turns/s with 16 clients, milliseconds; {await read_k6_version()}",
        columns,
        [
            (name, each.rate, each.p50_ms, each.p99_ms, each.bare_p99_ms, each.added_p99_ms, each.failed, each.dropped)
            for name, each in found.items()
        ],
    )
    report.require_at_most("open_loop_failed_turns", found["gateway"].failed + found["gateway"].dropped, 0)


async def read_k6_version() -> str:
    process = await asyncio.create_subprocess_exec("k6", "version", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return output.decode().partition("(")[0].strip()
