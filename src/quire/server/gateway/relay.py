"""Relays the upstream's response to the client; the reply is recorded before the client sees its end."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from pydantic_core import from_json

from quire.errors import ModelContextOverflow, ModelError, ModelTimeout, ModelUnavailable, QuireError, StoreError
from quire.llm.error_mapping import classify_error
from quire.log.worker_threads import run_sized
from quire.server.gateway.codecs.base import Codec
from quire.server.gateway.prepare import PreparedRequest
from quire.server.gateway.reply_translation import ReplyTranslator
from quire.server.gateway.response import ResponseWriter
from quire.server.gateway.stream_relay import StreamRelay
from quire.server.gateway.turn_recorder import UNRECORDED_HEADERS, TurnRecorder
from quire.server.gateway.upstream import UpstreamCall
from quire.server.json_limits import MAX_JSON_SEPARATORS, exceeds_json_limit
from quire.server.telemetry import Telemetry
from quire.server.telemetry.tracer import ModelCallSpan
from quire.server.upstream_client import UpstreamResponse
from quire.view.wire_formats import Reply

_log = logging.getLogger(__name__)

MAX_RESPONSE_BYTES = 32 * 1024 * 1024
"""Maximum size of a response that is not streamed."""
MAX_ERROR_BYTES = 64 * 1024
"""Maximum size of an error of the upstream that is passed on; it may repeat the client's whole request."""

Refit = Callable[[PreparedRequest], Awaitable[PreparedRequest]]
"""Prepares a shorter request after an overflow."""


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
        return self._prepared.matched.is_native

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
        before, engine = self._prepared, self._prepared.conversation.engine
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
        translator = ReplyTranslator(self._prepared)
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
