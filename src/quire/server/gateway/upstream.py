"""HTTP calls to upstreams.

Responses of an upstream, errors included, pass through unchanged. Failures without a response (timeout, reset, no
connection) are mapped to Quire's errors.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache

import httpx2
from starlette.datastructures import Headers

from quire.errors import InvalidKey
from quire.llm.transport_errors import map_transport_errors
from quire.log import contains_key
from quire.server.auth import OWN_KEY_HEADER, Caller
from quire.server.gateway.header_rules import filter_request_headers
from quire.server.state import ServerState
from quire.settings.schema import FormatName, Upstream

CREATE_PATHS: Mapping[FormatName, str] = {
    "chat": "chat/completions",
    "messages": "messages",
    "responses": "responses",
}
"""Path that creates a reply, by wire format."""
ANTHROPIC_VERSION = "2023-06-01"
"""Version of the format messages in which Quire writes requests."""


@dataclass(frozen=True, slots=True)
class UpstreamCall:
    """URL and headers of a request to an upstream."""

    client: httpx2.AsyncClient
    url: str
    headers: dict[bytes, bytes]

    def post(self, content: bytes, *, trace_headers: Mapping[str, str]) -> AbstractAsyncContextManager[httpx2.Response]:
        """Posts a body, and yields the response before its body is read. `trace_headers` carry the trace context."""
        return self.send("POST", content, trace_headers=trace_headers)

    @asynccontextmanager
    async def send(
        self, method: str, content: bytes = b"", *, trace_headers: Mapping[str, str]
    ) -> AsyncGenerator[httpx2.Response]:
        """Sends a request of any method; otherwise like `post`."""
        with map_http_errors():
            # Faster than `client.build_request`: there are no cookies, parameters or other kinds of content to merge.
            request = httpx2.Request(
                method,
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
    upstream: Upstream,
    path: str,
    *,
    server_state: ServerState,
    caller: Caller,
    headers: Headers,
    format_name: FormatName = "chat",
    is_translated: bool = False,
    query: str = "",
    content_type: str = "application/json",
) -> UpstreamCall:
    """Builds a call to an upstream in the wire format `format_name`, on behalf of a client with these headers.

    `path` is one of `CREATE_PATHS`, or a further path such as `messages/count_tokens`; `query` is the client's query
    string. Raises `InvalidKey` if the upstream needs the client's own credentials, and the client can have sent none.
    """
    _check_credentials(upstream, caller, headers)
    forwarded = filter_request_headers(headers, upstream, is_translated=is_translated)
    # Responses are parsed while they are relayed, so they must not be compressed.
    forwarded |= {"content-type": content_type, "accept-encoding": "identity"}
    if is_translated and format_name == "messages":
        forwarded["anthropic-version"] = ANTHROPIC_VERSION
    forwarded |= _build_operator_credentials(upstream, server_state.environ, format_name)
    url = _build_url(upstream.base_url, path, format_name) + (f"?{query}" if query and not contains_key(query) else "")
    return UpstreamCall(server_state.http_client, url, _encode_headers(forwarded))


def _build_url(base_url: str, path: str, format_name: FormatName) -> str:
    """Base URLs of OpenAI's formats end in `/v1`. Those of Anthropic's do not, but some users add it."""
    base_url = base_url.rstrip("/")
    if format_name == "messages":
        base_url = f"{base_url.removesuffix('/v1')}/v1"
    return f"{base_url}/{path}"


def _check_credentials(upstream: Upstream, caller: Caller, headers: Headers) -> None:
    """Raises `InvalidKey` if a key of Quire is where the client's own credentials should be."""
    if upstream.credentials == "client" and caller.key_id is not None and OWN_KEY_HEADER not in headers:
        raise InvalidKey(
            "This model's upstream needs your own credentials: send them as to the provider, and the API key of Quire "
            "in `X-Quire-Key`."
        )


def _build_operator_credentials(
    upstream: Upstream, environ: Mapping[str, str], format_name: FormatName
) -> dict[str, str]:
    key = environ.get(upstream.api_key_env) if upstream.api_key_env is not None else None
    if not key:
        return {}
    return {"x-api-key": key} if format_name == "messages" else {"authorization": f"Bearer {key}"}


def _encode_headers(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    """Encodes as Latin-1, from which a server decodes headers; the HTTP client would accept only ASCII text."""
    return {name.encode("latin-1"): value.encode("latin-1", "replace") for name, value in headers.items()}
