"""Limits of MCP servers and of turns: timeouts, retries with exponential backoff, restarts and sizes."""

from pydantic import Field

from quire.agent.tool_results import MAX_RESULT_CHARS
from quire.errors import ModelRateLimited
from quire.model.base import FrozenModel
from quire.settings import Settings


class MCPLimits(FrozenModel):
    start_seconds: float = Field(default=60.0, gt=0, description="Seconds a server may take to start.")
    list_seconds: float = Field(default=30.0, gt=0, description="Seconds a server may take to list its tools.")
    call_seconds: float = Field(default=120.0, gt=0, description="Seconds one tool call may take.")
    close_seconds: float = Field(
        default=2.0, ge=0, description="Seconds a server has to exit by itself before it is terminated."
    )
    max_restarts: int = Field(default=3, ge=0, description="Maximum restarts in a row of a server that failed.")
    max_result_chars: int = Field(
        default=MAX_RESULT_CHARS, gt=0, description="Maximum characters of a result; the rest is cut."
    )
    max_message_bytes: int = Field(
        default=64_000_000, gt=0, description="Maximum bytes of one message from a server; a larger one is dropped."
    )


class TurnLimits(FrozenModel):
    max_steps: int = Field(default=50, gt=0, description="Maximum replies in a turn.")
    max_cost: float | None = Field(
        default=None, gt=0, description="US dollars that a turn may cost; once it has, no further step begins."
    )
    max_reply_tokens: int | None = Field(
        default=None, gt=0, description="Maximum tokens of a reply; the provider's default if not set."
    )
    model_idle_seconds: float | None = Field(
        default=300.0, gt=0, description="Seconds to wait for a reply to begin, and for each chunk of it."
    )
    tool_seconds: float | None = Field(default=600.0, gt=0, description="Seconds one tool call may take.")
    stop_grace_seconds: float = Field(default=2.0, ge=0, description="Seconds a tool has to end after it is cancelled.")
    max_retries: int = Field(default=4, ge=0, description="Maximum retries of a rate-limited model call.")
    initial_backoff_seconds: float = Field(
        default=1.0, ge=0, description="Seconds before the first retry; doubled for each further one."
    )
    max_backoff_seconds: float = Field(
        default=60.0,
        ge=0,
        description="Maximum seconds before a retry; if the provider asks for a longer wait, the turn fails.",
    )

    def get_retry_delay(self, error: ModelRateLimited, *, attempt: int) -> float | None:
        """Exponential backoff in seconds before the next retry, or None for no retry; `attempt` counts the retries so
        far. A provider's Retry-After can lengthen the delay."""
        backoff = min(self.max_backoff_seconds, self.initial_backoff_seconds * 2**attempt)
        delay = max(error.retry_after or 0.0, backoff)
        return delay if attempt < self.max_retries and delay <= self.max_backoff_seconds else None


def build_mcp_limits(settings: Settings) -> MCPLimits:
    """Takes limits from the settings that name them; the others have their defaults."""
    return MCPLimits(
        call_seconds=settings.tool_timeout,
    )


def build_turn_limits(
    settings: Settings,
    *,
    max_reply_tokens: int | None = None,
    max_steps: int | None = None,
    max_cost: float | None = None,
) -> TurnLimits:
    """Takes limits from the arguments, else from the settings that name them; the others have their defaults."""
    return TurnLimits(
        max_steps=settings.max_steps if max_steps is None else max_steps,
        max_cost=max_cost,
        max_reply_tokens=max_reply_tokens,
        model_idle_seconds=settings.model_timeout,
        tool_seconds=settings.tool_timeout,
    )
