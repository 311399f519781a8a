"""Responses whose size grows with stored text: a large one is built and encoded in a worker thread.

FastAPI would encode it on the event loop, where every other request waits for it.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from fastapi import Response
from pydantic import BaseModel
from pydantic_core import to_json

from quire.concurrency.worker_threads import MAX_EVENT_LOOP_BYTES, run_sized

_Content = TypeVar("_Content", bound=BaseModel | dict[str, Any])


async def respond_sized(size: int, build: Callable[[], _Content], *, status_code: int = 200) -> _Content:
    """Builds the content of a response whose stored texts have `size` bytes, and encodes it if they are many."""
    if size <= MAX_EVENT_LOOP_BYTES:
        return build()
    encoded = await run_sized(size, lambda: to_json(build()))
    # FastAPI passes a response on as it is.
    return cast("_Content", Response(encoded, status_code=status_code, media_type="application/json"))
