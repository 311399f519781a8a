"""HTTP calls to upstreams, and the list of their models.

Responses of an upstream, errors included, pass through unchanged. Failures without a response (timeout, reset, no
connection) are mapped to Quire's errors.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import httpx2
from starlette.datastructures import Headers

from quire.llm.transport_errors import map_transport_errors
from quire.log import contains_key
from quire.server.auth import Caller
from quire.server.gateway.header_rules import filter_request_headers
from quire.server.state import ServerState
from quire.settings.schema import Upstream
from quire.view.wire_formats.fields import filter_objects, is_object

MODEL_LIST_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for an upstream's list of models; a slower upstream contributes none."""
_GLOB_CHARS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class UpstreamCall:
    """URL and headers of a request to an upstream."""

    client: httpx2.AsyncClient
    url: str
    headers: dict[bytes, bytes]

    @asynccontextmanager
    async def post(self, content: bytes, *, trace_headers: Mapping[str, str]) -> AsyncGenerator[httpx2.Response]:
        """Posts a body, and yields the response before its body is read. `trace_headers` carry the trace context."""
        with map_http_errors():
            # Faster than `client.build_request`: there are no cookies, parameters or other kinds of content to merge.
            request = httpx2.Request(
                "POST",
                _parse_url(self.url),
                headers=self.headers | _encode_headers(trace_headers),
                content=content,
                extensions={"timeout": self.client.timeout.as_dict()},
            )
            response = await self.client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


@lru_cache(maxsize=1_000)
def _parse_url(url: str) -> httpx2.URL:
    return httpx2.URL(url)


def map_http_errors() -> AbstractContextManager[None]:
    """Maps errors of the HTTP client to Quire's errors."""
    return map_transport_errors(target="the upstream", timeout_name="`upstream_timeout`")


def build_upstream_call(
    upstream: Upstream, path: str, *, server_state: ServerState, caller: Caller, headers: Headers
) -> UpstreamCall:
    """Builds a call to an upstream on behalf of a client with these headers."""
    forwarded = filter_request_headers(headers, uses_operator_key=upstream.api_key_env is not None)
    # Responses are parsed while they are relayed, so they must not be compressed.
    forwarded |= {"content-type": "application/json", "accept-encoding": "identity"}
    authorization = _choose_authorization(upstream, server_state, caller, headers)
    if authorization is not None:
        forwarded["authorization"] = authorization
    return UpstreamCall(server_state.http_client, f"{upstream.base_url.rstrip('/')}/{path}", _encode_headers(forwarded))


def _encode_headers(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    """Encodes as Latin-1, from which a server decodes headers; the HTTP client would accept only ASCII text."""
    return {name.encode("latin-1"): value.encode("latin-1", "replace") for name, value in headers.items()}


def _choose_authorization(
    upstream: Upstream, server_state: ServerState, caller: Caller, headers: Headers
) -> str | None:
    """Returns the upstream's API key, else what the local user sends for the upstream.

    A key or token that authenticates the client to Quire never goes upstream: `LocalAuthMiddleware` removes the token
    from the headers, and a caller with a key of Quire has no other authorization.
    """
    if upstream.api_key_env is not None:
        key = server_state.environ.get(upstream.api_key_env)
        return f"Bearer {key}" if key else None
    authorization = headers.get("authorization") if caller.key_id is None else None
    return authorization if authorization is not None and not contains_key(authorization) else None


async def collect_models(server_state: ServerState, caller: Caller, headers: Headers) -> list[dict[str, Any]]:
    """Lists each model that the caller may call once, and only if a request for it would go to the upstream that
    lists it."""
    collected = {
        name: _build_model_object(name) for name in server_state.settings.upstreams if not _GLOB_CHARS & set(name)
    }
    upstreams = _list_upstreams(server_state)
    lists = await asyncio.gather(*(_fetch_models(each, server_state, caller, headers) for each in upstreams))
    for upstream, models in zip(upstreams, lists, strict=True):
        for model in models:
            target = server_state.upstream_for(str(model["id"]))
            if target is not None and target.base_url == upstream.base_url:
                collected.setdefault(str(model["id"]), model)
    return [model for name, model in collected.items() if _is_allowed(server_state, caller, name)]


def _is_allowed(server_state: ServerState, caller: Caller, model: str) -> bool:
    upstream = server_state.upstream_for(model)
    return caller.allows_model(model, upstream.model if upstream is not None else None)


def _list_upstreams(server_state: ServerState) -> list[Upstream]:
    """Lists each upstream server once, by base URL."""
    upstreams = {each.base_url: each for each in server_state.settings.upstreams.values()}
    default_url = server_state.settings.base_url
    if default_url is not None:
        upstreams.setdefault(default_url, Upstream(base_url=default_url))
    return list(upstreams.values())


async def _fetch_models(
    upstream: Upstream, server_state: ServerState, caller: Caller, headers: Headers
) -> list[dict[str, Any]]:
    call = build_upstream_call(upstream, "models", server_state=server_state, caller=caller, headers=headers)
    try:
        async with asyncio.timeout(MODEL_LIST_TIMEOUT_SECONDS):
            response = await call.client.get(call.url, headers=call.headers)
        body: object = response.json() if response.is_success else None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, TimeoutError):
        return []
    return [model for model in filter_objects(body.get("data")) if model.get("id")] if is_object(body) else []


def _build_model_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "quire"}
