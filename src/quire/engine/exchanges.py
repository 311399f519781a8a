"""Exchanges of the gateway in progress: stored before the upstream is called, and completed with what came back."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

from quire.concurrency.cancellation import run_shielded
from quire.concurrency.worker_threads import run_sized
from quire.engine.state import EngineState
from quire.errors import ModelError, StoreError, error_detail
from quire.llm.error_mapping import read_error_message
from quire.log import ConversationRecord
from quire.log.exchanges import Road, SentBody, build_row, decode_request, encode_answer, encode_body, encode_request
from quire.log.tenant_masker import mask_sent_body
from quire.log.types import EncodedBody, ExchangeEnd, Outcome
from quire.model.ids import now

_log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Bytes of an answer that stay in memory until it is known whether an entry has them."""


class OpenExchange:
    """A stored request whose answer is awaited."""

    def __init__(
        self, engine: EngineState, row: Mapping[str, Any], *, is_masked: bool, masked_digest: str | None
    ) -> None:
        self._engine = engine
        self.row = row
        self.is_masked = is_masked
        """Whether secrets in the request were masked."""
        self.masked_digest = masked_digest
        """Digest of the body as it is stored, if it was masked."""
        self.is_ended = False
        self.outcome: Outcome | None = None
        """What became of a partial answer."""
        self.error: str | None = None
        self._status: int | None = None
        self._first_byte_at: int | None = None
        self._headers: Mapping[str, str] = {}
        self._received: list[bytes] = []
        self._received_bytes = 0

    @property
    def is_started(self) -> bool:
        """Whether an answer began."""
        return self._first_byte_at is not None

    @property
    def is_refused(self) -> bool:
        return self._status is not None and self._status >= 400

    def start_answer(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers, self._first_byte_at = status, headers, now()

    def add(self, chunk: bytes) -> None:
        """Keeps a part of the answer."""
        if self._received_bytes < MAX_ANSWER_BYTES:
            self._received.append(chunk)
            self._received_bytes += len(chunk)

    async def build_end(self, outcome: Outcome, *, has_entry: bool) -> ExchangeEnd:
        """The end of the exchange. The bytes of a whole answer are left out if an entry has it."""
        has_body = bool(self.row["size"]) and not (has_entry and outcome == "answered")
        body = b"".join(self._received) if has_body else b""
        error, headers, masker = self.error, self._headers, self._engine.store.masker
        if masker is not None:
            error = masker.mask_text(error) if error is not None else None
            text = await run_sized(len(body), masker.mask_text, body.decode(errors="surrogateescape"))
            body = text.encode(errors="surrogateescape")
            headers = {name: masker.mask_text(value) for name, value in headers.items()}
        response = await run_sized(len(body), encode_answer, headers, body)
        return ExchangeEnd(outcome, self._status, error, self._first_byte_at, now(), response)

    async def end(self, outcome: Outcome, error: str | None = None) -> None:
        """Completes an exchange whose answer is in no entry. Nothing if it is complete. A failure is logged."""
        if self.is_ended:
            return
        self.is_ended = True
        self.error = error or self.error
        if outcome == "refused" and self.error is None:
            self.error = read_error_message(b"".join(self._received))

        async def write() -> None:
            end = await self.build_end(outcome, has_entry=False)
            await self._engine.store.end_exchange(self.row, end)

        try:
            await run_shielded(write())
        except StoreError as failure:
            _log.warning("The end of the request %s is not stored: %s", self.row["exchange"], failure)


@asynccontextmanager
async def observe_answer(exchange: OpenExchange | None) -> AsyncGenerator[None]:
    """Completes an exchange by how the block ends that awaits and relays its answer, if nothing did before."""
    if exchange is None:
        yield
        return
    try:
        yield
    except ModelError as error:
        await exchange.end("broken" if exchange.is_started else "unanswered", error_detail(error))
        raise
    except asyncio.CancelledError:
        await exchange.end("cancelled")
        raise
    await exchange.end("refused" if exchange.is_refused else "answered")


async def begin_exchange(
    engine: EngineState,
    *,
    id: str,
    conversation: str,
    model: str,
    road: Road,
    reason: str,
    path: str,
    headers: Mapping[str, str],
    content: bytes | None,
    branch: int = 0,
    after_seq: int = 0,
    creates_conversation: ConversationRecord | None = None,
) -> OpenExchange:
    """Stores a request that is about to be sent, without bytes if `content` is None.

    The conversation that it begins is created with it. Raises `StoreError`.
    """
    store, sent_bodies = engine.store, engine.runtime.sent_bodies
    # A conversation that exists again after the database was set back has no earlier request.
    base = sent_bodies.get(conversation) if conversation and creates_conversation is None else None
    stored, masked, masker = b"", None, store.masker
    if content is not None:
        stored = encode_request(path, headers, content)
        new_bytes = abs(len(stored) - (len(base.content) if base is not None else 0))
        if masker is not None:
            masked = await run_sized(new_bytes, mask_sent_body, masker, stored, base.masked if base else None)
            stored = masked.encode()
    started_at = now()
    for each in (base, None):
        body = EncodedBody(None, 0, b"")
        if content is not None:
            body = await run_sized(abs(len(stored) - (len(each.content) if each else 0)), encode_body, stored, each)
        row = await store.begin_exchange(
            build_row(
                conversation=conversation,
                id=id,
                road=road,
                reason=reason,
                model=model if masker is None else masker.mask_name(model),
                branch=branch,
                after_seq=after_seq,
                started_at=started_at,
                body=body,
            ),
            creates_conversation=creates_conversation,
        )
        if row is not None:
            break
    else:
        raise AssertionError("a whole request has no base")
    if row["size"] and conversation and len(stored) <= sent_bodies.maxsize:
        chain_deltas = base.chain_deltas + 1 if base is not None and row["base"] is not None else 0
        sent_bodies[conversation] = SentBody(id, chain_deltas, stored, masked)
    is_masked, masked_digest = False, None
    if masker is not None:
        body = await run_sized(len(stored), decode_request, stored)
        is_masked = content is None or body[1] != content
        masked_digest = sha256(body[1]).hexdigest() if is_masked and content is not None else None
    return OpenExchange(engine, row, is_masked=is_masked, masked_digest=masked_digest)
