"""Fixtures: an engine with conversations of several programs, and the official client in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from mcp import Client
from mcp_clients import SECRET, VALVE_CHAT, ClientPerCall, MakeClient

from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.log.types import ConversationOrigin
from quire.mcp_server.server import build_local_server
from quire.model import Message
from quire.settings import Settings
from quire.store import SqlStore


@pytest.fixture
async def engine(store: SqlStore) -> AsyncIterator[Engine]:
    engine = Engine(store, EngineConfig.create(Settings(context_limit=8_000)))
    yield engine
    await engine.wait_for_background()


@pytest.fixture
async def conversations(engine: Engine) -> list[str]:
    """A conversation of Codex about a valve, one of Claude Code with long tool output, and one with a secret."""
    origins = {"valve": ("codex", "/mill"), "tools": ("claude-code", "/mill"), "keys": ("chatgpt", None)}
    for name, (client, project) in origins.items():
        await engine.store.create_conversation(name, origin=ConversationOrigin(client=client, project=project))
    await (await engine.conversation("valve")).append(*VALVE_CHAT)
    output = "\n".join(f"line {number} of the gauge log" for number in range(2_000))
    await (await engine.conversation("tools")).append(
        "Read the gauge log.",
        Message.assistant("I read it."),
        Message.tool("call", output),
        Message.assistant("The gauge log ends at line 1999."),
    )
    await (await engine.conversation("keys")).append(f"The deploy token is {SECRET}", Message.assistant("Noted."))
    return list(origins)


@pytest.fixture
def make_client(engine: Engine) -> MakeClient:
    """Connects the official client in memory; `mode` chooses between the handshake and the stateless revision."""

    @asynccontextmanager
    async def open_engine() -> AsyncIterator[Engine]:
        yield engine

    @asynccontextmanager
    async def connect(mode: str = "auto", *, write: bool = False) -> AsyncIterator[Client]:
        server = build_local_server(open_engine, may_write=write)
        async with Client(server, mode=mode) as client:
            yield client

    return connect


@pytest.fixture
def client(make_client: MakeClient, conversations: list[str]) -> ClientPerCall:
    return ClientPerCall(make_client)
