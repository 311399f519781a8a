"""Responses whose size grows with stored text: a large one is built and encoded in worker threads, piece by piece.

FastAPI would encode it on the event loop, where every other request waits for it.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar, cast

from pydantic import BaseModel
from pydantic_core import to_json

from quire.concurrency.worker_threads import MAX_EVENT_LOOP_BYTES, run_in_worker, run_sized
from quire.server.event_stream import ClosingStreamingResponse

_Content = TypeVar("_Content", bound=BaseModel | dict[str, Any])


async def respond_sized(
    size: int, build: Callable[[], _Content], *, items: str = "", status_code: int = 200
) -> _Content:
    """Builds the content of a response whose stored texts have `size` bytes, and encodes it field by field, and the
    list `items` item by item. The content is complete before the response begins."""
    if size <= MAX_EVENT_LOOP_BYTES:
        return build()
    content = await run_sized(size, build)
    # FastAPI passes a response on as it is.
    return cast(
        "_Content",
        ClosingStreamingResponse(_encode(content, items), status_code=status_code, media_type="application/json"),
    )


async def _encode(content: BaseModel | dict[str, Any], items: str) -> AsyncGenerator[bytes, None]:
    fields = dict(content) if isinstance(content, BaseModel) else content
    separator = b"{"
    for name, value in fields.items():
        yield separator + to_json(name) + b":"
        separator = b","
        if name != items:
            yield await run_in_worker(to_json, value)
            continue
        yield b"["
        for index, item in enumerate(value):
            yield (b"," if index else b"") + await run_in_worker(to_json, item)
        yield b"]"
    yield b"}"
