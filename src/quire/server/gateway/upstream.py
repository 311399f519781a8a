"""Calls of upstreams on behalf of a client: URL, headers and credentials."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from starlette.datastructures import Headers

from quire.errors import InvalidKey
from quire.log import contains_key
from quire.server.auth import OWN_KEY_HEADER, Caller
from quire.server.gateway.header_rules import filter_request_headers
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient, UpstreamResponse
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
    return UpstreamCall(
        server_state.http_client, url, {name: _restore_text(value) for name, value in forwarded.items()}
    )


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


def _restore_text(value: str) -> str:
    """The text that the HTTP client, which encodes as UTF-8, sends as the bytes that the server decoded as Latin-1."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value
