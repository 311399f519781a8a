"""Leaves: messages made ready for a provider, each with its tokens and its place in the log.

A leaf is counted and rendered once; the cache is keyed by digest, and what has a digest never changes.
"""

import json
from base64 import b64decode
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from quire.model import (
    Entry,
    FilePart,
    ImagePart,
    Message,
    Part,
    Role,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolDefinition,
    ToolResultPart,
)
from quire.view.excerpts import excerpt
from quire.view.references import as_read
from quire.view.shapes import Load, Shape, Unit
from quire.view.tokens import Counter

CACHED = 20_000
"""Leaves kept by a meter; past that it starts anew."""

_SPEAKERS = frozenset({"user", "assistant"})
_FITTING: dict[str, tuple[type, ...]] = {
    "system": (TextPart,),
    "user": (TextPart, ImagePart, FilePart),
    "assistant": (TextPart, ThinkingPart, ToolCallPart),
    "tool": (ToolResultPart,),
}


class Leaf(NamedTuple):
    """`seq` is None for what is not in the log: the message that is being asked, labelled data, stubs."""

    seq: int | None
    message: Message
    units: tuple[Unit, ...]
    encoded: bytes
    tokens: int
    role: Role
    calls: tuple[str, ...]
    """The ids of the tool calls that it makes."""


class Meter:
    """Counts and renders for one model: a counter and a provider's shape. Its name stands beside stored counts."""

    def __init__(self, counter: Counter, shape: Shape, *, load: Load | None = None) -> None:
        self.counter, self.shape = counter, shape
        self.name = f"{shape.name}:{counter.name}"
        self._load, self._count, self._per_text = load, counter.count, shape.per_text
        self._cache: dict[bytes, Leaf] = {}
        self._systems: dict[str, int] = {}

    def count(self, message: Message) -> int:
        """What the message costs in a request. Plain texts, which most messages are, need not be rendered for it."""
        # Through the instance's dictionary: a tokenizer takes microseconds, and a model's attributes would show.
        fields = message.__dict__
        parts = fields["parts"]
        if (
            len(parts) == 1
            and type(parts[0]) is TextPart
            and fields["role"] in _SPEAKERS
            and fields["provider"] is None
            and fields["name"] is None
        ):
            only = parts[0].__dict__
            text = only["text"]
            if text and only["provider"] is None and not text.isspace():
                return self._per_text + self._count(text)
        return self.shape.count_units(self.shape.units(fitting(message), load=self._load), self.counter)

    def leaf(self, message: Message, *, seq: int | None = None, tokens: int | None = None) -> Leaf:
        units = self.shape.units(message, load=self._load)
        counted = self.shape.count_units(units, self.counter) if tokens is None else tokens
        calls = tuple([call.id for call in message.tool_calls])
        return Leaf(seq, message, tuple(units), encode(units), counted, message.role, calls)

    def entry(self, entry: Entry, *, limit: int | None = None) -> Leaf:
        """The leaf of a stored message; its stored count serves if it was counted for the same provider and model.

        With a limit, the message shortened to so many characters a text.
        """
        if limit is not None:
            return self._shortened(entry, limit)
        leaf = self._cache.get(entry.digest) if entry.purged_at is None else None
        if leaf is None:
            # What a picture costs depends on the model, and the counter's name does not tell models apart.
            trusted = entry.counter == self.name and '"image"' not in entry.raw
            tokens = entry.tokens if trusted else None
            leaf = self._kept(entry.digest, self.leaf(self._as_read(entry), seq=entry.seq, tokens=tokens))
        return leaf

    def leaves(self, entries: Sequence[Entry]) -> list[Leaf]:
        """The same for many. Most are at hand, and this is done for every request."""
        at_hand = self._cache.get
        return [(entry.purged_at is None and at_hand(entry.digest)) or self.entry(entry) for entry in entries]

    def _shortened(self, entry: Entry, limit: int) -> Leaf:
        key = b"%d %b" % (limit, entry.digest)
        leaf = self._cache.get(key) if entry.purged_at is None else None
        if leaf is None:
            shorter = excerpt(self._as_read(entry), limit, number=entry.seq)
            leaf = self._kept(key, self.leaf(shorter, seq=entry.seq))
        return leaf

    def _as_read(self, entry: Entry) -> Message:
        message = fitting(entry.message)
        references = entry.notes.references if entry.raw_notes is not None and entry.role == "user" else None
        return as_read(message, references, self.text_of) if references else message

    def text_of(self, digest: str) -> str | None:
        """The text of a document that is at hand."""
        data = self._load(digest) if self._load is not None else None
        return None if data is None else b64decode(data).decode(errors="replace")

    def data(self, text: str, *, seq: int | None = None, tokens: int | None = None) -> Leaf:
        """The leaf of labelled text, on the user's side; `tokens` if it was counted before."""
        key = sha256(text.encode()).digest()
        leaf = self._cache.get(key) or self._kept(key, self.leaf(Message.user(text), tokens=tokens))
        return leaf if seq is None else leaf._replace(seq=seq)

    def _kept(self, key: bytes, leaf: Leaf) -> Leaf:
        if len(self._cache) >= CACHED:
            self._cache.clear()
        self._cache[key] = leaf
        return leaf

    def system(self, text: str | None) -> int:
        if not text:
            return 0
        if text not in self._systems:
            self._systems = {text: self.shape.count_system(text, self.counter)}
        return self._systems[text]

    def tools(self, tools: Sequence[ToolDefinition]) -> int:
        return self.shape.count_tools([self.shape.tool(tool) for tool in tools], self.counter)


def encode(units: Sequence[Unit]) -> bytes:
    return json.dumps(units, ensure_ascii=False, separators=(",", ":")).encode()


def fitting(message: Message) -> Message:
    """The message without parts that its role cannot carry, which no provider takes; the log keeps them."""
    kinds = _FITTING[message.role]
    if all(isinstance(part, kinds) for part in message.parts):
        return message
    kept: tuple[Part, ...] = tuple(part for part in message.parts if isinstance(part, kinds))
    return message.model_copy(update={"parts": kept})
