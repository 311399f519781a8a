"""Runs an application until a signal ends it: what is under way may end first, and what does not is ended in order.

The first SIGTERM or SIGINT stops accepting, and lets turns and streams go on for the grace; then turns are stopped,
what had come of their replies is kept, and streams get a last event. A second signal ends the process at once.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from types import FrameType

import uvicorn
from fastapi import FastAPI

from quire.errors import InvalidConfiguration
from quire.server.serving import Serving
from quire.server.stopping import Stopping
from quire.server.telemetry.logs import log

SIGNALS = (signal.SIGTERM, signal.SIGINT)
FLUSH_SECONDS = 2.0
"""After turns are stopped, so long their last events have to reach who listens."""
LAST_SECONDS = 10
"""So long after the grace a request is cancelled that nothing else has ended."""
KEEP_ALIVE_SECONDS = 75
"""Longer than what proxies keep connections for, so that none sends a request into one that is being closed."""


def bind(host: str, port: int) -> socket.socket:
    """A listening address; with port 0 the system chooses one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Asyncio does this for sockets of its own; without it, an answer in two pieces waits 40 ms for the second.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.bind((host, port))
        made.listen(2048)
        made.set_inheritable(True)
    except OSError as error:
        made.close()
        raise InvalidConfiguration(
            f"Quire cannot listen at {host} port {port}: {error.strerror or error}. Choose another with --port."
        ) from error
    return made


async def run(app: FastAPI, listening: socket.socket, *, grace: float) -> None:
    """Serves until a signal, then ends as gracefully as it is given time to."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(grace) + LAST_SECONDS,
    )
    await Server(config, app, grace=grace).serve(sockets=[listening])


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: FastAPI, *, grace: float) -> None:
        super().__init__(config)
        self._serving: Serving = app.state.serving
        self._stopping: Stopping = app.state.stopping
        self._grace = grace

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are for this server while it runs; it returns, so that what is open can be closed in order."""
        loop, parent = asyncio.get_running_loop(), parent_process()
        # Ctrl-C reaches every process of a terminal; those with a parent wait for what it says.
        signals = SIGNALS if parent is None else (signal.SIGTERM,)
        before = {each: signal.signal(each, self.handle_exit) for each in signals}
        if parent is not None:
            before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
            loop.add_reader(parent.sentinel, self._orphaned, parent.sentinel)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True

    def _orphaned(self, sentinel: int) -> None:
        asyncio.get_running_loop().remove_reader(sentinel)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        log("serving", at=[address(each) for each in sockets or ()])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log("stopping", turns=len(self._serving.turns), streams=len(self._stopping), grace=self._grace)
        self._serving.stopping = True
        self._stopping.begin()
        ending = asyncio.get_running_loop().create_task(self._end_after_grace())
        try:
            await super().shutdown(sockets)
            # A turn belongs to its conversation: it may be under way though nobody listens to it any more.
            await self._turns_over()
        finally:
            ending.cancel()
        log("stopped", turns=len(self._serving.turns) or None)

    async def _turns_over(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace + LAST_SECONDS):
                await self._serving.turns.ended()

    async def _end_after_grace(self) -> None:
        await asyncio.sleep(self._grace)
        log("grace over", turns=len(self._serving.turns), streams=len(self._stopping))
        await self._serving.turns.stop()
        # A stopped turn tells its own end, which its stream passes on.
        await self._stopping.all_closed(within=FLUSH_SECONDS)
        self._stopping.end_streams()


def address(listening: socket.socket) -> str:
    """Where the server is found."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
