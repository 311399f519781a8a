"""Process inspection through Linux's /proc: children of a process, and waiting for their exit."""

import time
from pathlib import Path


def find_children(pid: int) -> list[int]:
    return [child for child in _list_pids() if _get_live_parent(child) == pid]


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
