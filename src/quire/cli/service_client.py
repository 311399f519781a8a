"""Connects commands of the local user to that user's server, over a socket that no other user can open.

Agents and shells wait for these commands, so this module imports only the standard library, and little of that. A
message is one JSON object on one line. Where there are no Unix sockets, as in Python on Windows, the socket is one on
loopback, and both sides prove that they can read the user's file with its token.
"""

import _socket
import os
import sys

TYPE_CHECKING = False
"""True for type checkers; `typing` and `json` take as long to import as the rest."""

if TYPE_CHECKING:
    import socket
    from typing import IO, Any

CONNECT_SECONDS = 5.0
"""Time to connect to a server. A busy one accepts late; a socket that nothing listens on refuses at once."""
MAX_MESSAGE_BYTES = 8_000_000
"""Maximum size of a message; the largest has the environment variables of a run."""
MAX_SOCKET_PATH_BYTES = 100
"""Operating systems allow about 104 bytes."""
HAS_UNIX_SOCKETS = hasattr(_socket, "AF_UNIX")
"""Unix sockets are opened by the module below `socket`, which takes 13 ms of CPU time to import."""


class Connection:
    """A connection to a server, over a socket or over the pipes of a process."""

    def __init__(self, reader: "IO[bytes]", writer: "IO[bytes]") -> None:
        self._reader, self._writer = reader, writer

    def ask(self, message: "dict[str, Any]") -> "dict[str, Any] | None":
        """Sends a message and waits for the answer; None if the server is gone."""
        self.send(message)
        return self.receive()

    def send(self, message: "dict[str, Any]") -> None:
        """Sends a message. That the server is gone is seen when its answer is read."""
        import json

        self._send_line(json.dumps(message).encode())

    def receive(self) -> "dict[str, Any] | None":
        """Waits for the next message; None if the server is gone."""
        import json

        line = self._receive_line()
        return json.loads(line) if line else None

    def exchange(self, line: bytes) -> bytes:
        """Sends a line and waits for the answer's; empty if the server is gone."""
        self._send_line(line)
        return self._receive_line()

    def _send_line(self, line: bytes) -> None:
        try:
            self._writer.write(line + b"\n")
            self._writer.flush()
        except OSError:
            pass

    def _receive_line(self) -> bytes:
        try:
            line = self._reader.readline(MAX_MESSAGE_BYTES)
        except (OSError, ValueError):  # `close` was called meanwhile
            return b""
        return line.rstrip(b"\n") if line.endswith(b"\n") else b""

    def end(self) -> None:
        """Says that nothing follows. Another thread may still read."""
        try:  # noqa: SIM105 (`contextlib` takes long to import)
            self._writer.close()
        except OSError:
            pass

    def close(self) -> None:
        self.end()
        self._reader.close()


def get_socket_path() -> str:
    """Path of the socket in the user's data folder, or under a short name in /tmp if that path is too long.

    Where there are no Unix sockets, it is the path of the file with the port and the token. The folder is the one of
    `quire.cli.paths.get_servers_folder`, which finds it with a library.
    """
    home = os.path.expanduser("~")  # noqa: PTH111 (pathlib takes longer to import than the rest)
    places = {"darwin": f"{home}/Library/Application Support", "win32": os.environ.get("LOCALAPPDATA")}
    data = os.environ.get("XDG_DATA_HOME") or places.get(sys.platform) or f"{home}/.local/share"
    path = os.path.join(data, "quire", "servers", "service.sock")  # noqa: PTH118
    if not HAS_UNIX_SOCKETS or len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    from zlib import crc32

    return f"/tmp/quire-{os.getuid()}/service-{crc32(os.fsencode(path)):08x}.sock"  # noqa: S108 (checked below)


def connect_service(path: str | None = None) -> Connection | None:
    """Connects to the running server of this user, if there is one."""
    path = path or get_socket_path()
    if not HAS_UNIX_SOCKETS:
        return _connect_loopback(path)
    connection = connect_to_user(path)
    if connection is None:
        return None
    descriptor = connection.detach()
    return Connection(os.fdopen(descriptor, "rb"), os.fdopen(os.dup(descriptor), "wb"))


def connect_to_user(path: str) -> "_socket.socket | None":
    """Connects to a Unix socket of this user; None if no server listens there, or if it may be another user's."""
    connection = _socket.socket(_socket.AF_UNIX)
    connection.settimeout(CONNECT_SECONDS)
    try:
        # In a folder that others can write to, another user could listen.
        status = os.stat(os.path.dirname(path))  # noqa: PTH116, PTH120
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise OSError
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    connection.settimeout(None)
    return connection


class UserSocket:
    """The socket at which commands find a server, while the context is open; the file goes with it.

    It is bound before the server can answer, so that a command waits for a server that starts. `listener` is None if
    another server of the user has it, or if the data folder cannot be written: then this one runs without. A server
    that was started for a run gives it to one that stays (`takes_over`).
    """

    listener: "socket.socket | None" = None
    _inode = 0
    token = ""
    """What both sides must know where there are no Unix sockets."""

    def __init__(self, *, takes_over: bool = False) -> None:
        self.takes_over = takes_over

    def __enter__(self) -> "UserSocket":
        import json
        import socket

        self._path = get_socket_path()
        running = connect_service(self._path)
        if running is not None:
            answer = running.ask({"command": "release"}) if self.takes_over else None
            running.close()
            if answer is None or not answer.get("is_released"):
                return self
        umask = os.umask(0o077)
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
            if os.path.exists(self._path):  # noqa: PTH110
                os.unlink(self._path)  # noqa: PTH108
            if HAS_UNIX_SOCKETS:
                self.listener = socket.socket(socket.AF_UNIX)
                self.listener.bind(self._path)
            else:
                from quire.server.addresses import generate_token

                self.token = generate_token()
                self.listener = socket.create_server(("127.0.0.1", 0))
                service = {"port": self.listener.getsockname()[1], "token": self.token}
                with open(self._path, "w", encoding="utf-8") as file:  # noqa: PTH123
                    json.dump(service, file)
            self._inode = os.stat(self._path).st_ino  # noqa: PTH116
            self.listener.listen()
        except OSError:
            self.__exit__()
        finally:
            os.umask(umask)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets another server have it."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None
            try:
                # Two servers that start at the same time may both have bound it: the file is the later one's.
                if os.stat(self._path).st_ino == self._inode:  # noqa: PTH116
                    os.unlink(self._path)  # noqa: PTH108
            except OSError:
                pass


def ask_service(message: "dict[str, Any]") -> "dict[str, Any] | None":
    """Asks the running server of this user one thing; None if there is none, or if it does not answer."""
    connection = connect_service()
    if connection is None:
        return None
    try:
        return connection.ask(message)
    finally:
        connection.close()


def _connect_loopback(path: str) -> Connection | None:
    """Connects by port; only a server that knows the token of the user's file gets the token itself."""
    import json
    import socket
    from hmac import compare_digest

    from quire.server.addresses import generate_token, sign_challenge

    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            service: dict[str, Any] = json.load(file)
        with socket.create_connection(("127.0.0.1", service["port"]), timeout=CONNECT_SECONDS) as opened:
            # The files keep the connection open.
            connection = Connection(opened.makefile("rb"), opened.makefile("wb"))
    except (OSError, ValueError, LookupError):
        return None
    challenge = generate_token()
    answer = connection.ask({"challenge": challenge})
    if answer is not None and compare_digest(str(answer.get("proof")), sign_challenge(service["token"], challenge)):
        answer = connection.ask({"token": service["token"]})
        if answer is not None and answer.get("is_accepted"):
            return connection
    connection.close()
    return None
