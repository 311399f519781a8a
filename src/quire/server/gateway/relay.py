"""Relay the upstream's response to the client, and record the question, the reply and the manifest atomically.

The reply is recorded before the client sees its end. If the branch head has moved meanwhile, the turn is recorded on a
fork. If the store is briefly unavailable, recording is retried with backoff. Recording is idempotent: the same turn
after the same message is stored once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import httpx2
from pydantic_core import from_json

from quire.agent.cancellation import run_shielded
from quire.engine import Conversation
from quire.engine.request import Request
from quire.errors import (
    InvalidEntry,
    ModelContextOverflow,
    ModelError,
    ModelUnavailable,
    QuireError,
    StaleHead,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from quire.llm.error_mapping import classify_error
from quire.log import Branch
from quire.model import Entry
from quire.server.gateway.chat_request import extend_path
from quire.server.gateway.header_rules import encode_conversation_header, filter_response_headers
from quire.server.gateway.prepare import PreparedRequest
from quire.server.gateway.recognition import HistoryMatch
from quire.server.gateway.reported_windows import is_credible
from quire.server.gateway.response import ResponseWriter, to_error_event, to_error_response
from quire.server.gateway.sse_accumulator import SSEAccumulator
from quire.server.gateway.upstream import UpstreamCall, map_http_errors
from quire.server.telemetry import Telemetry
from quire.server.telemetry.tracer import ModelCallSpan
from quire.view.replies import drop_incomplete_calls, estimate_usage
from quire.view.tokens import MAX_RATIO, Calibration
from quire.view.wire_formats import Reply
from quire.view.wire_formats.fields import filter_objects, is_object
from quire.view.wire_formats.openai_chat_parse import parse_reply

_log = logging.getLogger(__name__)

DRAIN_TIMEOUT_SECONDS = 1.0
"""Seconds to wait for an upstream to close a stream after its end."""
OVERFLOW_RATIO_FACTOR = 1.25
"""Factor on the calibration ratio after an overflow error that reports no token count."""
STORE_RETRY_DELAYS_SECONDS = (0.1, 0.5, 2.0)
"""Backoff: seconds before each retry of a store that is unavailable or busy."""
UNRECORDED_HEADERS = {"x-quire-recorded": "no"}

Refit = Callable[[PreparedRequest, int | None], Awaitable[PreparedRequest]]
"""Prepares a shorter request after an overflow, given the window that the upstream reported, if any."""

UpdateHead = Callable[[bytes | None, HistoryMatch], None]
"""Replaces the head at an old path with a new one in the head cache."""


class RecordedReply(NamedTuple):
    """A reply and its entry in the log."""

    entry: Entry
    reply: Reply


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

    async def run(self) -> None:
        """Answers the client; a request that overflows the model's window is refitted and sent once more."""
        try:
            if not await self._attempt(may_refit=True):
                await self._attempt(may_refit=False)
        except (ModelError, StoreError) as error:
            if self._writer.is_started:
                await self._writer.write(to_error_event(error), last=True)
            else:
                await self._writer.send_error(to_error_response(error), self._build_quire_headers())

    async def _attempt(self, *, may_refit: bool) -> bool:
        """Sends the request; False if it overflowed and a shorter one is ready to send."""
        model, conversation = self._prepared.matched.chat_request.model, self._prepared.match.conversation
        with self._telemetry.trace_gateway_call(model, conversation=conversation) as span:
            async with self._call.post(self._prepared.content, trace_headers=span.headers) as response:
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

    async def _handle_upstream_error(self, response: httpx2.Response, span: ModelCallSpan, *, may_refit: bool) -> bool:
        """Passes the error on to the client, or returns False if it is an overflow that a refit can avoid."""
        with map_http_errors():
            body = await response.aread()
        error = classify_error(response.status_code, body)
        span.set_error(type(error).__name__)
        self._telemetry.metrics.count_upstream_error(error)
        if may_refit and isinstance(error, ModelContextOverflow) and await self._refit_after_overflow(error):
            return False
        await self._writer.send_response(response.status_code, self._build_response_headers(response), body)
        return True

    async def _refit_after_overflow(self, error: ModelContextOverflow) -> bool:
        """Corrects calibration and window by the upstream's error and prepares again.

        False if that changes nothing, or if the error is not credible.
        """
        before, engine = self._prepared, self._prepared.conversation.engine
        if not engine.policy.context_management_enabled:
            return False
        counted_tokens = before.request.manifest.total_tokens
        if not is_credible(error, counted_tokens=counted_tokens, max_input_tokens=engine.policy.max_input_tokens):
            _log.info("Overflow error passed on: its token count contradicts our count of %s", counted_tokens)
            return False
        calibration = await engine.load_calibration(engine.policy.model)
        ratio = error.tokens / counted_tokens if error.tokens else calibration.ratio * OVERFLOW_RATIO_FACTOR
        ratio = min(MAX_RATIO, max(calibration.ratio, ratio))
        corrected = Calibration(ratio=ratio, samples=calibration.samples + 1)
        engine.set_calibration(engine.policy.model, corrected)
        window = error.window if error.window is not None and error.window < engine.policy.window else None
        try:
            self._prepared = await self._refit(before, window)
        except QuireError as refit_error:
            _log.info("Request overflows the upstream's window and cannot be shortened: %s", refit_error)
            return False
        return self._prepared.content != before.content

    async def _relay_json(self, response: httpx2.Response) -> None:
        with map_http_errors():
            body = await response.aread()
        try:
            parsed: object = from_json(body)
        except ValueError as error:
            raise ModelUnavailable("The upstream's response is not valid JSON; retry the request.") from error
        recorded = await self._record(_split_choices(parsed))
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
                await self._record(accumulator.build_responses(), incomplete=True)
                raise
        await self._record(accumulator.build_responses(), incomplete=accumulator.error is not None)
        await self._writer.write(accumulator.remainder, last=True)
        await _drain(chunks)

    async def _forward_chunks(
        self, chunks: AsyncIterator[bytes], accumulator: SSEAccumulator, headers: dict[str, str], status: int
    ) -> None:
        """Forwards everything up to the end of the reply, which the accumulator withholds."""
        with map_http_errors():
            async for chunk in chunks:
                passed = accumulator.feed(chunk)
                if not self._writer.is_started:
                    await self._writer.start(status, headers)
                if passed:
                    await self._writer.write(passed)
                if accumulator.is_done:
                    return
        if not accumulator.is_finished and accumulator.error is None:
            raise ModelUnavailable("The upstream ended the stream before its reply was complete; retry the request.")

    async def _record(self, responses: list[dict[str, Any]], *, incomplete: bool = False) -> bool:
        """Records the replies; returns whether they are in the log.

        If the store fails, `on_store_failure` decides whether the client gets the reply unrecorded. Recording is
        shielded from cancellation, so it completes even if the client disconnects.
        """
        try:
            self._recorded_reply = await run_shielded(record_reply(self._prepared, responses, incomplete=incomplete))
        except StoreError as error:
            if self._on_store_failure == "refuse":
                raise
            _log.warning("Reply passed through unrecorded, store failure: %s", error)
            return False
        if self._recorded_reply is not None:
            self._update_head_cache(self._recorded_reply)
        return self._recorded_reply is not None

    def _update_head_cache(self, recorded: RecordedReply) -> None:
        prepared = self._prepared
        client_path = prepared.compute_client_path(recorded.reply.message)
        self._update_head(prepared.match.client_path, prepared.build_next_match(recorded.entry, client_path))

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


def _split_choices(response: object) -> list[dict[str, Any]]:
    """Splits a response into one response per choice."""
    if not is_object(response):
        return []
    return [{**response, "choices": [choice]} for choice in filter_objects(response.get("choices"))]


async def record_reply(
    prepared: PreparedRequest, responses: Sequence[dict[str, Any]], *, incomplete: bool = False
) -> RecordedReply | None:
    """Records the first reply, and each further choice on a fork; None if all replies are empty."""
    replies = [
        reply for response in responses if (reply := _parse_nonempty_reply(response, incomplete=incomplete)) is not None
    ]
    if not replies:
        return None
    first, *others = replies
    if first.usage is None:
        manifest, counter = prepared.request.manifest, prepared.matched.message_counter
        usage = estimate_usage(first.message, model=manifest.policy.model, manifest=manifest, counter=counter)
        first = first._replace(usage=usage)
    entry = await _record_with_retry(prepared, first, incomplete=incomplete)
    for number, other in enumerate(others, start=1):
        await _record_alternative(prepared, entry, other, name=f"choice {number}")
    return RecordedReply(entry, first)


def _parse_nonempty_reply(response: dict[str, Any], *, incomplete: bool) -> Reply | None:
    """Parses a reply; None if it is empty. Of an incomplete reply, incomplete tool calls are dropped."""
    try:
        reply = parse_reply(response)
    except (InvalidEntry, ValueError):
        return None
    message = drop_incomplete_calls(reply.message) if incomplete else reply.message
    return reply._replace(message=message) if message.parts or message.provider_fields else None


async def _record_with_retry(prepared: PreparedRequest, reply: Reply, *, incomplete: bool) -> Entry:
    """Records a reply; forks if the branch head has moved, and retries with backoff if the store is unavailable."""
    conversation = prepared.conversation
    client_path = prepared.compute_client_path(reply.message)
    log_path = extend_path(
        prepared.request.after, [*(each.message for each in prepared.request.pending), reply.message]
    )
    request = replace(prepared.request, client_path=client_path if client_path != log_path else None)
    delays = iter(STORE_RETRY_DELAYS_SECONDS)
    while True:
        try:
            return await conversation.record(reply, request=request, incomplete=incomplete)
        except StaleHead:
            conversation, request = await _fork_request(conversation, request)
        except (StoreUnavailable, StoreBusy):
            delay = next(delays, None)
            if delay is None:
                raise
            await asyncio.sleep(delay)


async def _fork_request(conversation: Conversation, request: Request) -> tuple[Conversation, Request]:
    """Forks at the head that the request was built on, so that both turns follow the message they answer."""
    head = request.assembly.head
    branch: Branch = await conversation.engine.store.fork(conversation.id, at=head, branch=conversation.branch)
    assembly = replace(request.assembly, branch=branch.number)
    forked = Conversation(conversation.engine, conversation.id, branch.number)
    return forked, replace(request, assembly=assembly, after=branch.head_path, creates_conversation=None)


async def _record_alternative(prepared: PreparedRequest, entry: Entry, reply: Reply, *, name: str) -> None:
    """Records another reply to the same question on a fork of its own."""
    conversation = Conversation(prepared.conversation.engine, entry.conversation, entry.branch)
    forked = await conversation.fork(entry.seq - 1, name=name)
    await forked.append(reply.message)
