"""Helpers for server tests: a server on loopback, API keys, an SSE reader, a scripted agent."""

import asyncio
import json
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import httpx2
import uvicorn
from fastapi import FastAPI

from quire.access.keys import KEY_SCOPES
from quire.llm import Model
from quire.model import Message, TextPart, ToolCallPart, ToolDefinition
from quire.model.agents import Agent, AgentMemory, AgentTool
from quire.server.lifecycle import make_server_config
from quire.store import SqlStore
from quire.testing.scripted_model import ScriptedModel, ScriptStep

GUARDED_TOOL = AgentTool(
    definition=ToolDefinition(
        name="guarded", description="Needs approval.", parameters={"type": "object", "properties": {}}
    ),
    include="always",
)


class ScriptedAgent:
    """Scripted model for every model name, and runner of the one tool, which needs approval."""

    def __init__(self) -> None:
        self.agent = Agent(name="keeper", instructions="Be brief.", tools=(GUARDED_TOOL,), memory=AgentMemory(files=()))
        self.requested_models: list[str] = []
        self.ran_call_ids: list[str] = []
        self.model = ScriptedModel()

    def set_script(self, *steps: ScriptStep, repeat: bool = False) -> ScriptedModel:
        self.model = ScriptedModel(*steps, repeat=repeat)
        return self.model

    def get_model(self, name: str) -> Model:
        self.requested_models.append(name)
        return self.model

    def handles(self, call: ToolCallPart) -> bool:
        return call.name == "guarded"

    def needs_approval(self, call: ToolCallPart) -> bool:
        return True

    async def run(self, call: ToolCallPart) -> Message:
        self.ran_call_ids.append(call.id)
        return Message.tool(call.id, "done")


def tool_call_reply(id: str, *, text: str = "") -> Message:
    """Builds a reply that calls the tool."""
    text_parts = (TextPart(text=text),) if text else ()
    return Message(role="assistant", parts=(*text_parts, ToolCallPart(id=id, name="guarded", arguments="{}")))


async def create_key_for(store: SqlStore, tenant: str, *scopes: str) -> str:
    _, text = await store.for_tenant(tenant).keys.create("test", scopes or KEY_SCOPES)
    return text


class SseEvent(NamedTuple):
    """One server-sent event."""

    id: str
    event: str
    data: dict[str, Any]


def parse_event(block: str) -> SseEvent | None:
    """Parses an SSE block; returns None for a block of comments."""
    lines = [line for line in block.split("\n") if line and not line.startswith(":")]
    fields = dict(line.split(": ", 1) for line in lines)
    return SseEvent(fields["id"], fields["event"], json.loads(fields["data"])) if fields else None


def parse_events(text: str) -> list[SseEvent]:
    """Parses a complete SSE stream, which must contain nothing else."""
    assert text.endswith("\n\n")
    events = [parse_event(block) for block in text.removesuffix("\n\n").split("\n\n")]
    return [event for event in events if event is not None]


class EventReader:
    """Reads an SSE stream incrementally and counts its heartbeat comments."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()
        self.comments = 0

    async def read_next(self, *, timeout_seconds: float = 5.0) -> SseEvent:
        async with asyncio.timeout(timeout_seconds):
            while True:
                block = await self._read_block()
                if (event := parse_event(block)) is not None:
                    return event
                self.comments += 1

    async def read_until(self, event: str, *, timeout_seconds: float = 5.0, **fields: Any) -> list[SseEvent]:
        """Reads up to and including the first event with this name and these fields."""
        events: list[SseEvent] = []
        async with asyncio.timeout(timeout_seconds):
            while True:
                events.append(await self.read_next(timeout_seconds=timeout_seconds))
                if events[-1].event == event and fields.items() <= events[-1].data.items():
                    return events

    async def read_rest(self, *, timeout_seconds: float = 5.0) -> list[str]:
        """Reads the remaining lines of the stream."""
        async with asyncio.timeout(timeout_seconds):
            return [line async for line in self._lines]

    async def _read_block(self) -> str:
        lines: list[str] = []
        async for line in self._lines:
            if not line:
                return "\n".join(lines)
            lines.append(line)
        raise EOFError("the stream is over")


@asynccontextmanager
async def open_event_stream(client: httpx2.AsyncClient, path: str, **request: Any) -> AsyncIterator[EventReader]:
    """Streams a GET, or a POST if `json` is given; the connection is closed on exit."""
    method = "POST" if "json" in request else "GET"
    async with client.stream(method, path, **request) as response:
        assert response.status_code == 200, await response.aread()
        yield EventReader(response)


class _SignalFreeServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Captures no signals: they belong to the test run."""
        yield


@asynccontextmanager
async def serve_app(app: FastAPI, *, port: int = 0) -> AsyncIterator[str]:
    """Serves on loopback in this event loop, on a free port unless one is given; yields the base URL."""
    config = make_server_config(app, grace_seconds=5)
    config.port = port
    server = _SignalFreeServer(config)
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def assert_no_task_left(*, timeout_seconds: float = 3.0) -> AsyncIterator[None]:
    """Asserts that tasks started inside the block end within the timeout."""
    before = asyncio.all_tasks()
    yield
    remaining = set[asyncio.Task[object]]()
    try:
        async with asyncio.timeout(timeout_seconds):
            while remaining := asyncio.all_tasks() - before - {asyncio.current_task()}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"tasks still running: {remaining}") from None
