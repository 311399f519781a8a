"""Cache of the messages that clients send again: the known start of a list is not read again.

Agents send the whole history with every step, about a thousand messages. A rolling digest over the bytes of the body
finds the longest start of the list that an earlier request of the same tenant had. Only the rest of the body is parsed
as JSON, checked and hashed, and the messages of the start are used as they are. Equal bytes are the only proof: nothing
that a client says about its list is trusted. A list is cached up to a few items before its end, because clients change
the newest ones (cache markers move), and where a reply begins, because adjacent messages of one role may be merged.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from secrets import token_hex
from threading import Lock
from typing import Any, NamedTuple, cast

from cachetools import TTLCache

from quire.engine.runtime import IDLE_CONVERSATION_SECONDS
from quire.model.json_values import is_object
from quire.wire.client_messages import ClientMessage, KnownStart, compute_client_paths
from quire.wire.codec import MAX_REQUEST_MESSAGES, ClientRequest, Codec, UnreadableBody, measure_work, parse_body

MAX_KNOWN_BYTES = 16 * 1024 * 1024
"""Maximum size of all cached lists: their JSON, and `MESSAGE_BYTES` for each message."""
MESSAGE_BYTES = 1_000
"""Bytes that a parsed message takes in addition to its text."""
MIN_LIST_BYTES = 16 * 1024
"""Shorter bodies are parsed whole, which takes less time than a digest."""
MIN_CHANGING_ITEMS = 4
"""Items at the end of a list that the next request may repeat with changes."""
DIGEST_BLOCK_BYTES = 4 * 1024
"""Bytes of a list from one digest to the next."""

_SPACE = re.compile(r"[ \t\r\n]*")
_decode_value = json.JSONDecoder().raw_decode
_PositionError = (ValueError, IndexError, RecursionError)
"""Errors for a text that is not valid JSON, or nested too deeply."""
_MARKER = token_hex(16)
"""Item that takes the place of the known ones when the rest of a body is parsed. No client can send it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientBody:
    """A parsed body, and where in its bytes the list of messages is."""

    raw: bytes
    fields: dict[str, Any]
    list_position: int = 0
    """Position of the first item, or 0 if it is not known."""
    block_digests: Sequence[bytes] = ()
    """Digest of the bytes up to the end of each block of the list."""
    digest: str | None = None
    """SHA-256 of `raw` in hexadecimal, if it was computed."""
    start: KnownStart | None = None
    """The first messages, if they are known."""

    @property
    def known_bytes(self) -> int:
        return self.start.size if self.start is not None else 0

    @property
    def work_bytes(self) -> int:
        """Size for `run_sized` of what is still to be done with the body."""
        return measure_work(self.raw, self.known_bytes)

    @property
    def raw_rest(self) -> bytes:
        """`raw` with one item in place of the known messages."""
        if self.start is None:
            return self.raw
        return b"%b0%b" % (self.raw[: self.list_position], self.raw[self.list_position + self.start.size :])


class _CacheKey(NamedTuple):
    tenant: str
    wire_format: str
    digest: bytes
    """Digest of the body up to the last whole block of the list that the known messages fill."""


class _CachedStart(NamedTuple):
    start: KnownStart
    tail: bytes
    """The bytes after the last whole block."""

    def measure(self) -> int:
        return self.start.size + MESSAGE_BYTES * len(self.start.messages)


class KnownMessageCache:
    """Cache of known messages by tenant, format and the bytes of the list; bounded by their size and age."""

    def __init__(self) -> None:
        self._cache: TTLCache[_CacheKey, _CachedStart] = TTLCache(
            MAX_KNOWN_BYTES, IDLE_CONVERSATION_SECONDS, getsizeof=_CachedStart.measure
        )
        # Lists are parsed in worker threads.
        self._lock = Lock()

    def parse_body(self, codec: Codec, raw: bytes, *, tenant: str) -> ClientBody:
        """Parses a body and checks its limits. Raises `UnreadableBody` and `RequestLimitExceeded`."""
        position, digest = None, None
        digests: list[bytes] = []
        if len(raw) >= MIN_LIST_BYTES and codec.leading_roles is not None:
            with suppress(*_PositionError):
                position = find_list(raw.decode("latin-1"), codec.item_field)
        if position is not None:
            # Digests of the body up to the end of each block of its list, and of all of it. They cover the fields
            # before the list, so that the last one is also the digest of the request.
            rolling, view = sha256(raw[:position]), memoryview(raw)
            for end in range(position + DIGEST_BLOCK_BYTES, len(raw) + 1, DIGEST_BLOCK_BYTES):
                rolling.update(view[end - DIGEST_BLOCK_BYTES : end])
                digests.append(rolling.digest())
            rolling.update(view[position + len(digests) * DIGEST_BLOCK_BYTES :])
            digest = rolling.hexdigest()
            start = self._find(codec, raw, position, digests, tenant=tenant)
            fields = _parse_rest(codec, raw, position, start) if start is not None else None
            if fields is not None:
                return ClientBody(
                    raw=raw, fields=fields, list_position=position, block_digests=digests, digest=digest, start=start
                )
        fields = parse_body(raw)
        codec.check_limits(fields)
        return ClientBody(raw=raw, fields=fields, list_position=position or 0, block_digests=digests, digest=digest)

    def parse_request(self, codec: Codec, body: ClientBody, *, tenant: str) -> ClientRequest:
        """Parses a request like the codec, without parsing known messages again. Raises `UnreadableBody`."""
        request = None
        if body.list_position:
            # The error of the whole list has the right numbers.
            with suppress(UnreadableBody):
                request = self._parse_parts(codec, body, tenant=tenant)
        request = request if request is not None else codec.parse_request(body.raw, body.fields)
        return replace(request, raw_digest=body.digest)

    def _parse_parts(self, codec: Codec, body: ClientBody, *, tenant: str) -> ClientRequest | None:
        """Parses the items after the known ones, or None if the list cannot be cut."""
        items = cast("list[object]", body.fields[codec.item_field])
        leading = count_leading(items, codec.leading_roles or frozenset())
        known = body.start or KnownStart(items=tuple(items[:leading]), first_item=leading)
        if known.messages and count_leading(items[len(known.items) :], codec.leading_roles or frozenset()):
            # Parsed without the known messages, these would be instructions.
            return None
        editor = codec.item_editor

        def is_reply(item: object) -> bool:
            return is_object(item) and editor.is_reply(item)

        # The last place after the known items where a reply begins and a few more items follow.
        places = range(len(items) - MIN_CHANGING_ITEMS - 1, len(known.items), -1)
        cut = next((index for index in places if is_reply(items[index]) and not is_reply(items[index - 1])), None)

        def parse(start: int, end: int | None) -> ClientRequest:
            return codec.parse_request(
                body.raw, {**body.fields, codec.item_field: [*items[:leading], *items[start:end]]}
            )

        if cut is not None:
            older = parse(len(known.items), cut).messages
            size = _measure_items(codec, body, known, items, cut)
            if size is None or not _can_join(known.messages, older):
                return None
            known = KnownStart(
                messages=(*known.messages, *older),
                paths=tuple(compute_client_paths(older, known_paths=known.paths)),
                items=tuple(items[:cut]),
                first_item=known.first_item,
                size=size,
                # A copy: another list may continue the same messages.
                equivalents=dict(known.equivalents),
                edited=list(known.edited),
            )
            self._store(codec, body, known, tenant=tenant)
        newest = parse(len(known.items), None)
        if not _can_join(known.messages, newest.messages):
            return None
        return replace(
            newest,
            body=body.fields,
            messages=(*known.messages, *newest.messages),
            known_start=known,
            known_bytes=body.known_bytes,
        )

    def _find(
        self, codec: Codec, raw: bytes, position: int, digests: Sequence[bytes], *, tenant: str
    ) -> KnownStart | None:
        """The longest known start of a list."""
        with self._lock:
            for index in range(len(digests) - 1, -1, -1):
                cached = self._cache.get(_CacheKey(tenant, codec.name, digests[index]))
                if cached is not None and raw.startswith(cached.tail, position + (index + 1) * DIGEST_BLOCK_BYTES):
                    return cached.start
        return None

    def _store(self, codec: Codec, body: ClientBody, start: KnownStart, *, tenant: str) -> None:
        """Caches a start of at least one block, in place of the shorter one that the request had."""
        if start.size < DIGEST_BLOCK_BYTES:
            return

        def make_key(size: int) -> _CacheKey:
            return _CacheKey(tenant, codec.name, body.block_digests[size // DIGEST_BLOCK_BYTES - 1])

        end = body.list_position + start.size
        cached = _CachedStart(start, body.raw[end - start.size % DIGEST_BLOCK_BYTES : end])
        if cached.measure() > MAX_KNOWN_BYTES:
            return
        with self._lock:
            if body.start is not None:
                self._cache.pop(make_key(body.start.size), None)
            self._cache[make_key(start.size)] = cached


def find_list(text: str, field: str) -> int | None:
    """Position after the bracket that opens the list of a field, or None if the first field of this name has no list.

    Parsers do not report positions. A text is decoded as Latin-1, so that its positions are the bytes' positions:
    all that separates values is ASCII.
    """
    position = _skip_separator(text, 0, "{")
    while True:
        name, position = _decode_value(text, position)
        position = _skip_separator(text, position, ":")
        if name == field:
            return position + 1 if text[position] == "[" else None
        _, position = _decode_value(text, position)
        position = _skip_separator(text, position, ",")


def find_item_end(text: str, count: int) -> int:
    """Position after this number of items. The text begins at the first item of a list, or after one of its items."""
    position = 0
    for _ in range(count):
        position = _skip_space(text, position)
        if text[position] == ",":
            position = _skip_space(text, position + 1)
        _, position = _decode_value(text, position)
    return position


def iter_item_spans(text: str, position: int) -> Iterator[tuple[int, int]]:
    """Start and end of each item of the list whose first item, or the comma before it, is here."""
    position = _skip_space(text, position)
    if text[position] == ",":
        position = _skip_space(text, position + 1)
    while text[position] != "]":
        _, end = _decode_value(text, position)
        yield position, end
        position = _skip_space(text, end)
        if text[position] == ",":
            position = _skip_space(text, position + 1)


def _skip_separator(text: str, position: int, separator: str) -> int:
    """Position of the next value after a separator."""
    position = _skip_space(text, position)
    if text[position] != separator:
        raise ValueError(f"no {separator!r} at {position}")
    return _skip_space(text, position + 1)


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match is not None else position


def _parse_rest(codec: Codec, raw: bytes, position: int, start: KnownStart) -> dict[str, Any] | None:
    """Parses a body with a known start of its list, and checks the limits of the rest. None if it must be parsed whole.

    After the same bytes a parser is in the same state, so that the rest has the same meaning after the marker.
    """
    try:
        fields = parse_body(b'%b"%b"%b' % (raw[:position], _MARKER.encode(), raw[position + start.size :]))
    except UnreadableBody:
        return None
    items: object = fields.get(codec.item_field)
    # A second list of the same name takes the place of the first.
    if not isinstance(items, list) or not items or items[0] != _MARKER:
        return None
    rest = cast("list[object]", items[1:])
    if len(start.items) + len(rest) > MAX_REQUEST_MESSAGES:
        return None
    codec.check_limits({**fields, codec.item_field: rest})
    return {**fields, codec.item_field: [*start.items, *rest]}


def _measure_items(codec: Codec, body: ClientBody, known: KnownStart, items: Sequence[object], cut: int) -> int | None:
    """Bytes of the list up to a cut, or None if the list that was found in the bytes is not the one that was parsed."""
    count = cut - (len(known.items) if body.start is not None else 0)
    text = body.raw[body.list_position + known.size :].decode("latin-1")
    try:
        size = known.size + find_item_end(text, count)
    except _PositionError:
        return None
    if body.start is None:
        rest = replace(known, size=size, items=())
        fields = _parse_rest(codec, body.raw, body.list_position, rest)
        if fields is None or fields[codec.item_field] != items[cut:]:
            return None
    return size


def count_leading(items: Sequence[object], roles: frozenset[str]) -> int:
    """Number of instructions at the start of a list."""
    return next(
        (index for index, each in enumerate(items) if not (is_object(each) and each.get("role") in roles)), len(items)
    )


def _can_join(before: Sequence[ClientMessage], after: Sequence[ClientMessage]) -> bool:
    """Whether the codec would parse the two lists together to the same messages."""
    return bool(after) and (not before or before[-1].role != after[0].role)
