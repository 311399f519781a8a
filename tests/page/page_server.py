"""The application on a free port, in a thread with its own event loop."""

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import uvicorn

from demo import DemoModel, open_demo
from quire.server.addresses import generate_token
from quire.server.app import create_app
from quire.server.state import ServerState

T = TypeVar("T")


class PageServer:
    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.model = DemoModel()
        self.token = generate_token()
        self.server_state: ServerState
        self.port = 0
        self._loop: asyncio.AbstractEventLoop
        self._server: uvicorn.Server
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(folder, options), daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def url(self, conversation: str | None = None, **more: object) -> str:
        """URL of a conversation on the page; on first use, its token is stored as a cookie."""
        query = "&".join(f"{name}={quote(str(value))}" for name, value in more.items())
        fragment = (
            "" if conversation is None else f"#/c/{quote(conversation, safe='')}" + (f"?{query}" if query else "")
        )
        return f"http://127.0.0.1:{self.port}/?token={self.token}{fragment}"

    def _run(self, folder: Path, options: dict[str, Any]) -> None:
        try:
            asyncio.run(self._serve(folder, options))
        except BaseException as error:  # noqa: BLE001 (raised again in the waiting thread)
            self._failed = error
        finally:
            self._ready.set()

    async def _serve(self, folder: Path, options: dict[str, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            async with open_demo(folder, model=self.model, **options) as self.server_state:
                app = create_app(self.server_state, token=self.token)
                config = uvicorn.Config(
                    app, lifespan="off", log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1
                )
                self._server = uvicorn.Server(config)
                self._ready.set()
                await self._server.serve(sockets=[listener])


@contextmanager
def serve_page(folder: Path, **options: Any) -> Iterator[PageServer]:
    server = PageServer(folder, options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
