"""What a model says on its way to the client: events let through as they come, and the reply that they make up.

From the event on that ends the reply, bytes are held back until it is recorded: what a client has seen end is kept.
"""

import re
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_core import from_json

from quire.view.shapes.fields import is_object, objects

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DONE = b"[DONE]"


@dataclass(slots=True)
class _Choice:
    message: dict[str, Any] = field(default_factory=dict[str, Any])
    finish: str | None = None


class Heard:
    """Takes in the bytes of one stream. `choices` is how many replies were asked for."""

    def __init__(self, choices: int) -> None:
        self.done = False
        """Whether the upstream said that it is."""
        self.failed: dict[str, Any] | None = None
        """The error that the upstream told in the stream."""
        self.held = b""
        self._choices: dict[int, _Choice] = {}
        self._wanted = choices
        self._about: dict[str, Any] = {}
        self._rest = b""

    def take(self, chunk: bytes) -> bytes:
        """What of it goes on at once."""
        self._rest += chunk
        through, start = b"", 0
        for end in _END.finditer(self._rest):
            event, start = self._rest[start : end.end()], end.end()
            self._hear(event)
            if self.finished or self.done:
                self.held += event
            else:
                through += event
        self._rest = self._rest[start:]
        return through

    @property
    def finished(self) -> bool:
        """Whether every reply has come to its end."""
        ended = sum(choice.finish is not None for choice in self._choices.values())
        return ended >= self._wanted

    @property
    def rest(self) -> bytes:
        """What is held back, and what was never completed."""
        return self.held + self._rest

    def responses(self) -> list[dict[str, Any]]:
        """What was said, each reply as a response of its own, in their order."""
        return [
            {**self._about, "choices": [{"index": 0, "message": choice.message, "finish_reason": choice.finish}]}
            for _, choice in sorted(self._choices.items())
        ]

    def _hear(self, event: bytes) -> None:
        said = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
        if said == _DONE:
            self.done = True
        elif said:
            try:
                chunk: object = from_json(said)
            except ValueError:
                return
            if is_object(chunk):
                self._add(chunk)

    def _add(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error"):
            self.failed = chunk
        for name, value in chunk.items():
            if name not in ("choices", "object", "error") and value is not None:
                self._about[name] = value
        for piece in objects(chunk.get("choices")):
            place = piece.get("index")
            choice = self._choices.setdefault(place if isinstance(place, int) else 0, _Choice())
            delta = piece.get("delta")
            if is_object(delta):
                _merge(choice.message, delta)
            finish = piece.get("finish_reason")
            choice.finish = finish if isinstance(finish, str) else choice.finish


_SET = frozenset({"role", "id", "type", "name", "index", "expires_at"})
"""Fields that come once, or are repeated; texts in all others are pieces that follow on."""


def _merge(into: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        known: object = into.get(name)
        if value is None:
            continue
        if isinstance(value, str) and isinstance(known, str) and name not in _SET:
            into[name] = known + value
        elif is_object(value):
            into[name] = known if is_object(known) else {}
            _merge(into[name], value)
        elif isinstance(value, list):
            kept = cast("list[object]", known) if isinstance(known, list) else []
            into[name] = _merged(kept, cast("list[object]", value))
        elif not (name in _SET and known and not value):
            into[name] = value


def _merged(known: list[object], pieces: list[object]) -> list[object]:
    """Pieces of a list belong to the one with the same index, else they follow on."""
    for piece in pieces:
        index = piece.get("index") if is_object(piece) else None
        found = next((each for each in known if is_object(each) and each.get("index") == index), None)
        if found is not None and index is not None and is_object(piece):
            _merge(found, piece)
        elif is_object(piece):
            fresh: dict[str, Any] = {}
            _merge(fresh, piece)
            known.append(fresh)
        else:
            known.append(piece)
    return known
