"""Server lifecycle: worker processes, the uvicorn server, and graceful shutdown of turns and SSE streams.

On SIGTERM, subscriptions, which have no end, are closed at once. All other streams are closed after the grace period.
Each gets a last event that gives the reason, in a form that OpenAI clients also read as an error.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from threading import Thread
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.concurrency.processes import get_spawn_context
from quire.concurrency.worker_threads import use_worker_process
from quire.jobs import LocalJobs
from quire.server.addresses import socket_url
from quire.server.auth import get_access_policy
from quire.server.process_memory import collect_garbage, shorten_collections
from quire.server.state import ServerState
from quire.server.telemetry.logs import log_server_event
from quire.server.telemetry.metrics import MULTIPROCESS_DIR_VARIABLE, monitor_event_loop
from quire.server.websocket import LimitedWebSocketProtocol, WebSocketGateway

SHUTDOWN_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STREAM_FLUSH_SECONDS = 2.0
"""Seconds that streams have to send the last events of stopped turns."""
FORCED_SHUTDOWN_SECONDS = 10
"""Seconds after the grace period before remaining requests are cancelled."""
_SHUTDOWN_MARGIN_SECONDS = 5.0
MIN_UPTIME_SECONDS = 2.0
"""A worker that exits sooner than this failed to start, and is not replaced: another would fail too."""
KEEP_ALIVE_SECONDS = 75
"""Keep-alive timeout. Proxies have shorter ones, so that none sends a request into a connection being closed."""

DEFAULT_MESSAGE_BYTES = 20_000_000
"""Maximum size of a message of a WebSocket, where no settings say it."""

THREAD_SWITCH_SECONDS = 0.0001
"""Seconds after which a busy thread hands the interpreter to the event loop. Python's default of 5 ms, waited for at
every step of a request, would make requests many times slower while a thread works on a large one."""

SHUTDOWN_EVENT_NAME = "server_stopping"
_SHUTDOWN_MESSAGE = "The server is stopping. The reply so far is recorded; send the request again to continue."
_SHUTDOWN_ERROR = {
    "message": _SHUTDOWN_MESSAGE,
    "type": SHUTDOWN_EVENT_NAME,
    "code": SHUTDOWN_EVENT_NAME,
    "param": None,
}
SHUTDOWN_EVENT = f"event: {SHUTDOWN_EVENT_NAME}\ndata: {json.dumps({'error': _SHUTDOWN_ERROR})}\n\n".encode()


def make_server_config(
    app: ASGIApp, *, grace_seconds: float, max_message_bytes: int = DEFAULT_MESSAGE_BYTES
) -> uvicorn.Config:
    """`max_message_bytes` limits a message of a WebSocket as it arrives. Its request has the limits of every other."""
    return uvicorn.Config(
        WebSocketGateway(app),
        lifespan="off",
        ws=LimitedWebSocketProtocol,
        ws_max_size=max_message_bytes,
        # Most events are too short to gain anything, and each costs more CPU time than it saves.
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(grace_seconds) + FORCED_SHUTDOWN_SECONDS,
    )


async def run_server(app: FastAPI, sock: socket.socket, *, grace_seconds: float, entry: ASGIApp | None = None) -> None:
    """Serves until a signal, then shuts down gracefully. Requests go to `entry`, if the application is behind one."""
    max_bytes = app.state.server_state.settings.max_request_bytes
    config = make_server_config(entry or app, grace_seconds=grace_seconds, max_message_bytes=max_bytes)
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    policy = get_access_policy(app)
    with use_worker_process():
        metrics = app.state.telemetry.metrics
        async with AsyncExitStack() as stack:
            for each in (monitor_event_loop(metrics), shorten_collections(), collect_garbage()):
                await stack.enter_async_context(each)
            if policy is not None:
                await stack.enter_async_context(policy.run())
            await GracefulServer(config, app, grace_seconds=grace_seconds).serve(sockets=[sock])


def call_on_exit(sentinel: int, callback: Callable[[], None]) -> None:
    """Calls back in the event loop when the process of the sentinel ends.

    The event loop of Windows cannot watch the handle of a process. There a thread waits for it.
    """
    loop = asyncio.get_running_loop()

    def handle_end() -> None:
        loop.remove_reader(sentinel)
        callback()

    def wait_in_thread() -> None:
        wait([sentinel])
        with suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(callback)

    try:
        loop.add_reader(sentinel, handle_end)
    except NotImplementedError:
        Thread(target=wait_in_thread, daemon=True).start()


class GracefulServer(uvicorn.Server):
    """Uvicorn server that lets running turns finish within the grace period."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, *, grace_seconds: float) -> None:
        super().__init__(config)
        self._server_state: ServerState = app.state.server_state
        self._streams: StreamRegistry = app.state.streams
        self._grace_seconds = grace_seconds

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handles signals while the server runs. Does not re-raise them, so that the caller can close its resources."""
        parent = parent_process()

        def exit_with_parent() -> None:
            self.should_exit = True

        # Ctrl-C reaches every process of a terminal; worker processes wait for SIGTERM of their supervisor.
        signals = SHUTDOWN_SIGNALS if parent is None else (signal.SIGTERM,)
        previous_handlers = {each: signal.signal(each, self.handle_exit) for each in signals}
        if parent is not None:
            previous_handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
            call_on_exit(parent.sentinel, exit_with_parent)
        try:
            yield
        finally:
            for each, handler in previous_handlers.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Starts the graceful shutdown; a second signal exits at once."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        log_server_event("serving", at=[socket_url(each) for each in sockets or ()])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log_server_event(
            "stopping", turns=len(self._server_state.turns), streams=len(self._streams), grace=self._grace_seconds
        )
        self._streams.begin_shutdown()
        if isinstance(self._server_state.jobs, LocalJobs):
            self._server_state.jobs.begin_stop(grace_seconds=self._grace_seconds)
        stop_task = asyncio.get_running_loop().create_task(self._stop_after_grace())
        try:
            await super().shutdown(sockets)
            # A turn belongs to its conversation: it may still run after its client disconnected.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._grace_seconds + FORCED_SHUTDOWN_SECONDS):
                    await self._server_state.turns.wait_until_idle()
        finally:
            stop_task.cancel()
        log_server_event("stopped", turns=len(self._server_state.turns) or None)

    async def _stop_after_grace(self) -> None:
        await asyncio.sleep(self._grace_seconds)
        log_server_event("grace period over", turns=len(self._server_state.turns), streams=len(self._streams))
        await self._server_state.turns.stop_all()
        # A stopped turn emits its own last event, which its stream must still send.
        await self._streams.wait_closed(timeout_seconds=STREAM_FLUSH_SECONDS)
        self._streams.cancel_all()


class StreamRegistry:
    """Open event streams, and whether the server is shutting down."""

    def __init__(self) -> None:
        self.is_shutting_down = False
        self._subscriptions: set[asyncio.Task[object]] = set()
        self._replies: set[asyncio.Task[object]] = set()
        self._cancelled: set[asyncio.Task[object]] = set()

    def begin_shutdown(self) -> None:
        """Ends all subscriptions. Replies may finish."""
        self.is_shutting_down = True
        self._cancel(self._subscriptions)

    def cancel_all(self) -> None:
        """Ends all streams. Their tasks are cancelled, as if the client had disconnected."""
        self.begin_shutdown()
        self._cancel(self._replies)

    def _cancel(self, streams: set[asyncio.Task[object]]) -> None:
        for task in streams - self._cancelled:
            self._cancelled.add(task)
            task.cancel()

    def __len__(self) -> int:
        """Number of open streams."""
        return len(self._subscriptions) + len(self._replies)

    async def wait_closed(self, *, timeout_seconds: float) -> None:
        """Waits until all streams are closed, at most `timeout_seconds`."""
        if tasks := self._subscriptions | self._replies:
            await asyncio.wait(tasks, timeout=timeout_seconds)

    def add(self, task: asyncio.Task[object], *, is_subscription: bool) -> None:
        (self._subscriptions if is_subscription else self._replies).add(task)
        if is_subscription and self.is_shutting_down:
            self._cancel(self._subscriptions)

    def remove(self, task: asyncio.Task[object]) -> None:
        for streams in (self._subscriptions, self._replies, self._cancelled):
            streams.discard(task)

    def was_cancelled(self, task: asyncio.Task[object]) -> bool:
        return task in self._cancelled


class StreamShutdownMiddleware:
    """ASGI middleware that registers open streams and sends `SHUTDOWN_EVENT` on those that the server cancels."""

    def __init__(self, app: ASGIApp, streams: StreamRegistry) -> None:
        self._app, self._streams = app, streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if scope["type"] != "http" or task is None:
            await self._app(scope, receive, send)
            return
        is_complete = False

        async def send_tracked(message: Message) -> None:
            nonlocal is_complete
            is_start = message["type"] == "http.response.start"
            if is_start and Headers(scope=message).get("content-type", "").startswith("text/event-stream"):
                # A GET stream is a subscription without an end; a reply to a POST has one.
                self._streams.add(task, is_subscription=scope["method"] == "GET")
            if message["type"] == "http.response.body":
                is_complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, send_tracked)
        except asyncio.CancelledError:
            if is_complete or not self._streams.was_cancelled(task):
                raise
            task.uncancel()
            await send({"type": "http.response.body", "body": SHUTDOWN_EVENT, "more_body": False})
        finally:
            self._streams.remove(task)


WorkerTarget = Callable[[Any, socket.socket], None]


class Supervisor:
    """Runs `target(config, sock)` in `workers` spawned processes; target and config must therefore be picklable.

    The supervisor itself serves no requests: it replaces workers that die, and stops all of them on SIGTERM or SIGINT.

    Why not `uvicorn.supervisors.Multiprocess` (0.54): it waits for stopping workers without a deadline, and meanwhile
    handles no second signal; swallows other signals, such as SIGQUIT; and kills a worker whose imports outlast its
    health check. It has no hook for the creation or the death of a process, so a subclass would replace all but its
    loop.
    """

    def __init__(
        self, target: WorkerTarget, config: Any, sock: socket.socket, *, workers: int, grace_seconds: float
    ) -> None:
        self._target, self._config, self._sock = target, config, sock
        self._workers, self._grace_seconds = workers, grace_seconds
        self._started_at: dict[BaseProcess, float] = {}
        self._signal_count = 0
        self._failed = False

    def run(self) -> bool:
        """Runs until a signal. Returns False if a worker could not start."""
        with tempfile.TemporaryDirectory(prefix="quire-metrics-") as metrics_dir:
            os.environ[MULTIPROCESS_DIR_VARIABLE] = metrics_dir
            previous_handlers = {each: signal.signal(each, self._handle_signal) for each in SHUTDOWN_SIGNALS}
            try:
                for _ in range(self._workers):
                    self._start_worker()
                while not self._signal_count and not self._failed:
                    self._replace_dead_workers()
                for process in self._started_at:
                    process.terminate()
                deadline = time.monotonic() + self._grace_seconds + FORCED_SHUTDOWN_SECONDS + _SHUTDOWN_MARGIN_SECONDS
                for process in self._started_at:
                    process.join(max(0.0, deadline - time.monotonic()))
                    if process.is_alive():
                        process.kill()
                        process.join()
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
        process = get_spawn_context().Process(target=self._target, args=(self._config, self._sock))
        process.start()
        self._started_at[process] = time.monotonic()

    def _replace_dead_workers(self) -> None:
        metrics: Any = import_module("prometheus_client.multiprocess")
        wait([process.sentinel for process in self._started_at], timeout=0.2)
        for process in [each for each in self._started_at if not each.is_alive()]:
            uptime = time.monotonic() - self._started_at.pop(process)
            # Removes the gauges of the dead process from the shared metrics.
            metrics.mark_process_dead(process.pid)
            if self._signal_count:
                continue
            if uptime < MIN_UPTIME_SECONDS:
                log_server_event("worker could not start", level=logging.ERROR, code=process.exitcode)
                self._failed = True
            else:
                log_server_event("worker died", level=logging.ERROR, code=process.exitcode, after=round(uptime, 1))
                self._start_worker()
