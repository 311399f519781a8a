"""Child processes that import nothing from the working directory, which may be a cloned repository.

`python -c`, by which `multiprocessing` starts a process, puts the working directory first on `sys.path`. A file
`json.py` there would run in place of the standard library's.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Lock, Thread

SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
"""Like Python's option `-P`: neither the working directory nor a script's folder is on `sys.path`."""

_lock = Lock()


def get_spawn_context() -> SpawnContext:
    """The context for new processes. Spawned rather than forked, because our processes have threads."""
    if sys.platform != "win32":
        # Locks and queues start this process before the first of ours.
        with _safe_path():
            resource_tracker.ensure_running()
    return _SafeSpawnContext()


def exit_with_parent() -> None:
    """Initializer of a pool's processes. If their parent is killed, they would wait for work forever."""
    parent = parent_process()
    if parent is None:
        return

    def wait_and_exit() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=wait_and_exit, daemon=True).start()


class _SafeProcess(SpawnProcess):
    """Sets the variable only for its own start: the programs that it runs have their folder on the path as usual."""

    def start(self) -> None:
        self._keeps_variable = SAFE_PATH_VARIABLE in os.environ
        with _safe_path():
            super().start()

    def run(self) -> None:
        if not self._keeps_variable:
            os.environ.pop(SAFE_PATH_VARIABLE, None)
        super().run()


class _SafeSpawnContext(SpawnContext):
    Process = _SafeProcess


@contextmanager
def _safe_path() -> Generator[None]:
    with _lock:
        previous = os.environ.get(SAFE_PATH_VARIABLE)
        os.environ[SAFE_PATH_VARIABLE] = "1"
        try:
            yield
        finally:
            if previous is None:
                del os.environ[SAFE_PATH_VARIABLE]
            else:
                os.environ[SAFE_PATH_VARIABLE] = previous
