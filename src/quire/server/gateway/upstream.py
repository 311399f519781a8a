"""Calls of upstreams on behalf of a client: URL, headers and credentials.

Headers have rules by name: which ones go to an upstream, which come back, and how conversation IDs are written.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from starlette.datastructures import Headers

from quire.access.keys import contains_key
from quire.errors import InvalidKey, InvalidRequest
from quire.server.auth import KEY_HEADERS, OWN_KEY_HEADER
from quire.server.caller import Caller
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient, UpstreamResponse
from quire.settings import Settings
from quire.settings.schema import Upstream
from quire.wire.codec import Codec

_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Headers of one connection (RFC 9110, section 7.6.1). `Connection` names further ones."""
_NEUTRAL_HEADERS = frozenset(
    {
        "accept", "accept-language", "user-agent", "idempotency-key", "x-request-id", "x-client-request-id",
        "traceparent", "tracestate", "http-referer", "x-title",
    }
)  # fmt: skip
"""Request headers that go upstream in any format: what clients of every provider send, and OpenRouter's two names of an
application."""
_FORMAT_HEADERS = frozenset(
    {
        "openai-beta", "originator", "session-id", "session_id", "thread-id", "x-app", "x-goog-api-client",
        "x-session-affinity",
    }
)  # fmt: skip
_FORMAT_PREFIXES = (
    "anthropic-",
    "x-claude-code-",
    "x-codex-",
    "x-anthropic-",
    "x-openai-",
    "x-openrouter-",
    "x-stainless-",
)
"""Request headers that belong to the client's wire format or program. A translated request has another format."""
_CREDENTIALS = frozenset(
    {*KEY_HEADERS, "openai-organization", "openai-project", "chatgpt-account-id", "x-goog-user-project"}
)
"""Request headers with credentials, or with the account at the upstream that is charged."""

_STORED_HEADERS = frozenset(
    {
        "user-agent", "openai-beta", "originator", "session-id", "session_id", "thread-id", "x-app",
        "x-openai-subagent", "x-parent-session-id", "x-session-affinity", "x-stainless-retry-count",
    }
)  # fmt: skip
_STORED_PREFIXES = ("anthropic-beta", "anthropic-version", "x-claude-code-", "x-codex-")
"""Request headers that are stored: what the client is, and its session. None is a credential."""
_STORED_RESPONSE_HEADERS = frozenset({"content-type", "openai-model", "request-id", "retry-after", "x-request-id"})
_STORED_RESPONSE_PREFIXES = ("anthropic-ratelimit-", "x-ratelimit-")
"""Response headers that are stored."""
MAX_STORED_HEADER_CHARS = 500
"""Maximum characters of a stored header. The rest is cut off."""

_RESPONSE_HEADERS_DROPPED = frozenset(
    {
        "content-length", "content-encoding", "date", "server", "set-cookie", "alt-svc", "strict-transport-security",
    }
)  # fmt: skip
"""Response headers about the upstream's server, or about a body that Quire sends by itself."""
_RESPONSE_PREFIXES_DROPPED = ("x-quire-", "access-control-")

MAX_CONVERSATION_ID_CHARS = 200
"""Maximum characters of a conversation ID in a header, after decoding."""
MAX_CONVERSATION_HEADER_CHARS = 12 * MAX_CONVERSATION_ID_CHARS
"""Maximum characters of a header with a conversation ID: a character has up to four bytes, each written as `%XX`."""
_UNQUOTED_CHARS = "".join(char for char in map(chr, range(33, 127)) if char != "%")


def find_response_store(settings: Settings, caller: Caller) -> Upstream | None:
    """The upstream that stores responses in an account of the caller's own, if it is the only one."""
    is_local = caller.key_id is None
    upstreams = [each for each in settings.upstreams.values() if "responses" in each.speaks]
    own = [each for each in upstreams if is_local or each.credentials == "client"]
    return own[0] if own and len({each.base_url for each in own}) == 1 else None


@dataclass(frozen=True, slots=True)
class UpstreamCall:
    """URL and headers of a request to an upstream."""

    client: UpstreamClient
    url: str
    path: str
    headers: dict[str, str]

    def send(
        self, method: str, content: bytes, *, trace_headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        """Sends a body, and yields the response before its body is read. `trace_headers` carry the trace context."""
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
    for name, value in forwarded.items():
        if not value.isascii():
            # The server decoded the bytes as Latin-1, and the HTTP client encodes as UTF-8.
            with suppress(UnicodeError):
                forwarded[name] = value.encode("latin-1").decode()
    return UpstreamCall(server_state.http_client, url, path, forwarded)


def filter_request_headers(headers: Headers, upstream: Upstream, *, is_translated: bool = False) -> dict[str, str]:
    """Returns the client's headers that go upstream. None of them contains an API key of Quire.

    Credentials go only to an upstream with `credentials = "client"`: elsewhere the client must not choose the account
    that is charged. A header that is not listed stays here: it may be a credential or name a person.
    """
    named_by_connection = _parse_names(headers.getlist("connection"))
    passed = _NEUTRAL_HEADERS | (_CREDENTIALS if upstream.credentials == "client" else frozenset[str]())
    prefixes: tuple[str, ...] = ()
    if not is_translated:
        passed, prefixes = passed | _FORMAT_HEADERS, _FORMAT_PREFIXES
    return {
        name: value
        for name, value in headers.items()
        if (name in passed or name.startswith(prefixes)) and name not in named_by_connection and not contains_key(value)
    }


def select_stored_headers(headers: Headers) -> dict[str, str]:
    """Returns the client's headers that are stored with the request."""
    return {
        name: _cut(value)
        for name, value in headers.items()
        if (name in _STORED_HEADERS or name.startswith(_STORED_PREFIXES)) and not contains_key(value)
    }


def select_response_headers(raw_headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns the upstream's headers that are stored with its answer."""
    decoded = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw_headers)
    return {
        name: _cut(value)
        for name, value in decoded
        if name in _STORED_RESPONSE_HEADERS or name.startswith(_STORED_RESPONSE_PREFIXES)
    }


def _cut(value: str) -> str:
    return value.replace("\n", " ")[:MAX_STORED_HEADER_CHARS]


def filter_response_headers(raw_headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns the upstream's headers that are for the client, decoded so that Latin-1 gives the same bytes again."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in raw_headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    dropped = _HOP_BY_HOP | _RESPONSE_HEADERS_DROPPED
    if "connection" in headers:
        dropped |= _parse_names([headers["connection"]])
    return {
        name: value
        for name, value in headers.items()
        if name not in dropped and not name.startswith(_RESPONSE_PREFIXES_DROPPED)
    }


def _parse_names(connection_values: Iterable[str]) -> frozenset[str]:
    """Returns the header names in the values of `Connection`."""
    return frozenset(name.strip().lower() for value in connection_values for name in value.split(","))


def encode_conversation_header(conversation: str) -> str:
    """Percent-encodes an ID, which may contain any character, to visible ASCII."""
    return quote(conversation, safe=_UNQUOTED_CHARS, errors="replace")


def decode_conversation_header(value: str) -> str:
    """Returns the ID in a header, percent-encoded or as plain UTF-8. Raises `InvalidRequest` if it cannot be one."""
    try:
        conversation = unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeError:
        raise InvalidRequest("`X-Quire-Conversation` is not valid UTF-8; percent-encode the ID.") from None
    if not 0 < len(conversation) <= MAX_CONVERSATION_ID_CHARS or "\0" in conversation:
        raise InvalidRequest(
            f"The ID in `X-Quire-Conversation` must have 1 to {MAX_CONVERSATION_ID_CHARS} characters other than NUL."
        )
    return conversation
