"""SSE encoding, heartbeats, and closing of the source when the client disconnects."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from server_helpers import parse_events

from quire.schemas.turn_events import TextChunkSchema
from quire.server import event_stream
from quire.server.event_stream import BranchChangedSchema, EventStreamResponse

MULTILINE_TEXT = "one\ntwo\r\nthree\u2028four\x00"


class EndlessSource:
    """Yields two events, then blocks for ever; records whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    async def events(self) -> AsyncGenerator[TextChunkSchema | BranchChangedSchema, None]:
        try:
            yield TextChunkSchema(branch=0, text=MULTILINE_TEXT)
            yield BranchChangedSchema(branch=0, head=7)
            await asyncio.Event().wait()
        finally:
            self.closed = True


async def allow(max_age_seconds: float) -> bool:
    return True


async def run_response(stream: EventStreamResponse, *, blocks_after: int, disconnect_after: float) -> bytes:
    """Returns what a client receives that blocks after `blocks_after` chunks and disconnects after some seconds."""
    received: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(disconnect_after)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            if len(received) >= blocks_after:
                await asyncio.Event().wait()
            received.append(message["body"])

    async with asyncio.timeout(5):
        await stream({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    return b"".join(received)


async def test_an_event_is_written_in_lines_that_its_text_cannot_break():
    text = (
        await run_response(
            EventStreamResponse(EndlessSource().events(), is_authorized=allow), blocks_after=9, disconnect_after=0.1
        )
    ).decode()
    first, second = parse_events(text)
    assert (first.id, first.event, first.data["text"]) == ("1", "text", MULTILINE_TEXT)
    assert second.data == {"event": "branch_changed", "branch": 0, "head": 7}
    assert text.count("\n") == 8


@pytest.mark.parametrize("blocks_after", [0, 1, 9])
async def test_a_source_is_closed_when_the_client_disconnects_while_waiting_or_sending(blocks_after: int):
    source = EndlessSource()
    events = source.events()
    await run_response(
        EventStreamResponse(events, is_authorized=allow), blocks_after=blocks_after, disconnect_after=0.1
    )
    # A reference is held here, so only the stream can have closed the generator.
    assert source.closed
    assert events.ag_frame is None


async def test_an_idle_stream_sends_heartbeats(monkeypatch: pytest.MonkeyPatch):
    assert event_stream.HEARTBEAT_SECONDS == 15.0
    monkeypatch.setattr(event_stream, "HEARTBEAT_SECONDS", 0.02)
    text = await run_response(
        EventStreamResponse(EndlessSource().events(), is_authorized=allow),
        blocks_after=5,
        disconnect_after=0.5,
    )
    assert text.endswith(3 * b": ping\n\n")
