"""Helpers for MCP tests: servers as subprocesses and over HTTP, and the log files that they write."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from quire.agent.limits import MCPLimits
from quire.agent.mcp.servers import MCPServers
from quire.agent.tool_results import ToolResult
from quire.model import ContextItem
from quire.model.agents import ToolServer

SERVERS_DIR = Path(__file__).parent / "servers"
VARIABLES = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "OPENAI_API_KEY": "sk-secret"}
FAST_MCP_LIMITS = MCPLimits(start_seconds=20, list_seconds=20, call_seconds=20, close_seconds=1)


class ServerLog:
    """Log file of a test server: starts, calls and cancellations."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    @property
    def pids(self) -> list[int]:
        return [int(line.split()[1]) for line in self.lines if line.startswith("started")]

    async def wait_for_line(self, line: str) -> None:
        await wait_until(lambda: line in self.lines)

    async def wait_for_starts(self, count: int = 1) -> None:
        await wait_until(lambda: len(self.pids) >= count)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110  it waits for another process
            await asyncio.sleep(0.01)


async def wait_for_tool(name: str, servers: MCPServers) -> None:
    async with asyncio.timeout(5):
        while name not in {tool.name for tool in await servers.list_tools()}:  # noqa: ASYNC110  as above
            await asyncio.sleep(0.01)


def make_mcp_servers(*servers: ToolServer, limits: MCPLimits = FAST_MCP_LIMITS, **options: object) -> MCPServers:
    return MCPServers(servers, variables=VARIABLES, limits=limits, **options)  # type: ignore[arg-type]


def make_tool_item(name: str, server: str = "s") -> ContextItem:
    return ContextItem(type="tool", name=name, server=server)


def get_text(result: ToolResult) -> str:
    assert not result.is_error, result
    return result.text


def get_error_text(result: ToolResult) -> str:
    assert result.is_error, result
    return result.text


@contextmanager
def assert_processes_exit(log: ServerLog) -> Iterator[None]:
    yield
    assert log.pids
    deadline = time.monotonic() + 5
    for pid in log.pids:
        while _is_alive(pid):
            assert time.monotonic() < deadline, f"process {pid} was left behind"
            time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def run_http_server(kind: str, port: int, *, script: str = "sdk_server") -> AsyncIterator[None]:
    command = [sys.executable, str(SERVERS_DIR / f"{script}.py"), kind, str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: ASYNC220  it does not block
    try:
        async with asyncio.timeout(20):
            while True:
                try:
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()
