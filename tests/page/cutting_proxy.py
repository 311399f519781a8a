"""A TCP proxy before the page's server whose connections a test can cut, as a lost network does."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress


class CuttingProxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.cuts = 0
        self.is_down = False
        """Whether new connections are refused."""

    async def cut(self) -> None:
        """Resets every connection; new ones are accepted unless the proxy is down."""
        self.cuts += len(self._writers)
        for writer in list(self._writers):
            writer.transport.abort()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_down:
            writer.transport.abort()
            return
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {writer, target_writer}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, target_writer))
                group.create_task(_copy(target_reader, writer))
        finally:
            self._writers -= {writer, target_writer}
            for each in (writer, target_writer):
                each.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


@asynccontextmanager
async def run_cutting_proxy(target_port: int) -> AsyncGenerator[CuttingProxy]:
    proxy = CuttingProxy(target_port)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.cut()
