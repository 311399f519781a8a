"""`Summarizer`: the model that writes summaries, with its limits, its prompt and its temperature."""

from dataclasses import dataclass

from quire.llm import Model
from quire.view.model_specs import output_limit_for, thinking_tokens_for
from quire.wire.tokens import TokenCounter, counter_for

SUMMARY_TEMPERATURE = 0.3
"""Temperature of the summarizer; omitted for a model that rejects it."""
SUMMARY_TIMEOUT_SECONDS = 60.0
"""Time for one call of the summarizer, after which an extract replaces the summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarizer:
    """The model that writes summaries. Every limit is this model's, not the answering model's."""

    model: Model
    window: int
    """Tokens of its context window: prompt, thinking and answer."""
    output_limit: int | None = None
    """Maximum tokens of one answer, with its thinking; else the published limit of the model."""
    thinking_tokens: int | None = None
    """Tokens reserved for thinking before the answer; else by the model's name."""
    counter: TokenCounter | None = None
    """Counts its prompts; else the counter for the model's name."""
    ratio: float = 1.0
    """Tokens that the provider reported, divided by the tokens that the counter gave."""
    prompt: str | None = None
    """Replaces the built-in text on what a summary contains."""
    temperature: float | None = None
    timeout: float | None = SUMMARY_TIMEOUT_SECONDS
    """Seconds, for each call."""

    @property
    def max_output_tokens(self) -> int:
        return self.output_limit if self.output_limit is not None else output_limit_for(self.model.name)

    @property
    def max_thinking_tokens(self) -> int:
        return self.thinking_tokens if self.thinking_tokens is not None else thinking_tokens_for(self.model.name)

    @property
    def token_counter(self) -> TokenCounter:
        return self.counter or counter_for(self.model.name)
