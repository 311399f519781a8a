"""Forward, relay and record one request: bytes go through as they come, and their end once the reply is in the log.

The upstream's errors pass through as they are, but for an overflow: then the request is made shorter, once. What had
come of a reply that breaks off, at either end, is kept and marked.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import httpx
from pydantic_core import from_json

from quire.agent.waiting import uninterrupted
from quire.errors import ModelOverflow, ModelUnavailable, QuireError, StoreError
from quire.llm.faults import sort_error
from quire.server.gateway.client import Client
from quire.server.gateway.hearing import Heard
from quire.server.gateway.keeping import Kept, keep
from quire.server.gateway.places import Place
from quire.server.gateway.preparing import Prepared
from quire.server.gateway.refusals import event_of, refusal
from quire.server.gateway.upstream import Call, passed_headers, told_apart
from quire.server.telemetry import Telemetry
from quire.server.telemetry.tracing import Call as Span
from quire.view.calibration import HIGHEST, Calibration
from quire.view.shapes.fields import is_object, objects

_log = logging.getLogger(__name__)

LINGER = 1.0
"""Seconds that an upstream has to close a stream that it has ended."""
CLOSER = 1.25
"""By so much counts are corrected where an upstream says only that a request is too long."""
UNRECORDED = {"x-quire-recorded": "no"}

Mend = Callable[[Prepared, int | None], Awaitable[Prepared]]
"""From a request that was too long, and the window that the upstream says it has, to a shorter one."""

Moved = Callable[[bytes | None, Place], None]
"""Told where a line ended before and where it ends now."""


class Relay:
    def __init__(
        self,
        client: Client,
        call: Call,
        prepared: Prepared,
        *,
        mended: Mend,
        moved: Moved,
        store_down: Literal["refuse", "pass"],
        telemetry: Telemetry,
    ) -> None:
        self._client, self._call, self._prepared = client, call, prepared
        self._mended, self._moved, self._store_down, self._telemetry = mended, moved, store_down, telemetry
        self._kept: Kept | None = None

    async def run(self) -> None:
        try:
            if not await self._answered(mendable=True):
                await self._answered(mendable=False)
        except (ModelUnavailable, StoreError) as error:
            if self._client.begun:
                await self._client.send(event_of(error), last=True)
            else:
                await self._client.refuse(refusal(error), self._own())

    async def _answered(self, *, mendable: bool) -> bool:
        """Whether the client has its answer; if not, there is a shorter request to send in place of the first."""
        model, conversation = self._prepared.received.asking.model, self._prepared.place.conversation
        with self._telemetry.gateway_call(model, conversation=conversation) as call:
            async with self._call.post(self._prepared.content, trace=call.headers) as response:
                if response.is_error:
                    return await self._refused(response, call, mendable=mendable)
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    await self._stream(response)
                else:
                    await self._whole(response)
            if self._kept is not None:
                self._telemetry.gateway_replied(call, self._kept.reply.usage, self._kept.reply.finish)
        return True

    async def _refused(self, response: httpx.Response, call: Span, *, mendable: bool) -> bool:
        with told_apart():
            body = await response.aread()
        error = sort_error(response.status_code, body)
        call.failed(type(error).__name__)
        self._telemetry.metrics.upstream_failed(error)
        if mendable and isinstance(error, ModelOverflow) and await self._shortened(error):
            return False
        await self._client.answer(response.status_code, self._headers(response), body)
        return True

    async def _shortened(self, error: ModelOverflow) -> bool:
        """Whether there is a shorter request to send, now that the upstream has said how long is too long."""
        before, engine = self._prepared, self._prepared.conversation.engine
        if not engine.policy.context_management_enabled:
            return False
        known = await engine.calibration(engine.policy.model)
        seen = error.tokens / before.request.manifest.total if error.tokens else known.ratio * CLOSER
        corrected = Calibration(ratio=min(HIGHEST, max(known.ratio, seen)), samples=known.samples + 1)
        engine.calibrated(engine.policy.model, corrected)
        window = error.window if error.window is not None and error.window < engine.policy.window else None
        try:
            self._prepared = await self._mended(before, window)
        except QuireError as trouble:
            _log.info("A request that is too long cannot be made shorter: %s", trouble)
            return False
        return self._prepared.content != before.content

    async def _whole(self, response: httpx.Response) -> None:
        with told_apart():
            body = await response.aread()
        try:
            said: object = from_json(body)
        except ValueError as error:
            raise ModelUnavailable("The upstream's answer is no JSON, or half of one; repeat the request.") from error
        recorded = await self._recorded(_apart(said))
        headers = self._headers(response)
        await self._client.answer(response.status_code, headers if recorded else headers | UNRECORDED, body)

    async def _stream(self, response: httpx.Response) -> None:
        heard = Heard(self._prepared.received.asking.choices)
        chunks = response.aiter_bytes()
        try:
            await self._relayed(chunks, heard, self._headers(response), response.status_code)
        except (ModelUnavailable, asyncio.CancelledError):
            if not heard.finished:
                await self._recorded(heard.responses(), unfinished=True)
                raise
        await self._recorded(heard.responses(), unfinished=heard.failed is not None)
        await self._client.send(heard.rest, last=True)
        await _drained(chunks)

    async def _relayed(self, chunks: AsyncIterator[bytes], heard: Heard, headers: dict[str, str], status: int) -> None:
        """Everything up to the end of the reply, which is held back."""
        with told_apart():
            async for chunk in chunks:
                through = heard.take(chunk)
                if not self._client.begun:
                    await self._client.begin(status, headers)
                if through:
                    await self._client.send(through)
                if heard.done:
                    return
        if not heard.finished and heard.failed is None:
            raise ModelUnavailable("The upstream broke off in the middle of its answer; repeat the request.")

    async def _recorded(self, responses: list[dict[str, Any]], *, unfinished: bool = False) -> bool:
        """Whether it is in the log; where it cannot be, the settings say whether the client is answered all the same.

        Not even a client that goes away keeps a reply from being recorded.
        """
        try:
            self._kept = await uninterrupted(keep(self._prepared, responses, unfinished=unfinished))
        except StoreError as error:
            if self._store_down == "refuse":
                raise
            _log.warning("A reply passes on unrecorded: %s", error)
            return False
        if self._kept is not None:
            self._note_head(self._kept)
        return self._kept is not None

    def _note_head(self, kept: Kept) -> None:
        prepared = self._prepared
        told = prepared.told_after(kept.reply.message)
        self._moved(prepared.place.told, prepared.place_after(kept.entry, told))

    def _headers(self, response: httpx.Response) -> dict[str, str]:
        return passed_headers(response) | self._own()

    def _own(self) -> dict[str, str]:
        prepared, kept = self._prepared, self._kept
        branch = prepared.place.branch if kept is None else kept.entry.branch
        return {
            "x-quire-request": prepared.request.id or "",
            "x-quire-conversation": prepared.place.conversation,
            "x-quire-branch": str(branch),
        }


async def _drained(chunks: AsyncIterator[bytes]) -> None:
    """What is left of a stream that has ended, so that its connection serves again."""
    try:
        async with asyncio.timeout(LINGER):
            with told_apart():
                async for _ in chunks:
                    pass
    except (TimeoutError, ModelUnavailable):
        return


def _apart(response: object) -> list[dict[str, Any]]:
    """A response with several choices as several with one."""
    if not is_object(response):
        return []
    return [{**response, "choices": [choice]} for choice in objects(response.get("choices"))]
