"""Summary written by a model: folds chunk after chunk into the running summary, and validates every answer.

Returns a complete summary or raises `SummaryFailed` with a reason; nothing is stored. `SummaryCalls` computes the
limits of each call: no call is made whose prompt and answer would exceed the summarizer's context window, or whose
answer would exceed its output limit.
"""

import re
import zlib
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import NamedTuple, Self

from quire.compaction.citations import CITATION, check_citations, find_cited_entries
from quire.compaction.summarizer import Summarizer
from quire.compaction.summarizer_caller import SummarizerCaller
from quire.compaction.summary_prompt import (
    MAX_PARTS_PER_MESSAGE,
    TranscriptChunk,
    TranscriptMessage,
    build_summary_prompt,
    chunk_transcript,
    split_summary,
    to_transcript,
)
from quire.concurrency.worker_threads import measure_entries, run_portable, run_sized
from quire.errors import (
    ModelContextOverflow,
    SummaryFailed,
)
from quire.llm import Prompt, Reply
from quire.model import Entry, Usage
from quire.model.base import lazy_property
from quire.model.finish_reasons import is_truncated, normalize_finish_reason
from quire.wire.labels import label_text
from quire.wire.tokens import TokenCounter

MAX_SUMMARY_CALLS = 64
"""Calls of one summary. A history that needs more of them is extracted."""
MAX_HALVINGS = 4
"""How often the remaining chunks are halved because the provider rejects one as too long."""
SUMMARY_LENGTH_TOLERANCE = 1.25
"""Accepted length of a summary, relative to the requested length."""
ESTIMATE_MARGIN = 1.6
"""Tokens of the summarizer for one token of another counter: tokenizers of vendors differ by up to this factor."""
PROMPT_OVERHEAD_TOKENS = 32
"""Maximum tokens that a provider adds around a system text and one message, and that joining texts may add."""
MAX_ANSWER_WINDOW_SHARE = 0.25
"""Share of the context window that the answer may use, with its thinking."""
MIN_TARGET_TOKENS = 40
"""A model that cannot write a summary of this length within its window is not called."""


@dataclass(frozen=True, kw_only=True)
class SummaryCalls:
    """Limits of all calls of one summary. Tokens are the summarizer's, unless they are said to be the reader's."""

    summarizer: Summarizer
    counter: TokenCounter
    """The summarizer's counter."""
    reader_counter: TokenCounter
    """The counter of the model that reads the summary."""
    instructions: str | None
    target_tokens: int
    """Requested length of the summary, in the reader's tokens."""
    answer_tokens: int
    """Maximum tokens of an answer, with its thinking: the `max_tokens` of each call."""

    @classmethod
    def create(
        cls, summarizer: Summarizer, *, target_tokens: int, instructions: str | None, reader_counter: TokenCounter
    ) -> Self:
        """Shortens the summary to what the summarizer can write in one answer, and read again in the next prompt."""
        counter = summarizer.token_counter
        answer_limit = min(summarizer.max_output_tokens, int(summarizer.window * MAX_ANSWER_WINDOW_SHARE))
        thinking_tokens = min(summarizer.max_thinking_tokens, answer_limit // 2)
        longest = cls(
            summarizer=summarizer,
            counter=counter,
            reader_counter=reader_counter,
            instructions=instructions,
            target_tokens=target_tokens,
            answer_tokens=answer_limit,
        )
        tokens_per_target = SUMMARY_LENGTH_TOLERANCE * longest.margin
        summary_limit = min(answer_limit - thinking_tokens, longest.free_prompt_tokens // 2)
        largest_target = int(summary_limit / tokens_per_target)
        if largest_target < min(target_tokens, MIN_TARGET_TOKENS):
            raise SummaryFailed(
                "overflow",
                f"The context window of {summarizer.model.name}, {summarizer.window:,} tokens, is too small for a "
                "summary.",
            )
        target_tokens = min(target_tokens, largest_target)
        answer_tokens = min(answer_limit, ceil(target_tokens * tokens_per_target) + thinking_tokens)
        return cls(
            summarizer=summarizer,
            counter=counter,
            reader_counter=reader_counter,
            instructions=instructions,
            target_tokens=target_tokens,
            answer_tokens=answer_tokens,
        )

    @property
    def margin(self) -> float:
        """Maximum tokens of the summarizer for one token of the reader."""
        return 1.0 if self.counter.exact and self.counter.name == self.reader_counter.name else ESTIMATE_MARGIN

    @property
    def max_summary_tokens(self) -> int:
        """Maximum length of an accepted summary, in the reader's tokens."""
        return ceil(self.target_tokens * SUMMARY_LENGTH_TOLERANCE)

    @property
    def max_running_tokens(self) -> int:
        """Maximum length of an accepted summary as a part of the next prompt."""
        return ceil(self.max_summary_tokens * self.margin)

    @lazy_property
    def max_prompt_tokens(self) -> int:
        margin = max(1.0 if self.counter.exact else ESTIMATE_MARGIN, self.summarizer.ratio)
        return int((self.summarizer.window - self.answer_tokens) / margin)

    @lazy_property
    def free_prompt_tokens(self) -> int:
        """Tokens of a prompt without its fixed text: for the transcript and the summary so far."""
        return self.max_prompt_tokens - self.count_prompt(self.build_prompt((), None))

    def build_prompt(self, transcript: Sequence[TranscriptMessage], previous: str | None) -> Prompt:
        return build_summary_prompt(
            transcript,
            previous=previous,
            instructions=self.instructions,
            target_tokens=self.target_tokens,
            max_tokens=self.answer_tokens,
            template=self.summarizer.prompt,
        )

    def count_prompt(self, prompt: Prompt) -> int:
        texts = [prompt.system or "", *(message.text for message in prompt.messages)]
        return PROMPT_OVERHEAD_TOKENS + sum(map(self.counter.count, texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    text: str
    sources: tuple[int, ...]
    dropped_citations: int
    """Citations that were removed because they cite no known entry."""
    calls: int
    usage: Usage | None
    """Tokens of all calls, or None if the provider reported none."""
    model: str
    excerpted_seqs: tuple[int, ...]
    """Messages that were sent to the summarizer only as excerpts."""


class SummaryCallPlan(NamedTuple):
    """All calls of a summary, planned before the first one."""

    chunks: tuple[TranscriptChunk, ...]
    previous: str | None
    """The summary so far, as the first call gets it, or None if there is none, or if it is part of the chunks."""


def plan_calls(
    entries: Sequence[Entry], *, previous: str | None, counter: TokenCounter, free_tokens: int, running_tokens: int
) -> SummaryCallPlan:
    """One chunk if all entries fit with the summary so far, else chunks that fit with the longest running summary, of
    `running_tokens`. A prompt has `free_tokens` for both.

    A previous summary that is too long to be sent with a chunk is folded like the messages, in parts.
    """
    count, transcript = counter.count, to_transcript(entries)
    if not transcript:
        return SummaryCallPlan((), previous)
    label_tokens = count(label_text("summary", ""))
    previous_tokens = count(previous) + label_tokens if previous else 0
    if previous and previous_tokens > free_tokens // 2:
        transcript = [*split_summary(previous), *transcript]
        previous, previous_tokens = None, 0
    # A single message is read to its end; one of many may not use all calls.
    max_parts = MAX_SUMMARY_CALLS if len(transcript) == 1 else MAX_PARTS_PER_MESSAGE
    chunk = partial(chunk_transcript, transcript, counter=counter, max_parts=max_parts)
    chunks = chunk(max_tokens=free_tokens - previous_tokens)
    if len(chunks) > 1:
        chunks = chunk(max_tokens=free_tokens - max(previous_tokens, running_tokens + label_tokens))
    return SummaryCallPlan(tuple(chunks), previous)


async def summarize(
    summarizer: Summarizer,
    entries: Sequence[Entry],
    *,
    previous: str | None,
    instructions: str | None,
    target_tokens: int,
    counter: TokenCounter,
) -> ModelSummary:
    """Folds the entries into the previous summary.

    `target_tokens` are counted by `counter`, the counter of the model that reads the summary. The summary is shorter if
    the summarizer's window or output limit demands it.
    """
    calls = SummaryCalls.create(
        summarizer, target_tokens=target_tokens, instructions=instructions, reader_counter=counter
    )
    plan = await run_portable(
        measure_entries(entries),
        plan_calls,
        entries,
        previous=previous,
        counter=calls.counter,
        free_tokens=calls.free_prompt_tokens,
        running_tokens=calls.max_running_tokens,
    )
    if not plan.chunks:
        raise SummaryFailed("empty", "There are no messages to summarize.")
    if len(plan.chunks) > MAX_SUMMARY_CALLS:
        raise SummaryFailed(
            "overflow",
            f"The history needs {len(plan.chunks):,} calls of {summarizer.model.name}, whose context window is "
            f"{summarizer.window:,} tokens, and the limit is {MAX_SUMMARY_CALLS}; name a summarizer with a "
            "larger window.",
        )
    known_entries = find_cited_entries(previous or "", last_entry=max(entry.seq for entry in entries))
    excerpted_seqs = {seq for chunk in plan.chunks for seq in chunk.excerpted_seqs}
    caller = SummarizerCaller(summarizer)
    run = _SummaryRun(calls, caller, known_entries=known_entries, text=plan.previous)
    remaining, halvings = list(plan.chunks), 0
    while remaining:
        try:
            await run.fold(remaining[0].messages)
            del remaining[0]
        except ModelContextOverflow as exc:
            # The provider rejects the chunk as too long: the remaining messages go into chunks of half its size.
            if halvings == MAX_HALVINGS:
                raise caller.build_failure("overflow", str(exc)) from exc
            halvings += 1
            messages = [message for chunk in remaining for message in chunk.messages]
            size, max_tokens = _measure_transcript(messages), remaining[0].tokens // 2
            try:
                remaining = await run_portable(
                    size, chunk_transcript, messages, max_tokens=max_tokens, counter=calls.counter
                )
            except SummaryFailed as failure:
                raise caller.build_failure(failure.reason, failure.detail) from failure
            excerpted_seqs.update(seq for chunk in remaining for seq in chunk.excerpted_seqs)
    return ModelSummary(
        text=run.text or "",
        sources=run.sources,
        dropped_citations=run.dropped_citations,
        calls=caller.calls_made,
        usage=caller.usage,
        model=summarizer.model.name,
        excerpted_seqs=tuple(sorted(excerpted_seqs)),
    )


def _measure_transcript(transcript: Sequence[TranscriptMessage]) -> int:
    return sum(len(each.text) for each in transcript)


@dataclass(slots=True)
class _SummaryRun:
    """The running summary."""

    calls: SummaryCalls
    caller: SummarizerCaller
    known_entries: set[int]
    text: str | None
    sources: tuple[int, ...] = ()
    dropped_citations: int = 0

    async def fold(self, transcript: Sequence[TranscriptMessage]) -> None:
        """Folds a chunk into the summary. Raises `ModelContextOverflow` if the chunk is too long for one call."""
        size = _measure_transcript(transcript)
        prompt = await run_sized(size, self.calls.build_prompt, transcript, self.text)
        tokens, limit = await run_sized(size, self.calls.count_prompt, prompt), self.calls.max_prompt_tokens
        name = self.calls.summarizer.model.name
        if tokens > limit:
            # The running summary has more tokens than its margin; like a rejected prompt, with smaller chunks it fits.
            raise ModelContextOverflow(f"The prompt has {tokens:,} tokens, and the limit of {name} is {limit:,}.")
        reply = await self.caller.complete(prompt)
        try:
            text = await run_sized(
                size,
                validate_summary,
                reply,
                max_tokens=self.calls.max_summary_tokens,
                transcript=transcript,
                counter=self.calls.reader_counter,
            )
        except SummaryFailed as exc:
            raise self.caller.build_failure(exc.reason, exc.detail) from exc
        self.known_entries.update(each.seq for each in transcript if each.seq)
        checked = check_citations(text, self.known_entries)
        self.text, self.sources = checked.text.strip(), checked.sources
        self.dropped_citations += checked.dropped_count


_SENTENCE_END = re.compile(r"[.!?…。！？)\]}>\"'`*|:;]\Z")
_THINKING_BLOCK = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_CODE_FENCE = re.compile(r"\A\s*```[a-z]*\n(.*)\n```\s*\Z", re.DOTALL)
_LABEL_LINE = re.compile(r"^</?quire:[a-z]+ [^\n]*>$", re.MULTILINE)
_REFUSAL = re.compile(
    r"(?:unfortunately,? |sorry,? (?:but )?)?(?:(?:i['’]?m|i am|we are) (?:very |so |really )?(?:sorry|unable|not able)"
    r"|i (?:can['’]?t|cannot|can not|won['’]?t|must decline|apologi[sz]e))|sorry\b|as an ai\b|(?:my )?apologies\b",
    re.IGNORECASE,
)
_MAX_REFUSAL_CHARS = 400
_MESSAGE_HEADER = re.compile(r"^\[#[0-9]+\] (?:system|user|assistant|tool)[^\n]{0,40}:$", re.MULTILINE)
_MIN_ECHO_CHARS, _MAX_ECHO_SHARE = 400, 0.8


def validate_summary(
    reply: Reply, *, max_tokens: int, transcript: Sequence[TranscriptMessage], counter: TokenCounter
) -> str:
    """Returns the summary in a reply. Raises if it exceeds `max_tokens` or is no summary of the transcript."""
    text = clean_reply(reply)
    if (tokens := counter.count(text)) > max_tokens:
        raise SummaryFailed("too_long", f"The answer has {tokens:,} tokens, and the limit is {max_tokens:,}.")
    # The answer must not repeat the messages: neither under their own headers, nor most of them verbatim.
    is_echo = len(_MESSAGE_HEADER.findall(text)) >= min(3, len(transcript) + 1)
    if not is_echo:
        answer = " ".join(text.split())
        # A part of the summary so far may be repeated.
        messages = [" ".join(each.text.split()) for each in transcript if each.seq]
        total = sum(map(len, messages))
        echoed = sum(len(message) for message in messages if message in answer)
        is_echo = total >= _MIN_ECHO_CHARS and echoed > total * _MAX_ECHO_SHARE
    if is_echo:
        raise SummaryFailed("malformed", "The answer repeats the messages instead of summarizing them.")
    return text


def clean_reply(reply: Reply) -> str:
    """Strips thinking, fences and labels. Raises if the answer is a refusal, empty, truncated or noise."""
    text = _THINKING_BLOCK.sub("", reply.message.text)
    fenced = _CODE_FENCE.match(text)
    text = _LABEL_LINE.sub("", fenced[1] if fenced else text).strip()
    can_be_refusal = len(text) <= _MAX_REFUSAL_CHARS and not CITATION.search(text) and "## " not in text
    is_refusal = can_be_refusal and _REFUSAL.match(text) is not None
    if is_refusal or normalize_finish_reason(reply.finish_reason) == "content_filter":
        raise SummaryFailed("refused", f"The model declined: {text[:200] or reply.finish_reason}")
    if is_truncated(reply.finish_reason):
        raise SummaryFailed("truncated", "The answer was truncated at the token limit.")
    if not text:
        raise SummaryFailed("empty", "The answer was empty.")
    if not reply.finish_reason and not _SENTENCE_END.search(text):
        raise SummaryFailed(
            "truncated", "The answer ends in the middle of a sentence, and the provider gave no finish reason."
        )
    words, data = text.split(), text.encode()
    is_noise = (
        not any(map(str.isalpha, text))
        or (len(words) >= 20 and Tally(words).most_common(1)[0][1] > len(words) / 2)
        # Prose compresses to about half, lists of similar facts to a fifth; only repetition to less than a tenth.
        or (len(data) >= 400 and len(zlib.compress(data)) < len(data) / 10)
    )
    if is_noise:
        raise SummaryFailed("malformed", "The answer has no letters, or repeats itself.")
    return text
