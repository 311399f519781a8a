"""Tool runners for Python functions and for MCP servers. Tools are keyed by wire name, the name that models call."""

from collections.abc import Callable, Sequence

from quire.agent.function_tools import FunctionTool
from quire.agent.mcp.servers import MCPServers
from quire.agent.tool_results import ToolResult
from quire.context.tool_names import index_by_wire_name, wire_name
from quire.model import ContextItem, Message, ToolCallPart
from quire.model.agents import AgentTool


class FunctionToolRunner:
    def __init__(self, tools: Sequence[FunctionTool]) -> None:
        self._tools = {wire_name(tool.offered_tool.item): tool for tool in tools}

    def handles(self, call: ToolCallPart) -> bool:
        return call.name in self._tools

    def needs_approval(self, call: ToolCallPart) -> bool:
        return self._tools[call.name].requires_approval(call.arguments)

    async def run(self, call: ToolCallPart) -> Message:
        return _to_message(call, await self._tools[call.name].call(call.arguments))


class MCPToolRunner:
    """Runs tools of MCP servers. `tools` are the tools that the servers listed.

    The effects of a server's tool are unknown here, so each call needs approval unless `needs_approval` returns False
    for the tool.
    """

    def __init__(
        self,
        servers: MCPServers,
        tools: Sequence[AgentTool],
        *,
        needs_approval: Callable[[ContextItem], bool] | None = None,
    ) -> None:
        self._servers, self._needs_approval = servers, needs_approval
        self._items = index_by_wire_name(tool.item for tool in tools if tool.server is not None)

    def handles(self, call: ToolCallPart) -> bool:
        return call.name in self._items

    def needs_approval(self, call: ToolCallPart) -> bool:
        return True if self._needs_approval is None else self._needs_approval(self._items[call.name])

    async def run(self, call: ToolCallPart) -> Message:
        return _to_message(call, await self._servers.call_tool(self._items[call.name], call.arguments))


def _to_message(call: ToolCallPart, result: ToolResult) -> Message:
    return Message(role="tool", parts=(result.to_part(call.id),))
