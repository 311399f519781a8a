"""Reads the conversations of an export: a JSON file, a zip archive with such files, or a directory of them."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quire.importers.base import SourceConversation, SourceError
from quire.importers.export_files import READ_ERRORS, ExportFiles
from quire.importers.json_values import JsonValue, read_json_values

ConversationReader = Callable[[dict[str, Any], ExportFiles], SourceConversation | None]
"""Makes a conversation of one object of an export; None to skip it. Raises `ValueError` if it is none."""


def find_export_files(path: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    """The file itself, or the archives and matching files of a directory, in the order of their names."""
    if not path.is_dir():
        yield path
        return
    for each in sorted(path.iterdir()):
        if each.is_file() and (pattern.fullmatch(each.name) or each.suffix.lower() == ".zip"):
            yield each


def read_export(
    path: Path, *, pattern: re.Pattern[str], read_conversation: ConversationReader
) -> Iterator[SourceConversation | SourceError]:
    """Conversations of all matching members, read one at a time."""
    try:
        with ExportFiles(path) as files:
            found = False
            for member in files.iter_members(pattern):
                found = True
                for item in read_json_values(member.stream, name=member.name):
                    read = (
                        item
                        if isinstance(item, SourceError)
                        else _read_value(item, files, member.name, read_conversation)
                    )
                    if read is not None:
                        yield read
            if not found:
                yield SourceError.of(path.name, "The archive has no conversations of this program.")
    except READ_ERRORS as error:
        yield SourceError.of(path.name, f"The file cannot be read: {error}.")


def _read_value(
    item: JsonValue, files: ExportFiles, name: str, read_conversation: ConversationReader
) -> SourceConversation | SourceError | None:
    try:
        return read_conversation(item.value, files)
    except ValueError as error:
        return SourceError.of(f"{name}:{item.number}", f"The conversation cannot be read: {error}.")
