"""Reads what Kilo Code stores: the database of its command line, which has opencode's tables, and the tasks of its
extension before version 7, which are files like Roo Code's.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from quire.importers.opencode import OpenCodeSource
from quire.importers.roo_code import HISTORY_FILE, list_task_folders, read_task
from quire.sources.base import SourceConversation, SourceError


class KiloSource(OpenCodeSource):
    name = "kilo"
    title = "Kilo Code"
    folder = "kilo"
    patterns = ("kilo*.db", f"*/{HISTORY_FILE}")

    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        yield from super().list_places(env)
        yield from list_task_folders(env, "kilocode.kilo-code")

    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        return read_task(path, self.name) if path.name == HISTORY_FILE else super().read_file(path, since)
