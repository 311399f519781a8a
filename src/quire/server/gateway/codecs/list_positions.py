"""Positions of a list and of its items in the JSON text of a body, which parsers do not report.

A text is decoded as Latin-1, so that its positions are those of the bytes: all that separates values is ASCII.
"""

import json
import re

_SPACE = re.compile(r"[ \t\r\n]*")
_decode_value = json.JSONDecoder().raw_decode

PositionError = (ValueError, IndexError, RecursionError)
"""Errors for a text that is not valid JSON, or nested too deeply."""


def find_list(text: str, field: str) -> int | None:
    """Position after the bracket that opens the list of a field; None if the first field of this name has no list."""
    position = _skip_separator(text, 0, "{")
    while True:
        name, position = _decode_value(text, position)
        position = _skip_separator(text, position, ":")
        if name == field:
            return position + 1 if text[position] == "[" else None
        _, position = _decode_value(text, position)
        position = _skip_separator(text, position, ",")


def find_item_end(text: str, count: int) -> int:
    """Position after this number of items; the text begins at the first item of a list, or after one of its items."""
    position = 0
    for _ in range(count):
        position = _skip_space(text, position)
        if text[position] == ",":
            position = _skip_space(text, position + 1)
        _, position = _decode_value(text, position)
    return position


def _skip_separator(text: str, position: int, separator: str) -> int:
    """Position of the next value after a separator."""
    position = _skip_space(text, position)
    if text[position] != separator:
        raise ValueError(f"no {separator!r} at {position}")
    return _skip_space(text, position + 1)


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match is not None else position
