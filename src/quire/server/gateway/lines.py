"""The messages of a client's list: as they came, as the log keeps them, and in the form by which they are recognised.

Clients send a model's reply back as they please: without its thinking, with its calls' arguments written anew, with
fields that are null. The form to recognise by has none of that, so the same conversation has the same path.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from quire.model import ROOT, Message, TextPart, ThinkingPart, ToolCallPart
from quire.model.parts import Part
from quire.view.shapes.fields import compact
from quire.view.shapes.openai import NAME
from quire.view.shapes.openai_parse import messages as parse_messages

_SAID_OTHERWISE = ("refusal", "audio", "function_call")
"""Fields of an assistant's message that stand in for its content."""
_PLAIN = {
    "user": (b'{"role":"user","parts":[{"type":"text","text":', b'[{"role":"user","content":'),
    "assistant": (b'{"role":"assistant","parts":[{"type":"text","text":', b'[{"role":"assistant","content":'),
}
"""How the log's form and the request's form of a plain text begin."""


class Line:
    """One message of a client's list."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.role: str = raw["role"]
        text = raw.get("content")
        self._begins = _PLAIN.get(self.role) if isinstance(text, str) and text and _says_no_more(raw) else None
        self._text = to_json(text) if self._begins is not None else b""

    @property
    def plain(self) -> bool:
        """A text that a user or an assistant said, as most are: nothing of it is lost or changed by the log."""
        return self._begins is not None

    @cached_property
    def message(self) -> Message:
        """As the log keeps it."""
        return _read(self.raw)

    @cached_property
    def known(self) -> Message:
        """As it is recognised."""
        return known_form(self.message)

    @property
    def key(self) -> bytes:
        """What is recognised: the canonical form of `known`."""
        if self._begins is not None:
            return b"%b%b}]}" % (self._begins[0], self._text)
        return self.known.canonical().encode()

    @property
    def encoded(self) -> bytes:
        """A plain line as a request is digested."""
        return b"%b%b}]" % (self._begins[1] if self._begins is not None else b"", self._text)


def _says_no_more(raw: Mapping[str, Any]) -> bool:
    """Whether there is nothing besides role and content; nulls and empty lists say nothing."""
    return len(raw) == 2 or all(
        value is None or value == [] for name, value in raw.items() if name not in ("role", "content")
    )


def _read(raw: dict[str, Any]) -> Message:
    if raw["role"] != "function":
        return parse_messages([raw])[0]
    # The old way to answer a call. It has no call to belong to, so it is kept as something that was said.
    message = parse_messages([{**raw, "role": "user"}])[0]
    return message.model_copy(update={"provider": {NAME: {"role": "function"}}})


def known_form(message: Message) -> Message:
    """A message without what clients drop or write anew when they send it back."""
    if message.role != "assistant":
        return message
    fields = message.provider.get(NAME) if message.provider is not None else None
    kept = {name: fields[name] for name in _SAID_OTHERWISE if name in fields} if isinstance(fields, dict) else {}
    parts = tuple(_known_part(part) for part in message.parts if not _is_dropped(part))
    return Message(role="assistant", parts=parts, provider={NAME: kept} if kept else None)


def _is_dropped(part: Part) -> bool:
    return isinstance(part, ThinkingPart) or (isinstance(part, TextPart) and not part.text)


def _known_part(part: Part) -> Part:
    if isinstance(part, ToolCallPart):
        return ToolCallPart(id=part.id, name=part.name, arguments=_rewritten(part.arguments))
    return TextPart(text=part.text) if isinstance(part, TextPart) else part


def _rewritten(arguments: str) -> str:
    try:
        return compact(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def told_paths(lines: Iterable[Line]) -> list[bytes]:
    """The path after each of these lines, by which the store is asked for them."""
    path, paths = ROOT, list[bytes]()
    for line in lines:
        path = sha256(path + line.key).digest()
        paths.append(path)
    return paths


def path_after(path: bytes, messages: Sequence[Message]) -> bytes:
    for message in messages:
        path = sha256(path + message.canonical().encode()).digest()
    return path
