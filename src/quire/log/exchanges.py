"""Exchanges: what passed through the gateway, a request and what came back, stored before anything is understood.

The row of a request is written before its upstream is called, and completed when the answer ends, breaks or never
comes. A row without an end is of a server that died in between. The request is its first line, chosen headers and its
body, to the byte, as a delta to an earlier one of the conversation, so that a session takes about its own length. The
base is the last one that the same process stored. A chain of deltas has at most `MAX_CHAIN_DELTAS`. Then follows a
whole request.

Of a reply that became an entry, only the chosen headers are stored: the entry has the rest. Of any other answer, such
as an error or a stream that broke off, the bytes are stored too.

A purge of any content deletes all exchanges of the conversation, and no later one has bytes: the client still has what
was purged, and sends it again with every request.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, assert_never, cast

from cachetools import LRUCache
from pydantic import Field
from sqlalchemy import Connection, bindparam, delete, literal_column, select, text, update

from quire.db.dialects import insert_rows
from quire.db.schema import exchanges
from quire.db.stored_bytes import allow_past_quota, count_bytes
from quire.errors import IntegrityViolation
from quire.log.body_deltas import decode_delta, encode_delta, find_change
from quire.log.conversations import create_if_missing
from quire.log.row_digests import ROW_DIGEST, with_row_digest
from quire.log.tenant_masker import MaskedBody
from quire.log.types import Branch, ConversationRecord, EncodedBody, ExchangeEnd, Outcome
from quire.model.base import FrozenModel
from quire.model.ids import now

MAX_CHAIN_DELTAS = 63
"""Deltas from one whole request to the next: reading one applies at most this number."""
MAX_DECODED_BYTES = 32 * 1024 * 1024
"""Size of the LRU cache of decoded requests while many are read."""
NO_CONVERSATION = ""
"""Conversation of a request that Quire could not parse, or that is not stored."""

Road = Literal["managed", "unrecorded"]
"""How a request passed: understood before it was sent, or as bytes."""
_REQUEST_START = b"POST "
_HEAD_END = b"\n\n"
PURGE_MARK = ""
"""Id of the row that says that bytes of the conversation are not stored, because content was purged."""


class SentBody(NamedTuple):
    """A request in memory, with its place in the store: the base of the next one."""

    key: str
    chain_deltas: int
    content: bytes
    """As it is stored."""
    masked: MaskedBody | None = None
    """The secrets in it, of a tenant whose secrets are masked."""


class ExchangeRecord(FrozenModel):
    """A stored exchange, without its bytes."""

    conversation: str
    id: str
    road: Road = Field(description="Understood before it was sent (`managed`), or passed as bytes (`unrecorded`).")
    reason: str
    model: str
    branch: int
    after_seq: int = Field(description="The entry that the request came after.")
    seq: int | None = Field(description="The reply, if it was recorded.")
    started_at: int
    first_byte_at: int | None
    completed_at: int | None
    outcome: Outcome | None = Field(
        description="A whole reply (`answered`), an error status (`refused`), an answer that broke off or is no reply "
        "(`broken`), no answer (`unanswered`), or a client that left (`cancelled`). Null if no end was recorded."
    )
    status: int | None
    error: str | None = Field(description="The provider's words, or what happened.")
    size: int = Field(description="Bytes of the request.")

    def describe(self) -> str:
        """What became of it, in one line."""
        match self.outcome:
            case "refused":
                # An error within a stream has the status of the stream.
                status = f"{self.status}: " if self.status is not None and self.status >= 400 else ""
                return f"{status}{self.error or 'no reason given'}"
            case "broken":
                return f"the answer broke off: {self.error or 'no reason given'}"
            case "unanswered":
                return f"no answer: {self.error or 'no reason given'}"
            case "cancelled":
                return "the client left before the end of the answer"
            case "answered":
                return f"{self.status}: answered"
            case None:
                return "no end is recorded: it still runs, or Quire ended before the answer did"
            case _:
                assert_never(self.outcome)


_RECORD_COLUMNS = [exchanges.c["exchange" if name == "id" else name] for name in ExchangeRecord.model_fields]


def encode_request(path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The bytes of a request: equal headers of consecutive ones cost nothing."""
    lines = [f"POST {path}", *(f"{name}: {value}" for name, value in headers.items())]
    return b"%b%b%b" % ("\n".join(lines).encode(errors="replace"), _HEAD_END, body)


def decode_request(content: bytes) -> tuple[dict[str, str], bytes]:
    """The headers and the body. Earlier versions stored the body alone."""
    if not content.startswith(_REQUEST_START):
        return {}, content
    head, _, body = content.partition(_HEAD_END)
    return _parse_headers(head.decode(errors="replace").split("\n")[1:]), body


def encode_answer(headers: Mapping[str, str], body: bytes) -> bytes:
    head = "\n".join(f"{name}: {value}" for name, value in headers.items()).encode(errors="replace")
    return zlib.compress(b"%b%b%b" % (head, _HEAD_END, body)) if head or body else b""


def decode_answer(data: bytes) -> tuple[dict[str, str], bytes]:
    """The headers and the body. Raises `IntegrityViolation` if the bytes are no answer."""
    head, _, body = _unpack_answer(data).partition(_HEAD_END)
    return _parse_headers(head.decode(errors="replace").split("\n")), body


def _unpack_answer(data: bytes) -> bytes:
    try:
        return zlib.decompress(data) if data else b""
    except zlib.error as error:
        raise IntegrityViolation(f"A stored answer cannot be decoded: {error}.") from error


def _parse_headers(lines: Sequence[str]) -> dict[str, str]:
    return {name: value for name, mark, value in (line.partition(": ") for line in lines) if mark}


def encode_body(content: bytes, base: SentBody | None) -> EncodedBody:
    """Encodes a request as a delta to the base, or whole if the chain is long."""
    if base is None or base.chain_deltas >= MAX_CHAIN_DELTAS:
        return EncodedBody(None, len(content), encode_delta(b"", content))
    return EncodedBody(base.key, len(content), encode_delta(base.content, content))


def build_row(
    *,
    conversation: str,
    id: str,
    road: Road,
    reason: str,
    model: str,
    branch: int,
    after_seq: int,
    started_at: int,
    body: EncodedBody,
) -> dict[str, Any]:
    """The row of an exchange that begins."""
    return {
        "conversation": conversation,
        "exchange": id,
        "base": body.base,
        "road": road,
        "reason": reason,
        "model": model,
        "branch": branch,
        "after_seq": after_seq,
        "seq": None,
        "started_at": started_at,
        "first_byte_at": None,
        "completed_at": None,
        "outcome": None,
        "status": None,
        "error": None,
        "size": body.size,
        "request": body.delta,
        "response": b"",
    }


def from_body_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of an exchange for one of `quire_request_bodies` of an earlier version, as the migration makes it."""
    branch, seq = row["branch"], row["seq"]
    base = None if row["base_seq"] is None else f"{row['base_branch']}.{row['base_seq']}"
    made = build_row(
        conversation=row["conversation"],
        id=f"{branch}.{seq}" if seq else PURGE_MARK,
        road="managed",
        reason="",
        model="",
        branch=branch,
        after_seq=max(0, seq - 1),
        started_at=0,
        body=EncodedBody(base, row["size"], row["delta"]),
    )
    return made | {"seq": seq or None, "completed_at": 0, "outcome": "answered", ROW_DIGEST: None}


_KNOWN_ROWS = select(exchanges.c.exchange).where(
    exchanges.c.tenant == bindparam("tenant"),
    exchanges.c.conversation == bindparam("conversation"),
    (exchanges.c.exchange == literal_column(f"'{PURGE_MARK}'")) | (exchanges.c.exchange == bindparam("base")),
)
_IS_UNANSWERED = text("(outcome IS NULL OR outcome <> 'answered')")
"""As the condition of the index."""


def begin_exchange(
    connection: Connection,
    tenant: str,
    row: Mapping[str, Any],
    *,
    creates_conversation: ConversationRecord | None = None,
) -> dict[str, Any] | None:
    """Stores a request before it is sent, and the conversation that it begins. Returns its row, without bytes if
    content of the conversation was purged.

    Returns None, and stores nothing, if the base is not stored: it was purged, or the database was set back. The quota
    of stored bytes refuses nothing here: the reservation of the call was checked.
    """
    allow_past_quota(connection)
    if creates_conversation is not None:
        create_if_missing(connection, tenant, creates_conversation)
    row = {"tenant": tenant, **row}
    if row["conversation"] != NO_CONVERSATION:
        known = [
            each[0]
            for each in connection.execute(
                _KNOWN_ROWS,
                {"tenant": tenant, "conversation": row["conversation"], "base": row["base"] or PURGE_MARK},
            )
        ]
        if PURGE_MARK in known:
            row |= {"base": None, "size": 0, "request": b""}
        elif row["base"] is not None and not known:
            return None
    count_bytes(connection, len(row["request"]))
    row = with_row_digest(exchanges, row)
    insert_rows(connection, exchanges, [row])
    return row


_END = (
    update(exchanges)
    .where(
        exchanges.c.tenant == bindparam("of_tenant"),
        exchanges.c.conversation == bindparam("of_conversation"),
        exchanges.c.exchange == bindparam("of_exchange"),
    )
    .values(
        {
            name: bindparam(f"new_{name}", type_=exchanges.c[name].type)
            for name in (
                "branch",
                "seq",
                "first_byte_at",
                "completed_at",
                "outcome",
                "status",
                "error",
                "response",
                ROW_DIGEST,
            )
        }
    )
)


def end_exchange(
    connection: Connection,
    tenant: str,
    row: Mapping[str, Any],
    end: ExchangeEnd,
    *,
    reply: tuple[int, int] | None = None,
) -> None:
    """Completes an exchange. `reply` is the branch and the number of the recorded reply.

    Nothing if a purge deleted it meanwhile. Without the bytes of the request, there are none of the answer.
    """
    branch, seq = reply if reply is not None else (row["branch"], None)
    values: dict[str, Any] = {**end._asdict(), "branch": branch, "seq": seq}
    if not row["size"]:
        values |= {"response": b"", "error": None}
    count_bytes(connection, len(values["response"]))
    ended = with_row_digest(exchanges, {**row, **values})
    connection.execute(
        _END,
        {
            "of_tenant": tenant,
            "of_conversation": row["conversation"],
            "of_exchange": row["exchange"],
            **{f"new_{name}": ended[name] for name in (*values, ROW_DIGEST)},
        },
    )


def has_purged_content(connection: Connection, tenant: str, conversation: str) -> bool:
    """Whether anything of the conversation was purged. One row says so, whatever the length of the conversation."""
    mark = {"tenant": tenant, "conversation": conversation, "base": PURGE_MARK}
    return bool(connection.execute(_KNOWN_ROWS, mark).first())


def delete_exchanges(connection: Connection, tenant: str, conversation: str) -> None:
    """Deletes the exchanges of a conversation. Later ones have no bytes."""
    connection.execute(delete(exchanges).where(exchanges.c.tenant == tenant, exchanges.c.conversation == conversation))
    if conversation != NO_CONVERSATION:
        row = build_row(
            conversation=conversation,
            id=PURGE_MARK,
            road="managed",
            reason="",
            model="",
            branch=0,
            after_seq=0,
            started_at=now(),
            body=EncodedBody(None, 0, b""),
        )
        mark = with_row_digest(exchanges, {"tenant": tenant, **row})
        insert_rows(connection, exchanges, [mark], ignore_existing=True)


def get_body(connection: Connection, tenant: str, branch: Branch, seq: int) -> bytes | None:
    """The body of the request that entry `seq` answered, as it was sent, or None if it is not stored."""
    return get_bodies(connection, tenant, branch, [seq]).get(seq)


def get_bodies(connection: Connection, tenant: str, branch: Branch, seqs: Sequence[int]) -> dict[int, bytes]:
    """The stored bodies of the requests that these entries answered. Consecutive ones are decoded together."""
    reader = ExchangeReader(connection, tenant, branch.conversation)
    owners = {seq: owner for seq in seqs if (owner := branch.find_owner(seq)) is not None}
    query = select(exchanges.c.branch, exchanges.c.seq, exchanges.c.exchange).where(
        exchanges.c.tenant == tenant,
        exchanges.c.conversation == branch.conversation,
        exchanges.c.seq.in_(list(owners)),
        exchanges.c.size > 0,
    )
    keys = {seq: key for number, seq, key in connection.execute(query) if owners[seq] == number}
    found = {seq: reader.read(keys[seq]) for seq in owners if seq in keys}
    return {seq: decode_request(content)[1] for seq, content in found.items() if content is not None}


def list_conversations(connection: Connection, tenant: str) -> Sequence[str]:
    """Conversations that have exchanges."""
    query = select(exchanges.c.conversation).where(exchanges.c.tenant == tenant).distinct()
    return connection.execute(query.order_by(exchanges.c.conversation)).scalars().all()


def list_unanswered(
    connection: Connection, tenant: str, *, conversation: str | None = None, since: int = 0, limit: int = 1_000
) -> list[ExchangeRecord]:
    """The newest exchanges that did not end with a whole reply, of a conversation or of all, oldest first.

    One that was not completed is in progress, or its server died.
    """
    query = select(*_RECORD_COLUMNS).where(
        exchanges.c.tenant == tenant,
        _IS_UNANSWERED,
        exchanges.c.exchange != PURGE_MARK,
        exchanges.c.started_at >= since,
    )
    if conversation is not None:
        query = query.where(exchanges.c.conversation == conversation)
    rows = connection.execute(query.order_by(exchanges.c.started_at.desc(), exchanges.c.exchange.desc()).limit(limit))
    return [_to_record(row) for row in rows.mappings()][::-1]


def find_exchange(
    connection: Connection, tenant: str, id: str, *, conversation: str | None = None
) -> ExchangeRecord | None:
    """The exchange with this id. Without its conversation, only one that did not end with a whole reply is found: the
    ledger has the others."""
    query = select(*_RECORD_COLUMNS).where(
        exchanges.c.tenant == tenant, exchanges.c.exchange == id, exchanges.c.exchange != PURGE_MARK
    )
    query = query.where(_IS_UNANSWERED if conversation is None else exchanges.c.conversation == conversation)
    row = connection.execute(query).mappings().first()
    return _to_record(row) if row is not None else None


def _to_record(row: Mapping[Any, Any]) -> ExchangeRecord:
    return ExchangeRecord.model_validate({"id" if name == "exchange" else name: row[name] for name in row})


class ExchangeContent(FrozenModel):
    """The content of an exchange."""

    request_headers: dict[str, str]
    request: str | None = Field(description="The body, or null if it is not stored.")
    response_headers: dict[str, str]
    response: str


def read_content(connection: Connection, tenant: str, conversation: str, id: str) -> ExchangeContent | None:
    """What was sent and what came back, or None if the exchange is not stored any more."""
    reader = ExchangeReader(connection, tenant, conversation)
    row = reader.get(id)
    if row is None:
        return None
    request_headers, body = decode_request(reader.read(id) or b"")
    response_headers, answer = decode_answer(row["response"])
    return ExchangeContent(
        request_headers=request_headers,
        request=body.decode(errors="replace") if row["size"] else None,
        response_headers=response_headers,
        response=answer.decode(errors="replace"),
    )


class ExchangeReader:
    """Reads the exchanges of one conversation. Requests that were decoded last are not decoded again."""

    def __init__(self, connection: Connection, tenant: str, conversation: str) -> None:
        self._connection, self._tenant, self._conversation = connection, tenant, conversation
        self._own = exchanges.c.tenant == tenant, exchanges.c.conversation == conversation
        self._decoded: LRUCache[str, bytes] = LRUCache(MAX_DECODED_BYTES, getsizeof=len)

    def read(self, key: str) -> bytes | None:
        """The request, or None if it is not stored. Raises `IntegrityViolation` if its rows cannot be decoded."""
        chain: list[tuple[str, int, bytes]] = []
        content: bytes | None = b""
        next_key: str | None = key
        while next_key is not None and (content := self._decoded.get(next_key)) is None:
            columns = exchanges.c.base, exchanges.c.size, exchanges.c.request
            row = self._connection.execute(select(*columns).where(*self._own, exchanges.c.exchange == next_key)).first()
            if row is None and not chain:
                return None
            if row is None or len(chain) > MAX_CHAIN_DELTAS:
                raise IntegrityViolation(f"{self._describe(key)} refers to {next_key!r}, which is not stored.")
            chain.append((next_key, row.size, row.request))
            next_key, content = row.base, b""
        try:
            for each, size, delta in reversed(chain):
                content = decode_delta(content or b"", delta) if delta else b""
                if len(content) != size:
                    raise ValueError("it has another size")
                if len(content) <= MAX_DECODED_BYTES:
                    self._decoded[each] = content
        except ValueError as error:
            raise IntegrityViolation(f"{self._describe(key)} cannot be decoded: {error}.") from error
        return content

    def _describe(self, key: str) -> str:
        return f"The stored request {key!r} of {self._conversation!r}"

    def get(self, key: str) -> dict[str, Any] | None:
        """The row of an exchange."""
        query = select(exchanges).where(*self._own, exchanges.c.exchange == key)
        row = self._connection.execute(query).mappings().first()
        return cast("dict[str, Any]", dict(row)) if row is not None else None

    def list_keys(self) -> list[str]:
        """The exchanges of the conversation, each after its base."""
        query = select(exchanges.c.exchange, exchanges.c.base).where(*self._own, exchanges.c.exchange != PURGE_MARK)
        rows = self._connection.execute(query.order_by(exchanges.c.started_at, exchanges.c.exchange)).all()
        bases: dict[str, str | None] = {row.exchange: row.base for row in rows}
        ordered: dict[str, None] = {}
        for key in bases:
            chain: list[str] = []
            current: str | None = key
            while current in bases and current not in ordered and current not in chain:
                chain.append(current)
                current = bases[current]
            ordered.update(dict.fromkeys(reversed(chain)))
        return list(ordered)

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """The exchanges as they are stored, each after its base."""
        for key in self.list_keys():
            row = self.get(key)
            if row is not None:
                yield row

    def find_values(self, forms: Sequence[bytes]) -> list[str]:
        """The exchanges that contain one of these texts."""
        margin = max(map(len, forms)) - 1
        found: set[str] = set()
        for row in self.iter_rows():
            key: str = row["exchange"]
            content, base = self.read(key) or b"", (self.read(row["base"]) if row["base"] is not None else None) or b""
            # What is in neither the common start nor the common end is new.
            start, end = find_change(base, content)
            changed = content[max(0, start - margin) : end + margin]
            answer = _unpack_answer(row["response"])
            if row["base"] in found or any(form in changed or form in answer for form in forms):
                found.add(key)
        return sorted(found)
