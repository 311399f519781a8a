"""Maps transport errors of the HTTP client (DNS, connection, TLS, timeout, protocol, reset) to `ModelError` classes.

A message says what happened, to which host, and what to do next. It has no URL and no header, because both can contain
an API key. The HTTP client is imported only to map an error: this module works without an extra.
"""

import socket
import ssl
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from quire.errors import ModelError, ModelRequestRejected, ModelTimeout, ModelUnavailable, QuireError

_MAX_CAUSES = 20
"""Maximum length of a chain of causes that is followed."""
_MAX_REASON_CHARS = 300
"""Maximum characters of a reason, which may quote what the server sent."""


@contextmanager
def map_transport_errors(
    *, target: str = "the server", url_name: str = "`base_url`", timeout_name: str = "the timeout"
) -> Generator[None]:
    """Raises transport errors as `ModelError`; others pass unchanged. Parameters as in `map_transport_error`."""
    try:
        yield
    except Exception as exc:
        error = map_transport_error(exc, target=target, url_name=url_name, timeout_name=timeout_name)
        if error is None:
            raise
        raise error from exc


def map_transport_error(
    exc: BaseException,
    *,
    target: str = "the server",
    url_name: str = "`base_url`",
    timeout_name: str = "the timeout",
) -> ModelError | None:
    """Maps an exception that is a transport error or is caused by one; None for any other.

    `target` is what was called, for errors that name no host. `url_name` and `timeout_name` are what the user can
    change: the setting that holds the URL, and the one that allows more time.
    """
    import httpx2

    if isinstance(exc, QuireError):
        return None
    transport_classes = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError)
    found = next((each for each in _iter_causes(exc) if isinstance(each, transport_classes)), None)
    build = TransportErrorBuilder(_get_host(found) or target, url_name, timeout_name)
    match found:
        case None | httpx2.HTTPStatusError():
            return None
        case httpx2.InvalidURL() | httpx2.UnsupportedProtocol():
            return build.invalid_url(str(found))
        case httpx2.LocalProtocolError():
            return build.invalid_request()
        case httpx2.ConnectTimeout():
            return build.connect_timeout()
        case httpx2.TimeoutException() | TimeoutError():
            return build.timeout()
        case httpx2.ConnectError():
            return build.failed_connection(found)
        case httpx2.RemoteProtocolError():
            return build.invalid_response(found)
        case httpx2.NetworkError() | ConnectionError():
            return build.lost_connection(found)
        case _:
            return build.failed_call(found)


class TransportErrorBuilder(NamedTuple):
    """Builds the error of each kind of transport failure; the same one whichever HTTP client met it."""

    host: str
    url_name: str
    timeout_name: str

    def invalid_url(self, reason: str) -> ModelError:
        return ModelRequestRejected(f"Cannot call {self.host}: {reason.rstrip('.')}; check {self.url_name}.")

    def invalid_request(self) -> ModelError:
        # Without the reason, which quotes the invalid header.
        return ModelRequestRejected(
            f"Cannot call {self.host}: the request is not valid HTTP; check the API key and headers for line breaks."
        )

    def connect_timeout(self) -> ModelError:
        return ModelTimeout(f"Cannot connect to {self.host} in time: check {self.url_name} and the network.")

    def timeout(self) -> ModelError:
        return ModelTimeout(f"No answer from {self.host} in time: retry later, or raise {self.timeout_name}.")

    def failed_connection(self, exc: BaseException) -> ModelError:
        return ModelUnavailable(_describe_connect_error(exc, self.host, self.url_name))

    def invalid_response(self, exc: BaseException) -> ModelError:
        problem = f"The response of {self.host} is incomplete or not HTTP: {_get_reason(exc)}"
        return ModelUnavailable(f"{problem}; retry later, or check {self.url_name}.")

    def lost_connection(self, exc: BaseException) -> ModelError:
        return ModelUnavailable(f"The connection to {self.host} was lost: {_get_reason(exc)}; retry later.")

    def failed_call(self, exc: BaseException) -> ModelError:
        return ModelUnavailable(f"The call of {self.host} failed: {_get_reason(exc)}; retry later.")


def _describe_connect_error(exc: BaseException, host: str, url_name: str) -> str:
    for cause in _iter_causes(exc, follow_hidden=True):
        match cause:
            case socket.gaierror():
                return f"Cannot find {host}: check {url_name} and the network."
            case ssl.SSLCertVerificationError():
                return f"Cannot verify the TLS certificate of {host}: {cause.verify_message}; check {url_name}."
            case ssl.SSLError():
                reason = (cause.reason or "unknown reason").replace("_", " ").lower()
                return f"Cannot open a TLS connection to {host}: {reason}; check {url_name}: `http` or `https`?"
            case ConnectionRefusedError():
                return f"Cannot connect to {host}: connection refused; check {url_name} and that the server is running."
            case _:
                pass
    return f"Cannot connect to {host}: {_get_reason(exc)}; check {url_name} and the network."


def _iter_causes(exc: BaseException, *, follow_hidden: bool = False) -> Iterator[BaseException]:
    """Yields the exception and its causes; of an exception group, the first. With `follow_hidden` also those that the
    HTTP client hides by `raise … from None`: the error of the socket is among them."""
    current: BaseException | None = exc
    for _ in range(_MAX_CAUSES):
        if current is None:
            return
        if isinstance(current, BaseExceptionGroup):
            current = cast("tuple[BaseException, ...]", cast(Any, current).exceptions)[0]
        yield current
        hidden = current.__context__ if current.__suppress_context__ and follow_hidden else None
        current = current.__cause__ or hidden


def _get_host(exc: BaseException | None) -> str | None:
    """Returns the host of the request that failed, with its port, if the exception knows it."""
    try:
        return cast(Any, exc).request.url.netloc.decode() or None
    except (AttributeError, RuntimeError):
        return None


def _get_reason(exc: BaseException) -> str:
    """Returns the message of the root cause: outer exceptions often have none, or say only `connection error`."""
    *_, root = _iter_causes(exc, follow_hidden=True)
    return (getattr(root, "strerror", None) or str(root) or type(root).__name__)[:_MAX_REASON_CHARS].rstrip(".")
