"""Models as the server asks them: each call is a span, knows which trace it belongs to, and is counted if it fails."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import replace

from quire.errors import ModelError
from quire.llm import Chunk, Model, Prompt, Reply
from quire.server.telemetry.tracing import Call, Tracing


class WatchedModel:
    def __init__(self, model: Model, tracing: Tracing, *, failed: Callable[[ModelError], None]) -> None:
        self._model, self._tracing, self._failed = model, tracing, failed
        self.name = model.name

    async def complete(self, prompt: Prompt) -> Reply:
        with self._call() as call:
            reply = await self._model.complete(replace(prompt, headers=call.headers))
            call.replied(reply.usage, reply.finish)
            return reply

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        with self._call() as call:
            async with aclosing(self._model.stream(replace(prompt, headers=call.headers))) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, Reply):
                        call.replied(chunk.usage, chunk.finish)
                    yield chunk

    @contextmanager
    def _call(self) -> Generator[Call]:
        with self._tracing.call(self.name) as call:
            try:
                yield call
            except ModelError as error:
                self._failed(error)
                raise
