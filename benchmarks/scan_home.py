"""Writes a home with transcripts of Claude Code and Codex, and runs `quire scan` in it: first, and again.

Prints the seconds until the first findings and until all, CPU seconds, and the memory of all processes. The full
size is 4,000 sessions with 1,000,000 messages, 5 GB; `--share 0.1` writes a tenth.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from infra.agent_homes import write_clean_session, write_codex_session
from support import Report

SESSIONS, MESSAGES_OF_A_SESSION, FILLER_CHARS = 4_000, 250, 9_000
MAX_FIRST_SECONDS, MAX_SECONDS, MAX_AGAIN_SECONDS, MAX_MEGABYTES = 60, 600, 5, 500


def write_home(home: Path, sessions: int) -> int:
    """Writes the sessions, three quarters of Claude Code; returns their bytes."""
    size = 0
    for number in range(sessions):
        if number % 4 == 3:
            path = write_codex_session(
                home / ".codex" / "sessions",
                number,
                messages=MESSAGES_OF_A_SESSION,
                filler=FILLER_CHARS,
                age_days=1 + number % 90,
            )
        else:
            path = write_clean_session(
                home / ".claude" / "projects", number, messages=MESSAGES_OF_A_SESSION, filler=FILLER_CHARS, days=28
            )
        size += path.stat().st_size
    return size


def scan(home: Path) -> tuple[float, float, float, float]:
    """Seconds until the first findings, until the end, CPU seconds, and the megabytes of all processes."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "XDG_"))}
    environ |= {"HOME": str(home), "COLUMNS": "100"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    first: list[float] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "quire", "scan"], env=environ, cwd=home, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def watch() -> None:
        for line in process.stderr or ():
            sys.stderr.buffer.write(line)
            if line.startswith(b"First findings"):
                first.append(time.monotonic() - started)

    memory = [0.0]

    def measure() -> None:
        while process.poll() is None:
            memory.append(sum(map(read_megabytes, list_processes(process.pid))))
            time.sleep(0.5)

    reader, meter = threading.Thread(target=watch), threading.Thread(target=measure)
    reader.start()
    meter.start()
    output = (process.stdout.read() if process.stdout else b"").decode()
    code = process.wait()
    reader.join()
    taken = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert code == 0, output
    assert "in" in output.splitlines()[0], output
    meter.join()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return first[0] if first else taken, taken, cpu, max(memory)


def list_processes(pid: int) -> list[int]:
    """The process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(each for child in children for each in list_processes(int(child)))]


def read_megabytes(pid: int) -> float:
    """Its share of the physical memory, with shared pages divided among the processes that map them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.1, help="Share of the full size.")
    share = parser.parse_args().share
    home = Path(tempfile.mkdtemp(prefix="quire-scan-"))
    report = Report("scan")
    try:
        size = write_home(home, int(SESSIONS * share))
        rows = [(name, *scan(home)) for name in ("first scan", "second scan")]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    report.print_table(
        f"{int(SESSIONS * share):,} sessions, {size / 1e9:.2f} GB",
        ("", "first findings s", "all s", "CPU s", "MB"),
        rows,
    )
    report.require_at_most("first_findings_seconds", rows[0][1], MAX_FIRST_SECONDS)
    report.require_at_most("seconds", rows[0][2], MAX_SECONDS * share)
    report.require_at_most("second_seconds", rows[1][2], MAX_AGAIN_SECONDS)
    report.require_at_most("megabytes", rows[0][4], MAX_MEGABYTES)
    report.print_goals_and_exit()


if __name__ == "__main__":
    main()
