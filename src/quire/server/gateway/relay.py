"""Relays the upstream's response to the client; the reply is recorded before the client sees its end."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import httpx2
from pydantic_core import from_json

from quire.agent.cancellation import run_shielded
from quire.errors import (
    InvalidEntry,
    ModelContextOverflow,
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    QuireError,
    StoreError,
)
from quire.llm.error_mapping import classify_error
from quire.log.worker_threads import run_sized
from quire.model import Usage
from quire.server.gateway.header_rules import encode_conversation_header, filter_response_headers
from quire.server.gateway.prepare import PreparedRequest
from quire.server.gateway.recognition import HistoryMatch
from quire.server.gateway.reply_recorder import RecordedReply, record_reply
from quire.server.gateway.response import ResponseWriter, build_openai_error, to_error_event, to_error_response
from quire.server.gateway.sse_accumulator import SSEAccumulator
from quire.server.gateway.upstream import UpstreamCall, map_http_errors
from quire.server.json_limits import MAX_JSON_SEPARATORS, exceeds_json_limit
from quire.server.telemetry import Telemetry
from quire.server.telemetry.tracer import ModelCallSpan
from quire.view.wire_formats.fields import filter_objects, is_object
from quire.view.wire_formats.openai_chat_parse import parse_reply

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
        self._is_billed = False
        """Whether the upstream may charge for a call without a recorded reply."""

    async def run(self) -> None:
        """Answers the client; a request that overflows the model's window is refitted and sent once more."""
        try:
            if not await self._attempt(may_refit=True):
                await self._attempt(may_refit=False)
        except (ModelError, StoreError) as error:
            await run_shielded(self._settle_spend())
            if self._writer.is_started:
                await self._writer.write(to_error_event(error), last=True)
            else:
                await self._writer.send_error(to_error_response(error), self._build_quire_headers())
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
        model, conversation = self._prepared.matched.chat_request.model, self._prepared.match.conversation
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
        await run_shielded(self._settle_spend())
        if len(body) > MAX_ERROR_BYTES:
            detail = f"The upstream sent an error of more than {MAX_ERROR_BYTES:,} bytes, which is not passed on."
            own_error = build_openai_error(response.status_code, detail, code="upstream_error_too_long")
            await self._writer.send_error(own_error, self._build_quire_headers())
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
        try:
            self._prepared = await self._refit(before)
        except QuireError as refit_error:
            _log.info("Request overflows the upstream's window and cannot be shortened: %s", refit_error)
            return False
        return self._prepared.content != before.content

    async def _relay_json(self, response: httpx2.Response) -> None:
        body = await _read_body(response, max_bytes=MAX_RESPONSE_BYTES)
        responses = await run_sized(len(body), _parse_response, body)
        recorded = await self._record(responses, size=len(body))
        headers = self._build_response_headers(response)
        await self._writer.send_response(
            response.status_code, headers if recorded else headers | UNRECORDED_HEADERS, body
        )

    async def _relay_stream(self, response: httpx2.Response) -> None:
        accumulator = SSEAccumulator(self._prepared.matched.chat_request.choice_count)
        chunks = response.aiter_bytes()
        try:
            await self._forward_chunks(
                chunks, accumulator, self._build_response_headers(response), response.status_code
            )
        except (ModelError, asyncio.CancelledError):
            if not accumulator.is_finished:
                await self._record_stream(accumulator, incomplete=True)
                raise
        await self._record_stream(accumulator, incomplete=accumulator.error is not None)
        await self._writer.write(accumulator.remainder, last=True)
        await _drain(chunks)

    async def _forward_chunks(
        self, chunks: AsyncIterator[bytes], accumulator: SSEAccumulator, headers: dict[str, str], status: int
    ) -> None:
        """Forwards everything up to the end of the reply, which the accumulator withholds."""
        with map_http_errors():
            async for chunk in chunks:
                size = accumulator.buffered_bytes + len(chunk)
                passed = await run_sized(size, accumulator.feed, chunk)
                if not self._writer.is_started:
                    await self._writer.start(status, headers)
                if passed:
                    await self._writer.write(passed)
                if accumulator.is_done:
                    return
        if not accumulator.is_finished and accumulator.error is None:
            raise ModelUnavailable("The upstream ended the stream before its reply was complete; retry the request.")

    async def _record_stream(self, accumulator: SSEAccumulator, *, incomplete: bool) -> None:
        responses = await run_shielded(run_sized(accumulator.received_bytes, accumulator.build_responses))
        await self._record(responses, size=accumulator.received_bytes, incomplete=incomplete)

    async def _record(self, responses: list[dict[str, Any]], *, size: int, incomplete: bool = False) -> bool:
        """Records the replies, which have `size` bytes; returns whether they are in the log.

        If the store fails, `on_store_failure` decides whether the client gets the reply unrecorded. Recording is
        shielded from cancellation, so it completes even if the client disconnects.
        """
        try:
            self._recorded_reply = await run_shielded(
                record_reply(self._prepared, responses, size=size, incomplete=incomplete)
            )
        except StoreError as error:
            await run_shielded(self._settle_spend(_find_usage(responses)))
            if self._on_store_failure == "refuse":
                raise
            _log.warning("Reply passed through unrecorded, store failure: %s", error)
            return False
        if self._recorded_reply is not None:
            self._update_head_cache(self._recorded_reply)
        else:
            await run_shielded(self._settle_spend(_find_usage(responses)))
        return self._recorded_reply is not None

    def _update_head_cache(self, recorded: RecordedReply) -> None:
        prepared = self._prepared
        self._update_head(prepared.match.client_path, prepared.build_next_match(recorded.entry, recorded.client_path))

    def _build_response_headers(self, response: httpx2.Response) -> dict[str, str]:
        return filter_response_headers(response) | self._build_quire_headers()

    def _build_quire_headers(self) -> dict[str, str]:
        prepared, recorded = self._prepared, self._recorded_reply
        branch = prepared.match.branch if recorded is None else recorded.entry.branch
        return {
            "x-quire-request": prepared.request.id or "",
            "x-quire-conversation": encode_conversation_header(prepared.match.conversation),
            "x-quire-branch": str(branch),
        }


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Reads the rest of an ended stream, so that its connection returns to the pool."""
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_SECONDS):
            with map_http_errors():
                async for _ in chunks:
                    pass
    except (TimeoutError, ModelError):
        return


def _find_usage(responses: Sequence[dict[str, Any]]) -> Usage | None:
    """The reported usage of an empty reply, such as one that a reasoning model did not get to."""
    for response in responses:
        with suppress(InvalidEntry, ValueError):
            return parse_reply(response).usage
    return None


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


def _parse_response(body: bytes) -> list[dict[str, Any]]:
    """Parses the response of an upstream into one response per choice."""
    if len(body) > MAX_RESPONSE_BYTES or exceeds_json_limit(body):
        raise ModelUnavailable(
            f"The upstream's response exceeds {MAX_RESPONSE_BYTES:,} bytes or {MAX_JSON_SEPARATORS:,} JSON values; "
            "retry, or use another model."
        )
    try:
        return _split_choices(from_json(body))
    except ValueError as error:
        raise ModelUnavailable("The upstream's response is not valid JSON; retry the request.") from error


def _split_choices(response: object) -> list[dict[str, Any]]:
    """Splits a response into one response per choice."""
    if not is_object(response):
        return []
    return [{**response, "choices": [choice]} for choice in filter_objects(response.get("choices"))]
