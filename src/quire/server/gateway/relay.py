"""Relays the upstream's response to the client. The reply is recorded before the client sees its end."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Literal

from pydantic_core import from_json

from quire.concurrency.cancellation import run_shielded
from quire.concurrency.worker_threads import run_sized
from quire.engine.exchanges import OpenExchange, begin_exchange, observe_answer
from quire.errors import (
    ModelContextOverflow,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    QuireError,
    StoreError,
    StoreRolledBack,
    error_detail,
)
from quire.llm.error_mapping import classify_error, read_error_message
from quire.model import Usage
from quire.model.base import JsonObject
from quire.proxy.prepare import PreparedRequest
from quire.proxy.recognition import HistoryMatch
from quire.proxy.reply_recorder import RecordedReply, record_reply
from quire.proxy.translation import ReplyTranslator
from quire.server.gateway.response import ResponseWriter
from quire.server.gateway.upstream import (
    UpstreamCall,
    encode_conversation_header,
    filter_response_headers,
    select_response_headers,
)
from quire.server.telemetry import Telemetry
from quire.server.telemetry.tracer import ModelCallSpan
from quire.server.upstream_client import UpstreamResponse
from quire.wire import Reply
from quire.wire.codec import Codec
from quire.wire.http_errors import error_code
from quire.wire.json_limits import MAX_JSON_SEPARATORS, exceeds_json_limit
from quire.wire.replies import StreamDecoder

_log = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 32 * 1024 * 1024
"""Maximum size of a response that is not streamed."""
MAX_ERROR_BYTES = 64 * 1024
"""Maximum size of an error of the upstream that is passed on. It may repeat the client's whole request."""
DRAIN_TIMEOUT_SECONDS = 1.0
"""Seconds to wait for an upstream to close a stream after its end."""
KEEP_ALIVE_SECONDS = 15.0
"""Seconds of silence of the upstream after which a translated stream gets a sign of life."""

UNRECORDED_HEADERS = {"x-quire-recorded": "no"}

UpdateHead = Callable[[bytes | None, HistoryMatch], None]
"""Replaces the head at an old path with a new one in the head cache."""
KeepUnanswered = Callable[[PreparedRequest], None]
"""Remembers the conversation of a request without an answer, in which the next attempt continues."""
Refit = Callable[[PreparedRequest], Awaitable[PreparedRequest]]
"""Prepares a shorter request after an overflow."""


class TurnRecorder:
    """The prepared request of a turn, and what is recorded of its reply and its cost.

    Recording and settling are shielded from cancellation, so they complete even if the client disconnects.
    """

    def __init__(
        self,
        prepared: PreparedRequest,
        *,
        update_head: UpdateHead,
        keep_unanswered: KeepUnanswered,
        stored_headers: Mapping[str, str],
        on_store_failure: Literal["refuse", "pass_through"],
    ) -> None:
        """`stored_headers` are the request's headers that are stored."""
        self.prepared = prepared
        """Replaced if the request is refitted."""
        self.exchange: OpenExchange | None = None
        """The last attempt as it is stored, unless the store failed."""
        self.recorded_reply: RecordedReply | None = None
        self.is_billed = False
        """Whether the upstream may charge for a call without a recorded reply."""
        self._update_head, self._on_store_failure = update_head, on_store_failure
        self._keep_unanswered, self._stored_headers = keep_unanswered, stored_headers

    async def begin(self, path: str) -> None:
        """Stores the request that is about to be sent. If the store fails, `on_store_failure` decides whether it is."""
        prepared = self.prepared
        request, match = prepared.request, prepared.match
        forwarded = request.assembly.forwarded
        self.exchange = None
        try:
            self.exchange = await run_shielded(
                begin_exchange(
                    prepared.recorder.engine,
                    id=request.id or "",
                    conversation=match.conversation,
                    model=prepared.client_request.model,
                    road="managed",
                    reason=forwarded.form if forwarded is not None else "",
                    path=path,
                    headers=self._stored_headers,
                    content=prepared.content,
                    branch=match.branch,
                    after_seq=match.head_seq,
                    creates_conversation=request.creates_conversation,
                )
            )
        except StoreError as error:
            if self._on_store_failure == "refuse":
                raise
            _log.warning("Request is not stored before it is sent, store failure: %s", error)
        self.prepared = replace(prepared, request=replace(request, exchange=self.exchange))

    def keep_unanswered(self) -> None:
        """Lets the next attempt continue in the conversation that this one began."""
        if self.exchange is not None and self.recorded_reply is None:
            self._keep_unanswered(self.prepared)

    async def record(
        self,
        replies: Sequence[Reply],
        *,
        size: int,
        incomplete: bool = False,
        response_id: str | None,
        response_fields: JsonObject | None = None,
    ) -> bool:
        """Records the replies, which have `size` bytes; returns whether they are in the log.

        If the store fails, `on_store_failure` decides whether the client gets the reply unrecorded.
        """
        reported_usage = next((reply.usage for reply in replies), None)
        try:
            self.recorded_reply = await run_shielded(
                record_reply(
                    self.prepared,
                    replies,
                    size=size,
                    incomplete=incomplete,
                    response_id=response_id,
                    response_fields=response_fields,
                )
            )
        except StoreError as error:
            await self.settle_spend(reported_usage)
            if isinstance(error, StoreRolledBack):
                # The next request finds in the log where it continues.
                match = self.prepared.match
                self._update_head(match.client_path, replace(match, client_path=None))
            if self._on_store_failure == "refuse":
                raise
            _log.warning("Reply passed through unrecorded, store failure: %s", error)
            return False
        except Exception as error:
            await self.settle_spend(reported_usage)
            if isinstance(error, QuireError):
                raise
            # Its tokens are paid for, and its bytes are in the exchange.
            _log.exception("Reply passed through unrecorded, it was not understood")
            return False
        if self.recorded_reply is None:
            # An empty reply, such as one that a reasoning model did not get to.
            await self.settle_spend(reported_usage)
            return False
        entry, reply, stored, client_path = self.recorded_reply
        next_match = await run_sized(
            self.prepared.client_request.work_bytes, self.prepared.build_next_match, stored, reply.message, client_path
        )
        self._update_head(self.prepared.match.client_path, next_match)
        await self.prepared.extend_history(reply.message, entry.path, client_path)
        return True

    async def settle_spend(self, usage: Usage | None = None) -> None:
        """Settles the reservation of a call without a recorded reply, before the client can send its next request."""
        if self.recorded_reply is None and self.prepared.request.reservation is not None:
            prepared = self.prepared
            self.prepared = replace(prepared, request=replace(prepared.request, reservation=None))
            settle = prepared.recorder.settle_spend(prepared.request, is_billed=self.is_billed, usage=usage)
            try:
                await run_shielded(settle)
            except StoreError as error:
                _log.warning("Reservation of a call without a recorded reply stays until it expires: %s", error)

    def build_response_headers(self, response: UpstreamResponse) -> dict[str, str]:
        """The upstream's headers that are for the client, and Quire's own."""
        return filter_response_headers(response.raw_headers) | self.build_quire_headers()

    def build_quire_headers(self) -> dict[str, str]:
        prepared, recorded = self.prepared, self.recorded_reply
        branch = prepared.match.branch if recorded is None else recorded.entry.branch
        headers = {
            "x-quire-request": prepared.request.id or "",
            "x-quire-conversation": encode_conversation_header(prepared.match.conversation),
            "x-quire-branch": str(branch),
        }
        if not prepared.recognized.is_native:
            headers["request-id"] = f"req_{prepared.request.id}"
        forwarded = prepared.request.assembly.forwarded
        dropped = len(forwarded.dropped) if forwarded is not None else 0
        return headers | {"x-quire-dropped": str(dropped)} if dropped else headers


class StreamRelay:
    """Forwards one stream of an upstream to the client, translated if the client uses another format."""

    def __init__(self, writer: ResponseWriter, response: UpstreamResponse, recorder: TurnRecorder) -> None:
        self._writer, self._response, self._recorder = writer, response, recorder
        prepared = recorder.prepared
        is_translated = not prepared.recognized.is_native
        self._codec: Codec = prepared.client_request.codec
        self._decoder: StreamDecoder = prepared.target.make_decoder(
            choice_count=prepared.client_request.choice_count, is_translated=is_translated
        )
        self._translator = (
            ReplyTranslator(prepared.recognized, request_id=prepared.request.id or "") if is_translated else None
        )

    async def run(self) -> None:
        """Forwards the stream and records its reply, or the part of it that arrived before a failure."""
        decoder, exchange = self._decoder, self._recorder.exchange
        chunks = iter_stored(self._response, exchange)
        try:
            await self._forward_chunks(chunks)
        except (ModelError, asyncio.CancelledError) as error:
            if not decoder.is_finished:
                if exchange is not None and isinstance(error, QuireError):
                    exchange.error = error_detail(error)
                elif exchange is not None:
                    exchange.outcome = "cancelled"
                await self._record(incomplete=True)
                raise
            decoder.drop_incomplete_event()
        if exchange is not None and decoder.error is not None:
            exchange.error = read_error_message(decoder.error)
        replies = await self._record(incomplete=decoder.error is not None)
        if exchange is not None and decoder.error is not None:
            # Nothing came before the error, or it would be recorded.
            await exchange.end("refused")
        if not self._writer.is_started:
            await self._start()
        if self._translator is None:
            await self._writer.write(decoder.remainder, last=True)
        else:
            await self._writer.write(self._translator.finish(replies, decoder.error), last=True)
        # Reads the rest of an ended stream, so that its connection returns to the pool.
        with suppress(TimeoutError, ModelError):
            async with asyncio.timeout(DRAIN_TIMEOUT_SECONDS):
                async for _ in chunks:
                    pass

    def encode_failure(self, error: QuireError) -> bytes:
        """Encodes the end of a stream that fails."""
        if self._translator is not None:
            return self._translator.fail(error)
        failure = self._decoder.fail(error_detail(error), code=error_code(error))
        return failure if failure is not None else self._codec.to_error_event(error)

    async def _forward_chunks(self, chunks: AsyncIterator[bytes]) -> None:
        """Forwards everything up to the end of the reply, which the decoder withholds."""
        decoder, translator, writer = self._decoder, self._translator, self._writer
        keep_alive = translator.keep_alive if translator is not None else None
        async for chunk in iterate_with_keep_alive(chunks, KEEP_ALIVE_SECONDS if keep_alive else None):
            passed = keep_alive or b""
            if chunk is not None:
                passed = await run_sized(decoder.buffered_bytes + len(chunk), decoder.feed, chunk)
            # A native stream starts with its first event: until then, a failure can have its own status.
            if not writer.is_started and (passed or translator is not None):
                await self._start()
            if translator is not None and chunk is not None:
                passed = translator.encode(decoder.take_deltas())
            if passed:
                await writer.write(passed)
            if decoder.is_done:
                return
        if not decoder.is_finished and decoder.error is None:
            raise ModelUnavailable("The upstream ended the stream before its reply was complete; retry the request.")

    async def _start(self) -> None:
        headers = self._recorder.build_response_headers(self._response)
        if self._translator is None:
            await self._writer.start(self._response.status_code, headers)
        else:
            await self._writer.start(200, headers | {"content-type": self._translator.content_type})
            await self._writer.write(self._translator.start())

    async def _record(self, *, incomplete: bool) -> list[Reply]:
        decoder, translator = self._decoder, self._translator
        replies = await run_shielded(run_sized(decoder.received_bytes, decoder.build_replies))
        if translator is not None:
            replies = [translator.adapt(reply) for reply in replies[:1]]
        await self._recorder.record(
            replies,
            size=decoder.received_bytes,
            incomplete=incomplete,
            response_id=decoder.response_id if translator is None else translator.response_id,
            response_fields=translator.describe_response(replies[0]) if translator is not None and replies else None,
        )
        return replies


async def iter_stored(response: UpstreamResponse, exchange: OpenExchange | None) -> AsyncGenerator[bytes]:
    """Yields the body as it arrives, and keeps it for the exchange."""
    if exchange is not None:
        exchange.start_answer(response.status_code, select_response_headers(response.raw_headers))
    async for chunk in response.iter_chunks():
        if exchange is not None:
            exchange.add(chunk)
        yield chunk


async def iterate_with_keep_alive(
    chunks: AsyncIterator[bytes], interval_seconds: float | None
) -> AsyncGenerator[bytes | None]:
    """Yields the chunks, and None after each interval without one."""
    if interval_seconds is None:
        async for chunk in chunks:
            yield chunk
        return
    while True:
        following = asyncio.ensure_future(anext(chunks, b""))
        try:
            while not (await asyncio.wait((following,), timeout=interval_seconds))[0]:
                yield None
        finally:
            if not following.done():
                following.cancel()
                await asyncio.wait((following,))
        if not (chunk := following.result()):
            return
        yield chunk


class Relay:
    """Forwards one prepared request, and relays its reply."""

    def __init__(
        self,
        writer: ResponseWriter,
        call: UpstreamCall,
        recorder: TurnRecorder,
        *,
        refit: Refit,
        telemetry: Telemetry,
    ) -> None:
        self._writer, self._call, self._recorder = writer, call, recorder
        self._refit, self._telemetry = refit, telemetry
        self._encode_failure = self._codec.to_error_event
        """Encodes the end of a stream that fails."""

    @property
    def _prepared(self) -> PreparedRequest:
        return self._recorder.prepared

    @property
    def _codec(self) -> Codec:
        """The client's codec."""
        return self._prepared.client_request.codec

    @property
    def _is_native(self) -> bool:
        return self._prepared.recognized.is_native

    async def run(self) -> None:
        """Answers the client. A request that overflows the model's window is refitted and sent once more."""
        try:
            if not await self._attempt(may_refit=True):
                await self._attempt(may_refit=False)
        except (ModelError, StoreError) as error:
            await self._recorder.settle_spend()
            if self._writer.is_started:
                await self._writer.write(self._encode_failure(error), last=True)
            else:
                error_response = self._codec.to_error_response(error)
                await self._writer.send_error(error_response, self._recorder.build_quire_headers())
        finally:
            self._recorder.keep_unanswered()
            await self._recorder.settle_spend()

    async def _attempt(self, *, may_refit: bool) -> bool:
        """Sends the request, or False if it overflowed and a shorter one is ready to send."""
        await self._recorder.begin(self._call.path)
        async with observe_answer(self._recorder.exchange):
            return await self._send(may_refit=may_refit)

    async def _send(self, *, may_refit: bool) -> bool:
        model, conversation = self._prepared.client_request.model, self._prepared.match.conversation
        with self._telemetry.trace_gateway_call(model, conversation=conversation) as span:
            async with self._post(span) as response:
                self._recorder.is_billed = not response.is_error
                if response.is_error:
                    return await self._handle_upstream_error(response, span, may_refit=may_refit)
                if response.content_type.startswith("text/event-stream"):
                    stream = StreamRelay(self._writer, response, self._recorder)
                    self._encode_failure = stream.encode_failure
                    await stream.run()
                else:
                    await self._relay_json(response)
            if self._recorder.recorded_reply is not None:
                reply = self._recorder.recorded_reply.reply
                self._telemetry.observe_gateway_reply(span, reply.usage, reply.finish_reason)
        return True

    @asynccontextmanager
    async def _post(self, span: ModelCallSpan) -> AsyncGenerator[UpstreamResponse]:
        """Sends the request. A call that timed out or was cancelled may be billed. One that failed otherwise is not."""
        self._recorder.is_billed, has_response = True, False
        try:
            async with self._call.send("POST", self._prepared.content, trace_headers=span.headers) as response:
                has_response = True
                if self._recorder.exchange is not None:
                    headers = select_response_headers(response.raw_headers)
                    self._recorder.exchange.start_answer(response.status_code, headers)
                yield response
        except ModelError as error:
            if not has_response and not isinstance(error, ModelTimeout):
                self._recorder.is_billed = False
            raise

    async def _handle_upstream_error(self, response: UpstreamResponse, span: ModelCallSpan, *, may_refit: bool) -> bool:
        """Passes the error on to the client, or returns False if it is an overflow that a refit can avoid."""
        body = await response.read(max_bytes=MAX_ERROR_BYTES)
        error = classify_error(response.status_code, body)
        if self._recorder.exchange is not None:
            self._recorder.exchange.add(body)
            # Before the client sees the error.
            await self._recorder.exchange.end("refused")
        span.set_error(type(error).__name__)
        self._telemetry.metrics.count_upstream_error(error)
        recorder = self._prepared.recorder
        if (
            may_refit
            and isinstance(error, ModelContextOverflow)
            and recorder.engine.policy.context_management_enabled
            # Corrects calibration and window, unless the error is not credible or changes nothing.
            and await recorder.correct_overflow(error, request=self._prepared.request)
            and await self._refit_with(self._prepared)
        ):
            return False
        if (
            may_refit
            and self._prepared.client_request.previous_reply is not None
            and self._is_native
            # The upstream does not know the reply that the request continues, which the log does.
            and self._codec.is_unknown_reference(body)
            and await self._refit_with(self._prepared)
        ):
            return False
        await self._recorder.settle_spend()
        if len(body) > MAX_ERROR_BYTES:
            detail = f"The upstream sent an error of more than {MAX_ERROR_BYTES:,} bytes, which is not passed on."
            own_error = self._codec.build_error(response.status_code, detail, code="upstream_error_too_long")
            await self._writer.send_error(own_error, self._recorder.build_quire_headers())
        elif not self._is_native:
            own_error = self._codec.translate_error(response.status_code, error)
            await self._writer.send_error(own_error, self._recorder.build_response_headers(response))
        else:
            headers = self._recorder.build_response_headers(response)
            await self._writer.send_response(response.status_code, headers, body)
        return True

    async def _refit_with(self, before: PreparedRequest) -> bool:
        """Prepares the request again from the log. Returns whether that gives another body."""
        try:
            self._recorder.prepared = await self._refit(before)
        except QuireError as refit_error:
            _log.info("Request cannot be prepared again after an error of the upstream: %s", refit_error)
            return False
        return self._prepared.content != before.content

    async def _relay_json(self, response: UpstreamResponse) -> None:
        """Relays a whole reply. A translated one is sent as a stream if the client expects one."""
        body = await response.read(max_bytes=MAX_RESPONSE_BYTES)
        if self._recorder.exchange is not None:
            self._recorder.exchange.add(body)
        prepared, target, size = self._prepared, self._prepared.target, len(body)
        parsed = await run_sized(size, _parse_json, body)
        replies = await run_sized(size, target.parse_response, parsed)
        status, own_headers = response.status_code, dict[str, str]()
        if self._is_native:
            recorded = await self._recorder.record(replies, size=size, response_id=target.read_response_id(parsed))
        elif not replies:
            raise ModelUnavailable("The upstream's response contains no reply; retry the request.")
        else:
            translator = ReplyTranslator(prepared.recognized, request_id=prepared.request.id or "")
            reply = translator.adapt(replies[0])
            recorded = await self._recorder.record(
                [reply],
                size=size,
                response_id=translator.response_id,
                response_fields=translator.describe_response(reply),
            )
            status, own_headers, body = 200, {"content-type": translator.content_type}, translator.encode_whole(reply)
        headers = self._recorder.build_response_headers(response) | ({} if recorded else UNRECORDED_HEADERS)
        await self._writer.send_response(status, headers | own_headers, body)


def _parse_json(body: bytes) -> object:
    if len(body) > MAX_RESPONSE_BYTES or exceeds_json_limit(body):
        raise ModelUnavailable(
            f"The upstream's response exceeds {MAX_RESPONSE_BYTES:,} bytes or {MAX_JSON_SEPARATORS:,} JSON values; "
            "retry, or use another model."
        )
    try:
        return from_json(body)
    except ValueError as error:
        raise ModelUnavailable("The upstream's response is not valid JSON; retry the request.") from error
