"""An event loop in its own thread, for callers without one."""

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from threading import Event, Thread
from typing import Any, TypeVar

from quire.errors import StoreUnavailable

T = TypeVar("T")


class EventLoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = Thread(target=self.loop.run_forever, name="quire-event-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self.loop.is_closed():
            coroutine.close()
            raise StoreUnavailable("The store is closed; open it again.")
        return run_on_loop(self.loop, coroutine)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextmanager
def enter_on_thread(context: AbstractAsyncContextManager[T]) -> Generator[tuple[EventLoopThread, T]]:
    """Enters an asynchronous context on the event loop of a new thread, which ends with it."""
    thread = EventLoopThread()
    try:
        entered = thread.run(context.__aenter__())
        try:
            yield thread, entered
        finally:
            thread.run(context.__aexit__(None, None, None))
    finally:
        thread.stop()


def run_on_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the loop of another thread, and waits for its end.

    If the wait is interrupted, as by Ctrl-C, the coroutine is cancelled, and has ended before this raises.
    """
    ended = Event()
    tasks: list[asyncio.Task[T]] = []

    def start() -> None:
        tasks.append(loop.create_task(coroutine))
        tasks[0].add_done_callback(lambda _: ended.set())

    def cancel() -> None:
        if tasks:
            tasks[0].cancel()
        else:
            # The interrupt came before the coroutine was scheduled.
            coroutine.close()
            ended.set()

    try:
        loop.call_soon_threadsafe(start)
        ended.wait()
    except BaseException:
        loop.call_soon_threadsafe(cancel)
        ended.wait()
        raise
    return tasks[0].result()
