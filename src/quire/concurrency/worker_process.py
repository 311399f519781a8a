"""A worker process for long computation on texts, whose arguments and result are small against the work.

Python runs one thread of a process at a time. However few threads work on large texts, the event loop has half of the
CPU while one of them does, and waits for it at every step. Another process takes nothing from the event loop but the
time to pickle the arguments: 10 ms for 15 MB of text, where indexing them takes 3 s.
"""

import pickle
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from quire.concurrency.processes import exit_with_parent, get_spawn_context
from quire.errors import WorkTimeout

IDLE_SECONDS = 30.0
"""Seconds without work after which the process ends, and its memory is the system's again."""


class Outcome(NamedTuple):
    """Result or error of a call, and the CPU seconds that it took."""

    seconds: float
    value: Any
    error: tuple[type[Exception], tuple[Any, ...], dict[str, Any]] | None = None
    """Class, arguments and attributes. Pickled as it is, an error would be made from its message alone."""

    def get(self) -> Any:
        if self.error is None:
            return self.value
        kind, arguments, attributes = self.error
        error = kind.__new__(kind, *arguments)
        error.__dict__.update(attributes)
        raise error


class WorkerProcess:
    """Calls functions in another process, one at a time. The process starts with the first call."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def call(self, function: Callable[[], Any], *, timeout_seconds: float) -> Outcome:
        """Calls a function that can be pickled. Raises `WorkTimeout` if it takes longer, or if its process dies."""
        job = pickle.dumps(function, pickle.HIGHEST_PROTOCOL)
        connection = self._connection or self._start()
        try:
            connection.send_bytes(job)
            del job
            if connection.poll(timeout_seconds):
                return connection.recv()
        except (EOFError, OSError) as error:
            # Out of memory, for example.
            self.kill()
            raise WorkTimeout("The process that computed the result died.") from error
        self.kill()
        raise WorkTimeout

    def stop(self) -> None:
        """Lets the process end. The next call starts another."""
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self.stop()

    def _start(self) -> Connection:
        context = get_spawn_context()
        self._connection, remote = context.Pipe()
        self._process = context.Process(target=_serve, args=(remote,), name="quire-worker", daemon=True)
        self._process.start()
        remote.close()
        return self._connection


def _serve(connection: Connection) -> None:
    """Runs in the worker process: calls what arrives, until the connection is closed."""
    # Ctrl-C reaches every process of a terminal; this one ends with its server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
    with suppress(EOFError, OSError):
        while True:
            outcome = _call(connection.recv_bytes())
            connection.send(outcome)
            del outcome


def _call(job: bytes) -> Outcome:
    started = time.process_time()
    try:
        value = pickle.loads(job)()  # noqa: S301 (from the parent process)
    except Exception as error:  # noqa: BLE001 (raised again in the parent process)
        return Outcome(time.process_time() - started, None, (type(error), error.args, error.__dict__))
    return Outcome(time.process_time() - started, value)
