"""Runs a short command in a process that the user's server forks from one that has imported everything already.

Most of the time of a short command goes into imports. The forked process has the standard streams, folder and
environment of this one, so the command does there what it would do here (`quire.cli.command_server`). Like
`quire.cli.service_client`, this module imports little even of the standard library.
"""

import _socket
import os
import sys

from quire import __version__
from quire.cli.service_client import ask_service, connect_to_user, get_socket_path

FORKED_COMMANDS = ("ask", "context", "conversation", "memory", "models", "search")
"""Commands that end by themselves and do not change the terminal."""
IS_SUPPORTED = sys.platform == "linux"
"""On macOS the system's libraries do not support a fork without a new program; Windows has none."""
EXIT_FAILED = 1
LENGTH_BYTES = 4
SEPARATOR = b"\0"
"""Between the fields of a request, none of which can contain it."""


def get_command_socket_path() -> str:
    return get_socket_path().removesuffix(".sock") + "-commands.sock"


def run_forked() -> int | None:
    """Runs the command of this process and returns its exit code; None if it has to run here.

    Without a process to fork from, the server starts one for the commands that follow.
    """
    connection = connect_to_user(get_command_socket_path())
    if connection is None:
        ask_service({"command": "prepare_commands"})
        return None
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    umask = os.umask(0o077)
    os.umask(umask)
    fields = [
        __version__, os.path.dirname(__file__), os.getcwd(), str(umask), sys.stdout.encoding, sys.stdout.errors or "",  # noqa: PTH109, PTH120
        str(len(sys.argv)), *sys.argv, *(f"{name}={value}" for name, value in os.environ.items()),
    ]  # fmt: skip
    request = SEPARATOR.join(os.fsencode(field) for field in fields)
    try:
        length = len(request).to_bytes(LENGTH_BYTES, sys.byteorder)
        connection.sendmsg([length], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
        connection.sendall(request)
        process_id = int(_read_line(connection) or 0)
    except OSError:
        process_id = 0
    if not process_id:
        return None
    import signal

    def pass_on(number: int, frame: object) -> None:
        try:  # noqa: SIM105 (`contextlib` takes long to import)
            os.kill(process_id, number)
        except ProcessLookupError:
            pass
        if number != signal.SIGINT:
            # The command ends by it, and so does this process.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    answer = _read_line(connection)
    if answer:
        return int(answer)
    sys.stderr.write("quire: The command ended unexpectedly.\n")
    return EXIT_FAILED


def _read_line(connection: "_socket.socket") -> bytes:
    """The next line without its end; empty if the other side is gone."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            piece = connection.recv(1)
        except OSError:
            return b""
        if not piece:
            return b""
        line += piece
    return line[:-1]
