"""Several processes that serve one port. The one that started them serves nothing: it replaces those that die, and
ends when it is told to, with all of them.
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

from quire.server.running import LAST_SECONDS, SIGNALS
from quire.server.telemetry.logs import log
from quire.server.telemetry.metrics import SHARED_FOLDER

STARTING_SECONDS = 2.0
"""A process that dies sooner than this could not start; another would not fare better."""
_MARGIN = 5.0

Target = Callable[[Any, socket.socket], None]


class Supervisor:
    """Runs `target(plan, listening)` in so many processes, each started afresh, so both must be importable."""

    def __init__(self, target: Target, plan: Any, listening: socket.socket, *, workers: int, grace: float) -> None:
        self._target, self._plan, self._listening = target, plan, listening
        self._workers, self._grace = workers, grace
        self._running: dict[BaseProcess, float] = {}
        self._signals = 0
        self._failed = False

    def run(self) -> bool:
        """Whether it ended because it was told to."""
        with tempfile.TemporaryDirectory(prefix="quire-metrics-") as shared:
            os.environ[SHARED_FOLDER] = shared
            before = {each: signal.signal(each, self._signalled) for each in SIGNALS}
            try:
                for _ in range(self._workers):
                    self._start()
                self._watch()
                self._end()
            finally:
                del os.environ[SHARED_FOLDER]
                for each, handler in before.items():
                    signal.signal(each, handler)
        return not self._failed

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            for process in self._running:
                process.kill()
            os._exit(128 + number)

    def _start(self) -> None:
        process = get_context("spawn").Process(target=self._target, args=(self._plan, self._listening))
        process.start()
        self._running[process] = time.monotonic()

    def _watch(self) -> None:
        while not self._signals and not self._failed:
            wait([process.sentinel for process in self._running], timeout=0.2)
            for process in [each for each in self._running if not each.is_alive()]:
                self._bury(process)

    def _bury(self, process: BaseProcess) -> None:
        lived = time.monotonic() - self._running.pop(process)
        _forget_gauges(process.pid)
        if self._signals:
            return
        if lived < STARTING_SECONDS:
            log("worker could not start", level=logging.ERROR, code=process.exitcode)
            self._failed = True
        else:
            log("worker died", level=logging.ERROR, code=process.exitcode, after=round(lived, 1))
            self._start()

    def _end(self) -> None:
        for process in self._running:
            process.terminate()
        deadline = time.monotonic() + self._grace + LAST_SECONDS + _MARGIN
        for process in self._running:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _forget_gauges(pid: int | None) -> None:
    """What a dead process had open is not open any more."""
    multiprocess: Any = import_module("prometheus_client.multiprocess")
    if pid is not None:
        multiprocess.mark_process_dead(pid)
