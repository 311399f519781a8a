"""Limits of a summarizer's calls, in tokens: how long a summary, an answer and a prompt may be."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Self

from quire.compaction.summarizer import Summarizer
from quire.compaction.summary_prompt import TranscriptMessage, build_summary_prompt
from quire.errors import SummaryFailed
from quire.llm import Prompt
from quire.model.lazy import lazy_property
from quire.view.tokens import TokenCounter

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
