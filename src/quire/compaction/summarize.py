"""A summary by a model: piece by piece, each folded into the running summary, every answer checked.

Either a whole summary comes out or `SummaryFailed` is raised with its reason; nothing is written anywhere. No call is
made whose prompt and answer would exceed the summarizer's window.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

from quire.compaction.answers import accepted
from quire.compaction.citations import checked, cited
from quire.compaction.extract import extractive_summary
from quire.compaction.pieces import Piece, packed, pieces
from quire.compaction.template import Said, summary_prompt
from quire.errors import (
    ModelError,
    ModelInvalid,
    ModelOverflow,
    ModelRefused,
    ModelThrottled,
    SummaryFailed,
    SummaryFault,
)
from quire.llm import Model, Prompt, Reply
from quire.model import Entry, Usage
from quire.view.labels import labelled
from quire.view.tokens import Counter

SLACK = 1.25
"""How much longer than asked for a summary may be."""
ESTIMATED = 0.9
"""The share of the window that is used where tokens are only estimated."""
OVERHEAD = 32
"""Tokens that a provider adds around a system text and one message, at most, and what joining texts may add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    text: str
    sources: tuple[int, ...]
    dropped: int
    """Citations that were taken out because they named no entry."""
    calls: int
    usage: Usage | None
    """All calls' tokens together; None if the provider reported none."""
    model: str
    excerpted: tuple[int, ...]
    """Messages that the summarizer was not shown whole."""
    previous_excerpted: bool
    """The previous summary was too long for the window, so that only its best lines were shown."""


class CallPlan(NamedTuple):
    """The calls that a summary takes, known before the first is made."""

    pieces: tuple[Piece, ...]
    previous: str | None
    """The summary so far as it is shown first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What all calls of one summary have in common. `window` and `reserve` are the summarizer's."""

    instructions: str | None
    limit: int
    window: int
    reserve: int
    counter: Counter

    @property
    def allowed(self) -> int:
        """The longest summary that is taken."""
        return ceil(self.limit * SLACK)

    @property
    def answer(self) -> int:
        """Tokens kept free for the answer: thoughts before it count too, where the model has them."""
        return max(self.reserve, self.allowed)

    @property
    def most(self) -> int:
        """The longest prompt."""
        return (self.window if self.counter.exact else int(self.window * ESTIMATED)) - self.answer

    def prompt(self, block: Sequence[Said], previous: str | None) -> Prompt:
        return summary_prompt(
            block, previous=previous, instructions=self.instructions, limit=self.limit, max_tokens=self.answer
        )

    def tokens(self, prompt: Prompt) -> int:
        texts = [prompt.system or "", *(message.text for message in prompt.messages)]
        return OVERHEAD + sum(map(self.counter.count, texts))


def plan_calls(entries: Sequence[Entry], *, previous: str | None, frame: Frame) -> CallPlan:
    """One piece if all fits beside the summary so far, else pieces that fit beside the longest running summary."""
    count = frame.counter.count
    free = frame.most - frame.tokens(frame.prompt((), None))
    half = max(frame.allowed, free // 2)
    if previous and count(previous) > half:
        previous = extractive_summary((), previous=previous, limit=half, counter=frame.counter)
    label = count(labelled("summary", ""))
    beside = count(previous) + label if previous else 0
    whole = pieces(entries, room=free - beside, counter=frame.counter)
    if len(whole) <= 1:
        return CallPlan(tuple(whole), previous)
    room = free - max(beside, frame.allowed + label)
    return CallPlan(tuple(pieces(entries, room=room, counter=frame.counter)), previous)


async def summarize(
    model: Model,
    entries: Sequence[Entry],
    *,
    previous: str | None,
    instructions: str | None,
    limit: int,
    window: int,
    reserve: int,
    counter: Counter,
    timeout: float | None,  # noqa: ASYNC109 (it goes on to the model, which ends its request by it)
) -> Summary:
    """The entries folded into the previous summary. `timeout` is in seconds, for each call."""
    frame = Frame(instructions=instructions, limit=limit, window=window, reserve=reserve, counter=counter)
    planned = plan_calls(entries, previous=previous, frame=frame)
    if not planned.pieces:
        raise SummaryFailed("empty", "There are no messages to summarize.")
    before = cited(previous or "", last=max(entry.seq for entry in entries))
    run = _Run(model, frame, timeout, known=before, text=planned.previous)
    await run.fold_all(planned)
    return Summary(
        text=run.text or "",
        sources=run.sources,
        dropped=run.dropped,
        calls=run.calls,
        usage=run.usage,
        model=model.name,
        excerpted=tuple(sorted({seq for piece in planned.pieces for seq in piece.excerpted} | run.excerpted)),
        previous_excerpted=planned.previous != previous,
    )


@dataclass(slots=True)
class _Run:
    """The running summary, and what it has cost so far."""

    model: Model
    frame: Frame
    timeout: float | None
    known: set[int]
    text: str | None
    sources: tuple[int, ...] = ()
    excerpted: set[int] = field(default_factory=set[int])
    dropped: int = 0
    calls: int = 0
    usage: Usage | None = None

    async def fold_all(self, planned: CallPlan) -> None:
        """Piece after piece. If the provider finds one too long all the same, the rest goes in half the size, once."""
        todo, halved = list(planned.pieces), False
        while todo:
            try:
                await self._fold(todo[0].said)
                del todo[0]
            except ModelOverflow as exc:
                if halved:
                    raise self._failed("overflow", str(exc)) from exc
                halved = True
                todo = self._halved(todo)

    def _halved(self, todo: Sequence[Piece]) -> list[Piece]:
        rest = [each for piece in todo for each in piece.said]
        try:
            smaller = packed(rest, room=todo[0].tokens // 2, counter=self.frame.counter)
        except SummaryFailed as exc:
            raise self._failed(exc.reason, exc.detail) from exc
        self.excerpted.update(seq for piece in smaller for seq in piece.excerpted)
        return smaller

    async def _fold(self, block: Sequence[Said]) -> None:
        reply = await self._call(self.frame.prompt(block, self.text))
        try:
            text = accepted(reply, allowed=self.frame.allowed, block=block, counter=self.frame.counter)
        except SummaryFailed as exc:
            raise self._failed(exc.reason, exc.detail) from exc
        self.known.update(each.seq for each in block)
        found = checked(text, self.known)
        self.text, self.sources = found.text.strip(), found.sources
        self.dropped += found.dropped

    async def _call(self, prompt: Prompt) -> Reply:
        tokens = self.frame.tokens(prompt)
        if tokens > self.frame.most:
            told = f"The prompt has {tokens:,} tokens, and {self.model.name} has room for {self.frame.most:,}."
            raise self._failed("overflow", told)
        self.calls += 1
        try:
            async with asyncio.timeout(self.timeout):
                reply = await self.model.complete(replace(prompt, timeout=self.timeout))
        except ModelOverflow:
            raise
        except (ModelError, TimeoutError, OSError) as exc:
            raise self._failed(_fault(exc), str(exc) or f"{self.model.name} did not answer in time.") from exc
        self.usage = _added(self.usage, reply.usage)
        return reply

    def _failed(self, reason: SummaryFault, message: str) -> SummaryFailed:
        spent = self.usage or Usage()
        return SummaryFailed(
            reason, message, calls=self.calls, input_tokens=spent.input_tokens, output_tokens=spent.output_tokens
        )


def _fault(exc: BaseException) -> SummaryFault:
    match exc:
        case ModelThrottled():
            return "throttled"
        case ModelRefused():
            return "refused"
        case ModelInvalid():
            return "invalid"
        case _:
            return "timed_out" if _timed_out(exc) else "unavailable"


def _timed_out(exc: BaseException) -> bool:
    """Whether a time-out is behind it; each HTTP client has a class of its own for them."""
    return "Timeout" in type(exc).__name__ or (exc.__cause__ is not None and _timed_out(exc.__cause__))


def _added(total: Usage | None, usage: Usage | None) -> Usage | None:
    if total is None or usage is None:
        return total or usage
    return Usage(
        model=usage.model or total.model,
        input_tokens=total.input_tokens + usage.input_tokens,
        output_tokens=total.output_tokens + usage.output_tokens,
        cache_read_tokens=total.cache_read_tokens + usage.cache_read_tokens,
        cache_write_tokens=total.cache_write_tokens + usage.cache_write_tokens,
    )
