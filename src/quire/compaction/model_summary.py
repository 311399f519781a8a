"""Summary written by a model: folds chunk after chunk into the running summary, and validates every answer.

Returns a complete summary or raises `SummaryFailed` with a reason; nothing is stored. No call is made whose prompt and
answer would exceed the summarizer's context window.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

from quire.compaction.citations import check_citations, find_cited_entries
from quire.compaction.extractive_summary import extract_summary
from quire.compaction.summary_prompt import TranscriptMessage, build_summary_prompt
from quire.compaction.summary_validation import validate_summary
from quire.compaction.transcript_chunks import TranscriptChunk, chunk_entries, chunk_transcript
from quire.errors import (
    ModelContextOverflow,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelRequestRejected,
    SummaryFailed,
    SummaryFailureReason,
)
from quire.llm import Model, Prompt, Reply
from quire.model import Entry, Usage
from quire.view.labels import label_text
from quire.view.tokens import TokenCounter

SUMMARY_LENGTH_TOLERANCE = 1.25
"""Accepted length of a summary, relative to the requested length."""
ESTIMATED_WINDOW_SHARE = 0.9
"""Share of the context window that is used if the token counter is only an estimate."""
PROMPT_OVERHEAD_TOKENS = 32
"""Maximum tokens that a provider adds around a system text and one message, and that joining texts may add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    text: str
    sources: tuple[int, ...]
    dropped_citations: int
    """Citations that were removed because they cite no known entry."""
    calls: int
    usage: Usage | None
    """Tokens of all calls; None if the provider reported none."""
    model: str
    excerpted_seqs: tuple[int, ...]
    """Messages that were sent to the summarizer only as excerpts."""


class SummaryCallPlan(NamedTuple):
    """All calls of a summary, planned before the first one."""

    chunks: tuple[TranscriptChunk, ...]
    previous: str | None
    """The summary so far, as the first call gets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryCallConfig:
    """Parameters of all calls of one summary. `window` and `reserved_tokens` are the summarizer's."""

    instructions: str | None
    target_tokens: int
    window: int
    reserved_tokens: int
    counter: TokenCounter

    @property
    def max_summary_tokens(self) -> int:
        """Maximum tokens of an accepted summary."""
        return ceil(self.target_tokens * SUMMARY_LENGTH_TOLERANCE)

    @property
    def answer_tokens(self) -> int:
        """Tokens reserved for the answer, including thinking before it."""
        return max(self.reserved_tokens, self.max_summary_tokens)

    @property
    def max_prompt_tokens(self) -> int:
        return (self.window if self.counter.exact else int(self.window * ESTIMATED_WINDOW_SHARE)) - self.answer_tokens

    def build_prompt(self, transcript: Sequence[TranscriptMessage], previous: str | None) -> Prompt:
        return build_summary_prompt(
            transcript,
            previous=previous,
            instructions=self.instructions,
            target_tokens=self.target_tokens,
            max_tokens=self.answer_tokens,
        )

    def count_prompt(self, prompt: Prompt) -> int:
        texts = [prompt.system or "", *(message.text for message in prompt.messages)]
        return PROMPT_OVERHEAD_TOKENS + sum(map(self.counter.count, texts))


def plan_calls(entries: Sequence[Entry], *, previous: str | None, config: SummaryCallConfig) -> SummaryCallPlan:
    """One chunk if all entries fit with the summary so far, else chunks that fit with the longest running summary."""
    count = config.counter.count
    free = config.max_prompt_tokens - config.count_prompt(config.build_prompt((), None))
    half = max(config.max_summary_tokens, free // 2)
    if previous and count(previous) > half:
        previous = extract_summary((), previous=previous, max_tokens=half, counter=config.counter)
    label_tokens = count(label_text("summary", ""))
    previous_tokens = count(previous) + label_tokens if previous else 0
    chunks = chunk_entries(entries, max_tokens=free - previous_tokens, counter=config.counter)
    if len(chunks) <= 1:
        return SummaryCallPlan(tuple(chunks), previous)
    max_tokens = free - max(previous_tokens, config.max_summary_tokens + label_tokens)
    return SummaryCallPlan(tuple(chunk_entries(entries, max_tokens=max_tokens, counter=config.counter)), previous)


async def summarize(
    model: Model,
    entries: Sequence[Entry],
    *,
    previous: str | None,
    instructions: str | None,
    target_tokens: int,
    window: int,
    reserved_tokens: int,
    counter: TokenCounter,
    timeout: float | None,  # noqa: ASYNC109 (passed on to the model, for its HTTP request)
) -> ModelSummary:
    """Folds the entries into the previous summary. `timeout` is in seconds, for each call."""
    config = SummaryCallConfig(
        instructions=instructions,
        target_tokens=target_tokens,
        window=window,
        reserved_tokens=reserved_tokens,
        counter=counter,
    )
    plan = plan_calls(entries, previous=previous, config=config)
    if not plan.chunks:
        raise SummaryFailed("empty", "There are no messages to summarize.")
    known_entries = find_cited_entries(previous or "", last_entry=max(entry.seq for entry in entries))
    run = _SummaryRun(model, config, timeout, known_entries=known_entries, text=plan.previous)
    await run.fold_all(plan)
    return ModelSummary(
        text=run.text or "",
        sources=run.sources,
        dropped_citations=run.dropped_citations,
        calls=run.calls,
        usage=run.usage,
        model=model.name,
        excerpted_seqs=tuple(
            sorted({seq for chunk in plan.chunks for seq in chunk.excerpted_seqs} | run.excerpted_seqs)
        ),
    )


@dataclass(slots=True)
class _SummaryRun:
    """The running summary, and its cost so far."""

    model: Model
    config: SummaryCallConfig
    timeout: float | None
    known_entries: set[int]
    text: str | None
    sources: tuple[int, ...] = ()
    excerpted_seqs: set[int] = field(default_factory=set[int])
    dropped_citations: int = 0
    calls: int = 0
    usage: Usage | None = None

    async def fold_all(self, plan: SummaryCallPlan) -> None:
        """Folds all chunks. If the provider rejects one as too long, halves the remaining chunks, once."""
        remaining, halved = list(plan.chunks), False
        while remaining:
            try:
                await self._fold(remaining[0].messages)
                del remaining[0]
            except ModelContextOverflow as exc:
                if halved:
                    raise self._build_failure("overflow", str(exc)) from exc
                halved = True
                remaining = self._halve_chunks(remaining)

    def _halve_chunks(self, chunks: Sequence[TranscriptChunk]) -> list[TranscriptChunk]:
        messages = [message for chunk in chunks for message in chunk.messages]
        try:
            smaller = chunk_transcript(messages, max_tokens=chunks[0].tokens // 2, counter=self.config.counter)
        except SummaryFailed as exc:
            raise self._build_failure(exc.reason, exc.detail) from exc
        self.excerpted_seqs.update(seq for chunk in smaller for seq in chunk.excerpted_seqs)
        return smaller

    async def _fold(self, transcript: Sequence[TranscriptMessage]) -> None:
        reply = await self._call_model(self.config.build_prompt(transcript, self.text))
        try:
            text = validate_summary(
                reply, max_tokens=self.config.max_summary_tokens, transcript=transcript, counter=self.config.counter
            )
        except SummaryFailed as exc:
            raise self._build_failure(exc.reason, exc.detail) from exc
        self.known_entries.update(each.seq for each in transcript)
        checked = check_citations(text, self.known_entries)
        self.text, self.sources = checked.text.strip(), checked.sources
        self.dropped_citations += checked.dropped_count

    async def _call_model(self, prompt: Prompt) -> Reply:
        tokens = self.config.count_prompt(prompt)
        if tokens > self.config.max_prompt_tokens:
            limit = self.config.max_prompt_tokens
            message = f"The prompt has {tokens:,} tokens, and the limit of {self.model.name} is {limit:,}."
            raise self._build_failure("overflow", message)
        self.calls += 1
        try:
            async with asyncio.timeout(self.timeout):
                reply = await self.model.complete(replace(prompt, timeout=self.timeout))
        except ModelContextOverflow:
            raise
        except (ModelError, TimeoutError, OSError) as exc:
            raise self._build_failure(
                _classify_error(exc), str(exc) or f"{self.model.name} did not answer in time."
            ) from exc
        self.usage = _add_usage(self.usage, reply.usage)
        return reply

    def _build_failure(self, reason: SummaryFailureReason, message: str) -> SummaryFailed:
        spent = self.usage or Usage()
        return SummaryFailed(
            reason, message, calls=self.calls, input_tokens=spent.input_tokens, output_tokens=spent.output_tokens
        )


def _classify_error(exc: BaseException) -> SummaryFailureReason:
    match exc:
        case ModelRateLimited():
            return "rate_limited"
        case ModelRefused():
            return "refused"
        case ModelRequestRejected():
            return "invalid"
        case _:
            return "timed_out" if _is_timeout(exc) else "unavailable"


def _is_timeout(exc: BaseException) -> bool:
    """Whether the error or its cause is a timeout; matched by name, because each HTTP client has its own class."""
    return "Timeout" in type(exc).__name__ or (exc.__cause__ is not None and _is_timeout(exc.__cause__))


def _add_usage(total: Usage | None, usage: Usage | None) -> Usage | None:
    if total is None or usage is None:
        return total or usage
    return Usage(
        model=usage.model or total.model,
        input_tokens=total.input_tokens + usage.input_tokens,
        output_tokens=total.output_tokens + usage.output_tokens,
        cache_read_tokens=total.cache_read_tokens + usage.cache_read_tokens,
        cache_write_tokens=total.cache_write_tokens + usage.cache_write_tokens,
    )
