"""What tests of the server ask with: a server on loopback, keys, a reader of event streams, a model with a script."""

import asyncio
import json
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import httpx
import uvicorn
from fastapi import FastAPI

from quire.llm import Model
from quire.log import SCOPES, SqlStore
from quire.model import Message, TextPart, ToolCallPart, ToolDefinition
from quire.model.agents import Agent, AgentMemory, OfferedTool
from quire.testing.scripted import ScriptedModel, Step

GUARDED = OfferedTool(
    definition=ToolDefinition(
        name="guarded", description="Needs leave.", parameters={"type": "object", "properties": {}}
    ),
    include="always",
)


class Teller:
    """Says what it is told to, whichever model is asked for, and runs the one tool there is, which needs leave."""

    def __init__(self) -> None:
        self.agent = Agent(name="keeper", instructions="Be brief.", tools=(GUARDED,), memory=AgentMemory(files=()))
        self.asked_for: list[str] = []
        self.ran: list[str] = []
        self.model = ScriptedModel()

    def says(self, *steps: Step, repeat: bool = False) -> ScriptedModel:
        self.model = ScriptedModel(*steps, repeat=repeat)
        return self.model

    def named(self, name: str) -> Model:
        self.asked_for.append(name)
        return self.model

    def handles(self, call: ToolCallPart) -> bool:
        return call.name == "guarded"

    def needs_approval(self, call: ToolCallPart) -> bool:
        return True

    async def run(self, call: ToolCallPart) -> Message:
        self.ran.append(call.id)
        return Message.tool(call.id, "done")


def calling(id: str, *, text: str = "") -> Message:
    """A reply that calls the tool."""
    said = (TextPart(text=text),) if text else ()
    return Message(role="assistant", parts=(*said, ToolCallPart(id=id, name="guarded", arguments="{}")))


async def key_for(store: SqlStore, tenant: str, *scopes: str) -> str:
    _, text = await store.for_tenant(tenant).create_key("test", scopes or SCOPES)
    return text


class Heard(NamedTuple):
    """One event of a stream."""

    id: str
    event: str
    data: dict[str, Any]


def read_event(block: str) -> Heard | None:
    """An event as the standard reads it; None for a block of comments."""
    lines = [line for line in block.split("\n") if line and not line.startswith(":")]
    fields = dict(line.split(": ", 1) for line in lines)
    return Heard(fields["id"], fields["event"], json.loads(fields["data"])) if fields else None


def all_events(text: str) -> list[Heard]:
    """The events of a whole stream, which is nothing besides."""
    assert text.endswith("\n\n")
    found = [read_event(block) for block in text.removesuffix("\n\n").split("\n\n")]
    return [each for each in found if each is not None]


class Listener:
    """Reads a stream as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()
        self.comments = 0

    async def next(self, *, within: float = 5.0) -> Heard:
        async with asyncio.timeout(within):
            while True:
                block = await self._block()
                if (heard := read_event(block)) is not None:
                    return heard
                self.comments += 1

    async def until(self, event: str, *, within: float = 5.0, **fields: Any) -> list[Heard]:
        """All events up to the first of this name with these fields."""
        heard: list[Heard] = []
        async with asyncio.timeout(within):
            while True:
                heard.append(await self.next(within=within))
                if heard[-1].event == event and fields.items() <= heard[-1].data.items():
                    return heard

    async def rest(self, *, within: float = 5.0) -> list[str]:
        """The lines up to the end of the stream."""
        async with asyncio.timeout(within):
            return [line async for line in self._lines]

    async def _block(self) -> str:
        lines: list[str] = []
        async for line in self._lines:
            if not line:
                return "\n".join(lines)
            lines.append(line)
        raise EOFError("the stream is over")


@asynccontextmanager
async def listening(client: httpx.AsyncClient, path: str, **asked: Any) -> AsyncIterator[Listener]:
    """Listens to what GET gives, or to what a POST of `json` does; to leave is to close the connection."""
    method = "POST" if "json" in asked else "GET"
    async with client.stream(method, path, **asked) as response:
        assert response.status_code == 200, await response.aread()
        yield Listener(response)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are the test run's own."""
        yield


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """A server on loopback in this event loop; gives its address."""
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=5)
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110 (nobody tells when it is)
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def no_task_left(*, within: float = 3.0) -> AsyncIterator[None]:
    """What was begun inside is over when it is left, or soon after."""
    before = asyncio.all_tasks()
    yield
    try:
        async with asyncio.timeout(within):
            while left := asyncio.all_tasks() - before - {asyncio.current_task()}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"still there: {left}") from None
