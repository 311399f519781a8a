"""Functions and MCP servers as runners of a turn: each knows its tools by the names under which models call them."""

from collections.abc import Callable, Sequence

from quire.agent.functions import FunctionTool
from quire.agent.mcp import Servers
from quire.agent.outcomes import Outcome
from quire.context.names import by_name, sent_name
from quire.model import ContextItem, Message, ToolCallPart
from quire.model.agents import OfferedTool


class FunctionRunner:
    def __init__(self, tools: Sequence[FunctionTool]) -> None:
        self._tools = {sent_name(tool.offered.item): tool for tool in tools}

    def handles(self, call: ToolCallPart) -> bool:
        return call.name in self._tools

    def needs_approval(self, call: ToolCallPart) -> bool:
        return self._tools[call.name].asks(call.arguments)

    async def run(self, call: ToolCallPart) -> Message:
        return _message(call, await self._tools[call.name].call(call.arguments))


class ServerRunner:
    """`offered` are the servers' tools as they were listed. What a server does is seen by nobody here, so each call
    needs approval, unless `asks` says otherwise for its tool."""

    def __init__(
        self, servers: Servers, offered: Sequence[OfferedTool], *, asks: Callable[[ContextItem], bool] | None = None
    ) -> None:
        self._servers, self._asks = servers, asks
        self._items = by_name(tool.item for tool in offered if tool.server is not None)

    def handles(self, call: ToolCallPart) -> bool:
        return call.name in self._items

    def needs_approval(self, call: ToolCallPart) -> bool:
        return True if self._asks is None else self._asks(self._items[call.name])

    async def run(self, call: ToolCallPart) -> Message:
        return _message(call, await self._servers.call(self._items[call.name], call.arguments))


def _message(call: ToolCallPart, outcome: Outcome) -> Message:
    return Message(role="tool", parts=(outcome.part(call.id),))
