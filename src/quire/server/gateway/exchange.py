"""One exchange of the gateway, top to bottom: parse, match, prepare, forward, relay, record.

Two kinds of request are passed through unrecorded, with a header that says so: bodies that Quire cannot parse, and,
with `on_store_failure = "pass_through"`, requests during a store outage.
"""

import json
import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx2
from starlette.datastructures import Headers
from starlette.responses import Response

from quire.agent.cancellation import run_shielded
from quire.engine.context import spend_caps_for
from quire.errors import AccessDenied, InvalidRequest, ModelError, QuireError, StaleHead, StoreError
from quire.log.worker_threads import run_sized
from quire.server.auth import Caller, check_model
from quire.server.gateway.chat_request import (
    ChatRequest,
    RequestLimitExceeded,
    UnreadableBody,
    check_request_limits,
    encode_body,
    get_model_name,
    parse_body,
    parse_chat_request,
)
from quire.server.gateway.engine_variants import EngineVariants
from quire.server.gateway.header_rules import filter_response_headers
from quire.server.gateway.prepare import PreparedRequest, prepare_request
from quire.server.gateway.recognition import HeadCache, HistoryMatch, RequestedConversation, match_history
from quire.server.gateway.relay import UNRECORDED_HEADERS, Relay
from quire.server.gateway.response import ResponseWriter, build_openai_error, to_error_event, to_error_response
from quire.server.gateway.upstream import UpstreamCall, build_upstream_call, map_http_errors
from quire.server.state import ServerState
from quire.server.telemetry import Telemetry
from quire.settings.schema import Upstream

_log = logging.getLogger(__name__)

MAX_MATCH_ATTEMPTS = 3
"""Maximum attempts to match and prepare a request when concurrent appends move the branch head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A client's request and everything that is needed to answer it."""

    server_state: ServerState
    variants: EngineVariants
    head_cache: HeadCache
    caller: Caller
    requested: RequestedConversation
    headers: Headers
    raw_body: bytes
    telemetry: Telemetry

    async def respond(self, writer: ResponseWriter) -> None:
        """Answers the request; errors become responses."""
        try:
            body = await run_sized(len(self.raw_body), parse_body, self.raw_body)
            await run_sized(len(self.raw_body), check_request_limits, body)
        except UnreadableBody as error:
            return await self._send_error(writer, build_openai_error(400, str(error), code="invalid_json"))
        except RequestLimitExceeded as error:
            return await self._send_error(writer, build_openai_error(400, str(error), code="request_limit_exceeded"))
        upstream = self.server_state.upstream_for(get_model_name(body))
        if upstream is None:
            return await self._send_error(writer, _build_no_upstream_error(get_model_name(body)))
        call = build_upstream_call(
            upstream, "chat/completions", server_state=self.server_state, caller=self.caller, headers=self.headers
        )
        try:
            await self._check_model(body, upstream)
            prepared = await self._prepare(body, upstream)
        except QuireError as error:
            return await self._send_error(writer, to_error_response(error))
        is_fitted = prepared is not None and prepared.is_fitted
        self.telemetry.count_gateway_decision("fitted" if is_fitted else "passthrough")
        if prepared is None:
            content = self.raw_body
            if upstream.model:
                content = await run_sized(len(content), encode_body, {**body, "model": upstream.model})
            return await self._pass_through(writer, call, content, model=get_model_name(body))
        relay = Relay(
            writer,
            call,
            prepared,
            refit=self._refit,
            update_head=partial(self.head_cache.update, self.caller.tenant),
            on_store_failure=self.server_state.settings.on_store_failure,
            telemetry=self.telemetry,
        )
        return await relay.run()

    async def _send_error(self, writer: ResponseWriter, response: Response) -> None:
        self.telemetry.count_gateway_decision("rejected")
        await writer.send_error(response, {})

    async def _check_model(self, body: dict[str, Any], upstream: Upstream) -> None:
        """Raises `AccessDenied` if the caller's key does not allow the model, or if the body could name another one."""
        check_model(self.caller, get_model_name(body), upstream.model)
        if self.caller.models is None:
            return
        if "models" in body:
            raise AccessDenied("The API key allows certain models only, so a request cannot name others in `models`.")
        if await run_sized(len(self.raw_body), _count_model_fields, self.raw_body) > 1:
            raise AccessDenied("The API key allows certain models only, so a request names `model` only once.")

    async def _prepare(self, body: dict[str, Any], upstream: Upstream) -> PreparedRequest | None:
        """Prepares the request; None if it is to be passed through unrecorded."""
        try:
            chat_request = await run_sized(len(self.raw_body), parse_chat_request, self.raw_body, body)
            prepared = await self._match_and_prepare(chat_request, upstream)
            # The reservation must be known to the relay, which settles it, even if the client disconnects now.
            return await run_shielded(_reserve_spend(prepared))
        except UnreadableBody as error:
            if self._has_spend_cap:
                raise InvalidRequest(
                    "Quire cannot record this request, so that a spend cap (`max_spend`) cannot count its cost; "
                    f"correct it. {error}"
                ) from error
            _log.info("Request passed through unrecorded, body cannot be parsed: %s", error)
        except StoreError as error:
            if self.server_state.settings.on_store_failure == "refuse" or self._has_spend_cap:
                raise
            _log.warning("Request passed through unrecorded, store failure: %s", error)
        return None

    @property
    def _has_spend_cap(self) -> bool:
        caller = self.caller
        return spend_caps_for(self.server_state.settings, tenant=caller.tenant, key=caller.spending_key).exist

    async def _match_and_prepare(
        self, chat_request: ChatRequest, upstream: Upstream, *, known_match: HistoryMatch | None = None
    ) -> PreparedRequest:
        """Matches the request to the log and prepares it. With `known_match`, skips matching and always fits."""
        variant = self.variants.get(self.caller.tenant, chat_request.model, chat_request.max_reply_tokens)
        for _ in range(MAX_MATCH_ATTEMPTS):
            match = known_match or await match_history(
                variant.engine.store,
                chat_request,
                self.requested,
                head_cache=self.head_cache,
                tenant=self.caller.tenant,
            )
            try:
                return await prepare_request(
                    chat_request,
                    match,
                    variant,
                    upstream_model=upstream.model,
                    spending_key=self.caller.spending_key,
                    force_fit=known_match is not None,
                )
            except StaleHead:
                known_match = None
        raise StaleHead

    async def _refit(self, prepared: PreparedRequest) -> PreparedRequest:
        """Prepares the request again after an overflow has corrected the engine's window or calibration."""
        chat_request = prepared.matched.chat_request
        upstream = self.server_state.upstream_for(chat_request.model) or Upstream(base_url="")
        refitted = await self._match_and_prepare(chat_request, upstream, known_match=prepared.match)
        return replace(refitted, request=replace(refitted.request, reservation=prepared.request.reservation))

    async def _pass_through(self, writer: ResponseWriter, call: UpstreamCall, content: bytes, *, model: str) -> None:
        """Forwards the body and relays the response without recording either."""
        try:
            with self.telemetry.trace_gateway_call(model, conversation=None) as span:
                async with call.post(content, trace_headers=span.headers) as response:
                    await _relay_unrecorded(writer, response)
        except ModelError as error:
            if writer.is_started:
                await writer.write(to_error_event(error), last=True)
            else:
                await writer.send_error(to_error_response(error), UNRECORDED_HEADERS)


def _count_model_fields(raw_body: bytes) -> int:
    """Counts the fields `model` of the body: servers differ in which of two they use."""
    if raw_body.count(b'"model"') == 1 and b"\\u" not in raw_body:
        return 1
    fields: list[tuple[str, object]] = []

    def collect(pairs: list[tuple[str, object]]) -> None:
        # Called for the outermost object last.
        nonlocal fields
        fields = pairs

    json.loads(raw_body, object_pairs_hook=collect)
    return sum(name == "model" for name, _ in fields)


async def _reserve_spend(prepared: PreparedRequest) -> PreparedRequest:
    """Reserves the estimated cost under the spend caps that apply to the request."""
    choices = prepared.matched.chat_request.choice_count
    request = await prepared.conversation.reserve_spend(prepared.request, choices=choices)
    return replace(prepared, request=request)


async def _relay_unrecorded(writer: ResponseWriter, response: httpx2.Response) -> None:
    with map_http_errors():
        chunks = response.aiter_bytes()
        first = await anext(chunks, b"")
    await writer.start(response.status_code, {**filter_response_headers(response), **UNRECORDED_HEADERS})
    await writer.write(first)
    with map_http_errors():
        async for chunk in chunks:
            await writer.write(chunk)
    await writer.write(b"", last=True)


def _build_no_upstream_error(model: str) -> Response:
    detail = f"No upstream serves the model {model!r}; add one under `upstreams`, or set `base_url`."
    return build_openai_error(404, detail, code="model_not_found")
