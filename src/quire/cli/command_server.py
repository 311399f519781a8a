"""The process from which the user's server forks short commands, so that they need not import anything.

It runs no command itself: it imports, and forks. What a command had to import it reports, and the next ones find it
imported. The process has one thread, so that a fork is safe. It ends with its server, when nothing was run for a
while, and when the installed code has changed.
"""

import gc
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from quire import __version__
from quire.cli import run_app
from quire.cli.command_client import EXIT_FAILED, LENGTH_BYTES, SEPARATOR, get_command_socket_path

IDLE_SECONDS = 1_800.0
REQUEST_SECONDS = 5.0
"""Time in which a client must have sent its request."""
MAX_REQUEST_BYTES = 8_000_000
MAX_REPORT_BYTES = 100_000


class ForkRequest(NamedTuple):
    """A command, and the process that it would have run in."""

    folder: str
    umask: int
    encoding: str
    errors: str
    argv: list[str]
    environ: dict[str, str]
    streams: list[int]


def start_command_server() -> "subprocess.Popen[bytes]":
    """Starts the process. It ends when its standard input is closed, also if this process is killed."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", "from quire.cli.command_server import serve_commands; serve_commands()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        # Vectors of one query need no threads, and threads do not survive a fork.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )


def serve_commands() -> None:
    """Forks commands until there is a reason to end. In a forked process it does not return."""
    import_module("quire.cli.app")
    started_at = time.time()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended, waker = socket.socketpair()
    ended.setblocking(False)
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    # A handler, so that the signal wakes the loop.
    signal.signal(signal.SIGCHLD, _ignore_signal)
    path = Path(get_command_socket_path())
    reports, reporter = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    reports.setblocking(False)
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        umask = os.umask(0o077)
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        os.umask(umask)
        listener.listen()
        inode = path.stat().st_ino
        for source in (listener, reports, ended, sys.stdin):
            selector.register(source, selectors.EVENT_READ)
        try:
            gc.freeze()
            while ready := {key.fileobj for key, _ in selector.select(IDLE_SECONDS)}:
                if sys.stdin in ready or _is_code_changed(started_at):
                    return
                if ended in ready:
                    _reap(ended)
                if reports in ready:
                    _import_reported(reports)
                if listener in ready:
                    connection, _ = listener.accept()
                    with connection:
                        _fork_command(connection, reporter)
        finally:
            with suppress(OSError):
                if path.stat().st_ino == inode:
                    path.unlink()


def _is_code_changed(started_at: float) -> bool:
    files = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "quire"]
    try:
        return any(os.stat(file).st_mtime > started_at for file in files if file)  # noqa: PTH116 (hundreds of them)
    except OSError:
        return True


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    pass


def _reap(ended: socket.socket) -> None:
    with suppress(BlockingIOError):
        ended.recv(4_096)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _import_reported(reports: socket.socket) -> None:
    with suppress(BlockingIOError):
        while names := reports.recv(MAX_REPORT_BYTES).decode().split():
            for name in names:
                with suppress(Exception):
                    import_module(name)
    # The collector would write to what forked processes share.
    gc.freeze()


def _fork_command(connection: socket.socket, reporter: socket.socket) -> None:
    connection.settimeout(REQUEST_SECONDS)
    request = None
    with suppress(OSError, ValueError, IndexError):
        request = _read_request(connection)
    if request is None:
        with suppress(OSError):
            connection.sendall(b"0\n")
        return
    if os.fork() == 0:
        exit_code = EXIT_FAILED
        try:
            exit_code = _run(request, connection, reporter)
        finally:
            with suppress(OSError):
                connection.sendall(b"%d\n" % exit_code)
            os._exit(exit_code)
    for stream in request.streams:
        os.close(stream)


def _read_request(connection: socket.socket) -> ForkRequest | None:
    """Reads a request; None if it comes from another installation."""
    length, streams, *_ = socket.recv_fds(connection, LENGTH_BYTES, 3)
    size, body = int.from_bytes(length, sys.byteorder), bytearray()
    while len(body) < min(size, MAX_REQUEST_BYTES) and (piece := connection.recv(65_536)):
        body += piece
    version, package, folder, umask, encoding, errors, count, *rest = map(os.fsdecode, bytes(body).split(SEPARATOR))
    is_same = (version, package) == (__version__, str(Path(__file__).parent))
    if len(body) != size or len(streams) != 3 or not is_same:
        for stream in streams:
            os.close(stream)
        return None
    argv, variables = rest[: int(count)], rest[int(count) :]
    environ = dict(variable.split("=", 1) for variable in variables)
    return ForkRequest(folder, int(umask), encoding, errors, argv, environ, streams)


def _run(request: ForkRequest, connection: socket.socket, reporter: socket.socket) -> int:
    """Runs the command in this forked process, as if it had been started by the client's shell."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    connection.settimeout(None)
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request.folder)
    os.umask(request.umask)
    os.environ.clear()
    os.environ.update(request.environ)
    time.tzset()
    sys.argv = request.argv
    sys.stdin, sys.stdout, sys.stderr = (
        TextIOWrapper(
            os.fdopen(number, mode, closefd=False),
            encoding=request.encoding,
            errors="backslashreplace" if number == 2 else request.errors or None,
            line_buffering=number == 2 or os.isatty(number),
        )
        for number, mode in ((0, "rb"), (1, "wb"), (2, "wb"))
    )
    imported = set(sys.modules)
    # Only from here on, so that a signal finds the command running.
    connection.sendall(b"%d\n" % os.getpid())
    try:
        run_app()
        exit_code = 0
    except SystemExit as exit_:
        exit_code = exit_.code if isinstance(exit_.code, int) else EXIT_FAILED if exit_.code else 0
        if isinstance(exit_.code, str):
            sys.stderr.write(f"{exit_.code}\n")
    except (Exception, KeyboardInterrupt):  # noqa: BLE001 (as at the end of any program)
        traceback.print_exc()
        exit_code = EXIT_FAILED
    with suppress(OSError):
        sys.stdout.flush()
    if added := [name for name in sys.modules if name not in imported]:
        with suppress(OSError):
            reporter.send(" ".join(added).encode()[:MAX_REPORT_BYTES])
    return exit_code
