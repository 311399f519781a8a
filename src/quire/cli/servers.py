"""The MCP servers of an agent, for a command: started where their tools are needed, and named where they are not.

Starting them takes seconds and runs programs, so what only looks starts none unless it is told to.
"""

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from quire.cli.output import counted, one_line

if TYPE_CHECKING:
    from quire.agent.host import ToolRunner
    from quire.agent.mcp import Trouble
    from quire.engine import Engine
    from quire.model.agents import Agent


def enabled_servers(agent: "Agent") -> list[str]:
    return [server.name for server in agent.servers if server.enabled]


async def started(engine: "Engine", stack: AsyncExitStack) -> "tuple[list[ToolRunner], Sequence[Trouble]]":
    """The tools of the agent's servers, which run until the stack is left, offered to the engine's conversations."""
    if not enabled_servers(engine.agent):
        return [], ()
    from quire.agent.limits import server_limits
    from quire.agent.mcp import Servers
    from quire.agent.runners import ServerRunner

    servers = await stack.enter_async_context(
        Servers(
            engine.agent.servers,
            variables=os.environ,
            limits=server_limits(engine.settings),
            keep=engine.store.put_blob,
        )
    )
    offered = await servers.tools()
    engine.agent = engine.agent.offering(*engine.agent.tools, *offered)
    return [ServerRunner(servers, offered)], servers.troubles


def trouble_said(trouble: "Trouble") -> str:
    return f"The server {trouble.server}: {one_line(trouble.problem)}"


def not_started_said(names: Sequence[str]) -> str:
    """For people, where tools of these servers would belong to what is shown."""
    they = "is not started, so its tools are" if len(names) == 1 else "are not started, so their tools are"
    which = f"{counted(len(names), 'server')} of the agent ({', '.join(map(one_line, names))})"
    return f"{which} {they} not here; --servers starts {'it' if len(names) == 1 else 'them'}."
