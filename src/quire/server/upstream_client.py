"""HTTP client for upstreams: a pool of connections, and responses that are read in chunks.

Responses, errors included, are returned as they are, but for redirects: followed with credentials they would give
these to another address, and passed on they would lead the client there. Cookies are not stored. Redirects and failures
without a response (timeout, reset, no connection) are raised as Quire's errors, which name the host.
"""

import io
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import NamedTuple, Self
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
from yarl import URL

from quire.errors import QuireError
from quire.llm.error_mapping import TransportErrorBuilder

UNKNOWN_HOST = "the upstream"
CONNECT_TIMEOUT_SECONDS = 10.0
IDLE_CONNECTION_SECONDS = 5.0
"""Seconds for which an unused connection stays open; servers close theirs later, so that few requests meet a closed
one."""
MAX_RESPONSE_HEADER_BYTES = 64 * 1024
"""Maximum size of one header of a response."""
MAX_UNCHUNKED_BODY_BYTES = 1024 * 1024
"""Request bodies up to this size are written at once, larger ones in pieces, so that the event loop is not blocked."""
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
"""Maximum size of a document that `get` fetches. A larger one is cut off."""
_AUTOMATIC_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")
"""Headers that aiohttp must not add by itself: the caller decides on the headers of a request."""


class UpstreamResponse:
    """A response whose body is read while it arrives."""

    def __init__(self, response: aiohttp.ClientResponse, *, host: str) -> None:
        self._response, self._host = response, host

    @property
    def status_code(self) -> int:
        return self._response.status

    @property
    def is_error(self) -> bool:
        return self.status_code >= 400

    @property
    def content_type(self) -> str:
        return self._response.headers.get("content-type", "")

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        return self._response.raw_headers

    async def iter_chunks(self) -> AsyncGenerator[bytes]:
        """Yields the body as it arrives, decompressed. Raises `ModelError`."""
        with _map_client_errors(self._host):
            async for chunk in self._response.content.iter_any():
                yield chunk

    async def read(self, *, max_bytes: int) -> bytes:
        """Reads the body, and stops after the first bytes above the limit. Raises `ModelError`."""
        content, pieces, size = self._response.content, list[bytes](), 0
        with _map_client_errors(self._host):
            while size <= max_bytes and (piece := await content.readany()):
                pieces.append(piece)
                size += len(piece)
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]


class UpstreamClient:
    """Pool of connections to all upstreams.

    The pool is not limited: each request holds at most one connection, so the server's connections are the limit, and
    one slow upstream does not make the requests to another wait.
    """

    def __init__(
        self,
        *,
        timeout_seconds: float = 60.0,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """`timeout_seconds` is the time without a byte after which an upstream has timed out."""
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=connect_timeout_seconds, sock_read=timeout_seconds, ceil_threshold=5
        )
        self._ssl_context = ssl_context
        self._proxies = getproxies()
        """From the environment: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY. NO_PROXY names the exceptions."""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], content: bytes = b""
    ) -> AsyncGenerator[UpstreamResponse]:
        """Sends a request, and yields the response before its body is read. Raises `ModelError`.

        A body that is not read to its end closes the connection.
        """
        try:
            target = _parse_target(url)
        except ValueError as exc:
            raise _build_errors(UNKNOWN_HOST).invalid_url(str(exc)) from exc
        proxy, proxied_host = None, target.url.host
        if self._proxies and proxied_host is not None and not proxy_bypass(proxied_host):
            proxy = self._proxies.get(target.url.scheme) or self._proxies.get("all")
        with _map_client_errors(target.host):
            response = await self._get_session().request(
                method,
                target.url,
                headers={**headers, **target.credentials},
                data=content if len(content) <= MAX_UNCHUNKED_BODY_BYTES else io.BytesIO(content),
                proxy=proxy,
                allow_redirects=False,
            )
        try:
            if 300 <= response.status < 400:
                raise _build_errors(target.host).redirected()
            yield UpstreamResponse(response, host=target.host)
        finally:
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def get(self, url: str, *, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Fetches a short document. Returns its status and body. Raises `ModelError`."""
        async with self.send("GET", url, headers=headers) as response:
            return response.status_code, await response.read(max_bytes=MAX_DOCUMENT_BYTES)

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=IDLE_CONNECTION_SECONDS,
                # The certificates that all other HTTP clients of Quire accept.
                ssl=self._ssl_context or httpx2.create_ssl_context(),
                resolver=aiohttp.ThreadedResolver(),
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_AUTOMATIC_HEADERS,
                max_line_size=MAX_RESPONSE_HEADER_BYTES,
                max_field_size=MAX_RESPONSE_HEADER_BYTES,
            )
        return self._session


def get_host(url: str) -> str:
    """The host of a URL, with its port, for error messages."""
    try:
        return _parse_target(url).host
    except ValueError:
        return UNKNOWN_HOST


class _Target(NamedTuple):
    url: URL
    """Without a user and password."""
    host: str
    """Host and port, for error messages."""
    credentials: Mapping[str, str]


@lru_cache(maxsize=1_000)
def _parse_target(url: str) -> _Target:
    address, _, query = url.partition("?")
    parsed = URL(address)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("its URL needs `http://` or `https://` and a host")
    user, password = parsed.user, parsed.password
    credentials: dict[str, str] = {}
    if user or password:
        encoded = b64encode(f"{user or ''}:{password or ''}".encode()).decode()
        credentials = {"authorization": f"Basic {encoded}"}
    parsed = parsed.with_user(None) if credentials else parsed
    # The query goes upstream as the client wrote it.
    parsed = URL(f"{parsed}?{query}", encoded=True) if query else parsed
    return _Target(parsed, parsed.host_port_subcomponent or UNKNOWN_HOST, credentials)


@contextmanager
def _map_client_errors(host: str) -> Generator[None]:
    """Raises errors of the HTTP client as `ModelError`; others pass unchanged."""
    try:
        yield
    except QuireError:
        raise
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
        build = _build_errors(host)
        match exc:
            case aiohttp.ConnectionTimeoutError():
                error = build.connect_timeout()
            case TimeoutError():
                error = build.timeout()
            case aiohttp.ClientConnectorError():
                error = build.failed_connection(exc.__cause__ or exc)
            case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
                error = build.invalid_response(exc)
            case aiohttp.ClientResponseError():
                # Only its message: its text has the URL.
                error = build.invalid_response(ValueError(exc.message))
            case aiohttp.ClientOSError() | ConnectionError():
                error = build.lost_connection(exc)
            case OSError() | aiohttp.ClientError():
                error = build.failed_call(exc)
            case _:
                error = build.invalid_request()
        raise error from exc


def _build_errors(host: str) -> TransportErrorBuilder:
    return TransportErrorBuilder(host, url_name="`base_url`", timeout_name="`model_timeout`")
