"""Other processes, seen through Linux's /proc: who is whose child, and who is gone."""

import time
from pathlib import Path


def children_of(pid: int) -> list[int]:
    return [child for child in _processes() if _parent_if_alive(child) == pid]


def wait_until_gone(pids: list[int]) -> None:
    while any(_parent_if_alive(pid) is not None for pid in pids):
        time.sleep(0.005)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _parent_if_alive(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before the last parenthesis may itself hold spaces and parentheses.
    state, parent = stat.rpartition(")")[2].split()[:2]
    # A zombie holds nothing any more, and in a container perhaps nobody collects it.
    return None if state in "ZX" else int(parent)
