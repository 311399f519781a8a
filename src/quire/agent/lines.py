"""The lines that a server writes, as messages: each byte is looked at once, and no line can grow without bound.

A server may write anything. What is no message becomes a `Garbage` with a reason, never an exception.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from mcp_types import JSONRPCMessage, jsonrpc_message_adapter

from quire.agent.outcomes import storable

_HEAD = 1_000
_SHOWN = 80
_ID = re.compile(rb'"id"\s*:\s*(\d+)')


@dataclass(frozen=True, slots=True)
class Garbage:
    """A line that is no message; `answers` is the request that it seems to answer, where that can be told."""

    problem: str
    answers: int | None = None


class Lines:
    """Chunks of bytes in, whole lines out. Of a line beyond `largest` only the beginning is looked at."""

    def __init__(self, *, largest: int) -> None:
        self._largest = largest
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes | Garbage]:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield from self._add(end)
            if self._size <= self._largest:
                yield b"".join(self._pieces)
            self._pieces, self._size = [], 0
        yield from self._add(rest)

    def _add(self, piece: bytes) -> Iterator[Garbage]:
        was_within = self._size <= self._largest
        self._size += len(piece)
        if self._size <= self._largest:
            self._pieces.append(piece)
        elif was_within:
            # Said at once: the line may have no end.
            head = b"".join([*self._pieces, piece])[:_HEAD]
            self._pieces = []
            problem = f"sent a message of more than {self._largest:,} bytes, which was dropped"
            yield Garbage(problem, answers=_answered(head))


def parsed(line: bytes) -> JSONRPCMessage | Garbage | None:
    """The message in a line; None where there is nothing in it."""
    if not line.strip():
        return None
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return _parsed_leniently(line)


def _parsed_leniently(line: bytes) -> JSONRPCMessage | Garbage:
    """JavaScript and Python write half a character as an escape, for which their JSON is refused; here it is mended."""
    text = line.decode("utf-8", "replace")
    try:
        return jsonrpc_message_adapter.validate_python(_mended(json.loads(text)), by_name=False)
    except (ValueError, RecursionError):
        answers = _answered(line[:_HEAD]) if line.lstrip().startswith(b"{") else None
        return Garbage(f"wrote what is no message to its standard output: {text[:_SHOWN]!r}", answers=answers)


def _mended(value: object) -> object:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [_mended(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {storable(key): _mended(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _answered(head: bytes) -> int | None:
    found = _ID.search(head)
    return int(found[1]) if found is not None else None
