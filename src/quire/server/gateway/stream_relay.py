"""Relays a streamed reply chunk by chunk; its end is withheld until the reply is recorded."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from quire.agent.cancellation import run_shielded
from quire.errors import ModelError, ModelUnavailable, QuireError, error_detail
from quire.log.worker_threads import run_sized
from quire.server.gateway.codecs.base import Codec
from quire.server.gateway.codecs.sse import StreamDecoder
from quire.server.gateway.reply_translation import ReplyTranslator
from quire.server.gateway.response import ResponseWriter
from quire.server.gateway.turn_recorder import TurnRecorder
from quire.server.problems import error_code
from quire.server.upstream_client import UpstreamResponse
from quire.view.wire_formats import Reply

DRAIN_TIMEOUT_SECONDS = 1.0
"""Seconds to wait for an upstream to close a stream after its end."""
KEEP_ALIVE_SECONDS = 15.0
"""Seconds of silence of the upstream after which a translated stream gets a sign of life."""


class StreamRelay:
    """Forwards one stream of an upstream to the client, translated if the client uses another format."""

    def __init__(self, writer: ResponseWriter, response: UpstreamResponse, recorder: TurnRecorder) -> None:
        self._writer, self._response, self._recorder = writer, response, recorder
        prepared = recorder.prepared
        is_translated = not prepared.matched.is_native
        self._codec: Codec = prepared.client_request.codec
        self._decoder: StreamDecoder = prepared.target.make_decoder(
            prepared.client_request, is_translated=is_translated
        )
        self._translator = ReplyTranslator(prepared) if is_translated else None

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
        await _drain(chunks)

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


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Reads the rest of an ended stream, so that its connection returns to the pool."""
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_SECONDS):
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
