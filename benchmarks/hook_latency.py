"""Time that `quire hook` adds to an agent's turn.

Runs the command as an agent does, in a home of its own, on a transcript with a compaction and then many messages. The
first event starts the hook service; the figures are for the events after it. A bare `python -c pass` in the same run is
the floor. CPU time is that of the command; on a busy machine it says more than the time on the clock.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

QUIRE = Path(sys.executable).with_name("quire")
MESSAGES = 2_000
QUICK_RUNS = 20
SESSION = "11111111-2222-4333-8444-555555555555"


def make_line(kind: str, number: int, parent: int | None, **fields: object) -> str:
    line = {"type": kind, "uuid": f"u{number}", "parentUuid": None if parent is None else f"u{parent}"}
    common = {"sessionId": SESSION, "cwd": "/project", "isSidechain": False, "timestamp": "2026-01-05T09:00:00.000Z"}
    return json.dumps({**line, **common, **fields})


def make_user(number: int, parent: int | None, text: str, **fields: object) -> str:
    return make_line("user", number, parent, message={"role": "user", "content": text}, **fields)


def write_transcript(path: Path) -> None:
    """Messages before a compaction, its summary, and one after it."""
    lines = [
        make_user(number, number - 1 if number else None, f"Fact {number}: the buoy {number} is painted {number % 7}.")
        for number in range(MESSAGES)
    ]
    lines.append(make_line("system", MESSAGES, None, subtype="compact_boundary", logicalParentUuid=f"u{MESSAGES - 1}"))
    lines.append(make_user(MESSAGES + 1, MESSAGES, "We spoke about buoys.", isCompactSummary=True))
    lines.append(make_user(MESSAGES + 2, MESSAGES + 1, "And now?"))
    path.write_text("".join(f"{line}\n" for line in lines))


class Timing(NamedTuple):
    clock: float
    cpu: float
    """Both in milliseconds."""


def run_timed(command: list[str], env: dict[str, str], data: bytes = b"") -> tuple[Timing, bytes]:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=env, input=data, capture_output=True, check=True)
    clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timing(clock * 1_000, cpu * 1_000), done.stdout


def report(name: str, timings: list[Timing]) -> None:
    figures = []
    for column in ("clock", "cpu"):
        values = [getattr(each, column) for each in timings]
        figures.append(
            f"{column} p50 {statistics.median(values):6.1f} p95 {statistics.quantiles(values, n=20)[-1]:6.1f} ms"
        )
    print(f"{name:42} {'   '.join(figures)}")


def read_cpu(pid: int) -> float:
    """CPU milliseconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1_000 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} runs")
    options = parser.parse_args()
    runs: int = QUICK_RUNS if options.quick else options.runs
    folder = Path(tempfile.mkdtemp(prefix="q"))
    path = folder / f"{SESSION}.jsonl"
    write_transcript(path)
    os.utime(path, (0, 0))
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    event = {"session_id": SESSION, "transcript_path": str(path), "cwd": str(folder)}

    def run_event(name: str, **fields: str) -> tuple[Timing, bytes]:
        data = json.dumps({**event, "hook_event_name": name, **fields}).encode()
        return run_timed([str(QUIRE), "hook", "claude-code"], env, data)

    try:
        print(f"first event (starts the service): {run_event('SessionStart', source='startup')[0].clock:.1f} ms")
        while b"buoy 77 " not in run_event("UserPromptSubmit", prompt="What colour has buoy 77?")[1]:
            time.sleep(0.5)
        [lock] = folder.rglob("*.lock")
        pid = int(lock.read_text())
        cpu_before = read_cpu(pid)
        floor: list[Timing] = []
        stops: list[Timing] = []
        prompts: list[Timing] = []
        recalled = 0
        for number in range(runs):
            floor.append(run_timed([sys.executable, "-c", "pass"], env)[0])
            stops.append(run_event("Stop")[0])
            took, output = run_event("UserPromptSubmit", prompt=f"What colour has buoy {number}?")
            prompts.append(took)
            recalled += f"buoy {number} ".encode() in output
        report("python -c pass", floor)
        report("quire hook: Stop", stops)
        report("quire hook: UserPromptSubmit with recall", prompts)
        print(f"service: {(read_cpu(pid) - cpu_before) / runs:.1f} ms of CPU for one Stop and one prompt")
        print(f"{recalled} of {runs} prompts got their fact back; load average {os.getloadavg()[0]:.1f}")
    finally:
        for lock in folder.rglob("*.lock"):
            os.kill(int(lock.read_text()), signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
