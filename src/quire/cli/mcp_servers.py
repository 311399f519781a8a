"""Starts an agent's MCP servers for a command, or reports that they are not started.

Starting takes seconds and runs programs, so read-only commands start servers only with `--servers`.
"""

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

from quire.cli.output import pluralize, to_one_line

if TYPE_CHECKING:
    from quire.agent.mcp.servers import ServerProblem
    from quire.agent.protocols import ToolRunner
    from quire.engine import Engine
    from quire.model.agents import Agent


def list_enabled_servers(agent: "Agent") -> list[str]:
    return [server.name for server in agent.servers if server.enabled]


class StartedServers(NamedTuple):
    """An engine that offers the tools of the agent's MCP servers, and the runners of these tools."""

    engine: "Engine"
    runners: "Sequence[ToolRunner]" = ()
    problems: "Sequence[ServerProblem]" = ()


async def start_servers(engine: "Engine", stack: AsyncExitStack) -> StartedServers:
    """Starts the agent's servers and offers their tools to the engine; closing the stack stops them."""
    if not list_enabled_servers(engine.agent):
        return StartedServers(engine)
    from quire.agent.limits import build_mcp_limits
    from quire.agent.mcp.servers import MCPServers
    from quire.agent.tool_runners import MCPToolRunner

    servers = await stack.enter_async_context(
        MCPServers(
            engine.agent.servers,
            variables=os.environ,
            limits=build_mcp_limits(engine.settings),
            put_blob=engine.store.put_blob,
        )
    )
    offered = await servers.list_tools()
    agent = engine.agent.with_tools(*engine.agent.tools, *offered)
    return StartedServers(engine.with_changes(agent=agent), [MCPToolRunner(servers, offered)], servers.problems)


def format_server_problem(problem: "ServerProblem") -> str:
    return f"The server {problem.server}: {to_one_line(problem.message)}"


def format_not_started(names: Sequence[str]) -> str:
    """Says which servers are not started, so that their tools are missing from the output."""
    servers = f"{pluralize(len(names), 'server')} of the agent ({', '.join(map(to_one_line, names))})"
    if len(names) == 1:
        return f"{servers} is not started, so its tools are missing; start it with --servers."
    return f"{servers} are not started, so their tools are missing; start them with --servers."
