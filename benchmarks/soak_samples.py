"""Samples of `soak.py`: resources of the server's processes, latency by minute, and whether they stay flat."""

import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from infra.processes import find_children

CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ResourceSample:
    """Sums over the processes of the server."""

    seconds: float
    """Since the start of the load."""
    pss_megabytes: float
    """Proportional set size: pages that processes share are counted once."""
    rss_megabytes: float
    cpu_seconds: float
    file_handles: int
    threads: int
    database_connections: int
    load_average: float
    """Of the machine, over one minute."""


@dataclass(frozen=True)
class MinuteSample:
    """Turns that ended in one minute, and the latency of those that no script disturbed."""

    minute: int
    turns: int
    failures: int
    """Of turns and event streams, without those that the script contains."""
    p50_ms: float
    p99_ms: float
    control_p50_ms: float = 0.0
    """Of the same minute's requests to the upstream without Quire: what the machine's other work does to latency."""
    fsync_p50_ms: float = 0.0
    """Of an fsync of a page beside the database."""


class SoakRecord(NamedTuple):
    resources: list[ResourceSample]
    minutes: list[MinuteSample]


def sample_processes(pid: int, *, seconds: float, database_connections: int) -> ResourceSample:
    """Reads Linux's /proc for a process and its children."""
    pss = rss = handles = threads = 0
    cpu_seconds = 0.0
    for each in (pid, *find_children(pid)):
        with suppress(FileNotFoundError, ProcessLookupError):
            process = Path(f"/proc/{each}")
            memory = _read_fields(process / "smaps_rollup")
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            handles += sum(1 for _ in (process / "fd").iterdir())
            pss += memory["Pss"]
            rss += memory["Rss"]
            threads += int(fields[17])
            cpu_seconds += (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_SECOND
    return ResourceSample(
        seconds=round(seconds, 1),
        pss_megabytes=pss / 1_000,
        rss_megabytes=rss / 1_000,
        cpu_seconds=cpu_seconds,
        file_handles=handles,
        threads=threads,
        database_connections=database_connections,
        load_average=round(os.getloadavg()[0], 2),
    )


def _read_fields(path: Path) -> dict[str, int]:
    """Kilobytes by name."""
    lines = [line.split() for line in path.read_text().splitlines() if line.endswith("kB")]
    return {words[0].rstrip(":"): int(words[1]) for words in lines}


def summarize_minute(
    minute: int,
    latencies: Sequence[float],
    *,
    turns: int,
    failures: int,
    control: Sequence[float] = (),
    fsync: Sequence[float] = (),
) -> MinuteSample:
    p50, p99 = 0.0, 0.0
    if len(latencies) >= 2:
        cuts = statistics.quantiles(latencies, n=100, method="inclusive")
        p50, p99 = cuts[49], cuts[98]
    seconds = (p50, p99, *(statistics.median(each or [0.0]) for each in (control, fsync)))
    return MinuteSample(minute, turns, failures, *(round(each * 1_000, 2) for each in seconds))


def encode_sample(sample: ResourceSample | MinuteSample) -> str:
    kind = "resources" if isinstance(sample, ResourceSample) else "minute"
    return json.dumps({"kind": kind, **asdict(sample)})


def parse_record(lines: Iterable[str]) -> SoakRecord:
    record = SoakRecord([], [])
    for line in lines:
        values = json.loads(line)
        match values.pop("kind"):
            case "resources":
                record.resources.append(ResourceSample(**values))
            case _:
                record.minutes.append(MinuteSample(**values))
    return record


def compare_thirds(samples: Sequence[ResourceSample], measure: Callable[[ResourceSample], float]) -> float:
    """Lowest decile of the last third divided by that of the second; in the first one caches and pools fill.

    A busy moment of the machine opens more connections and handles for a while; a leak raises the floor.
    """
    size = len(samples) // 3
    second, last = (sorted(map(measure, part)) for part in (samples[size : 2 * size], samples[2 * size :]))
    return last[len(last) // 10] / max(1e-9, second[len(second) // 10])


def compare_minutes(minutes: Sequence[MinuteSample], measure: Callable[[MinuteSample], float]) -> float:
    """Median minute of the last ten minutes divided by that of the minutes 10 to 20."""
    first, last = (statistics.median(map(measure, part)) for part in (minutes[10:20], minutes[-10:]))
    return last / max(1e-9, first)


def compare_cpu_per_turn(record: SoakRecord) -> float:
    """CPU time of a turn in the last third, divided by that in the second."""
    size = len(record.minutes) // 3

    def measure(first: int, last: int) -> float:
        within = [each for each in record.resources if first * 60 <= each.seconds <= last * 60]
        turns = sum(each.turns for each in record.minutes[first:last])
        return (within[-1].cpu_seconds - within[0].cpu_seconds) / turns

    return measure(2 * size, len(record.minutes)) / measure(size, 2 * size) if size else 1.0


def compute_cpu_percents(samples: Sequence[ResourceSample]) -> list[tuple[float, float]]:
    """Percent of one core between consecutive samples, by their time."""
    return [
        (after.seconds, 100 * (after.cpu_seconds - before.cpu_seconds) / (after.seconds - before.seconds))
        for before, after in pairwise(samples)
    ]
