"""What `quire run` costs over the bare program, with a server that runs and without, and what a status line costs.

The programs are `true` and the real Claude Code, which asks a scripted provider on loopback one question. CPU time is
that of the command and of all processes that it started; the CPU time of the server that runs is listed by itself.
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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from infra.real_agents import CLAUDE_MODEL, find_claude
from infra.scripted_provider import run_scripted_provider

QUIRE = str(Path(sys.executable).with_name("quire"))
QUICK_ROUNDS, QUICK_LINES = 3, 50
START_SECONDS = 60
EVENT = {
    "session_id": "11111111-2222-4333-8444-555555555555",
    "context_window": {
        "context_window_size": 1_000_000,
        "current_usage": {"input_tokens": 12, "cache_creation_input_tokens": 2_041, "cache_read_input_tokens": 18_360},
    },
}


class Timing(NamedTuple):
    clock: float
    cpu: float
    """Both in milliseconds."""


class Home:
    """A home with a database that exists already, as on every day but the first."""

    def __init__(self, folder: Path, provider_url: str) -> None:
        claude = find_claude()
        path = [str(claude.parent)] if claude is not None else []
        self.environ = {
            **{name: value for name, value in os.environ.items() if name.startswith(("PYTHONPATH", "LANG", "TMPDIR"))},
            "PATH": ":".join([*path, os.environ["PATH"]]),
            "HOME": str(folder),
            "ANTHROPIC_BASE_URL": provider_url,
            "ANTHROPIC_API_KEY": "test-key",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }
        self.folder = folder

    def run(self, *words: str, data: bytes = b"") -> Timing:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(words, env=self.environ, input=data, capture_output=True, cwd=self.folder)
        clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        return Timing(clock * 1_000, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1_000)

    def start_server(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [QUIRE, "serve", "--port", "0"],
            env=self.environ,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process


def read_cpu(pid: int) -> float:
    """CPU milliseconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1_000 / os.sysconf("SC_CLK_TCK")


def print_row(name: str, timings: list[Timing], server_cpu: float | None = None) -> None:
    clock, cpu = ([getattr(each, field) for each in timings] for field in ("clock", "cpu"))
    own = f"{server_cpu:8.0f}" if server_cpu is not None else "       -"
    print(f"{name:38}{statistics.median(clock):9.0f}{min(clock):9.0f}{statistics.median(cpu):9.0f}{min(cpu):9.0f}{own}")


def measure(home: Home, pid: int | None, rounds: int, *words: str) -> tuple[list[Timing], float | None]:
    before = read_cpu(pid) if pid is not None else 0.0
    timings = [home.run(*words) for _ in range(rounds)]
    return timings, (read_cpu(pid) - before) / rounds if pid is not None else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--lines", type=int, default=1_000)
    options = parser.parse_args()
    rounds: int = QUICK_ROUNDS if options.quick else options.rounds
    lines: int = QUICK_LINES if options.quick else options.lines
    folder = Path(tempfile.mkdtemp(prefix="q"))
    question = ("claude", "-p", "Name a river.", "--model", CLAUDE_MODEL)
    programs: list[tuple[str, tuple[str, ...]]] = [("true", ("true",))]
    if find_claude() is not None:
        programs.append(("claude -p", question))
    server = None
    try:
        with run_scripted_provider("The Rhine.") as provider:
            home = Home(folder, provider.url)
            for _, words in programs:
                home.run(QUIRE, "run", *words)  # Compiles the bytecode, and makes the database and the agent's home.
            print(f"milliseconds of {rounds} rounds; load average {os.getloadavg()[0]:.1f}")
            print(f"{'':38}{'clock':>9}{'least':>9}{'CPU':>9}{'least':>9}{'server':>8}")
            for name, words in programs:
                print_row(name, *measure(home, None, rounds, *words))
                print_row(f"quire run {name}, no server", *measure(home, None, rounds, QUIRE, "run", *words))
            server = home.start_server()
            spent = -1.0
            while spent < (spent := read_cpu(server.pid)):  # It prints its address before it has imported everything.
                time.sleep(1)
            for _, words in programs:
                home.run(QUIRE, "run", *words)
            for name, words in programs:
                timings = measure(home, server.pid, rounds, QUIRE, "run", *words)
                print_row(f"quire run {name}, with a server", *timings)
            event = json.dumps(EVENT).encode()
            run_line: Callable[[], Timing] = lambda: home.run(QUIRE, "statusline", data=event)  # noqa: E731
            run_line()
            before = read_cpu(server.pid)
            timings, floor = (
                [run_line() for _ in range(lines)],
                [home.run(sys.executable, "-c", "pass") for _ in range(min(lines, 100))],
            )
            own = (read_cpu(server.pid) - before) / lines
            print(f"\n{lines:,} status lines: milliseconds, p50, p99, most; server {own:.1f} of CPU each")
            for name, measured in (("python -c pass", floor), ("quire statusline", timings)):
                for field in ("clock", "cpu"):
                    values = sorted(getattr(each, field) for each in measured)
                    picked = (statistics.median(values), values[int(len(values) * 0.99)], values[-1])
                    print(f"{name:20} {field:6}{picked[0]:9.1f}{picked[1]:9.1f}{picked[2]:9.1f}")
            print(f"load average {os.getloadavg()[0]:.1f}")
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.wait(START_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
