"""Cache of converted histories: frameworks pass the whole list with each model call, and only its end is new."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from hashlib import sha256
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar

from cachetools import LRUCache

from quire.model import Message, ThinkingPart
from quire.model.entries import CHAIN_ROOT, next_path

Source = TypeVar("Source")

MAX_CACHED_HISTORIES = 32


class ConvertedMessage(NamedTuple):
    message: Message | None
    """None for what is no content, such as a changed setting."""
    dropped: tuple[str, ...] = ()
    """Names of what the message has no part for."""


class ConvertedHistory(NamedTuple):
    messages: tuple[Message, ...]
    paths: tuple[bytes, ...]
    """The path after each message, by which the log finds the list."""
    match_keys: tuple[tuple[bytes | None, ...], ...]
    """For each element of the framework's list, the keys of its messages."""
    dropped: tuple[str, ...]


class _ConvertedSource(NamedTuple):
    snapshot: object
    converted: tuple[ConvertedMessage, ...]
    match_keys: tuple[bytes | None, ...]
    paths: tuple[bytes, ...]
    last_path: bytes


def make_match_key(message: Message) -> bytes:
    """Key by which a message of a request is found among a framework's own. Thinking is not in every wire format."""
    parts = tuple(part for part in message.parts if not isinstance(part, ThinkingPart))
    return sha256(message.model_copy(update={"parts": parts}).canonical_json().encode()).digest()


class ConversionCache(Generic[Source]):
    """Converts lists of messages. The start of a list that equals that of an earlier one is not converted again."""

    def __init__(self, convert: Callable[[Source], Sequence[ConvertedMessage]]) -> None:
        self._convert_source = convert
        self._histories: LRUCache[str, list[_ConvertedSource]] = LRUCache(MAX_CACHED_HISTORIES)

    def convert(self, conversation: str, sources: Sequence[Source]) -> ConvertedHistory:
        known = self._histories.get(conversation, [])
        pairs = zip(known, sources, strict=False)
        history = [each for each, _ in takewhile(lambda pair: _is_equal(pair[0].snapshot, pair[1]), pairs)]
        for source in sources[len(history) :]:
            history.append(self._convert(source, after=history[-1].last_path if history else CHAIN_ROOT))
        self._histories[conversation] = history
        converted = [each for source in history for each in source.converted]
        return ConvertedHistory(
            messages=tuple(each.message for each in converted if each.message is not None),
            paths=tuple(path for source in history for path in source.paths),
            match_keys=tuple(source.match_keys for source in history),
            dropped=tuple(dict.fromkeys(name for each in converted for name in each.dropped)),
        )

    def _convert(self, source: Source, *, after: bytes) -> _ConvertedSource:
        converted = tuple(self._convert_source(source))
        paths: list[bytes] = []
        for message, _ in converted:
            if message is not None:
                after = next_path(after, message.canonical_json())
                paths.append(after)
        keys = tuple(None if message is None else make_match_key(message) for message, _ in converted)
        return _ConvertedSource(_take_snapshot(source), converted, keys, tuple(paths), after)


_UNEQUAL = object()


def _take_snapshot(source: object) -> object:
    """A copy, because the framework or the program may change a message in place."""
    try:
        return deepcopy(source)
    except Exception:  # noqa: BLE001 (a tool may return any object; one without a copy is converted each time)
        return _UNEQUAL


def _is_equal(snapshot: object, source: Any) -> bool:
    try:
        return bool(snapshot == source)
    except Exception:  # noqa: BLE001 (the comparison is that of any object that a tool returned)
        return False
