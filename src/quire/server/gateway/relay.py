"""Relays the upstream's response to the client; the reply is recorded before the client sees its end."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from pydantic_core import from_json

from quire.concurrency.cancellation import run_shielded
from quire.concurrency.worker_threads import run_sized
from quire.errors import (
    ModelContextOverflow,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    QuireError,
    StoreError,
    error_detail,
)
from quire.llm.error_mapping import classify_error
from quire.proxy.prepare import PreparedRequest
from quire.proxy.translation import ReplyTranslator
from quire.server.gateway.response import ResponseWriter
from quire.server.gateway.turn_recorder import UNRECORDED_HEADERS, TurnRecorder
from quire.server.gateway.upstream import UpstreamCall
from quire.server.telemetry import Telemetry
from quire.server.telemetry.tracer import ModelCallSpan
from quire.server.upstream_client import UpstreamResponse
from quire.wire import Reply
from quire.wire.codec import Codec
from quire.wire.http_errors import error_code
from quire.wire.json_limits import MAX_JSON_SEPARATORS, exceeds_json_limit
from quire.wire.sse import StreamDecoder

_log = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 32 * 1024 * 1024
"""Maximum size of a response that is not streamed."""
MAX_ERROR_BYTES = 64 * 1024
"""Maximum size of an error of the upstream that is passed on; it may repeat the client's whole request."""
DRAIN_TIMEOUT_SECONDS = 1.0
"""Seconds to wait for an upstream to close a stream after its end."""
KEEP_ALIVE_SECONDS = 15.0
"""Seconds of silence of the upstream after which a translated stream gets a sign of life."""

Refit = Callable[[PreparedRequest], Awaitable[PreparedRequest]]
"""Prepares a shorter request after an overflow."""


class StreamRelay:
    """Forwards one stream of an upstream to the client, translated if the client uses another format."""

    def __init__(self, writer: ResponseWriter, response: UpstreamResponse, recorder: TurnRecorder) -> None:
        self._writer, self._response, self._recorder = writer, response, recorder
        prepared = recorder.prepared
        is_translated = not prepared.recognized.is_native
        self._codec: Codec = prepared.client_request.codec
        self._decoder: StreamDecoder = prepared.target.make_decoder(
            prepared.client_request, is_translated=is_translated
        )
        self._translator = (
            ReplyTranslator(prepared.recognized, request_id=prepared.request.id or "") if is_translated else None
        )

    async def run(self) -> None:
        """Forwards the stream and records its reply, or the part of it that arrived before a failure."""
        decoder, chunks = self._decoder, self._response.iter_chunks()
        try:
            await self._forward_chunks(chunks)
        except (ModelError, asyncio.CancelledError):
            if not decoder.is_finished:
                await self._record(incomplete=True)
                raise
            decoder.drop_incomplete_event()
        replies = await self._record(incomplete=decoder.error is not None)
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
            # A native stream starts with its first event: until then, a failure has a status of its own.
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
        """Answers the client; a request that overflows the model's window is refitted and sent once more."""
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
            await self._recorder.settle_spend()

    async def _attempt(self, *, may_refit: bool) -> bool:
        """Sends the request; False if it overflowed and a shorter one is ready to send."""
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
        """Sends the request. A call that timed out or was cancelled may be billed; one that failed otherwise is not."""
        self._recorder.is_billed, has_response = True, False
        try:
            async with self._call.post(self._prepared.content, trace_headers=span.headers) as response:
                has_response = True
                yield response
        except ModelError as error:
            if not has_response and not isinstance(error, ModelTimeout):
                self._recorder.is_billed = False
            raise

    async def _handle_upstream_error(self, response: UpstreamResponse, span: ModelCallSpan, *, may_refit: bool) -> bool:
        """Passes the error on to the client, or returns False if it is an overflow that a refit can avoid."""
        body = await response.read(max_bytes=MAX_ERROR_BYTES)
        error = classify_error(response.status_code, body)
        span.set_error(type(error).__name__)
        self._telemetry.metrics.count_upstream_error(error)
        if may_refit and isinstance(error, ModelContextOverflow) and await self._refit_after_overflow(error):
            return False
        if may_refit and self._is_unknown_reference(body) and await self._refit_with(self._prepared):
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

    async def _refit_after_overflow(self, error: ModelContextOverflow) -> bool:
        """Corrects calibration and window by the upstream's error and prepares again.

        False if that changes nothing, or if the error is not credible.
        """
        before, engine = self._prepared, self._prepared.recorder.engine
        if not engine.policy.context_management_enabled:
            return False
        if not await engine.correct_overflow(error, assembly=before.request.assembly):
            return False
        return await self._refit_with(before)

    async def _refit_with(self, before: PreparedRequest) -> bool:
        """Prepares the request again from the log; returns whether that gives another body."""
        try:
            self._recorder.prepared = await self._refit(before)
        except QuireError as refit_error:
            _log.info("Request cannot be prepared again after an error of the upstream: %s", refit_error)
            return False
        return self._prepared.content != before.content

    def _is_unknown_reference(self, body: bytes) -> bool:
        """Whether the upstream does not know the reply that the request continues, which the log does."""
        client_request = self._prepared.client_request
        return client_request.previous_reply is not None and self._is_native and self._codec.is_unknown_reference(body)

    async def _relay_json(self, response: UpstreamResponse) -> None:
        body = await response.read(max_bytes=MAX_RESPONSE_BYTES)
        target = self._prepared.target
        parsed = await run_sized(len(body), _parse_json, body)
        replies = await run_sized(len(body), target.parse_response, parsed)
        if not self._is_native:
            await self._send_translated(response, replies, size=len(body))
            return
        recorded = await self._recorder.record(replies, size=len(body), response_id=target.read_response_id(parsed))
        headers = self._recorder.build_response_headers(response)
        await self._writer.send_response(
            response.status_code, headers if recorded else headers | UNRECORDED_HEADERS, body
        )

    async def _send_translated(self, response: UpstreamResponse, replies: list[Reply], *, size: int) -> None:
        """Sends a whole reply in the client's format, as a stream if the client expects one."""
        if not replies:
            raise ModelUnavailable("The upstream's response contains no reply; retry the request.")
        translator = ReplyTranslator(self._prepared.recognized, request_id=self._prepared.request.id or "")
        reply = translator.adapt(replies[0])
        recorded = await self._recorder.record(
            [reply],
            size=size,
            response_id=translator.response_id,
            response_fields=translator.describe_response(reply),
        )
        headers = self._recorder.build_response_headers(response) | ({} if recorded else UNRECORDED_HEADERS)
        content = translator.encode_whole(reply)
        await self._writer.send_response(200, headers | {"content-type": translator.content_type}, content)


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
