"""A TCP relay on loopback that records the bytes in both directions, to compare them with what an upstream receives."""

import asyncio
import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

READ_BYTES = 64 * 1024


class RelayedRequest(NamedTuple):
    """A request of HTTP 1.1 as a client sent it."""

    path: str
    body: bytes


@dataclass
class RecordingRelay:
    url: str = ""
    streams: list[bytearray] = field(default_factory=list[bytearray])
    """The bytes that clients sent, by connection."""
    answers: list[bytearray] = field(default_factory=list[bytearray])
    """The bytes that the server sent, by connection."""
    arrivals: list[list[tuple[int, int]]] = field(default_factory=list[list[tuple[int, int]]])
    """By connection: the length of its stream, and the total of all streams, after each arrival."""

    def has_received(self, body: bytes) -> bool:
        """Whether a client sent these bytes in one piece."""
        return any(body in stream for stream in self.streams)

    def list_requests(self) -> list[RelayedRequest]:
        """The complete requests of all connections, in the order in which they were complete."""
        found = [
            (arrivals[bisect_left(arrivals, (end, 0))][1], request)
            for stream, arrivals in zip(self.streams, self.arrivals, strict=True)
            for end, request in _iter_requests(bytes(stream))
        ]
        return [request for _, request in sorted(found, key=lambda each: each[0])]


def _iter_requests(stream: bytes) -> Iterator[tuple[int, RelayedRequest]]:
    """The requests of a connection, each with the position of its end."""
    end = 0
    while (start := stream.find(b"\r\n\r\n", end) + 4) > 3:
        head = stream[end:start]
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        assert length or b"transfer-encoding" not in head.lower(), "chunked requests are not parsed"
        end = start + int(length[1] if length else 0)
        if end > len(stream):
            return
        yield end, RelayedRequest(head.split()[1].decode(), stream[start:end])


@asynccontextmanager
async def run_recording_relay(target_url: str) -> AsyncIterator[RecordingRelay]:
    """Runs a relay in front of the server at `http://HOST:PORT`."""
    host, _, port = target_url.removeprefix("http://").rstrip("/").partition(":")
    relay = RecordingRelay()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection(host, int(port))
        relay.streams.append(sent := bytearray())
        relay.answers.append(answered := bytearray())
        relay.arrivals.append(arrivals := [])
        answering = asyncio.create_task(_copy(target_reader, writer, answered))

        def note_arrival() -> None:
            arrivals.append((len(sent), sum(map(len, relay.streams))))

        await _copy(reader, target_writer, sent, note_arrival)
        await answering

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    relay.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield relay
    finally:
        server.close()


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    record: bytearray,
    note_arrival: Callable[[], None] = lambda: None,
) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(READ_BYTES):
            record += data
            note_arrival()
            writer.write(data)
            await writer.drain()
    writer.close()
