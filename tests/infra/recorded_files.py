"""Files that the real programs wrote, from `importers/data/recorded`."""

import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "importers" / "data" / "recorded"


def copy_recorded(source: str, target: Path) -> Path:
    """A copy of the files of a program, as old as if it had ended an hour ago; databases are stored as SQL."""
    shutil.copytree(RECORDED / source, target)
    for dump in target.rglob("*.sql"):
        with closing(sqlite3.connect(dump.with_suffix(""))) as connection:
            connection.executescript(dump.read_text())
        dump.unlink()
    set_age(target, 3_600)
    return target


def set_age(folder: Path, seconds: float) -> None:
    """Makes all files of a folder as old as if they had been written that long ago."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - seconds, time.time() - seconds))
