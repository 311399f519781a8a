"""Rules by name for headers: which ones go to an upstream, which come back, and how conversation IDs are written."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote_to_bytes

from starlette.datastructures import Headers

from quire.access.keys import contains_key
from quire.errors import InvalidRequest
from quire.server.auth import KEY_HEADERS
from quire.settings.schema import Upstream

_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Headers of one connection (RFC 9110, section 7.6.1). `Connection` names further ones."""
_ADDRESSED_TO_QUIRE = frozenset(
    {
        "host", "cookie", "content-length", "content-type", "content-encoding", "accept-encoding", "expect", "origin",
        "referer",
    }
)  # fmt: skip
"""Request headers for Quire alone, and those about a body that Quire reads and sends by itself."""
_CLIENT_ADDRESSES = frozenset(
    {
        "forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip",
        "fastly-client-ip",
    }
)  # fmt: skip
"""Request headers in which proxies name the client's address."""
_CREDENTIALS = frozenset(
    {*KEY_HEADERS, "x-goog-api-key", "openai-organization", "openai-project", "chatgpt-account-id"}
)
"""Request headers with credentials, or with the account at the upstream that is charged."""
_REQUEST_PREFIXES_DROPPED = ("x-quire-", "x-forwarded-", "sec-")
_FORMAT_HEADERS = frozenset({"openai-beta", "originator", "session-id", "thread-id", "x-app"})
_FORMAT_PREFIXES = ("anthropic-", "x-claude-code-", "x-codex-", "x-openai-", "x-stainless-")
"""Request headers that belong to the client's wire format or program; a translated request has another format."""

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


def filter_request_headers(headers: Headers, upstream: Upstream, *, is_translated: bool = False) -> dict[str, str]:
    """Returns the client's headers that go upstream. None of them contains an API key of Quire.

    Credentials go only to an upstream with `credentials = "client"`: elsewhere the client must not choose the account
    that is charged.
    """
    dropped = _HOP_BY_HOP | _ADDRESSED_TO_QUIRE | _CLIENT_ADDRESSES | _parse_names(headers.getlist("connection"))
    prefixes = _REQUEST_PREFIXES_DROPPED
    if upstream.credentials == "operator":
        dropped |= _CREDENTIALS
    if is_translated:
        dropped |= _FORMAT_HEADERS
        prefixes += _FORMAT_PREFIXES
    return {
        name: value
        for name, value in headers.items()
        if name not in dropped and not name.startswith(prefixes) and not contains_key(value)
    }


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


_UNQUOTED_CHARS = "".join(char for char in map(chr, range(33, 127)) if char != "%")


def decode_conversation_header(value: str) -> str:
    """Returns the ID in a header, percent-encoded or as plain UTF-8; raises `InvalidRequest` if it cannot be one."""
    try:
        conversation = unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeError:
        raise InvalidRequest("`X-Quire-Conversation` is not valid UTF-8; percent-encode the ID.") from None
    if not 0 < len(conversation) <= MAX_CONVERSATION_ID_CHARS or "\0" in conversation:
        raise InvalidRequest(
            f"The ID in `X-Quire-Conversation` must have 1 to {MAX_CONVERSATION_ID_CHARS} characters other than NUL."
        )
    return conversation
