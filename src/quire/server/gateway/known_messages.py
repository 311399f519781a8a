"""LRU cache of the messages that clients send again: the known start of a list is not parsed and hashed again.

Agents send the whole history with every step, about a thousand messages. A rolling digest over the JSON of the items
finds the longest start of the list that an earlier request of the same tenant had, and its messages are used as they
are. Equal digests are the only proof: nothing that a client says about its list is trusted. A list is cached up to a
few items before its end, because clients change the newest ones (cache markers move), and where a reply begins, because
adjacent messages of one role may be merged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple, cast

from cachetools import LRUCache
from pydantic_core import PydanticSerializationError, to_json

from quire.server.gateway.codecs.base import ClientRequest, Codec
from quire.server.gateway.codecs.bodies import UnreadableBody
from quire.server.gateway.codecs.client_messages import ClientMessage, compute_client_paths
from quire.view.wire_formats.fields import is_object

MAX_KNOWN_BYTES = 16 * 1024 * 1024
"""Maximum size of all cached lists, as JSON; parsed, they take several times as much memory."""
MIN_LIST_BYTES = 16 * 1024
"""Shorter bodies are parsed whole, which takes less time than a digest."""
MIN_CHANGING_ITEMS = 4
"""Items at the end of a list that the next request may repeat with changes."""


class KnownMessages(NamedTuple):
    """The messages of the first items of a list, and the client's path after each of them."""

    messages: tuple[ClientMessage, ...] = ()
    paths: tuple[bytes, ...] = ()
    size: int = 0
    """Bytes of the items' JSON."""


class KnownMessageCache:
    """LRU cache of known messages by the digest of tenant, format and items; bounded by their size."""

    def __init__(self) -> None:
        self._known: LRUCache[bytes, KnownMessages] = LRUCache(MAX_KNOWN_BYTES, getsizeof=lambda known: known.size)
        # Lists are parsed in worker threads.
        self._lock = Lock()

    def parse_request(self, codec: Codec, raw: bytes, body: dict[str, Any], *, tenant: str) -> ClientRequest:
        """Parses a body like the codec, without parsing known messages again. Raises `UnreadableBody`."""
        items = body.get(codec.item_field)
        if len(raw) < MIN_LIST_BYTES or codec.leading_roles is None or not isinstance(items, list):
            return codec.parse_request(raw, body)
        try:
            request = self._parse_parts(codec, raw, body, cast("list[object]", items), tenant=tenant)
        except (UnreadableBody, PydanticSerializationError):
            # The error of the whole list has the right numbers.
            request = None
        return request if request is not None else codec.parse_request(raw, body)

    def _parse_parts(
        self, codec: Codec, raw: bytes, body: dict[str, Any], items: list[object], *, tenant: str
    ) -> ClientRequest | None:
        """Parses the items after the known ones; None if the list cannot be cut."""
        cuts = list(_digest_cuts(items, tenant=tenant, format_name=codec.name))
        if not cuts:
            return None
        newest_cut = cuts[-1]
        leading = _count_leading(items, codec.leading_roles or frozenset())
        known_cut, known = self._find(cuts) or (_Cut(leading, 0, b""), KnownMessages())

        def parse(start: int, end: int | None) -> ClientRequest:
            return codec.parse_request(raw, {**body, codec.item_field: [*items[:leading], *items[start:end]]})

        if newest_cut.position > known_cut.position:
            older = parse(known_cut.position, newest_cut.position)
            if not _can_join(known.messages, older.messages):
                return None
            known = _extend(known, older.messages, size=newest_cut.size)
        newest = parse(newest_cut.position, None)
        if not _can_join(known.messages, newest.messages):
            return None
        self._replace(known_cut.digest, newest_cut.digest, known)
        return replace(newest, body=body, messages=(*known.messages, *newest.messages), known_paths=known.paths)

    def _find(self, cuts: Sequence["_Cut"]) -> tuple["_Cut", KnownMessages] | None:
        with self._lock:
            for cut in reversed(cuts):
                if (known := self._known.get(cut.digest)) is not None:
                    return cut, known
        return None

    def _replace(self, old_digest: bytes, new_digest: bytes, known: KnownMessages) -> None:
        with self._lock:
            if old_digest != new_digest:
                self._known.pop(old_digest, None)
            if known.size <= MAX_KNOWN_BYTES:
                self._known[new_digest] = known


class _Cut(NamedTuple):
    """A place before a reply, with the digest and the size of all items before it."""

    position: int
    size: int
    digest: bytes


def _digest_cuts(items: Sequence[object], *, tenant: str, format_name: str) -> Iterator[_Cut]:
    """Yields the places where a list may be cut."""
    rolling, size = sha256(to_json((tenant, format_name))), 0
    for index, item in enumerate(items[: len(items) - MIN_CHANGING_ITEMS]):
        if index and _is_reply(item) and not _is_reply(items[index - 1]):
            yield _Cut(index, size, rolling.digest())
        json = to_json(item, inf_nan_mode="constants")
        # With its length: the same bytes may not be another list of items.
        rolling.update(b"%d:%b" % (len(json), json))
        size += len(json)


def _is_reply(item: object) -> bool:
    return is_object(item) and item.get("role") == "assistant"


def _count_leading(items: Sequence[object], roles: frozenset[str]) -> int:
    """Number of instructions at the start of a list."""
    return next(
        (index for index, each in enumerate(items) if not (is_object(each) and each.get("role") in roles)), len(items)
    )


def _can_join(before: Sequence[ClientMessage], after: Sequence[ClientMessage]) -> bool:
    """Whether the codec would parse the two lists together to the same messages."""
    return bool(after) and (not before or before[-1].role != after[0].role)


def _extend(known: KnownMessages, messages: Sequence[ClientMessage], *, size: int) -> KnownMessages:
    paths = compute_client_paths(messages, known_paths=known.paths)
    return KnownMessages((*known.messages, *messages), tuple(paths), size)
