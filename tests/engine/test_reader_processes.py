"""Processes that read files for an import end with the command that started them, also if it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import time
from concurrent.futures import ProcessPoolExecutor
from quire.concurrency.processes import exit_with_parent, get_spawn_context

if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=get_spawn_context(), initializer=exit_with_parent) as pool:
        waiting = [pool.submit(time.sleep, 0.1) for _ in range(2)]
        [each.result() for each in waiting]
        print(*pool._processes, flush=True)
        time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_readers_end_with_a_command_that_is_killed(tmp_path: Path):
    script = tmp_path / "read.py"
    script.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        readers = [int(each) for each in command.stdout.readline().split()]
        assert len(readers) == 2
        command.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(is_alive(each) for each in readers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [each for each in readers if is_alive(each)]


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
