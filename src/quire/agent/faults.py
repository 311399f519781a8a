"""What went wrong with a server, in one line for people and models: no trace, no address with its keys."""

from collections.abc import Iterator

import httpx2
from mcp import MCPError
from pydantic import ValidationError

_LONGEST = 500


def described(error: BaseException) -> str:
    """The first cause; the SDK's task groups wrap what happened in groups."""
    return _line(next(_causes(error)))[:_LONGEST]


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            yield from _causes(inner)  # pyright: ignore[reportUnknownArgumentType]
    else:
        yield error


def _line(error: BaseException) -> str:
    match error:
        case MCPError():
            return error.error.message or "it gave an error without a reason"
        case FileNotFoundError() | PermissionError() | NotADirectoryError():
            return f"it cannot be started: {error.strerror}: {error.filename}"
        case ValidationError():
            fault = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(str(step) for step in fault["loc"])
            return f"it does not keep to the protocol: `{field}`: {fault['msg']}"
        case httpx2.HTTPStatusError():
            return f"it answered with HTTP status {error.response.status_code}"
        case httpx2.ConnectError():
            return "it cannot be reached; check its address, and whether it runs"
        case TimeoutError():
            return "it took too long"
        case _:
            return " ".join(str(error).split()) or type(error).__name__
