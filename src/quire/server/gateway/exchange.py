"""One exchange of the gateway, top to bottom: parse, match, prepare, forward, relay, record.

Two kinds of request are passed through unrecorded, with a header that says so: bodies that Quire cannot parse, and,
with `on_store_failure = "pass_through"`, requests during a store outage.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from starlette.datastructures import Headers

from quire.concurrency.cancellation import run_shielded
from quire.concurrency.worker_threads import run_sized
from quire.engine.exchanges import OpenExchange, begin_exchange
from quire.engine.spending import needs_reservation, spend_caps_for
from quire.errors import InvalidRequest, QuireError, StaleHead, StoreError
from quire.log.exchanges import NO_CONVERSATION
from quire.model.ids import new_id
from quire.proxy.client_origin import find_origin, find_session
from quire.proxy.engine_variants import EngineVariant, EngineVariants
from quire.proxy.known_messages import ClientBody, KnownMessageCache
from quire.proxy.prepare import PreparedRequest, prepare_request
from quire.proxy.recognition import (
    HeadCache,
    HeadScope,
    HistoryMatch,
    RequestedConversation,
    match_request,
)
from quire.proxy.reply_recorder import MISSING_FROM_LOG
from quire.proxy.response_items import resolve_items, restore_envelope
from quire.server.caller import Caller
from quire.server.dependencies import engine_for_caller
from quire.server.gateway.relay import Relay, TurnRecorder
from quire.server.gateway.response import ResponseWriter
from quire.server.gateway.unrecorded_calls import check_body, forward_unrecorded
from quire.server.gateway.upstream import UpstreamCall, build_upstream_call, select_stored_headers
from quire.server.state import ServerState
from quire.server.telemetry import Telemetry
from quire.settings.schema import Upstream
from quire.store import SqlStore
from quire.wire.client_messages import compute_client_paths
from quire.wire.codec import (
    ClientRequest,
    Codec,
    RequestLimitExceeded,
    UnreadableBody,
    get_model_name,
)
from quire.wire.codecs import choose_target
from quire.wire.http_errors import ErrorResponse

_log = logging.getLogger(__name__)

MAX_MATCH_ATTEMPTS = 3
"""Maximum attempts to match and prepare a request when concurrent appends move the branch head."""


class PassThrough(NamedTuple):
    """A request that goes to its upstream as it came."""

    reason: str
    is_stored: bool = True
    """Whether its bytes are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A client's request and everything that is needed to answer it."""

    server_state: ServerState
    variants: EngineVariants
    head_cache: HeadCache
    known_messages: KnownMessageCache
    caller: Caller
    requested: RequestedConversation
    headers: Headers
    raw_body: bytes
    telemetry: Telemetry
    codec: Codec
    query: str = ""
    path_fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the request that the path has in place of the body, such as the model."""

    async def respond(self, writer: ResponseWriter, *, path: str | None = None) -> None:
        """Answers the request, by another path of the upstream if one is given. Errors become responses."""
        codec = self.codec
        try:
            body = await run_sized(
                len(self.raw_body), self.known_messages.parse_body, codec, self.raw_body, tenant=self.caller.tenant
            )
        except UnreadableBody as error:
            return await self._send_error(writer, codec.build_error(400, str(error), code="invalid_json"))
        except RequestLimitExceeded as error:
            return await self._send_error(writer, codec.build_error(400, str(error), code="request_limit_exceeded"))
        body = self.add_path_fields(body)
        model = get_model_name(body.fields)
        upstream = self.server_state.upstream_for(model)
        if upstream is None:
            return await self._send_error(writer, self.build_no_upstream_error(model))
        try:
            call = self.build_call(upstream, path, fields=body.fields)
            await check_body(body, self.caller, upstream)
            prepared = await self._prepare(body, upstream)
        except QuireError as error:
            return await self._send_error(writer, codec.to_error_response(error))
        is_fitted = isinstance(prepared, PreparedRequest) and prepared.is_fitted
        self.telemetry.count_gateway_decision("fitted" if is_fitted else "passthrough")
        if isinstance(prepared, PassThrough):
            exchange = await self._begin_unrecorded(call, body, model, prepared.reason) if prepared.is_stored else None
            return await self.forward_unrecorded(writer, call, body, upstream, exchange=exchange)
        recorder = TurnRecorder(
            prepared,
            update_head=partial(self.head_cache.update, self.head_scope),
            keep_unanswered=self._keep_unanswered,
            stored_headers=select_stored_headers(self.headers),
            on_store_failure=self.server_state.settings.on_store_failure,
        )
        return await Relay(writer, call, recorder, refit=self._refit, telemetry=self.telemetry).run()

    def add_path_fields(self, body: ClientBody) -> ClientBody:
        return replace(body, fields={**body.fields, **self.path_fields}) if self.path_fields else body

    def build_call(
        self, upstream: Upstream, path: str | None = None, *, fields: Mapping[str, Any] | None = None
    ) -> UpstreamCall:
        """Builds the call of the upstream that creates a reply to these fields, or one of another path."""
        target = choose_target(self.codec, upstream.speaks)
        is_translated = target is not self.codec
        model, is_stream = upstream.model or get_model_name(fields or {}), (fields or {}).get("stream") is True
        own_query = target.stream_query if is_stream else ""
        return build_upstream_call(
            upstream,
            target,
            path or target.build_create_path(model, stream=is_stream),
            server_state=self.server_state,
            caller=self.caller,
            headers=self.headers,
            is_translated=is_translated,
            query=own_query if is_translated else self.query,
        )

    async def _send_error(self, writer: ResponseWriter, error: ErrorResponse) -> None:
        self.telemetry.count_gateway_decision("rejected")
        await writer.send_error(error, {})

    def build_no_upstream_error(self, model: str) -> ErrorResponse:
        detail = f"No upstream serves the model {model!r}; add one under `upstreams`, or set `base_url`."
        return self.codec.build_error(404, detail, code="model_not_found")

    async def forward_unrecorded(
        self, writer: ResponseWriter, call: UpstreamCall, body: ClientBody, upstream: Upstream, **options: Any
    ) -> None:
        """Forwards a body in the client's own format as a call that is no turn, with the upstream's model name."""
        model, content = get_model_name(body.fields), body.raw
        if upstream.model:
            renamed = {**body.fields, "model": upstream.model}
            content = await run_sized(len(content), self.codec.encode_body, renamed)
        engine = engine_for_caller(self.server_state, self.caller, model=model or None)
        try:
            await forward_unrecorded(
                writer, call, content, engine=engine, model=model, codec=self.codec, telemetry=self.telemetry, **options
            )
        except QuireError as error:
            await self._send_error(writer, self.codec.to_error_response(error))

    async def _begin_unrecorded(
        self, call: UpstreamCall, body: ClientBody, model: str, reason: str
    ) -> OpenExchange | None:
        try:
            return await begin_exchange(
                engine_for_caller(self.server_state, self.caller, model=model or None),
                id=new_id(),
                conversation=NO_CONVERSATION,
                model=model,
                road="unrecorded",
                reason=reason,
                path=call.path,
                headers=select_stored_headers(self.headers),
                content=body.raw,
            )
        except StoreError as error:
            _log.warning("Request is not stored before it is sent, store failure: %s", error)
            return None

    async def _prepare(self, body: ClientBody, upstream: Upstream) -> "PreparedRequest | PassThrough":
        """Prepares the request. What Quire cannot understand is passed on as it came, where it needs no change."""
        is_translated = choose_target(self.codec, upstream.speaks) is not self.codec
        needs_log = self.shares_account(upstream) and self.codec.refers_to_log(body.fields)
        try:
            # A cached head and a cached key need no query, and an unrecorded reply would be paid for in vain.
            await self.get_store().check_recordable()
            if is_translated and (reason := self.codec.find_untranslatable(body.fields)) is not None:
                raise InvalidRequest(reason)
            body = await self.resolve_references(body, upstream)
            client_request = await run_sized(
                body.work_bytes, self.known_messages.parse_request, self.codec, body, tenant=self.caller.tenant
            )
            if not client_request.is_stored and not self.server_state.settings.record_unstored:
                if is_translated or needs_log:
                    raise InvalidRequest(
                        "A request with `store: false` is not recorded here (`record_unstored`), so it can neither be "
                        "translated nor continue a recorded reply; send the whole history in the upstream's format."
                    )
                return PassThrough("the client set `store` to false", is_stored=False)
            if (previous := client_request.previous_reply) is not None:
                client_request = await restore_envelope(client_request, previous, self.get_store())
            prepared = await self._match_and_prepare(client_request, upstream)
            if not needs_reservation(prepared.recorder.engine, prepared.match.conversation):
                return prepared
            # The reservation must be known to the relay, which settles it, even if the client disconnects now.
            choices = client_request.choice_count
            request = await run_shielded(prepared.recorder.reserve_spend(prepared.request, choices=choices))
            return replace(prepared, request=request)
        except UnreadableBody as error:
            if self.has_spend_cap or is_translated or needs_log:
                raise InvalidRequest(
                    "Quire cannot parse this request, so that it can neither be translated, nor counted under a spend "
                    f"cap (`max_spend`), nor continue a recorded reply; correct it. {error}"
                ) from error
            _log.info("Request passed through unrecorded, body cannot be parsed: %s", error)
            return PassThrough("the request cannot be parsed")
        except StoreError as error:
            may_pass = self.server_state.settings.on_store_failure == "pass_through"
            if is_translated or self.has_spend_cap or needs_log or not may_pass:
                raise
            _log.warning("Request passed through unrecorded, store failure: %s", error)
            return PassThrough("the store failed")
        except Exception as error:
            if isinstance(error, QuireError) or is_translated or self.has_spend_cap or needs_log:
                raise
            # The client's turn must not be lost to a fault of ours.
            _log.exception("Request passed through unrecorded, it was not understood")
            return PassThrough(f"it was not understood ({type(error).__name__})")

    def shares_account(self, upstream: Upstream) -> bool:
        """Whether the upstream has one account for the callers of all tenants. The local user is the operator."""
        return upstream.credentials == "operator" and self.caller.key_id is not None

    async def resolve_references(self, body: ClientBody, upstream: Upstream) -> ClientBody:
        """Replaces references to recorded items by the items.

        An account that tenants share stores items and files of all of them. So it gets no reference to an item that the
        caller's log does not have, and none to a file. A translation has neither. Raises `InvalidRequest`.
        """
        if references := self.codec.list_item_references(body.fields):
            resolved = await resolve_items(self.codec, body.fields, references, self.get_store())
            if resolved is not body.fields:
                body = ClientBody(raw=await run_sized(len(body.raw), self.codec.encode_body, resolved), fields=resolved)
        is_native = choose_target(self.codec, upstream.speaks) is self.codec
        if is_native and self.shares_account(upstream):
            if unknown := self.codec.list_item_references(body.fields):
                raise InvalidRequest(f"Item with id '{unknown[0]}' not found; send it whole.")
            upstreams = self.server_state.settings.upstreams.values()
            # Known messages were checked when they were new, unless they went to an account of their client.
            is_checked = all(each.credentials == "operator" for each in upstreams)
            raw = body.raw_rest if is_checked else body.raw
            stored = await run_sized(body.work_bytes, self.codec.find_stored_id, raw, body.fields)
            if stored is not None:
                raise InvalidRequest(
                    f"The request refers to {stored!r}, which the provider stores for all tenants of this server; "
                    "send the content itself, or use an upstream that takes your own credentials."
                )
        return body

    @property
    def has_spend_cap(self) -> bool:
        caller = self.caller
        return spend_caps_for(self.server_state.settings, tenant=caller.tenant, key=caller.spending_key).exist

    @property
    def head_scope(self) -> HeadScope:
        found = find_session(self.headers, self.server_state.settings.session_headers)
        return HeadScope(self.caller.tenant, found[1] if found is not None else None)

    def get_store(self) -> SqlStore:
        return self.server_state.engine_for(self.caller.tenant).store

    def get_variant(self, client_request: ClientRequest, upstream: Upstream) -> EngineVariant:
        """The engine that prepares requests for this model and upstream."""
        target = choose_target(self.codec, upstream.speaks)
        limits = (client_request.options.max_tokens, upstream.reserved_response_tokens)
        return self.variants.get(
            self.caller.tenant,
            client_request.model,
            reserved_tokens=min((limit for limit in limits if limit is not None), default=None),
            limits_reserve=target is not self.codec or self.codec.default_overflow == "refuse",
            target=target,
        )

    async def _match_and_prepare(
        self, client_request: ClientRequest, upstream: Upstream, *, known_match: HistoryMatch | None = None
    ) -> PreparedRequest:
        """Matches the request to the log and prepares it. With `known_match`, skips matching and always fits."""
        variant = self.get_variant(client_request, upstream)
        default_overflow = self.codec.default_overflow if variant.target is self.codec else "fit"
        overflow = client_request.overflow or upstream.overflow or default_overflow
        origin = find_origin(self.headers, client_request, session_headers=self.server_state.settings.session_headers)
        failure: QuireError = StaleHead()
        for attempt in range(MAX_MATCH_ATTEMPTS):
            match = known_match or await match_request(
                variant.engine.store,
                client_request,
                self.requested,
                # A cached head may be stale.
                head_cache=self.head_cache if attempt == 0 else None,
                scope=self.head_scope,
                origin=origin,
            )
            try:
                return await prepare_request(
                    client_request,
                    match,
                    variant,
                    upstream_model=upstream.model,
                    spending_key=self.caller.spending_key,
                    origin=origin,
                    may_fit=overflow == "fit",
                    force_fit=known_match is not None,
                    forwards_reference=client_request.previous_reply is not None and known_match is None,
                )
            except (StaleHead, *MISSING_FROM_LOG) as error:
                known_match, failure = None, error
        raise failure

    def _keep_unanswered(self, prepared: PreparedRequest) -> None:
        if prepared.match.creates_conversation and prepared.client_request.messages:
            first_path = compute_client_paths(prepared.client_request.messages[:1])[0]
            self.head_cache.keep_unanswered(self.head_scope, first_path, prepared.match)

    async def _refit(self, prepared: PreparedRequest) -> PreparedRequest:
        """Prepares the request again after an overflow has corrected the engine's window or calibration."""
        client_request = prepared.client_request
        upstream = self.server_state.upstream_for(client_request.model) or Upstream(base_url="")
        refitted = await self._match_and_prepare(client_request, upstream, known_match=prepared.match)
        return replace(refitted, request=replace(refitted.request, reservation=prepared.request.reservation))
