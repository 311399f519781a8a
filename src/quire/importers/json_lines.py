"""Reads JSON Lines of unknown origin: line by line, with bounded lines, and with an error for each line that fails."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from pydantic_core import from_json

from quire.importers.base import SourceError
from quire.model.text import replace_lone_surrogates

MAX_LINE_BYTES = 64_000_000
"""Maximum length of one line; a longer one is skipped without being loaded."""
_SKIP_BYTES = 1_000_000


class JsonLine(NamedTuple):
    number: int
    value: dict[str, Any]


def read_json_lines(
    path: Path, *, is_skipped: Callable[[bytes], bool] | None = None
) -> Iterator[JsonLine | SourceError]:
    """The objects of a file, one per line, with their line numbers from 1.

    A last line without a line break that is not complete JSON is skipped: the program is still writing it.
    `is_skipped` decides by its bytes whether a line is skipped without being parsed.
    """
    with path.open("rb") as stream:
        yield from parse_json_lines(stream, name=path.name, is_skipped=is_skipped)


def parse_json_lines(
    stream: IO[bytes], *, name: str, is_skipped: Callable[[bytes], bool] | None = None
) -> Iterator[JsonLine | SourceError]:
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        is_complete = line.endswith(b"\n")
        if len(line) > MAX_LINE_BYTES and not is_complete:
            _skip_line(stream)
            yield SourceError.of(f"{name}:{number}", f"The line has more than {MAX_LINE_BYTES:,} bytes.")
            continue
        if line.isspace() or (is_skipped is not None and is_skipped(line)):
            continue
        try:
            value = parse_json(line)
        except ValueError as error:
            if is_complete:
                yield SourceError.of(f"{name}:{number}", f"The line is not JSON: {error}.")
            continue
        if isinstance(value, dict):
            yield JsonLine(number, value)
        else:
            yield SourceError.of(f"{name}:{number}", "The line is not a JSON object.")


def parse_json(data: bytes) -> Any:
    """Parses JSON of a bounded depth and replaces lone surrogates; raises `ValueError` if it is not valid."""
    try:
        return from_json(data)
    except ValueError:
        # The fast parser refuses lone surrogates, which programs write where they cut a text within a character.
        if b"\\u" not in data:
            raise
    try:
        text = json.dumps(json.loads(data), ensure_ascii=False)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return from_json(replace_lone_surrogates(text).encode())


def _skip_line(stream: IO[bytes]) -> None:
    while (piece := stream.readline(_SKIP_BYTES)) and not piece.endswith(b"\n"):
        pass
