"""The application on a free port of this machine, in a thread with a loop of its own."""

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import uvicorn

from demo import DemoModel, demo
from quire.server.app import create_app
from quire.server.local import new_token
from quire.server.serving import Serving

T = TypeVar("T")


class Served:
    def __init__(self, place: Path, options: dict[str, Any]) -> None:
        self.model = DemoModel()
        self.token = new_token()
        self.shared: Serving
        self.port = 0
        self._loop: asyncio.AbstractEventLoop
        self._server: uvicorn.Server
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(place, options), daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def address(self, conversation: str | None = None, **more: object) -> str:
        """Where the page shows a conversation; opened first, the token in it becomes a cookie."""
        query = "&".join(f"{name}={quote(str(value))}" for name, value in more.items())
        place = "" if conversation is None else f"#/c/{quote(conversation, safe='')}" + (f"?{query}" if query else "")
        return f"http://127.0.0.1:{self.port}/?token={self.token}{place}"

    def _run(self, place: Path, options: dict[str, Any]) -> None:
        try:
            asyncio.run(self._serve(place, options))
        except BaseException as error:  # noqa: BLE001  told to the thread that waits
            self._failed = error
        finally:
            self._ready.set()

    async def _serve(self, place: Path, options: dict[str, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.port = listening.getsockname()[1]
            async with demo(place, model=self.model, **options) as self.shared:
                app = create_app(self.shared, token=self.token)
                config = uvicorn.Config(
                    app, lifespan="off", log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1
                )
                self._server = uvicorn.Server(config)
                self._ready.set()
                await self._server.serve(sockets=[listening])


@contextmanager
def served(place: Path, **options: Any) -> Iterator[Served]:
    server = Served(place, options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
