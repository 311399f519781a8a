"""One request through the gateway, from top to bottom: read, recognise, prepare, forward, relay, record.

What cannot be read, and, if the settings say so, what comes while the log is out of reach, passes on without being
kept, and says so.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
from starlette.responses import Response

from quire.errors import ModelUnavailable, QuireError, StaleHead, StoreError
from quire.server.gateway.asking import Asking, Unreadable, encoded, model_in, read, read_body
from quire.server.gateway.client import Client
from quire.server.gateway.places import Heads, Named, Place, recognise
from quire.server.gateway.preparing import Prepared, prepare
from quire.server.gateway.refusals import event_of, refusal, told
from quire.server.gateway.relaying import UNRECORDED, Relay
from quire.server.gateway.upstream import Call, call_to, passed_headers, told_apart
from quire.server.gateway.variants import Variants
from quire.server.identity import Caller
from quire.server.serving import Serving
from quire.server.telemetry import Telemetry
from quire.settings.table import Upstream

_log = logging.getLogger(__name__)

ATTEMPTS = 3
"""So often a place is looked for anew because others were quicker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    serving: Serving
    variants: Variants
    heads: Heads
    caller: Caller
    named: Named
    headers: Mapping[str, str]
    raw: bytes
    telemetry: Telemetry

    async def answer(self, client: Client) -> None:
        try:
            body = read_body(self.raw)
        except Unreadable as error:
            return await self._refuse(client, told(400, str(error), code="invalid_json"))
        upstream = self.serving.upstream(model_in(body))
        if upstream is None:
            return await self._refuse(client, _nowhere(model_in(body)))
        call = call_to(upstream, "chat/completions", serving=self.serving, caller=self.caller, headers=self.headers)
        try:
            prepared = await self._prepared(body, upstream)
        except QuireError as error:
            return await self._refuse(client, refusal(error))
        self.telemetry.gateway_decided("fitted" if prepared is not None and prepared.fitted else "passed")
        if prepared is None:
            content = encoded({**body, "model": upstream.model}) if upstream.model else self.raw
            return await self._pass(client, call, content, model=model_in(body))
        relay = Relay(
            client,
            call,
            prepared,
            mended=self._mended,
            moved=partial(self.heads.moved, self.caller.tenant),
            store_down=self.serving.settings.store_down,
            telemetry=self.telemetry,
        )
        return await relay.run()

    async def _refuse(self, client: Client, response: Response) -> None:
        self.telemetry.gateway_decided("refused")
        await client.refuse(response, {})

    async def _prepared(self, body: dict[str, Any], upstream: Upstream) -> Prepared | None:
        """None for what passes on without being kept."""
        try:
            asking = read(self.raw, body)
            return await self._placed(asking, upstream)
        except Unreadable as error:
            _log.info("A request passes on unread: %s", error)
        except StoreError as error:
            if self.serving.settings.store_down == "refuse":
                raise
            _log.warning("A request passes on unrecorded: %s", error)
        return None

    async def _placed(self, asking: Asking, upstream: Upstream, *, at: Place | None = None) -> Prepared:
        """Recognised and prepared; with `at`, at that place, and fitted however short it is."""
        variant = self.variants.of(self.caller.tenant, asking.model, asking.reserve)
        for _ in range(ATTEMPTS):
            place = at or await recognise(
                variant.engine.store, asking, self.named, heads=self.heads, tenant=self.caller.tenant
            )
            try:
                return await prepare(asking, place, variant, model=upstream.model, fit=at is not None)
            except StaleHead:
                at = None
        raise StaleHead

    async def _mended(self, prepared: Prepared, window: int | None) -> Prepared:
        """The same request anew, for a window that its upstream says is smaller than was thought."""
        asking, upstream = prepared.received.asking, self.serving.upstream(prepared.received.asking.model)
        if window is not None:
            self.variants.narrow(asking.model, window)
        return await self._placed(asking, upstream or Upstream(base_url=""), at=prepared.place)

    async def _pass(self, client: Client, call: Call, content: bytes, *, model: str) -> None:
        """There and back, and nothing is kept."""
        try:
            with self.telemetry.gateway_call(model, conversation=None) as span:
                async with call.post(content, trace=span.headers) as response:
                    await _relay(client, response)
        except ModelUnavailable as error:
            if client.begun:
                await client.send(event_of(error), last=True)
            else:
                await client.refuse(refusal(error), UNRECORDED)


async def _relay(client: Client, response: httpx.Response) -> None:
    with told_apart():
        chunks = response.aiter_bytes()
        first = await anext(chunks, b"")
    await client.begin(response.status_code, {**passed_headers(response), **UNRECORDED})
    await client.send(first)
    with told_apart():
        async for chunk in chunks:
            await client.send(chunk)
    await client.send(b"", last=True)


def _nowhere(model: str) -> Response:
    detail = f"No upstream answers for the model {model!r}; name one under `upstreams`, or set `base_url`."
    return told(404, detail, code="model_not_found")
