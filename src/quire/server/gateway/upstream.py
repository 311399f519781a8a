"""Calls of upstreams on behalf of a client: URL, headers and credentials."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from starlette.datastructures import Headers

from quire.access.keys import contains_key
from quire.errors import InvalidKey
from quire.server.auth import OWN_KEY_HEADER, Caller
from quire.server.gateway.header_rules import filter_request_headers
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient, UpstreamResponse
from quire.settings.schema import Upstream
from quire.wire.codec import Codec


@dataclass(frozen=True, slots=True)
class UpstreamCall:
    """URL and headers of a request to an upstream."""

    client: UpstreamClient
    url: str
    headers: dict[str, str]

    def post(
        self, content: bytes, *, trace_headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        """Posts a body, and yields the response before its body is read. `trace_headers` carry the trace context."""
        return self.send("POST", content, trace_headers=trace_headers)

    def send(
        self, method: str, content: bytes = b"", *, trace_headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        """Sends a request of any method; otherwise like `post`."""
        return self.client.send(method, self.url, headers={**self.headers, **trace_headers}, content=content)


def build_upstream_call(
    upstream: Upstream,
    codec: Codec,
    path: str,
    *,
    server_state: ServerState,
    caller: Caller,
    headers: Headers,
    is_translated: bool = False,
    query: str = "",
    content_type: str = "application/json",
) -> UpstreamCall:
    """Builds a call to an upstream in the wire format of `codec`, on behalf of a client with these headers.

    `path` creates a reply, or is another one such as `messages/count_tokens`; `query` is the client's query string.
    Raises `InvalidKey` if the upstream needs the client's own credentials, and the client can have sent none.
    """
    if upstream.credentials == "client" and caller.key_id is not None and OWN_KEY_HEADER not in headers:
        # A key of Quire is where the client's own credentials should be.
        raise InvalidKey(
            "This model's upstream needs your own credentials: send them as to the provider, and the API key of Quire "
            "in `X-Quire-Key`."
        )
    forwarded = filter_request_headers(headers, upstream, is_translated=is_translated)
    # Responses are parsed while they are relayed, so they must not be compressed.
    forwarded |= {"content-type": content_type, "accept-encoding": "identity"}
    if is_translated:
        forwarded |= codec.translated_headers
    key = server_state.environ.get(upstream.api_key_env) if upstream.api_key_env is not None else None
    if key:
        forwarded |= codec.build_credentials(key)
    url = codec.build_url(upstream.base_url, path) + (f"?{query}" if query and not contains_key(query) else "")
    return UpstreamCall(
        server_state.http_client, url, {name: _restore_text(value) for name, value in forwarded.items()}
    )


def _restore_text(value: str) -> str:
    """The text that the HTTP client, which encodes as UTF-8, sends as the bytes that the server decoded as Latin-1."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value
