"""Summaries in a simulation: those that a model wrote for the stored conversation, where the same messages are covered.

No model is called. Where the log has no summary of a range, the simulated call fails, and the engine extracts one, as
it does when a model fails.
"""

from collections.abc import AsyncGenerator, Mapping

from quire.errors import ModelUnavailable
from quire.llm import ModelChunk, Prompt, Reply
from quire.model import Compaction, Message


class RecordedSummaries:
    """A model that answers with recorded summaries."""

    def __init__(self, name: str, summaries: Mapping[int, Compaction]) -> None:
        self.name = name
        self._summaries = summaries
        self._current: Compaction | None = None

    def select(self, last_covered: int | None) -> None:
        """Selects the summary of the range that ends at this entry of the stored conversation."""
        self._current = self._summaries.get(last_covered) if last_covered is not None else None

    async def complete(self, prompt: Prompt) -> Reply:
        if self._current is None or self._current.summary is None:
            raise ModelUnavailable("The log has no summary of these messages.")
        return Reply(Message.assistant(self._current.summary), self._current.usage, "stop")

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelChunk]:
        yield await self.complete(prompt)
