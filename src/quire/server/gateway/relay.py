"""Relays the upstream's response to the client; the reply is recorded before the client sees its end."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Literal

import httpx2
from pydantic_core import from_json

from quire.agent.cancellation import run_shielded
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
from quire.llm.error_mapping import classify_error
from quire.log.worker_threads import run_sized
from quire.model import Usage
from quire.model.base import JsonObject
from quire.server.gateway.codecs.base import Codec
from quire.server.gateway.codecs.sse import StreamDecoder
from quire.server.gateway.header_rules import encode_conversation_header, filter_response_headers
from quire.server.gateway.prepare import PreparedRequest
from quire.server.gateway.recognition import HistoryMatch
from quire.server.gateway.reply_recorder import RecordedReply, record_reply
from quire.server.gateway.reply_translation import ReplyTranslator
from quire.server.gateway.response import ResponseWriter
from quire.server.gateway.upstream import UpstreamCall, map_http_errors
from quire.server.json_limits import MAX_JSON_SEPARATORS, exceeds_json_limit
from quire.server.problems import error_code
from quire.server.telemetry import Telemetry
from quire.server.telemetry.tracer import ModelCallSpan
from quire.view.wire_formats import Reply

_log = logging.getLogger(__name__)

DRAIN_TIMEOUT_SECONDS = 1.0
"""Seconds to wait for an upstream to close a stream after its end."""
MAX_RESPONSE_BYTES = 32 * 1024 * 1024
"""Maximum size of a response that is not streamed."""
MAX_ERROR_BYTES = 64 * 1024
"""Maximum size of an error of the upstream that is passed on; it may repeat the client's whole request."""
UNRECORDED_HEADERS = {"x-quire-recorded": "no"}

Refit = Callable[[PreparedRequest], Awaitable[PreparedRequest]]
"""Prepares a shorter request after an overflow."""

KEEP_ALIVE_SECONDS = 15.0
"""Seconds of silence of the upstream after which a translated stream gets a sign of life."""

UpdateHead = Callable[[bytes | None, HistoryMatch], None]
"""Replaces the head at an old path with a new one in the head cache."""


class Relay:
    """Forwards one prepared request, and relays and records its reply."""

    def __init__(
        self,
        writer: ResponseWriter,
        call: UpstreamCall,
        prepared: PreparedRequest,
        *,
        refit: Refit,
        update_head: UpdateHead,
        on_store_failure: Literal["refuse", "pass_through"],
        telemetry: Telemetry,
    ) -> None:
        self._writer, self._call, self._prepared = writer, call, prepared
        self._refit, self._update_head = refit, update_head
        self._on_store_failure, self._telemetry = on_store_failure, telemetry
        self._recorded_reply: RecordedReply | None = None
        self._encode_failure = self._codec.to_error_event
        """Encodes the end of a stream that fails."""
        self._is_billed = False
        """Whether the upstream may charge for a call without a recorded reply."""

    @property
    def _codec(self) -> Codec:
        """The client's codec."""
        return self._prepared.client_request.codec

    @property
    def _is_native(self) -> bool:
        return self._prepared.matched.is_native

    async def run(self) -> None:
        """Answers the client; a request that overflows the model's window is refitted and sent once more."""
        try:
            if not await self._attempt(may_refit=True):
                await self._attempt(may_refit=False)
        except (ModelError, StoreError) as error:
            await run_shielded(self._settle_spend())
            if self._writer.is_started:
                await self._writer.write(self._encode_failure(error), last=True)
            else:
                await self._writer.send_error(self._codec.to_error_response(error), self._build_quire_headers())
        finally:
            await run_shielded(self._settle_spend())

    async def _settle_spend(self, usage: Usage | None = None) -> None:
        """Settles the reservation of a call without a recorded reply, before the client can send its next request."""
        prepared = self._prepared
        if self._recorded_reply is not None or prepared.request.reservation is None:
            return
        self._prepared = replace(prepared, request=replace(prepared.request, reservation=None))
        try:
            await prepared.conversation.settle_spend(prepared.request, is_billed=self._is_billed, usage=usage)
        except StoreError as error:
            _log.warning("Reservation of a call without a recorded reply stays until it expires: %s", error)

    async def _attempt(self, *, may_refit: bool) -> bool:
        """Sends the request; False if it overflowed and a shorter one is ready to send."""
        model, conversation = self._prepared.client_request.model, self._prepared.match.conversation
        with self._telemetry.trace_gateway_call(model, conversation=conversation) as span:
            async with self._post(span) as response:
                self._is_billed = not response.is_error
                if response.is_error:
                    return await self._handle_upstream_error(response, span, may_refit=may_refit)
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    await self._relay_stream(response)
                else:
                    await self._relay_json(response)
            if self._recorded_reply is not None:
                reply = self._recorded_reply.reply
                self._telemetry.observe_gateway_reply(span, reply.usage, reply.finish_reason)
        return True

    @asynccontextmanager
    async def _post(self, span: ModelCallSpan) -> AsyncGenerator[httpx2.Response]:
        """Sends the request. A call that timed out or was cancelled may be billed; one that failed otherwise is not."""
        self._is_billed, has_response = True, False
        try:
            async with self._call.post(self._prepared.content, trace_headers=span.headers) as response:
                has_response = True
                yield response
        except ModelError as error:
            if not has_response and not isinstance(error, ModelTimeout):
                self._is_billed = False
            raise

    async def _handle_upstream_error(self, response: httpx2.Response, span: ModelCallSpan, *, may_refit: bool) -> bool:
        """Passes the error on to the client, or returns False if it is an overflow that a refit can avoid."""
        body = await _read_body(response, max_bytes=MAX_ERROR_BYTES)
        error = classify_error(response.status_code, body)
        span.set_error(type(error).__name__)
        self._telemetry.metrics.count_upstream_error(error)
        if may_refit and isinstance(error, ModelContextOverflow) and await self._refit_after_overflow(error):
            return False
        if may_refit and self._is_unknown_reference(body) and await self._refit_with(self._prepared):
            return False
        await run_shielded(self._settle_spend())
        if len(body) > MAX_ERROR_BYTES:
            detail = f"The upstream sent an error of more than {MAX_ERROR_BYTES:,} bytes, which is not passed on."
            own_error = self._codec.build_error(response.status_code, detail, code="upstream_error_too_long")
            await self._writer.send_error(own_error, self._build_quire_headers())
        elif not self._is_native:
            own_error = self._codec.translate_error(response.status_code, error)
            await self._writer.send_error(own_error, self._build_response_headers(response))
        else:
            await self._writer.send_response(response.status_code, self._build_response_headers(response), body)
        return True

    async def _refit_after_overflow(self, error: ModelContextOverflow) -> bool:
        """Corrects calibration and window by the upstream's error and prepares again.

        False if that changes nothing, or if the error is not credible.
        """
        before, engine = self._prepared, self._prepared.conversation.engine
        if not engine.policy.context_management_enabled:
            return False
        if not await engine.correct_overflow(error, assembly=before.request.assembly):
            return False
        return await self._refit_with(before)

    async def _refit_with(self, before: PreparedRequest) -> bool:
        """Prepares the request again from the log; returns whether that gives another body."""
        try:
            self._prepared = await self._refit(before)
        except QuireError as refit_error:
            _log.info("Request cannot be prepared again after an error of the upstream: %s", refit_error)
            return False
        return self._prepared.content != before.content

    def _is_unknown_reference(self, body: bytes) -> bool:
        """Whether the upstream does not know the reply that the request continues, which the log does."""
        client_request = self._prepared.client_request
        return client_request.previous_reply is not None and self._is_native and self._codec.is_unknown_reference(body)

    async def _relay_json(self, response: httpx2.Response) -> None:
        body = await _read_body(response, max_bytes=MAX_RESPONSE_BYTES)
        target = self._prepared.target
        parsed = await run_sized(len(body), _parse_json, body)
        replies = await run_sized(len(body), target.parse_response, parsed)
        if not self._is_native:
            await self._send_translated(response, replies, size=len(body))
            return
        recorded = await self._record(replies, size=len(body), response_id=target.read_response_id(parsed))
        headers = self._build_response_headers(response)
        await self._writer.send_response(
            response.status_code, headers if recorded else headers | UNRECORDED_HEADERS, body
        )

    async def _send_translated(self, response: httpx2.Response, replies: list[Reply], *, size: int) -> None:
        """Sends a whole reply in the client's format, as a stream if the client expects one."""
        if not replies:
            raise ModelUnavailable("The upstream's response contains no reply; retry the request.")
        translator = ReplyTranslator(self._prepared)
        reply = translator.adapt(replies[0])
        recorded = await self._record(
            [reply],
            size=size,
            response_id=translator.response_id,
            response_fields=translator.describe_response(reply),
        )
        headers = self._build_response_headers(response) | ({} if recorded else UNRECORDED_HEADERS)
        content = translator.encode_whole(reply)
        await self._writer.send_response(200, headers | {"content-type": translator.content_type}, content)

    async def _relay_stream(self, response: httpx2.Response) -> None:
        decoder = self._prepared.target.make_decoder(self._prepared.client_request, is_translated=not self._is_native)
        translator = None if self._is_native else ReplyTranslator(self._prepared)
        self._encode_failure = translator.fail if translator is not None else partial(self._fail_native, decoder)
        chunks = response.aiter_bytes()
        try:
            await self._forward_chunks(chunks, decoder, translator, response)
        except (ModelError, asyncio.CancelledError):
            if not decoder.is_finished:
                await self._record_stream(decoder, translator, incomplete=True)
                raise
            decoder.drop_incomplete_event()
        replies = await self._record_stream(decoder, translator, incomplete=decoder.error is not None)
        if not self._writer.is_started:
            await self._start_stream(response, translator)
        if translator is None:
            await self._writer.write(decoder.remainder, last=True)
        else:
            await self._writer.write(translator.finish(replies, decoder.error), last=True)
        await _drain(chunks)

    async def _forward_chunks(
        self,
        chunks: AsyncIterator[bytes],
        decoder: StreamDecoder,
        translator: ReplyTranslator | None,
        response: httpx2.Response,
    ) -> None:
        """Forwards everything up to the end of the reply, which the decoder withholds."""
        keep_alive = translator.keep_alive if translator is not None else None
        with map_http_errors():
            async for chunk in iterate_with_keep_alive(chunks, KEEP_ALIVE_SECONDS if keep_alive else None):
                passed = keep_alive or b""
                if chunk is not None:
                    size = decoder.buffered_bytes + len(chunk)
                    passed = await run_sized(size, decoder.feed, chunk)
                # A native stream starts with its first event: until then, a failure has a status of its own.
                if not self._writer.is_started and (passed or translator is not None):
                    await self._start_stream(response, translator)
                if translator is not None and chunk is not None:
                    passed = translator.encode(decoder.take_deltas())
                if passed:
                    await self._writer.write(passed)
                if decoder.is_done:
                    return
        if not decoder.is_finished and decoder.error is None:
            raise ModelUnavailable("The upstream ended the stream before its reply was complete; retry the request.")

    def _fail_native(self, decoder: StreamDecoder, error: QuireError) -> bytes:
        failure = decoder.fail(error_detail(error), code=error_code(error))
        return failure if failure is not None else self._codec.to_error_event(error)

    async def _start_stream(self, response: httpx2.Response, translator: ReplyTranslator | None) -> None:
        headers = self._build_response_headers(response)
        if translator is None:
            await self._writer.start(response.status_code, headers)
        else:
            await self._writer.start(200, headers | {"content-type": translator.content_type})
            await self._writer.write(translator.start())

    async def _record_stream(
        self, decoder: StreamDecoder, translator: ReplyTranslator | None, *, incomplete: bool
    ) -> list[Reply]:
        replies = await run_shielded(run_sized(decoder.received_bytes, decoder.build_replies))
        if translator is not None:
            replies = [translator.adapt(reply) for reply in replies[:1]]
        await self._record(
            replies,
            size=decoder.received_bytes,
            incomplete=incomplete,
            response_id=decoder.response_id if translator is None else translator.response_id,
            response_fields=translator.describe_response(replies[0]) if translator is not None and replies else None,
        )
        return replies

    async def _record(
        self,
        replies: Sequence[Reply],
        *,
        size: int,
        incomplete: bool = False,
        response_id: str | None,
        response_fields: JsonObject | None = None,
    ) -> bool:
        """Records the replies, which have `size` bytes; returns whether they are in the log.

        If the store fails, `on_store_failure` decides whether the client gets the reply unrecorded. Recording is
        shielded from cancellation, so it completes even if the client disconnects.
        """
        if not self._prepared.is_recorded:
            await run_shielded(self._settle_spend(_find_usage(replies)))
            return False
        try:
            self._recorded_reply = await run_shielded(
                record_reply(
                    self._prepared,
                    replies,
                    size=size,
                    incomplete=incomplete,
                    response_id=response_id,
                    response_fields=response_fields,
                )
            )
        except StoreError as error:
            await run_shielded(self._settle_spend(_find_usage(replies)))
            if isinstance(error, StoreRolledBack):
                # The next request finds in the log where it continues.
                match = self._prepared.match
                self._update_head(match.client_path, replace(match, client_path=None))
            if self._on_store_failure == "refuse":
                raise
            _log.warning("Reply passed through unrecorded, store failure: %s", error)
            return False
        if self._recorded_reply is not None:
            self._update_head_cache(self._recorded_reply)
        else:
            await run_shielded(self._settle_spend(_find_usage(replies)))
        return self._recorded_reply is not None

    def _update_head_cache(self, recorded: RecordedReply) -> None:
        prepared = self._prepared
        self._update_head(prepared.match.client_path, prepared.build_next_match(recorded.entry, recorded.client_path))

    def _build_response_headers(self, response: httpx2.Response) -> dict[str, str]:
        return filter_response_headers(response) | self._build_quire_headers()

    def _build_quire_headers(self) -> dict[str, str]:
        prepared, recorded = self._prepared, self._recorded_reply
        branch = prepared.match.branch if recorded is None else recorded.entry.branch
        headers = {
            "x-quire-request": prepared.request.id or "",
            "x-quire-conversation": encode_conversation_header(prepared.match.conversation),
            "x-quire-branch": str(branch),
        }
        if not self._is_native:
            headers["request-id"] = f"req_{prepared.request.id}"
        if not prepared.is_recorded:
            headers |= UNRECORDED_HEADERS
        forwarded = prepared.request.assembly.forwarded
        dropped = len(forwarded.dropped) if forwarded is not None else 0
        return headers | {"x-quire-dropped": str(dropped)} if dropped else headers


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Reads the rest of an ended stream, so that its connection returns to the pool."""
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_SECONDS):
            with map_http_errors():
                async for _ in chunks:
                    pass
    except (TimeoutError, ModelError):
        return


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


def _find_usage(replies: Sequence[Reply]) -> Usage | None:
    """The reported usage of an empty reply, such as one that a reasoning model did not get to."""
    return next((reply.usage for reply in replies), None)


async def _read_body(response: httpx2.Response, *, max_bytes: int) -> bytes:
    """Reads a response, and stops after the first bytes above the limit."""
    pieces, size = list[bytes](), 0
    with map_http_errors():
        async for piece in response.aiter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                break
    return b"".join(pieces)


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
