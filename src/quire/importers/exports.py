"""Reads the conversations of an export: a JSON file, a zip archive with such files, or a directory of them."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.importers.base import SourceConversation, SourceError
from quire.importers.export_files import READ_ERRORS, ExportFiles
from quire.importers.json_values import JsonValue, read_json_values


@dataclass(frozen=True)
class ExportSource:
    """A source whose conversations people export by hand: each is an object of a JSON file, at no known path."""

    name: str
    title: str
    pattern: re.Pattern[str]
    """Names of the files with conversations, in a directory or in an archive."""
    read_conversation: Callable[[dict[str, Any], ExportFiles], SourceConversation]
    """Makes a conversation of one object; raises `ValueError` if it is none."""
    find_updated_at: Callable[[dict[str, Any]], int | None]
    """Time of a conversation's last change, if the export has it."""

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        return []

    def find_files(self, path: Path) -> Iterator[Path]:
        """The file itself, or the archives and matching files of a directory, in the order of their names."""
        if not path.is_dir():
            yield path
            return
        for each in sorted(path.iterdir()):
            if each.is_file() and (self.pattern.fullmatch(each.name) or each.suffix.lower() == ".zip"):
                yield each

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        """Conversations of all matching members, read one at a time."""
        try:
            with ExportFiles(path) as files:
                found = False
                for member in files.iter_members(self.pattern):
                    found = True
                    for item in read_json_values(member.stream, name=member.name):
                        if isinstance(item, SourceError):
                            yield item
                        elif not self._is_older(item.value, since):
                            yield self._read_value(item, files, member.name)
                if not found:
                    yield SourceError.of(path.name, "The archive has no conversations of this program.")
        except READ_ERRORS as error:
            yield SourceError.of(path.name, f"The file cannot be read: {error}.")

    def _is_older(self, raw: dict[str, Any], since: int | None) -> bool:
        updated_at = self.find_updated_at(raw) if since is not None else None
        return since is not None and updated_at is not None and updated_at < since

    def _read_value(self, item: JsonValue, files: ExportFiles, name: str) -> SourceConversation | SourceError:
        try:
            return self.read_conversation(item.value, files)
        except ValueError as error:
            return SourceError.of(f"{name}:{item.number}", f"The conversation cannot be read: {error}.")
