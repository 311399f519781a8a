"""No test reaches beyond this machine: connections and look-ups of anything but loopback and Unix sockets fail.

It holds in the process of the tests; what a test starts in another process guards itself.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class NetworkBlocked(BaseException):
    """A test tried to leave this machine. No `Exception`, so that no SDK takes it for a broken network."""


@contextmanager
def loopback_only() -> Iterator[None]:
    real_lookup = socket.getaddrinfo

    def lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name is not None and not _stays_here((name,)):
            raise NetworkBlocked(f"A test tried to look up {name}.")
        return real_lookup(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _guarded(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", _guarded(socket.socket.connect_ex))
        patch.setattr(socket, "getaddrinfo", lookup)
        yield


def _guarded(connect: Any) -> Any:
    def guarded(self: socket.socket, address: Any) -> Any:
        if not _stays_here(address):
            raise NetworkBlocked(f"A test tried to connect to {address}.")
        return connect(self, address)

    return guarded


def _stays_here(address: object) -> bool:
    """Unix sockets have a path in place of a host and a port."""
    if not isinstance(address, tuple):
        return True
    host = str(address[0])
    return host in ("", "localhost", "::1") or host.startswith("127.")
