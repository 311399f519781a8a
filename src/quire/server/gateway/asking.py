"""Read: the body of a client's request, taken apart as far as Quire must know it. Its bytes stay as they are.

What cannot be read is no error here: the upstream may well take it, and it passes on without being kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

from pydantic_core import from_json, to_json

from quire.errors import QuireError
from quire.server.gateway.lines import Line
from quire.view.shapes.fields import is_object

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_INSTRUCTING = frozenset({"system", "developer"})


class Unreadable(Exception):
    """The body is not one that Quire can read; it goes upstream as it is, and nothing of it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What a client asks. Messages of the system before all others are instructions, and not part of the history."""

    raw: bytes
    body: dict[str, Any]
    leading: tuple[dict[str, Any], ...]
    lines: tuple[Line, ...]
    tools: tuple[dict[str, Any], ...]
    """Its tools, those of the old kind too."""
    reserve: int | None
    """The most tokens that the reply may have, if it says so."""

    @property
    def model(self) -> str:
        return model_in(self.body)

    @property
    def streams(self) -> bool:
        return self.body.get("stream") is True

    @property
    def choices(self) -> int:
        wanted = self.body.get("n")
        return wanted if isinstance(wanted, int) and wanted > 1 else 1

    def frame_key(self) -> bytes:
        """Under which what stands around the messages is known again."""
        return sha256(to_json((self.leading, self.tools), inf_nan_mode="constants")).digest()

    def with_messages(self, messages: list[dict[str, Any]], *, model: str | None) -> bytes:
        """The body with other messages, all else as it was."""
        return encoded({**self.body, "messages": messages, **({"model": model} if model else {})})


def read_body(raw: bytes) -> dict[str, Any]:
    try:
        body: object = from_json(raw)
    except ValueError as error:
        raise Unreadable(f"The body is no JSON: {error}.") from error
    if not is_object(body):
        raise Unreadable("The body is no JSON object.")
    return body


def read(raw: bytes, body: dict[str, Any]) -> Asking:
    leading, messages = _parted(_messages(body))
    return Asking(
        raw=raw,
        body=body,
        leading=tuple(leading),
        lines=tuple(_line(message) for message in messages),
        tools=tuple(_tools(body)),
        reserve=_reserve(body),
    )


def model_in(body: Mapping[str, Any]) -> str:
    model = body.get("model")
    return model if isinstance(model, str) else ""


def encoded(body: dict[str, Any]) -> bytes:
    return to_json(body, inf_nan_mode="constants")


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    given: object = body.get("messages")
    if not isinstance(given, list) or not given:
        raise Unreadable("The body has no list of messages.")
    for place, message in enumerate(cast("list[object]", given)):
        if not is_object(message) or message.get("role") not in _ROLES:
            raise Unreadable(f"Message {place} has no role that Quire knows.")
    return cast("list[dict[str, Any]]", given)


def _parted(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Instructions and history; of instructions alone the last is what is asked."""
    first = next((place for place, each in enumerate(messages) if each["role"] not in _INSTRUCTING), len(messages) - 1)
    return messages[:first], messages[first:]


def _line(message: dict[str, Any]) -> Line:
    line = Line(message)
    if not line.plain:
        try:
            _ = line.message
        except (QuireError, ValueError, TypeError, AttributeError) as error:
            # Whatever a client may put into a message, the upstream is to judge it.
            raise Unreadable(f"A message cannot be read: {error}.") from error
    return line


def _tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    given = [*_objects(body.get("tools"))]
    return given + [{"type": "function", "function": each} for each in _objects(body.get("functions"))]


def _objects(value: object) -> list[dict[str, Any]]:
    return [each for each in cast("list[object]", value) if is_object(each)] if isinstance(value, list) else []


def _reserve(body: dict[str, Any]) -> int | None:
    given = (body.get(name) for name in ("max_completion_tokens", "max_tokens"))
    return next((each for each in given if isinstance(each, int) and not isinstance(each, bool) and each >= 0), None)
