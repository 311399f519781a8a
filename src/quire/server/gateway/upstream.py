"""Forward: a body to the server that answers for its model, and the answer as it comes.

The upstream's answers pass through as they are. What it never says (it hangs, resets, cannot be reached) is told apart
here: before the first byte as an error of the gateway's own.
"""

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache

import httpx

from quire.errors import ModelSilent, ModelUnavailable
from quire.server.identity import Caller
from quire.server.serving import Serving
from quire.settings.table import Upstream

_OURS = frozenset(
    {
        "host", "content-length", "content-type", "accept-encoding", "authorization", "api-key", "cookie", "connection",
        "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "expect", "forwarded", "origin", "referer",
    }
)  # fmt: skip
"""Headers that belong to one connection, or to Quire alone."""
_ANSWERED = frozenset({*_OURS, "content-encoding", "date", "server", "set-cookie"}) - {"content-type"}
_PREFIXES = ("x-quire-", "x-forwarded-", "sec-")


@dataclass(frozen=True, slots=True)
class Call:
    """Where a request goes, and under whose name."""

    client: httpx.AsyncClient
    url: str
    headers: dict[str, str]

    @asynccontextmanager
    async def post(self, content: bytes, *, trace: Mapping[str, str]) -> AsyncGenerator[httpx.Response]:
        """The answer's head; its body is read from it as it comes. `trace` tells the upstream whose work it is."""
        with told_apart():
            # Put together by hand: there are no cookies, parameters or other forms of content to look for.
            request = httpx.Request(
                "POST",
                _parsed(self.url),
                headers={**self.headers, **trace},
                content=content,
                extensions={"timeout": self.client.timeout.as_dict()},
            )
            response = await self.client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


@lru_cache(maxsize=1_000)
def _parsed(url: str) -> httpx.URL:
    return httpx.URL(url)


@contextmanager
def told_apart() -> Generator[None]:
    """The HTTP client's errors as the gateway's own."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise ModelSilent from error
    except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as error:
        why = str(error) or type(error).__name__
        raise ModelUnavailable(f"The upstream cannot be reached, or broke off: {why}.") from error


def call_to(upstream: Upstream, path: str, *, serving: Serving, caller: Caller, headers: Mapping[str, str]) -> Call:
    """A call to this upstream on behalf of a client with these headers."""
    sent = {name: value for name, value in headers.items() if _passes(name)}
    # Answers are read on their way, so they come without compression.
    sent |= {"content-type": "application/json", "accept-encoding": "identity"}
    key = _key(upstream, serving, caller, headers)
    if key is not None:
        sent["authorization"] = key
    return Call(serving.client, f"{upstream.base_url.rstrip('/')}/{path}", sent)


def _passes(name: str) -> bool:
    return name not in _OURS and not name.startswith(_PREFIXES)


def _key(upstream: Upstream, serving: Serving, caller: Caller, headers: Mapping[str, str]) -> str | None:
    """The upstream's own key; else the client's, but never one that let it in here.

    On a laptop that is the browser's cookie, or the token itself.
    """
    if upstream.key_from is not None:
        key = serving.environ.get(upstream.key_from)
        return f"Bearer {key}" if key else None
    return headers.get("authorization") if caller.key is None and "cookie" in headers else None


def passed_headers(response: httpx.Response) -> dict[str, str]:
    """The answer's headers as far as they are meant for the client."""
    return {name: value for name, value in response.headers.items() if name not in _ANSWERED}
