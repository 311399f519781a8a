"""Network guard: in tests, connections and DNS lookups other than loopback and Unix sockets fail.

It guards only the test process, not the subprocesses that a test starts.
"""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class NetworkBlocked(BaseException):
    """A test tried to connect to another machine. A `BaseException`, so that no SDK handles it as a network error."""


@contextmanager
def block_external_network() -> Iterator[None]:
    real_lookup = socket.getaddrinfo

    def lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name is not None and not _is_local((name,)):
            raise NetworkBlocked(f"A test tried to look up {name}.")
        return real_lookup(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _guard_connect(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", _guard_connect(socket.socket.connect_ex))
        patch.setattr(socket, "getaddrinfo", lookup)
        # Every HTTP client reads the certificates of authorities, which takes 50 ms; no server here has one of theirs.
        patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
        yield


def _guard_connect(connect: Any) -> Any:
    def guarded(self: socket.socket, address: Any) -> Any:
        if not _is_local(address):
            raise NetworkBlocked(f"A test tried to connect to {address}.")
        return connect(self, address)

    return guarded


def _is_local(address: object) -> bool:
    """Whether the address is loopback or a Unix socket, whose address is a path and no tuple."""
    if not isinstance(address, tuple):
        return True
    host = str(address[0])
    return host in ("", "localhost", "::1") or host.startswith("127.")
