"""A TCP proxy on loopback that injects faults: connection resets, delays, and a peer that stops to answer."""

import asyncio
import socket
import struct
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 65_536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultProxy:
    """Forwards connections to a port. An asynchronous context manager; `port` is the one to connect to."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._flows: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_flowing = asyncio.Event()
        self._is_flowing.set()
        self.delay_seconds = 0.0
        """Delay of every chunk, in both directions."""
        self.connection_count = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.reset_connections()
        for flow in self._flows:
            flow.cancel()
        await asyncio.gather(*self._flows, return_exceptions=True)

    def freeze(self) -> None:
        """Forward nothing; connections stay open."""
        self._is_flowing.clear()

    def thaw(self) -> None:
        self._is_flowing.set()

    def reset_connections(self) -> None:
        """End every connection with a TCP reset."""
        for writer in self._writers:
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, target_writer}
        for source, sink in ((reader, target_writer), (target_reader, writer)):
            flow = asyncio.get_running_loop().create_task(self._forward(source, sink))
            self._flows.add(flow)
            flow.add_done_callback(self._flows.discard)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while chunk := await source.read(_CHUNK_BYTES):
                await asyncio.sleep(self.delay_seconds)
                await self._is_flowing.wait()
                sink.write(chunk)
                await sink.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            sink.close()
