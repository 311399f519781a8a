"""Limit on the number of values in JSON from outside, checked before it is parsed.

A parser takes memory and time for each value, and holds Python's global lock until it is done: 20 MB of empty objects
stop the whole process for most of a second. Long strings cost next to nothing, so the size in bytes is no measure.
"""

MAX_JSON_SEPARATORS = 200_000
"""Maximum braces, brackets, commas and colons outside of strings in one JSON text. 10,000 messages have 50,000. Parsing
as many as allowed takes about a tenth of a second."""
CHUNK_BYTES = 64 * 1024
"""Size of the pieces in which a whole text is checked."""

_NO_SEPARATORS = bytes(byte for byte in range(256) if byte not in b"{[,:")


class JsonSeparatorCounter:
    """Counts the separators of a JSON text that arrives in chunks."""

    def __init__(self) -> None:
        self.count = 0
        self._in_string = self._is_escaped = False

    def feed(self, chunk: bytes) -> None:
        """Adds a chunk."""
        if self._is_escaped and chunk:
            self._is_escaped, chunk = False, chunk[1:]
        # Without its escapes, every quote that is left begins or ends a string.
        plain = chunk.replace(b"\\\\", b"").replace(b'\\"', b"")
        self._is_escaped = self._is_escaped or plain.endswith(b"\\")
        pieces = plain.split(b'"')
        outside = b"".join(pieces[1 if self._in_string else 0 :: 2])
        self.count += len(outside.translate(None, _NO_SEPARATORS))
        self._in_string ^= len(pieces) % 2 == 0


class JsonLimit:
    """The limit of a JSON text that arrives in chunks. Strings are examined only once all separators, also those within
    them, would exceed it: most texts are mostly prose."""

    def __init__(self, max_separators: int | None = None) -> None:
        self._max_separators = max_separators
        self._counter = JsonSeparatorCounter()
        self._uncounted: list[bytes] = []
        self._max_count = 0
        """Upper bound of the separators so far."""

    def feed(self, chunk: bytes) -> bool:
        """Adds a chunk; whether the text exceeds the limit."""
        self._uncounted.append(chunk)
        self._max_count += len(chunk.translate(None, _NO_SEPARATORS))
        max_separators = MAX_JSON_SEPARATORS if self._max_separators is None else self._max_separators
        if self._max_count > max_separators:
            for each in self._uncounted:
                self._counter.feed(each)
            self._uncounted.clear()
            self._max_count = self._counter.count
        return self._max_count > max_separators


def exceeds_json_limit(data: bytes, max_separators: int | None = None) -> bool:
    """Whether a JSON text has more than `MAX_JSON_SEPARATORS`, or another maximum. Fast for a text that is too short
    for that."""
    if len(data) <= (MAX_JSON_SEPARATORS if max_separators is None else max_separators):
        return False
    limit = JsonLimit(max_separators)
    return any(limit.feed(data[start : start + CHUNK_BYTES]) for start in range(0, len(data), CHUNK_BYTES))
