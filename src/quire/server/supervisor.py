"""Supervisor of several worker processes that serve one port.

The supervisor itself serves no requests: it replaces workers that die, and stops all of them on SIGTERM or SIGINT.

Why not `uvicorn.supervisors.Multiprocess` (0.54): it waits for stopping workers without a deadline, and meanwhile
handles no second signal; swallows other signals, such as SIGQUIT; and kills a worker whose imports outlast its health
check. It has no hook for the creation or the death of a process, so a subclass would replace all but its loop.
"""

import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from quire.server.lifecycle import FORCED_SHUTDOWN_SECONDS, SHUTDOWN_SIGNALS
from quire.server.telemetry.logs import log_server_event
from quire.server.telemetry.metrics import MULTIPROCESS_DIR_VARIABLE

MIN_UPTIME_SECONDS = 2.0
"""A worker that exits sooner than this failed to start, and is not replaced: another would fail too."""
_SHUTDOWN_MARGIN_SECONDS = 5.0

WorkerTarget = Callable[[Any, socket.socket], None]


class Supervisor:
    """Runs `target(config, sock)` in `workers` spawned processes; target and config must therefore be picklable."""

    def __init__(
        self, target: WorkerTarget, config: Any, sock: socket.socket, *, workers: int, grace_seconds: float
    ) -> None:
        self._target, self._config, self._sock = target, config, sock
        self._workers, self._grace_seconds = workers, grace_seconds
        self._started_at: dict[BaseProcess, float] = {}
        self._signal_count = 0
        self._failed = False

    def run(self) -> bool:
        """Runs until a signal; returns False if a worker could not start."""
        with tempfile.TemporaryDirectory(prefix="quire-metrics-") as metrics_dir:
            os.environ[MULTIPROCESS_DIR_VARIABLE] = metrics_dir
            previous_handlers = {each: signal.signal(each, self._handle_signal) for each in SHUTDOWN_SIGNALS}
            try:
                for _ in range(self._workers):
                    self._start_worker()
                self._monitor_workers()
                self._stop_workers()
            finally:
                del os.environ[MULTIPROCESS_DIR_VARIABLE]
                for each, handler in previous_handlers.items():
                    signal.signal(each, handler)
        return not self._failed

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal_count += 1
        if self._signal_count > 1:
            for process in self._started_at:
                process.kill()
            os._exit(128 + number)

    def _start_worker(self) -> None:
        process = get_context("spawn").Process(target=self._target, args=(self._config, self._sock))
        process.start()
        self._started_at[process] = time.monotonic()

    def _monitor_workers(self) -> None:
        while not self._signal_count and not self._failed:
            wait([process.sentinel for process in self._started_at], timeout=0.2)
            for process in [each for each in self._started_at if not each.is_alive()]:
                self._reap(process)

    def _reap(self, process: BaseProcess) -> None:
        uptime = time.monotonic() - self._started_at.pop(process)
        _clear_process_metrics(process.pid)
        if self._signal_count:
            return
        if uptime < MIN_UPTIME_SECONDS:
            log_server_event("worker could not start", level=logging.ERROR, code=process.exitcode)
            self._failed = True
        else:
            log_server_event("worker died", level=logging.ERROR, code=process.exitcode, after=round(uptime, 1))
            self._start_worker()

    def _stop_workers(self) -> None:
        for process in self._started_at:
            process.terminate()
        deadline = time.monotonic() + self._grace_seconds + FORCED_SHUTDOWN_SECONDS + _SHUTDOWN_MARGIN_SECONDS
        for process in self._started_at:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _clear_process_metrics(pid: int | None) -> None:
    """Removes the gauges of a dead process from the shared metrics."""
    multiprocess: Any = import_module("prometheus_client.multiprocess")
    if pid is not None:
        multiprocess.mark_process_dead(pid)
