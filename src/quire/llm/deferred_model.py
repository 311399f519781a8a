"""A model that is built when it is first called: naming one needs no API key, no package and no server."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from quire.errors import MissingExtra, ModelRequestRejected
from quire.llm.protocol import Model, ModelChunk, Prompt
from quire.view.wire_formats import Reply

ModelBuilder = Callable[[str], Model]
"""Returns the model of a name."""


@dataclass(slots=True)
class DeferredModel:
    """Calls `build` before the first call; an error there is the error of that call."""

    name: str
    build: Callable[[], Model]
    _model: Model | None = field(default=None, init=False)

    async def complete(self, prompt: Prompt) -> Reply:
        return await self._get_model().complete(prompt)

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk, None]:
        async for chunk in self._get_model().stream(prompt):
            yield chunk

    def _get_model(self) -> Model:
        if self._model is None:
            try:
                self._model = self.build()
            except MissingExtra as exc:
                raise ModelRequestRejected(str(exc)) from exc
        return self._model
