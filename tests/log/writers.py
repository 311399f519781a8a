"""Starts `writer.py` as processes of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Writer = subprocess.Popen[str]


@contextmanager
def writers(url: str, tasks: Sequence[Sequence[str]]) -> Iterator[list[Writer]]:
    """A process for each task, all of them begun at once; what still runs at the end is killed."""
    started = [_start(url, *task) for task in tasks]
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


def _start(url: str, task: str, *args: str) -> Writer:
    command = [sys.executable, str(Path(__file__).with_name("writer.py")), task, url, *args]
    pipe = subprocess.PIPE
    # Who is killed cannot say what it covered; measuring would only slow it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
