"""Bodies of requests as they were sent upstream, to the byte, each stored as a delta to an earlier one.

The base of a delta is the last body of the conversation that the same process recorded, so that recording reads
nothing. A chain of deltas has at most `MAX_CHAIN_DELTAS`. Then follows a whole body. The digest of a body is in its
manifest, which is what a body that was read is compared with.

A purge of any content deletes all bodies of the conversation, and no later one is stored: the client still has what was
purged, and sends it again with every request.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cachetools import LRUCache
from sqlalchemy import Connection, bindparam, delete, exists, literal_column, select

from quire.db.dialects import insert_rows
from quire.db.schema import request_bodies
from quire.db.stored_bytes import count_bytes, is_counting
from quire.errors import IntegrityViolation
from quire.log.body_deltas import decode_delta, encode_delta, find_change
from quire.log.tenant_masker import MaskedBody
from quire.log.types import BodyKey, Branch, EncodedBody
from quire.model import Entry

MAX_CHAIN_DELTAS = 63
"""Deltas from one whole body to the next: reading a body applies at most this number."""
MAX_DECODED_BYTES = 32 * 1024 * 1024
"""Size of the LRU cache of decoded bodies while many are read."""

_PURGE_MARK: BodyKey = (0, 0)
"""Key of the row that says that bodies of the conversation are not stored, because content was purged."""


class SentBody(NamedTuple):
    """A body in memory, with its place in the store: the base of the next one."""

    key: BodyKey
    chain_deltas: int
    content: bytes
    """As it is stored."""
    masked: MaskedBody | None = None
    """The secrets in it, of a tenant whose secrets are masked."""


def encode_body(content: bytes, base: SentBody | None) -> EncodedBody:
    """Encodes a body as a delta to the base, or whole if the chain is long."""
    if base is None or base.chain_deltas >= MAX_CHAIN_DELTAS:
        return EncodedBody(None, len(content), encode_delta(b"", content))
    return EncodedBody(base.key, len(content), encode_delta(base.content, content))


def to_row(tenant: str, conversation: str, key: BodyKey, body: EncodedBody) -> dict[str, Any]:
    base_branch, base_seq = body.base if body.base is not None else (None, None)
    return {
        "tenant": tenant,
        "conversation": conversation,
        "branch": key[0],
        "seq": key[1],
        "base_branch": base_branch,
        "base_seq": base_seq,
        "size": body.size,
        "delta": body.delta,
    }


_is_purged = exists().where(
    request_bodies.c.tenant == bindparam("tenant"),
    request_bodies.c.conversation == bindparam("conversation"),
    request_bodies.c.branch == literal_column(str(_PURGE_MARK[0])),
    request_bodies.c.seq == literal_column(str(_PURGE_MARK[1])),
)


def insert_body(connection: Connection, tenant: str, reply: Entry, body: EncodedBody) -> None:
    """Stores the body of the request that this reply answered, unless content of the conversation was purged."""
    if has_purged_content(connection, tenant, reply.conversation):
        return
    if is_counting(connection):
        count_bytes(connection, len(body.delta))
    row = to_row(tenant, reply.conversation, (reply.branch, reply.seq), body)
    insert_rows(connection, request_bodies, [row])


def has_purged_content(connection: Connection, tenant: str, conversation: str) -> bool:
    """Whether anything of the conversation was purged. One row says so, whatever the length of the conversation."""
    return bool(connection.execute(select(_is_purged), {"tenant": tenant, "conversation": conversation}).scalar())


def delete_bodies(connection: Connection, tenant: str, conversation: str) -> None:
    """Deletes the bodies of a conversation. Later ones are not stored."""
    connection.execute(
        delete(request_bodies).where(request_bodies.c.tenant == tenant, request_bodies.c.conversation == conversation)
    )
    mark = to_row(tenant, conversation, _PURGE_MARK, EncodedBody(None, 0, b""))
    insert_rows(connection, request_bodies, [mark], ignore_existing=True)


def get_body(connection: Connection, tenant: str, branch: Branch, seq: int) -> bytes | None:
    """The body of the request that entry `seq` answered, as it was sent, or None if it is not stored."""
    owner = branch.find_owner(seq)
    return None if owner is None else BodyReader(connection, tenant, branch.conversation).read((owner, seq))


def get_bodies(connection: Connection, tenant: str, branch: Branch, seqs: Sequence[int]) -> dict[int, bytes]:
    """The stored bodies of the requests that these entries answered. Consecutive ones are decoded together."""
    reader = BodyReader(connection, tenant, branch.conversation)
    keys = [(owner, seq) for seq in seqs if (owner := branch.find_owner(seq)) is not None]
    return {key[1]: body for key in keys if (body := reader.read(key)) is not None}


def list_conversations(connection: Connection, tenant: str) -> Sequence[str]:
    """Conversations that have bodies."""
    query = select(request_bodies.c.conversation).where(request_bodies.c.tenant == tenant).distinct()
    return connection.execute(query.order_by(request_bodies.c.conversation)).scalars().all()


def list_body_rows(connection: Connection, tenant: str, conversation: str) -> list[tuple[BodyKey, EncodedBody]]:
    """The bodies of a conversation as they are stored, each after its base."""
    return list(BodyReader(connection, tenant, conversation).iter_rows())


class BodyReader:
    """Reads the bodies of one conversation. Those that were decoded last are not decoded again."""

    def __init__(self, connection: Connection, tenant: str, conversation: str) -> None:
        self._connection, self._tenant, self._conversation = connection, tenant, conversation
        self._decoded: LRUCache[BodyKey, bytes] = LRUCache(MAX_DECODED_BYTES, getsizeof=len)

    def read(self, key: BodyKey) -> bytes | None:
        """The body, or None if it is not stored. Raises `IntegrityViolation` if its rows cannot be decoded."""
        chain: list[tuple[BodyKey, EncodedBody]] = []
        content: bytes | None = b""
        next_key: BodyKey | None = key
        while next_key is not None and (content := self._decoded.get(next_key)) is None:
            row = self._get(next_key)
            if row is None and not chain:
                return None
            if row is None or len(chain) > MAX_CHAIN_DELTAS:
                raise IntegrityViolation(f"{self._describe(key)} refers to {next_key}, which is not stored.")
            chain.append((next_key, row))
            next_key, content = row.base, b""
        try:
            for each, row in reversed(chain):
                content = decode_delta(content or b"", row.delta)
                if len(content) != row.size:
                    raise ValueError("it has another size")
                if len(content) <= MAX_DECODED_BYTES:
                    self._decoded[each] = content
        except ValueError as error:
            raise IntegrityViolation(f"{self._describe(key)} cannot be decoded: {error}.") from error
        return content

    def _describe(self, key: BodyKey) -> str:
        return f"The stored body of the request of reply #{key[1]} in branch {key[0]} of {self._conversation!r}"

    def _get(self, key: BodyKey) -> EncodedBody | None:
        row = (
            self._connection.execute(
                select(request_bodies).where(
                    request_bodies.c.tenant == self._tenant,
                    request_bodies.c.conversation == self._conversation,
                    request_bodies.c.branch == key[0],
                    request_bodies.c.seq == key[1],
                )
            )
            .mappings()
            .first()
        )
        return _to_encoded(row) if row is not None else None

    def list_keys(self) -> list[BodyKey]:
        """The bodies of the conversation, each after its base."""
        rows = self._connection.execute(
            select(
                request_bodies.c.branch, request_bodies.c.seq, request_bodies.c.base_branch, request_bodies.c.base_seq
            )
            .where(request_bodies.c.tenant == self._tenant, request_bodies.c.conversation == self._conversation)
            .order_by(request_bodies.c.seq, request_bodies.c.branch)
        ).all()
        bases = {
            (branch, seq): (base_branch, base_seq)
            for branch, seq, base_branch, base_seq in rows
            if (branch, seq) != _PURGE_MARK
        }
        ordered: dict[BodyKey, None] = {}
        for key in bases:
            chain: list[BodyKey] = []
            while key in bases and key not in ordered and key not in chain:
                chain.append(key)
                key = bases[key]
            ordered.update(dict.fromkeys(reversed(chain)))
        return list(ordered)

    def iter_rows(self) -> Iterator[tuple[BodyKey, EncodedBody]]:
        """The bodies as they are stored, each after its base."""
        for key in self.list_keys():
            row = self._get(key)
            if row is not None:
                yield key, row

    def find_values(self, forms: Sequence[bytes]) -> list[BodyKey]:
        """The bodies that contain one of these texts."""
        margin = max(map(len, forms)) - 1
        found: set[BodyKey] = set()
        for key, row in self.iter_rows():
            body, base = self.read(key) or b"", (self.read(row.base) if row.base is not None else None) or b""
            # What is in neither the common start nor the common end is new.
            start, end = find_change(base, body)
            changed = body[max(0, start - margin) : end + margin]
            if row.base in found or any(form in changed for form in forms):
                found.add(key)
        return sorted(found)


def _to_encoded(row: Mapping[Any, Any]) -> EncodedBody:
    base = (row["base_branch"], row["base_seq"])
    return EncodedBody(None if base == (None, None) else base, row["size"], row["delta"])
