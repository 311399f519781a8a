"""How long MCP servers may take, how often they are started again, and how much they may send."""

from pydantic import Field

from quire.agent.outcomes import LARGEST_RESULT
from quire.model.value import Value
from quire.settings import Settings


class ServerLimits(Value):
    start_seconds: float = Field(default=30.0, gt=0, description="Seconds until a server must have answered its start.")
    list_seconds: float = Field(default=30.0, gt=0, description="Seconds until a server must have listed its tools.")
    call_seconds: float = Field(default=120.0, gt=0, description="Seconds that one call of a tool may take.")
    close_seconds: float = Field(
        default=2.0, ge=0, description="Seconds that a server is given to end by itself before it is ended."
    )
    restarts: int = Field(default=3, ge=0, description="How often in a row a server that failed is started again.")
    largest_result: int = Field(
        default=LARGEST_RESULT, gt=0, description="Characters of a result that are kept; the rest is cut."
    )
    largest_message: int = Field(
        default=64_000_000, gt=0, description="Bytes of one message of a server; a larger one is dropped."
    )


def server_limits(settings: Settings) -> ServerLimits:
    """The limits that the settings name; the others are at their defaults."""
    return ServerLimits(
        start_seconds=settings.server_timeout,
        list_seconds=settings.server_timeout,
        call_seconds=settings.tool_timeout,
    )
