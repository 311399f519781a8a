"""Background responses: a request with `background: true` is stored, answered at once, and run by any server process.

The process that runs one has its lease (`quire.turns.leases`), under which the reply is recorded: once, also if another
process takes over. The upstream gets a request without `background`, whatever it speaks. A process that dies loses its
call, and the next one makes it again. Events are stored for streams of all processes, and the log has the response.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from starlette.types import Message

from quire.concurrency.worker_threads import run_sized, set_work_owner
from quire.errors import (
    InvalidRequest,
    NotFound,
    QuireError,
    StoreBusy,
    StoreError,
    StoreRolledBack,
    StoreUnavailable,
    TooManyRequests,
    TurnLeaseLost,
)
from quire.log.types import TurnLease
from quire.model.ids import new_id, now
from quire.model.json_values import get_object, get_text, is_object
from quire.proxy.reply_recorder import ResponseClaim
from quire.server.caller import Caller
from quire.server.gateway.exchange import Exchange
from quire.server.gateway.response import ResponseWriter
from quire.server.gateway.response_compaction import find_upstream, recognize_history, respond_or_compact, send_error
from quire.server.gateway.upstream import filter_request_headers
from quire.store import SqlStore
from quire.turns.background_responses import BackgroundRequest
from quire.turns.leases import LEASE_SECONDS, LeaseState
from quire.wire import WireMessage
from quire.wire.codec import RequestLimitExceeded, UnreadableBody, parse_body
from quire.wire.http_errors import error_code
from quire.wire.replies import encode_event, read_event_data, take_events
from quire.wire.responses.object import RESPONSE_ID_PREFIX, build_started_response, make_response_id
from quire.wire.responses.stream import MICROSECONDS_PER_SECOND

_log = logging.getLogger(__name__)

LEASE_BRANCH = -1
"""Number of the lease of a response, which no branch has."""
MAX_RUNNING = 64
"""Maximum responses that this process runs at a time."""
MAX_TENANT_RUNNING = 16
MAX_TENANT_OPEN = 1_000
"""Maximum responses of a tenant that wait or run."""
RENEWAL_SECONDS = LEASE_SECONDS / 3
SIGNAL_SECONDS = 0.5
"""Seconds between two looks for a request to cancel."""
RECOVERY_SECONDS = 10.0
"""Seconds between two searches for responses that no process runs."""
WRITE_SECONDS = 0.2
"""Minimum seconds between two writes of a response's events, and between two reads by a stream."""
EVENTS_SECONDS = 600.0
"""Seconds for which the events of an ended response are stored."""
RETRY_SECONDS = 600
"""Seconds after its creation in which a response is run again if the store fails."""
STORE_ERROR_CODES = frozenset(error_code(each()) for each in (StoreBusy, StoreUnavailable, StoreRolledBack))
CANCEL_SECONDS = 5.0
"""Seconds that a request to cancel waits for the end of the response."""
END_TYPES = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})

EVENT_STREAM = "text/event-stream; charset=utf-8"
BACKGROUND_FIELD = b'"background"'

OpenExchange = Callable[["StoredRequest", ResponseClaim], Exchange]
"""Makes the exchange of a stored request."""


class StoredRequest(NamedTuple):
    """What a process needs to answer a request that another one has received. It has no credentials."""

    body: dict[str, Any]
    headers: dict[str, str]
    conversation: str | None
    branch: int | None
    caller: Caller


_STORED_REQUEST = TypeAdapter(StoredRequest)


class ResponseStatus(NamedTuple):
    """A response that is not in the log (yet)."""

    request: BackgroundRequest
    is_running: bool

    def build_object(self) -> WireMessage:
        if self.request.outcome is not None:
            return from_json(self.request.outcome)
        fields = _STORED_REQUEST.validate_json(self.request.request).body
        status = "in_progress" if self.is_running else "queued"
        return build_unfinished(fields, self.request.response, self.request.created_at, status)


def build_unfinished(fields: Mapping[str, Any], response_id: str, created_at: int, status: str) -> WireMessage:
    request_id, seconds = response_id.removeprefix(RESPONSE_ID_PREFIX), created_at // MICROSECONDS_PER_SECOND
    response = build_started_response(fields, request_id=request_id, created_at=seconds)
    return {**response, "status": status, "background": True}


async def respond_or_submit(background: "BackgroundResponses", exchange: Exchange, writer: ResponseWriter) -> None:
    """Answers a request for a response: one with `background: true` at once, or with a stream of its events."""
    if BACKGROUND_FIELD not in exchange.raw_body:
        return await respond_or_compact(exchange, writer)
    try:
        body = await run_sized(len(exchange.raw_body), parse_body, exchange.raw_body)
        if body.get("background") is not True:
            return await respond_or_compact(exchange, writer)
        if body.get("store") is False:
            raise InvalidRequest("A background response is read later, so it needs `store: true`.")
        upstream = await find_upstream(exchange, body)
        if upstream.credentials == "client":
            raise InvalidRequest(
                "A background response needs an upstream with the server's own credentials: yours are not stored."
            )
        match = (await recognize_history(exchange, body, upstream)).match
        requested, caller = exchange.requested, exchange.caller
        names = {*filter_request_headers(exchange.headers, upstream), *exchange.server_state.settings.session_headers}
        request = StoredRequest(
            body={**{name: value for name, value in body.items() if name != "background"}, "stream": True},
            headers={name: value for name, value in exchange.headers.items() if name in names},
            conversation=match.conversation if match.creates_conversation else requested.conversation,
            branch=requested.branch,
            caller=caller,
        )
        response = await background.submit(caller.tenant, request, match.conversation)
    except (UnreadableBody, RequestLimitExceeded, QuireError) as error:
        return await send_error(exchange, writer, error)
    if body.get("stream") is not True:
        return await writer.send_response(200, {"content-type": "application/json"}, to_json(response))
    await writer.start(200, {"content-type": EVENT_STREAM})
    store = exchange.get_store()
    async for event in background.stream(store, match.conversation, response["id"], starting_after=-1):
        await writer.write(event)
    return await writer.write(b"", last=True)


@dataclass(eq=False)
class _EventRecorder:
    """Receives the answer of an exchange, and stores its events."""

    store: SqlStore
    conversation: str
    response_id: str
    status: int = 0
    error_body: bytes = b""
    last: WireMessage | None = None
    """The last event, if it ends the response."""
    count: int = 0
    _buffer: bytearray = field(default_factory=bytearray)
    _unwritten: list[WireMessage] = field(default_factory=list[WireMessage])
    _written_at: float = 0.0

    @property
    def error(self) -> WireMessage:
        """The error of a response that failed, in its last event or in place of a stream."""
        if self.last is not None:
            return get_object(get_object(self.last, "response"), "error")
        body: object = None
        with suppress(ValueError):
            body = from_json(self.error_body)
        return get_object(body, "error") if is_object(body) else {}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        chunk: bytes = message.get("body", b"")
        if self.status != 200:
            self.error_body += chunk
            return
        for event in take_events(self._buffer, chunk):
            data = read_event_data(event)
            parsed: object = from_json(data) if data.startswith(b"{") else None
            if is_object(parsed):
                self._add(parsed)
        if self._unwritten and (self.last is not None or asyncio.get_running_loop().time() >= self._written_at):
            await self.flush()

    def _add(self, event: WireMessage) -> None:
        if is_object(response := event.get("response")):
            # An upstream that speaks the format has an ID of its own.
            event = {**event, "response": {**response, "id": self.response_id, "background": True}}
        event["sequence_number"] = self.count + len(self._unwritten)
        if event.get("type") in END_TYPES:
            self.last = event
        self._unwritten.append(event)

    async def flush(self) -> None:
        """Stores the events since the last time. If the store fails, the next time: the reply must not fail for it."""
        self._written_at = asyncio.get_running_loop().time() + WRITE_SECONDS
        if not self._unwritten:
            return
        text = to_json(self._unwritten, inf_nan_mode="constants").decode()
        try:
            await self.store.turn_events.append(self.conversation, self.response_id, self.count, text)
        except StoreError as error:
            _log.warning("Events of background response %s are not stored yet: %s", self.response_id, error)
            return
        self.count += len(self._unwritten)
        self._unwritten.clear()


class BackgroundResponses:
    """Background responses of one application."""

    def __init__(self, store: SqlStore, open_exchange: OpenExchange) -> None:
        self._store, self._open_exchange = store, open_exchange
        self._owner = f"{socket.gethostname()}/{os.getpid()}/{new_id()}"
        self._waiting: dict[tuple[str, str], None] = {}
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._leases: dict[tuple[str, str], TurnLease] = {}
        self._deletions: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def submit(self, tenant: str, request: StoredRequest, conversation: str) -> WireMessage:
        """Stores a request and returns the response, which is queued. Raises `TooManyRequests`."""
        store, response_id = self._store.for_tenant(tenant), make_response_id(new_id())
        text = _STORED_REQUEST.dump_json(request).decode()
        if await store.background.add(response_id, conversation, text) > MAX_TENANT_OPEN:
            await store.background.delete(response_id)
            raise TooManyRequests(
                f"The tenant has {MAX_TENANT_OPEN:,} background responses that wait or run; wait for some of them.",
                retry_after=60,
            )
        self.start(tenant, response_id)
        return build_unfinished(request.body, response_id, now(), "queued")

    def start(self, tenant: str, response_id: str) -> None:
        """Runs a response as soon as there is room, unless another process has its lease."""
        key = tenant, response_id
        if key not in self._running:
            self._waiting.setdefault(key)
            self._fill()

    def _fill(self) -> None:
        for key in list(self._waiting):
            if self._is_closing or len(self._running) >= MAX_RUNNING:
                return
            if sum(each[0] == key[0] for each in self._running) >= MAX_TENANT_RUNNING:
                continue
            del self._waiting[key]
            task = asyncio.get_running_loop().create_task(self._run(*key))
            self._running[key] = task
            task.add_done_callback(partial(self._remove, key))

    def _remove(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        del self._running[key]
        self._leases.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The next search finds it again.
            _log.warning("Background response %s was interrupted: %s", key[1], error)
        self._fill()

    async def find(self, store: SqlStore, response_id: str) -> ResponseStatus | None:
        """A response that is not in the log, or None. One that no process runs is started."""
        request = await store.background.get(response_id)
        if request is None:
            return None
        state = await store.leases.get(response_id, LEASE_BRANCH) if request.outcome is None else None
        is_running = state is not None and state.is_running
        if request.outcome is None and not is_running:
            self.start(store.tenant, response_id)
        return ResponseStatus(request, is_running)

    async def cancel(self, store: SqlStore, response_id: str) -> WireMessage | None:
        """Cancels a response in whichever process it runs. Returns it, or None if it is not in the background."""
        status = await self.find(store, response_id)
        if status is None or status.request.outcome is not None:
            return status.build_object() if status is not None else None
        self._waiting.pop((store.tenant, response_id), None)
        if not await store.leases.request_stop(response_id, LEASE_BRANCH):
            await self._end(store, status.request, "cancelled")
            # A process may have begun meanwhile.
            await store.leases.request_stop(response_id, LEASE_BRANCH)
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                while status is not None and status.request.outcome is None:
                    await asyncio.sleep(WRITE_SECONDS)
                    status = await self.find(store, response_id)
        return status.build_object() if status is not None else None

    async def _run(self, tenant: str, response_id: str) -> None:
        """Answers a request and records the reply, if no other process does."""
        set_work_owner(tenant)
        store = self._store.for_tenant(tenant)
        lease = await store.leases.claim(response_id, LEASE_BRANCH, owner=self._owner)
        if isinstance(lease, LeaseState):
            return
        try:
            request = await store.background.get(response_id)
            if request is None or request.outcome is not None:
                return
            if await self._is_recorded(store, response_id):
                # The process before this one died after it had recorded the reply.
                await store.background.delete(response_id)
                return
            self._leases[tenant, response_id] = lease
            await self._answer(store, request, lease)
        except TurnLeaseLost:
            return
        finally:
            await store.leases.end(lease)

    async def _answer(self, store: SqlStore, request: BackgroundRequest, lease: TurnLease) -> None:
        response_id, conversation = request.response, request.conversation
        stored, events = (
            _STORED_REQUEST.validate_json(request.request),
            _EventRecorder(store, conversation, response_id),
        )
        await store.turn_events.delete(conversation, response_id)
        exchange = self._open_exchange(stored, ResponseClaim(response_id, lease))
        work = asyncio.ensure_future(exchange.respond(ResponseWriter(events.send)))
        is_cancelled = False
        try:
            loop = asyncio.get_running_loop()
            next_renewal = loop.time() + RENEWAL_SECONDS
            while not work.done():
                await asyncio.wait((work,), timeout=SIGNAL_SECONDS)
                if work.done():
                    break
                read = store.leases.list
                if loop.time() >= next_renewal:
                    read, next_renewal = store.leases.renew, loop.time() + RENEWAL_SECONDS
                states = await read([lease.turn])
                if not states:
                    if not await self._is_recorded(store, response_id):
                        raise TurnLeaseLost
                    # Recording the reply has ended the lease.
                    await asyncio.wait((work,))
                elif states[0].stop_requested:
                    is_cancelled = True
                    break
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait((work,))
        if not work.cancelled():
            # A lost lease, or a failure of this process.
            work.result()
        await events.flush()
        if is_cancelled:
            await self._end(store, request, "cancelled", events)
        elif await self._is_recorded(store, response_id):
            await store.background.delete(response_id)
        elif events.error.get("code") in STORE_ERROR_CODES and now() < request.created_at + RETRY_SECONDS * 1_000_000:
            # The next search runs it again.
            raise StoreBusy("The store failed while the reply was recorded.")
        else:
            await self._end(store, request, "failed", events)
        deletion = loop.create_task(_delete_events_later(store, conversation, response_id))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)

    async def _end(
        self, store: SqlStore, request: BackgroundRequest, status: str, events: _EventRecorder | None = None
    ) -> None:
        """Stores the outcome of a response that the log lacks, and the event that ends its stream."""
        fields = _STORED_REQUEST.validate_json(request.request).body
        response = build_unfinished(fields, request.response, request.created_at, status)
        ended = get_object(events.last, "response") if events is not None and events.last is not None else {}
        if ended and status == "failed":
            response = ended
        elif status == "failed":
            error = events.error if events is not None else {}
            message = get_text(error, "message") or "The response has no reply; send the request again."
            response["error"] = {"code": get_text(error, "code") or "server_error", "message": message}
        await store.background.set_outcome(request.response, to_json(response).decode())
        if events is not None and events.last is None:
            event = {"type": f"response.{status}", "sequence_number": events.count, "response": response}
            text = to_json([event]).decode()
            await store.turn_events.append(request.conversation, request.response, events.count, text)

    async def _is_recorded(self, store: SqlStore, response_id: str) -> bool:
        try:
            await store.find_response(response_id)
        except NotFound:
            return False
        return True

    async def stream(
        self, store: SqlStore, conversation: str, response_id: str, *, starting_after: int
    ) -> AsyncGenerator[bytes]:
        """The events after the one with this number, up to the end of the response."""
        first, is_last_read = starting_after + 1, False
        while True:
            for text in await store.turn_events.list(conversation, response_id, first=0):
                for event in from_json(text):
                    if event["sequence_number"] >= first:
                        first = event["sequence_number"] + 1
                        yield encode_event(event, name=event["type"])
                        if event["type"] in END_TYPES:
                            return
            if is_last_read:
                return
            await asyncio.sleep(WRITE_SECONDS)
            found = await self.find(store, response_id)
            is_last_read = found is None or found.request.outcome is not None

    @asynccontextmanager
    async def recover(self) -> AsyncGenerator[None]:
        """Runs responses of other processes that have died, while the context is open."""
        task = asyncio.create_task(self._search())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))
            await self.close()

    async def _search(self) -> None:
        while True:
            for cell in self._store.all_tenants.list_parts():
                try:
                    for tenant, response_id in await cell.list_unanswered(limit=MAX_TENANT_OPEN):
                        self.start(tenant, response_id)
                except QuireError as error:
                    _log.warning("Background responses of other processes were not searched for: %s", error)
            await asyncio.sleep(RECOVERY_SECONDS)

    async def close(self) -> None:
        """Gives up all responses, so that another process runs them. Without their leases, none records a part."""
        self._is_closing = True
        for (tenant, _), lease in list(self._leases.items()):
            with suppress(QuireError):
                await self._store.for_tenant(tenant).leases.end(lease)
        tasks = [*self._running.values(), *self._deletions]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _delete_events_later(store: SqlStore, conversation: str, response_id: str) -> None:
    """When the server stops before, the rows stay until they expire."""
    await asyncio.sleep(EVENTS_SECONDS)
    with suppress(QuireError):
        await store.turn_events.delete(conversation, response_id)
