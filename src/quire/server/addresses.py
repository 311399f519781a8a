"""Address of a server: its listening socket, its URL, and the token of the local user.

Imports no web framework, because commands that only connect to a server import it too.
"""

import hmac
import secrets
import socket
import sys
from hashlib import sha256
from ipaddress import ip_address
from urllib.parse import urlencode

from quire.errors import InvalidConfiguration


def generate_token() -> str:
    return secrets.token_urlsafe(32)


def sign_challenge(token: str, challenge: str) -> str:
    """Proves that a server knows its token, without telling it to a program that only listens on its port."""
    return hmac.new(token.encode(), challenge.encode(), sha256).hexdigest()


def check_loopback(host: str) -> str:
    """Returns the host if it is a loopback address, which only this machine can reach."""
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise InvalidConfiguration(
            f"Without API keys Quire listens only on 127.0.0.1, ::1 or localhost, not on {host!r}; "
            "create keys with `quire key create`, and serve with them."
        )
    return host


def server_url(host: str, port: int, token: str | None = None) -> str:
    """Returns the URL to open in a browser."""
    netloc = f"[{host}]" if ":" in host else host
    return f"http://{netloc}:{port}/" + (f"?{urlencode({'token': token})}" if token is not None else "")


def socket_url(sock: socket.socket) -> str:
    """Returns the base URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return server_url(host, port).rstrip("/")


def bind_socket(host: str, port: int) -> socket.socket:
    """Opens the listening socket; port 0 lets the system choose a port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    try:
        # On Windows it would let a second program listen on a port in use.
        if sys.platform != "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Asyncio sets this on its own sockets; without it, a response in two writes waits 40 ms for the second.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((host, port))
        sock.listen(2048)
        sock.set_inheritable(True)
    except OSError as error:
        sock.close()
        raise InvalidConfiguration(
            f"Quire cannot listen on {host} port {port}: {error.strerror or error}. Choose another port with --port."
        ) from error
    return sock
