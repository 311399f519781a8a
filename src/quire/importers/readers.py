"""Bounded readers for files of unknown origin: JSON Lines, large JSON documents, and SQLite databases.

No line, value or query can take more memory or time than its limit, and a broken item does not end the file: it yields
a `SourceError`, and the items after it are read.
"""

import json
import re
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any, NamedTuple, ParamSpec, TypeVar

from pydantic_core import from_json

from quire.model.base import replace_lone_surrogates
from quire.model.json_values import is_object
from quire.sources.base import SourceError
from quire.wire.json_limits import exceeds_json_limit

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")

MAX_LINE_BYTES = 64_000_000
"""Maximum length of one line. A longer one is skipped without being loaded."""
_SKIP_BYTES = 1_000_000

MAX_VALUE_BYTES = 64_000_000
"""Maximum length of one value of a document: a conversation."""
MAX_VALUE_TOKENS = 2_000_000
"""Maximum strings and brackets of one value: each takes up to a hundred bytes of memory once it is parsed."""
MAX_PARSED_SEPARATORS = 1_000_000
"""Maximum values and keys that are parsed at once. A parser holds the interpreter until it is done, and each value
takes memory: a line of 59 MB of empty objects would stop a server for seconds and take 2 GB."""
MAX_VALUE_DEPTH = 500
"""Maximum nesting of one value."""
_PARSER_DEPTH = 100
"""Nesting up to which `parse_json` is used; its parser refuses more than 200 levels."""
_CHUNK_BYTES = 256 * 1024
_NEXT_BRACKET = re.compile(rb'[^"\[\]{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*"[^"\[\]{}]*+)*([\[\]{}]?)', re.DOTALL)
"""Everything up to a bracket outside of strings, and the bracket. Without one, up to a string that does not end."""
_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*', re.DOTALL)
_BETWEEN_VALUES = b" \t\r\n,"
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff", b"\x00")

MAX_CELL_BYTES = MAX_LINE_BYTES
"""Maximum size of one value of a database."""
MAX_TABLES = 1_000
"""Tables of a database that are looked at."""
MAX_QUERY_SECONDS = 5.0
"""Maximum seconds that SQLite takes for all queries of a database, and one more for each `QUERY_BYTES_PER_SECOND` on
the disk: the pages of a broken one may lead to each other without end."""
QUERY_BYTES_PER_SECOND = 2_000_000
_PROGRESS_STEPS = 10_000
"""Steps of SQLite's virtual machine between two looks at the clock. No step is long: no function is run."""
_SQLITE_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_CELL_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 100_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 10,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_SQLITE_FUNCTIONS = ("min", "max")
"""Functions that our own queries call."""
SQLITE_HEADER = b"SQLite format 3\x00"


def parse_json(data: bytes) -> Any:
    """Parses JSON of a bounded depth and number of values, and replaces lone surrogates. Raises `ValueError` if it is
    not valid."""
    if exceeds_json_limit(data, MAX_PARSED_SEPARATORS):
        raise ValueError(f"it has more than {MAX_PARSED_SEPARATORS:,} values and keys")
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


class JsonLine(NamedTuple):
    number: int
    value: dict[str, Any]
    start: int = 0
    end: int = 0
    """Where it begins and ends in the file, in bytes."""


def read_json_lines(
    path: Path, *, is_skipped: Callable[[bytes], bool] | None = None
) -> Iterator[JsonLine | SourceError]:
    """The objects of a file, one per line, with their line numbers from 1. Two that a program wrote at once may be on
    one line.

    A last line without a line break that is not complete JSON is skipped: the program is still writing it.
    `is_skipped` decides by its bytes whether a line is skipped without being parsed.
    """
    with path.open("rb") as stream:
        yield from parse_json_lines(stream, name=path.name, is_skipped=is_skipped)


def parse_json_lines(
    stream: IO[bytes], *, name: str, is_skipped: Callable[[bytes], bool] | None = None
) -> Iterator[JsonLine | SourceError]:
    number = end = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number, start, end = number + 1, end, end + len(line)
        is_complete = line.endswith(b"\n")
        if len(line) > MAX_LINE_BYTES and not is_complete:
            while piece := stream.readline(_SKIP_BYTES):
                end += len(piece)
                if piece.endswith(b"\n"):
                    break
            yield SourceError.of(f"{name}:{number}", f"The line has more than {MAX_LINE_BYTES:,} bytes.")
            continue
        if line.isspace() or (is_skipped is not None and is_skipped(line)):
            continue
        try:
            values = _parse_line(line)
        except ValueError as error:
            if is_complete:
                yield SourceError.of(f"{name}:{number}", f"The line is not JSON: {error}.")
            continue
        for first, last, value in values:
            if isinstance(value, dict):
                yield JsonLine(number, value, start + first, start + last)
            else:
                yield SourceError.of(f"{name}:{number}", "The line is not a JSON object.")


def _parse_line(line: bytes) -> list[tuple[int, int, Any]]:
    """The value of a line, or both of two, and where each begins and ends: a program that was interrupted did not end
    its last line."""
    try:
        return [(0, len(line), parse_json(line))]
    except ValueError as error:
        if not str(error).startswith("trailing characters"):
            raise
    text = line.decode()
    _, chars = json.JSONDecoder().raw_decode(text)
    middle = len(text[:chars].encode())
    return [(0, middle, parse_json(line[:middle])), (middle, len(line), parse_json(line[middle:]))]


class JsonValue(NamedTuple):
    number: int
    """Position among the values of the document, from 1."""
    value: dict[str, Any]


def read_json_values(stream: IO[bytes], *, name: str) -> Iterator[JsonValue | SourceError]:
    """The objects of a document: items of its array, or each of several values. Other values are errors.

    Exports are single arrays of hundreds of megabytes. A scanner finds where each item ends, and only that item is
    parsed. Streaming parsers of others build any item however large it is. Here a larger one is skipped without being
    loaded.
    """
    for number, piece in enumerate(_Scanner().scan(stream), start=1):
        item = f"{name}:{number}"
        if piece.reason is not None:
            yield SourceError.of(item, piece.reason)
            continue
        try:
            if piece.depth <= _PARSER_DEPTH:
                value = parse_json(piece.data)
            else:
                text = json.dumps(json.loads(piece.data), ensure_ascii=False)
                value = json.loads(replace_lone_surrogates(text))
        except RecursionError:
            yield SourceError.of(item, "The item is not JSON: it is nested too deeply.")
            continue
        except ValueError as error:
            yield SourceError.of(item, f"The item is not JSON: {error}.")
            continue
        yield JsonValue(number, value) if isinstance(value, dict) else SourceError.of(item, "The item is no object.")


class _Piece(NamedTuple):
    """A value without its parsed form, or the reason why it cannot be parsed."""

    data: bytes = b""
    depth: int = 0
    reason: str | None = None


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

    @property
    def _is_between_values(self) -> bool:
        return self._depth <= (self._base or 0)

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
        position = self._finish_string(chunk, 0) if self._in_string else 0
        start = 0
        """Where the current value, or the gap before the next one, begins in the chunk."""
        while (bracket := _NEXT_BRACKET.match(chunk, position)) is not None and bracket[1]:
            position = bracket.end()
            if bracket[1] in b"[{":
                if self._is_between_values:
                    start = position - 1
                    self._add_gap(chunk[bracket.start() : start])
                    if self._has_other_value:
                        yield _Piece(reason="The item is no object.")
                    self._has_other_value = False
                    self._begin_value()
                self._depth += 1
                if self._base is None:
                    self._base = 1 if bracket[1] == b"[" else 0
                if self._depth > self._base:
                    self._tokens += 1
                    self._deepest = max(self._deepest, self._depth - self._base)
            elif self._is_between_values:
                # The array ends here, or nothing that is open.
                self._depth = self._base = 0
                self._add_gap(chunk[start : position - 1])
            else:
                self._depth -= 1
                if self._is_between_values:
                    self._add(chunk[start:position])
                    reason = self._find_excess()
                    yield _Piece(reason=reason) if reason else _Piece(b"".join(self._pieces), self._deepest)
                    self._begin_value()
            if self._is_between_values:
                start = position
        end = bracket.end() if bracket is not None else position
        if end < len(chunk):
            # A string begins here and ends in a later chunk.
            self._finish_string(chunk, end + 1)
        if self._is_between_values:
            self._add_gap(chunk[start:])
        else:
            self._add(chunk[start:])

    def _finish_string(self, chunk: bytes, position: int) -> int:
        """Position after the string that contains `position`. The end of the chunk if it does not end here."""
        rest = _STRING_REST.match(chunk, position + self._is_escaped)
        end = rest.end() if rest is not None else len(chunk)
        self._in_string = chunk[end : end + 1] != b'"'
        self._is_escaped = self._in_string and end < len(chunk)
        return len(chunk) if self._in_string else end + 1

    def _add(self, data: bytes) -> None:
        self._bytes += len(data)
        self._tokens += (data.count(b'"') - data.count(b'\\"')) // 2
        if self._find_excess() is None:
            self._pieces.append(data)
        else:
            self._pieces.clear()

    def _add_gap(self, gap: bytes) -> None:
        self._has_other_value |= bool(gap.strip(_BETWEEN_VALUES))

    def _find_excess(self) -> str | None:
        if self._bytes > MAX_VALUE_BYTES:
            return f"The item has more than {MAX_VALUE_BYTES:,} bytes."
        if self._tokens > MAX_VALUE_TOKENS:
            return f"The item has more than {MAX_VALUE_TOKENS:,} strings and brackets."
        if self._deepest > MAX_VALUE_DEPTH:
            return f"The item is nested more than {MAX_VALUE_DEPTH} levels deep."
        return None


class SqliteReader:
    """A database of another program, open for reading. The program may be using it, or anyone may have made it.

    Only what is stored in ordinary tables is read. A view or a computed column would run an expression of the author of
    the database, and one step of it may take forever, which nothing can interrupt.
    """

    def __init__(self, connection: sqlite3.Connection, *, size: int, seconds: float) -> None:
        self._connection, self._size, self._seconds = connection, size, seconds
        self._stops_at = time.monotonic() + self._seconds
        connection.set_progress_handler(lambda: time.monotonic() > self._stops_at, _PROGRESS_STEPS)
        connection.execute("PRAGMA trusted_schema = OFF")
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'")
        names = [name for (name,) in rows.fetchmany(MAX_TABLES)]
        is_computed = "SELECT count(*) FROM pragma_table_xinfo(?) WHERE hidden > 0"
        self._computed = frozenset(each for each in names if connection.execute(is_computed, (each,)).fetchone()[0])
        self._tables = frozenset(names) - self._computed
        connection.set_authorizer(self._authorize)

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        match action:
            case sqlite3.SQLITE_READ:
                is_allowed = first in self._tables
            case sqlite3.SQLITE_FUNCTION:
                is_allowed = second in _SQLITE_FUNCTIONS
            case _:
                is_allowed = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    def has_tables(self, *names: str) -> bool:
        """Raises `sqlite3.DatabaseError` if one of them has a computed column."""
        if computed := self._computed.intersection(names):
            raise sqlite3.DatabaseError(f"the table {min(computed)!r} has computed columns, which are not read")
        return self._tables.issuperset(names)

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> Iterator[dict[str, Any]]:
        """Rows as dicts, read one at a time. They have no more text than the database has bytes."""
        remaining = self._size
        with closing(self._time(self._connection.execute, sql, parameters)) as cursor:
            names = [column[0] for column in cursor.description]
            while (row := self._time(cursor.fetchone)) is not None:
                remaining -= sum([len(value) for value in row if isinstance(value, str | bytes)])
                if remaining < 0:
                    raise sqlite3.DatabaseError("it is damaged: its pages are read several times")
                yield dict(zip(names, row, strict=True))

    def _time(self, call: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        """Calls SQLite within the time that is left."""
        started_at = time.monotonic()
        self._stops_at = started_at + self._seconds
        try:
            return call(*args, **kwargs)
        except sqlite3.OperationalError as error:
            if time.monotonic() > self._stops_at:
                raise sqlite3.OperationalError("reading it takes too long for its size") from error
            raise
        finally:
            self._seconds -= time.monotonic() - started_at


@contextmanager
def open_sqlite(path: Path) -> Generator[SqliteReader]:
    """Opens a database read-only. Raises `sqlite3.Error` or `OSError` if it is none."""
    with path.open("rb") as stream:
        if stream.read(len(SQLITE_HEADER)) != SQLITE_HEADER:
            raise sqlite3.DatabaseError("it is not a SQLite database")
    size, seconds = 0, MAX_QUERY_SECONDS
    for file in (path, *(path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "journal", "shm"))):
        with suppress(FileNotFoundError):
            status = file.stat()
            if not S_ISREG(status.st_mode):
                raise OSError(f"{file.name} is not an ordinary file")
            size += status.st_size
            # The holes of a sparse file take no blocks.
            stored = min(status.st_size, getattr(status, "st_blocks", status.st_size) * 512)
            seconds += stored / QUERY_BYTES_PER_SECOND
    with closing(
        sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    ) as connection:
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        for category, limit in _SQLITE_LIMITS.items():
            connection.setlimit(category, limit)
        yield SqliteReader(connection, size=size, seconds=seconds)


MAX_JSON_FILE_BYTES = MAX_VALUE_BYTES
"""Maximum size of a file that holds one conversation as one JSON value."""


def read_json_file(path: Path) -> Any:
    """The JSON value of a whole file. Raises `ValueError` if it is too large, or not complete yet."""
    if path.stat().st_size > MAX_JSON_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_JSON_FILE_BYTES:,} bytes")
    return parse_json(path.read_bytes())


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object of a whole file. Raises `ValueError` if it holds anything else."""
    if not is_object(value := read_json_file(path)):
        raise ValueError("it is no JSON object")
    return value


def import_zstd() -> Any:
    """The module for Zstandard: of Python 3.14, or its backport. Raises `ImportError` if there is neither."""
    try:
        return import_module("compression.zstd")
    except ImportError:
        pass
    try:
        return import_module("backports.zstd")
    except ImportError as error:
        raise ImportError("it is compressed: use Python 3.14, or install `quire[import]`") from error
