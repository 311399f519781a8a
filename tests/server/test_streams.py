"""Streams by themselves: how events are written, and that a source is closed however its reader goes."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from calling import all_events

from quire.server.streams import BEAT, EventStream
from quire.server.told import BranchChanged, TextDelta

LINES = "one\ntwo\r\nthree\u2028four\x00"


class Source:
    """Two events, and then nothing for ever; it knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    async def events(self) -> AsyncGenerator[TextDelta | BranchChanged, None]:
        try:
            yield TextDelta(branch=0, text=LINES)
            yield BranchChanged(branch=0, head=7)
            await asyncio.Event().wait()
        finally:
            self.closed = True


async def run(stream: EventStream, *, blocks_after: int, leaves_after: float) -> bytes:
    """What a reader gets who takes so many pieces, then no more, and goes after so many seconds."""
    taken: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(leaves_after)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            if len(taken) >= blocks_after:
                await asyncio.Event().wait()
            taken.append(message["body"])

    async with asyncio.timeout(5):
        await stream({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    return b"".join(taken)


async def test_an_event_is_written_in_lines_that_its_text_cannot_break():
    text = (await run(EventStream(Source().events()), blocks_after=9, leaves_after=0.1)).decode()
    first, second = all_events(text)
    assert (first.id, first.event, first.data["text"]) == ("1", "text", LINES)
    assert second.data == {"event": "changed", "branch": 0, "head": 7}
    assert text.count("\n") == 8


@pytest.mark.parametrize("blocks_after", [0, 1, 9])
async def test_a_source_is_closed_when_its_reader_goes_whether_it_was_waiting_or_being_told(blocks_after: int):
    source = Source()
    events = source.events()
    await run(EventStream(events), blocks_after=blocks_after, leaves_after=0.1)
    # The generator is held here, so that nothing but the stream can have closed it.
    assert source.closed
    assert events.ag_frame is None


async def test_a_quiet_stream_beats():
    text = await run(EventStream(Source().events(), beat=0.02), blocks_after=5, leaves_after=0.5)
    assert text.endswith(b":\n\n:\n\n:\n\n")
    assert BEAT == 15.0
