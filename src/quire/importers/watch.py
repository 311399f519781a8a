"""Finds files that changed since the last look, by size and time."""

from collections.abc import Iterable
from pathlib import Path

from quire.importers.base import Source
from quire.importers.transcripts import is_growing

_Fingerprint = tuple[int, int, bool]


class FileWatcher:
    """The files of a source below some paths, and how each was at the last look."""

    def __init__(self, source: Source, paths: Iterable[Path]) -> None:
        self._source, self._paths = source, tuple(paths)
        self._fingerprints: dict[Path, _Fingerprint] = {}

    def find_changed(self) -> list[Path]:
        """Files that are new or changed, or have ceased to grow: a reader holds back the end of a growing one."""
        changed: list[Path] = []
        for path in self._paths:
            for file in self._source.find_files(path):
                try:
                    status = file.stat()
                    fingerprint = (status.st_size, status.st_mtime_ns, is_growing(file))
                except OSError:
                    continue
                if self._fingerprints.get(file) != fingerprint:
                    self._fingerprints[file] = fingerprint
                    changed.append(file)
        return changed
