"""A TCP relay on loopback that records the bytes in both directions, to compare them with what an upstream receives."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

READ_BYTES = 64 * 1024


@dataclass
class RecordingRelay:
    url: str = ""
    streams: list[bytearray] = field(default_factory=list[bytearray])
    """The bytes that clients sent, by connection."""
    answers: list[bytearray] = field(default_factory=list[bytearray])
    """The bytes that the server sent, by connection."""

    def has_received(self, body: bytes) -> bool:
        """Whether a client sent these bytes in one piece."""
        return any(body in stream for stream in self.streams)


@asynccontextmanager
async def run_recording_relay(target_url: str) -> AsyncIterator[RecordingRelay]:
    """Runs a relay in front of the server at `http://HOST:PORT`."""
    host, _, port = target_url.removeprefix("http://").rstrip("/").partition(":")
    relay = RecordingRelay()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection(host, int(port))
        relay.streams.append(sent := bytearray())
        relay.answers.append(answered := bytearray())
        answering = asyncio.create_task(_copy(target_reader, writer, answered))
        await _copy(reader, target_writer, sent)
        await answering

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    relay.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(READ_BYTES):
            record += data
            writer.write(data)
            await writer.drain()
    writer.close()
