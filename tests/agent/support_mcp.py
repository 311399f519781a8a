"""Servers for the tests of MCP, what they write down, and how a test looks at it."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from quire.agent.limits import ServerLimits
from quire.agent.mcp import Servers
from quire.agent.outcomes import Outcome
from quire.model import ContextItem
from quire.model.agents import ToolServer

HERE = Path(__file__).parent / "servers"
VARIABLES = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "OPENAI_API_KEY": "sk-secret"}
QUICK = ServerLimits(start_seconds=20, list_seconds=20, call_seconds=20, close_seconds=1)


class Notes:
    """What a server wrote down of what happened to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    @property
    def pids(self) -> list[int]:
        return [int(line.split()[1]) for line in self.lines if line.startswith("started")]

    async def say(self, line: str) -> None:
        await until(lambda: line in self.lines)

    async def started(self, count: int = 1) -> None:
        await until(lambda: len(self.pids) >= count)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110  it is another process that is waited for
            await asyncio.sleep(0.01)


async def offering(name: str, servers: Servers) -> None:
    async with asyncio.timeout(5):
        while name not in {tool.name for tool in await servers.tools()}:  # noqa: ASYNC110  as above
            await asyncio.sleep(0.01)


def opened(*servers: ToolServer, limits: ServerLimits = QUICK, **options: object) -> Servers:
    return Servers(servers, variables=VARIABLES, limits=limits, **options)  # type: ignore[arg-type]


def of(name: str, server: str = "s") -> ContextItem:
    return ContextItem(type="tool", name=name, server=server)


def said(outcome: Outcome) -> str:
    assert not outcome.is_error, outcome
    return outcome.text


def error(outcome: Outcome) -> str:
    assert outcome.is_error, outcome
    return outcome.text


@contextmanager
def all_gone(notes: Notes) -> Iterator[None]:
    yield
    assert notes.pids
    deadline = time.monotonic() + 5
    for pid in notes.pids:
        while _alive(pid):
            assert time.monotonic() < deadline, f"process {pid} was left behind"
            time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def listening(kind: str, port: int, *, script: str = "workshop") -> AsyncIterator[None]:
    command = [sys.executable, str(HERE / f"{script}.py"), kind, str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: ASYNC220  it starts at once
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
