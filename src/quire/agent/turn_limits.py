"""How long a turn may go on, how long it waits for models and tools, and how often it asks again."""

from pydantic import Field

from quire.errors import ModelThrottled
from quire.model.value import Value
from quire.settings import Settings


class TurnLimits(Value):
    steps: int = Field(default=50, gt=0, description="Replies that a turn may have.")
    reply_tokens: int | None = Field(default=None, gt=0, description="Tokens of a reply; else what the provider lets.")
    silence_seconds: float | None = Field(
        default=300.0, gt=0, description="Seconds that a model may be silent before a reply or in the midst of it."
    )
    tool_seconds: float | None = Field(default=600.0, gt=0, description="Seconds that a tool may take.")
    stop_seconds: float = Field(default=2.0, ge=0, description="Seconds that a tool has to end when it is stopped.")
    retries: int = Field(default=4, ge=0, description="How often a throttled call is repeated.")
    first_wait: float = Field(default=1.0, ge=0, description="Seconds before the first repetition; then twice as many.")
    longest_wait: float = Field(
        default=60.0, ge=0, description="Seconds that a provider may ask to wait; if it asks for more, the turn fails."
    )

    def wait(self, error: ModelThrottled, *, retry: int) -> float | None:
        """Seconds until a call is repeated, after so many repetitions; None if it is not."""
        wanted = max(error.retry_after or 0.0, min(self.longest_wait, self.first_wait * 2**retry))
        return wanted if retry < self.retries and wanted <= self.longest_wait else None


def turn_limits(settings: Settings, *, reply_tokens: int | None = None) -> TurnLimits:
    """The limits that the settings name; the others are at their defaults."""
    return TurnLimits(
        steps=settings.max_steps,
        reply_tokens=reply_tokens,
        silence_seconds=settings.model_timeout,
        tool_seconds=settings.tool_timeout,
    )
