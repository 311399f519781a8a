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

from quire.llm.transport_errors import map_transport_errors
from quire.server.auth import Caller
from quire.server.state import ServerState
from quire.settings.schema import Upstream
from quire.view.wire_formats.fields import filter_objects, is_object

_REQUEST_HEADERS_DROPPED = frozenset(
    {
        "host", "content-length", "content-type", "accept-encoding", "authorization", "api-key", "cookie", "connection",
        "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "expect", "forwarded", "origin", "referer",
    }
)  # fmt: skip
"""Request headers that are not forwarded: hop-by-hop headers, and those addressed to Quire alone."""
_RESPONSE_HEADERS_DROPPED = frozenset(
    {*_REQUEST_HEADERS_DROPPED, "content-encoding", "date", "server", "set-cookie"}
) - {"content-type"}
_HEADER_PREFIXES_DROPPED = ("x-quire-", "x-forwarded-", "sec-")

MODEL_LIST_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for an upstream's list of models; a slower upstream contributes none."""
_GLOB_CHARS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class UpstreamCall:
    """URL and headers of a request to an upstream."""

    client: httpx2.AsyncClient
    url: str
    headers: dict[str, str]

    @asynccontextmanager
    async def post(self, content: bytes, *, trace_headers: Mapping[str, str]) -> AsyncGenerator[httpx2.Response]:
        """Posts a body, and yields the response before its body is read. `trace_headers` carry the trace context."""
        with map_http_errors():
            # Faster than `client.build_request`: there are no cookies, parameters or other kinds of content to merge.
            request = httpx2.Request(
                "POST",
                _parse_url(self.url),
                headers={**self.headers, **trace_headers},
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
    upstream: Upstream, path: str, *, server_state: ServerState, caller: Caller, headers: Mapping[str, str]
) -> UpstreamCall:
    """Builds a call to an upstream on behalf of a client with these headers."""
    forwarded = {name: value for name, value in headers.items() if _is_forwarded(name)}
    # Responses are parsed while they are relayed, so they must not be compressed.
    forwarded |= {"content-type": "application/json", "accept-encoding": "identity"}
    authorization = _choose_authorization(upstream, server_state, caller, headers)
    if authorization is not None:
        forwarded["authorization"] = authorization
    return UpstreamCall(server_state.http_client, f"{upstream.base_url.rstrip('/')}/{path}", forwarded)


def _is_forwarded(name: str) -> bool:
    return name not in _REQUEST_HEADERS_DROPPED and not name.startswith(_HEADER_PREFIXES_DROPPED)


def _choose_authorization(
    upstream: Upstream, server_state: ServerState, caller: Caller, headers: Mapping[str, str]
) -> str | None:
    """Returns the upstream's API key, else the client's authorization if the client authenticated here by cookie.

    A key or token that authenticates the client to Quire never goes upstream.
    """
    if upstream.api_key_env is not None:
        key = server_state.environ.get(upstream.api_key_env)
        return f"Bearer {key}" if key else None
    return headers.get("authorization") if caller.key_id is None and "cookie" in headers else None


def filter_response_headers(response: httpx2.Response) -> dict[str, str]:
    """Returns the response headers that are for the client."""
    return {name: value for name, value in response.headers.items() if name not in _RESPONSE_HEADERS_DROPPED}


async def collect_models(server_state: ServerState, caller: Caller, headers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Lists each model once, and only if a request for it would go to the upstream that lists it."""
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
    return list(collected.values())


def _list_upstreams(server_state: ServerState) -> list[Upstream]:
    """Lists each upstream server once, by base URL."""
    upstreams = {each.base_url: each for each in server_state.settings.upstreams.values()}
    default_url = server_state.settings.base_url
    if default_url is not None:
        upstreams.setdefault(default_url, Upstream(base_url=default_url))
    return list(upstreams.values())


async def _fetch_models(
    upstream: Upstream, server_state: ServerState, caller: Caller, headers: Mapping[str, str]
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
