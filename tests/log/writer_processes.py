"""Starts `writer_main.py` in separate processes."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

WriterProcess = subprocess.Popen[str]


@contextmanager
def start_writers(url: str, tasks: Sequence[Sequence[str]]) -> Iterator[list[WriterProcess]]:
    """Starts a process for each task, all at the same moment; kills those that still run at the end."""
    started = [_spawn_writer(url, *task) for task in tasks]
    try:
        for writer in started:
            assert writer.stdout.readline() == "ready\n", writer.stderr.read()
        for writer in started:
            writer.stdin.write("begin\n")
            writer.stdin.flush()
        yield started
    finally:
        for writer in started:
            writer.kill()
            writer.communicate()


def _spawn_writer(url: str, task: str, *args: str) -> WriterProcess:
    command = [sys.executable, str(Path(__file__).with_name("writer_main.py")), task, url, *args]
    pipe = subprocess.PIPE
    # A killed process cannot report coverage; measuring would only slow it down.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
