"""What the readers of agents' transcripts share: files of a folder, files that still grow, and the title of a line."""

import time
from collections.abc import Iterator
from pathlib import Path

HOLD_BACK_SECONDS = 10
"""A reply at the end of a file that changed since then may lack parts that the agent has yet to write."""


def list_files(folder: Path, *suffixes: str) -> Iterator[Path]:
    """The files below a folder whose names have one of these endings, sorted."""
    return iter(sorted(path for path in folder.rglob("*") if path.name.endswith(suffixes) and path.is_file()))


def is_growing(path: Path) -> bool:
    """Whether the file was written to within `HOLD_BACK_SECONDS`."""
    return time.time() - path.stat().st_mtime < HOLD_BACK_SECONDS


def is_older(path: Path, since: int | None) -> bool:
    """Whether the file was last changed before this time in microseconds."""
    return since is not None and path.stat().st_mtime_ns // 1_000 < since
