"""Creates the files of a SQLite database so that only their owner can read them."""

import os
from contextlib import suppress
from pathlib import Path

from sqlalchemy import URL

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def create_private_files(url: URL) -> None:
    """Creates the folder and the empty file of a new SQLite database; existing ones stay as they are.

    SQLite gives the write-ahead log and the shared-memory file the permissions of the database file. What cannot be
    created is reported by SQLite when it opens the file.
    """
    if url.database in (None, "", ":memory:") or str(url.database).startswith("file:"):
        return
    path = Path(str(url.database))
    with suppress(OSError):
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
