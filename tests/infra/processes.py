"""Processes with their children, found through Linux's /proc: kill, freeze and thaw them, and wait for their exit."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def find_children(pid: int) -> list[int]:
    return [child for child in _list_pids() if _get_live_parent(child) == pid]


def freeze_tree(pid: int) -> list[int]:
    """Stops a process and its children with SIGSTOP; returns their process IDs."""
    # A stopped process starts no further children, so the list is complete.
    send_signal([pid], signal.SIGSTOP)
    pids = [pid, *find_children(pid)]
    send_signal(pids, signal.SIGSTOP)
    return pids


def kill_tree(pid: int) -> list[int]:
    """Kills a process and its children with SIGKILL; returns the process IDs of the children."""
    pids = freeze_tree(pid)
    send_signal(pids, signal.SIGKILL)
    return pids[1:]


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to those of the processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_for_exit(pids: list[int]) -> None:
    while any(_get_live_parent(pid) is not None for pid in pids):
        time.sleep(0.005)


def _list_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _get_live_parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before the last parenthesis may itself hold spaces and parentheses.
    state, parent = stat.rpartition(")")[2].split()[:2]
    # A zombie holds no resources, and in a container it may never be reaped.
    return None if state in "ZX" else int(parent)
