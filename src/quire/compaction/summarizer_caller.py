"""Calls of the summarizer's model: their errors as `SummaryFailed`, and what all of them used."""

import asyncio
from dataclasses import dataclass, replace

from quire.compaction.summarizer import Summarizer
from quire.errors import (
    ModelContextOverflow,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelRequestRejected,
    QuireError,
    SummaryFailed,
    SummaryFailureReason,
)
from quire.llm import Prompt, Reply
from quire.model import Usage
from quire.model.entry_metadata import sum_usage


@dataclass(slots=True)
class SummarizerCaller:
    """Calls the model once per prompt, and adds up the usage of the replies."""

    summarizer: Summarizer
    calls_made: int = 0
    usage: Usage | None = None
    """Tokens of all calls, or None if the provider reported none."""
    sends_temperature: bool = True

    async def complete(self, prompt: Prompt) -> Reply:
        """Returns the reply. Raises `ModelContextOverflow` if the prompt is too long, else `SummaryFailed`."""
        name = self.summarizer.model.name
        try:
            reply = await self._call(prompt)
        except ModelContextOverflow:
            raise
        except Exception as exc:
            # A model that the application provides may raise anything. No request ends because of its summary.
            if isinstance(exc, QuireError) and not isinstance(exc, ModelError):
                raise
            reason: SummaryFailureReason
            match exc:
                case ModelRateLimited():
                    reason = "rate_limited"
                case ModelRefused():
                    reason = "refused"
                case ModelRequestRejected():
                    reason = "invalid"
                case _:
                    reason = "timed_out" if _is_timeout(exc) else "unavailable"
            is_foreign = not isinstance(exc, ModelError | TimeoutError | OSError)
            detail = f"{name} raised {exc!r}." if is_foreign else str(exc) or f"{name} did not answer in time."
            raise self.build_failure(reason, detail) from exc
        self.usage = sum_usage([self.usage, reply.usage]) if self.usage and reply.usage else self.usage or reply.usage
        return reply

    async def _call(self, prompt: Prompt) -> Reply:
        """Some models accept no temperature: one that rejects the prompt gets it again without."""
        self.calls_made += 1
        summarizer = self.summarizer
        temperature = summarizer.temperature if self.sends_temperature else None
        try:
            async with asyncio.timeout(summarizer.timeout):
                return await summarizer.model.complete(
                    replace(prompt, temperature=temperature, timeout=summarizer.timeout)
                )
        except ModelRequestRejected:
            if temperature is None:
                raise
            self.sends_temperature = False
        return await self._call(prompt)

    def build_failure(self, reason: SummaryFailureReason, message: str) -> SummaryFailed:
        spent = self.usage or Usage()
        return SummaryFailed(
            reason, message, calls=self.calls_made, input_tokens=spent.input_tokens, output_tokens=spent.output_tokens
        )


def _is_timeout(exc: BaseException) -> bool:
    """Whether the error or its cause is a timeout. Matched by name, because each HTTP client has its own class."""
    return "Timeout" in type(exc).__name__ or (exc.__cause__ is not None and _is_timeout(exc.__cause__))
