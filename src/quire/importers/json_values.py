"""Reads the values of a large JSON document one at a time: the items of an array, or values one after another.

Exports are single arrays of hundreds of megabytes. A scanner finds where each item ends, and only that item is parsed.
Streaming parsers of others build any item however large it is; here a larger one is skipped without being loaded, and
the items after it are read.
"""

import json
import re
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from quire.importers.base import SourceError
from quire.importers.json_lines import parse_json
from quire.model.text import replace_lone_surrogates

MAX_VALUE_BYTES = 64_000_000
"""Maximum length of one item: a conversation."""
MAX_VALUE_TOKENS = 2_000_000
"""Maximum strings and brackets of one item: each takes up to a hundred bytes of memory once it is parsed."""
MAX_VALUE_DEPTH = 500
"""Maximum nesting of one item."""
_PARSER_DEPTH = 100
"""Nesting up to which `parse_json` is used; its parser refuses more than 200 levels."""
_CHUNK_BYTES = 256 * 1024

_NEXT_BRACKET = re.compile(rb'[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[\]{}]*+)*+([\[\]{}]?)', re.DOTALL)
"""Everything up to a bracket outside of strings, and the bracket; without one, up to a string that does not end."""
_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_BETWEEN_VALUES = b" \t\r\n,"
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff", b"\x00")


class JsonValue(NamedTuple):
    number: int
    """Position among the values of the document, from 1."""
    value: dict[str, Any]


class _Piece(NamedTuple):
    """A value without its parsed form, or the reason why it cannot be parsed."""

    data: bytes = b""
    depth: int = 0
    reason: str | None = None


def read_json_values(stream: IO[bytes], *, name: str) -> Iterator[JsonValue | SourceError]:
    """The objects of a document: items of its array, or each of several values. Other values are errors."""
    for number, piece in enumerate(_Scanner().scan(stream), start=1):
        item = f"{name}:{number}"
        if piece.reason is not None:
            yield SourceError.of(item, piece.reason)
            continue
        try:
            value = _parse(piece)
        except ValueError as error:
            yield SourceError.of(item, f"The item is not JSON: {error}.")
            continue
        yield JsonValue(number, value) if isinstance(value, dict) else SourceError.of(item, "The item is no object.")


def _parse(piece: _Piece) -> Any:
    if piece.depth <= _PARSER_DEPTH:
        return parse_json(piece.data)
    try:
        text = json.dumps(json.loads(piece.data), ensure_ascii=False)
        return json.loads(replace_lone_surrogates(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


class _Scanner:
    """Splits a document at the brackets of its outermost values."""

    def __init__(self) -> None:
        self._base: int | None = None
        """Depth at which values begin: 1 inside an array, 0 otherwise; None before the first bracket."""
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._has_other_value = False
        self._begin_value()

    def _begin_value(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = self._tokens = self._deepest = 0

    def scan(self, stream: IO[bytes]) -> Iterator[_Piece]:
        chunk = stream.read(_CHUNK_BYTES)
        if chunk.startswith(_OTHER_ENCODINGS):
            yield _Piece(reason="The file is not UTF-8; convert it first.")
            return
        chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        while chunk:
            yield from self._scan_chunk(chunk)
            chunk = stream.read(_CHUNK_BYTES)
        if self._depth or self._in_string:
            yield _Piece(reason="The file ends in the middle of a value; it may not be complete.")

    def _scan_chunk(self, chunk: bytes) -> Iterator[_Piece]:
        position = self._finish_string(chunk) if self._in_string else 0
        start = 0
        """Where the current value, or the gap before the next one, begins in the chunk."""
        while (bracket := _NEXT_BRACKET.match(chunk, position)) is not None and bracket[1]:
            position = bracket.end()
            if bracket[1] in b"[{":
                if self._is_between_values:
                    start = position - 1
                    yield from self._end_gap(chunk[bracket.start() : start])
                self._open(bracket[1])
            elif self._close():
                self._add(chunk[start:position])
                yield self._end_value()
            elif self._is_between_values:
                self._add_gap(chunk[start : position - 1])
            if self._is_between_values:
                start = position
        self._begin_string(chunk, bracket.end() if bracket is not None else position)
        if self._is_between_values:
            self._add_gap(chunk[start:])
        else:
            self._add(chunk[start:])

    @property
    def _is_between_values(self) -> bool:
        return self._depth <= (self._base or 0)

    def _begin_string(self, chunk: bytes, position: int) -> None:
        """Reads the string that begins here and ends in a later chunk, if there is one."""
        if position < len(chunk):
            self._finish_string(chunk, position + 1)

    def _finish_string(self, chunk: bytes, position: int = 0) -> int:
        """Position after the string that contains `position`; the end of the chunk if it does not end here."""
        rest = _STRING_REST.match(chunk, position + self._is_escaped)
        end = rest.end() if rest is not None else len(chunk)
        self._in_string = chunk[end : end + 1] != b'"'
        self._is_escaped = self._in_string and end < len(chunk)
        return len(chunk) if self._in_string else end + 1

    def _open(self, bracket: bytes) -> None:
        self._depth += 1
        if self._base is None:
            self._base = 1 if bracket == b"[" else 0
        if self._depth > self._base:
            self._tokens += 1
            self._deepest = max(self._deepest, self._depth - self._base)

    def _close(self) -> bool:
        """Whether a value ends here; otherwise something in it does, or the array, or nothing that is open."""
        base = self._base or 0
        if self._depth <= base:
            self._depth = self._base = 0
            return False
        self._depth -= 1
        return self._depth == base

    def _add(self, data: bytes) -> None:
        self._bytes += len(data)
        self._tokens += (data.count(b'"') - data.count(b'\\"')) // 2
        if self._find_excess() is None:
            self._pieces.append(data)
        else:
            self._pieces.clear()

    def _find_excess(self) -> str | None:
        if self._bytes > MAX_VALUE_BYTES:
            return f"The item has more than {MAX_VALUE_BYTES:,} bytes."
        if self._tokens > MAX_VALUE_TOKENS:
            return f"The item has more than {MAX_VALUE_TOKENS:,} strings and brackets."
        if self._deepest > MAX_VALUE_DEPTH:
            return f"The item is nested more than {MAX_VALUE_DEPTH} levels deep."
        return None

    def _end_value(self) -> _Piece:
        reason = self._find_excess()
        piece = _Piece(reason=reason) if reason else _Piece(b"".join(self._pieces), self._deepest)
        self._begin_value()
        return piece

    def _add_gap(self, gap: bytes) -> None:
        self._has_other_value |= bool(gap.strip(_BETWEEN_VALUES))

    def _end_gap(self, gap: bytes) -> Iterator[_Piece]:
        self._add_gap(gap)
        if self._has_other_value:
            yield _Piece(reason="The item is no object.")
        self._has_other_value = False
        self._begin_value()
