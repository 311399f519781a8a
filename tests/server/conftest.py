"""Fixtures: a server on a real database, a scripted model, and clients of two tenants with their own API keys."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from fastapi import FastAPI
from server_helpers import ScriptedAgent, create_key_for, serve_app

from quire.server.app import create_app
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore

OWN_TENANT, OTHER_TENANT = "default", "elsewhere"


@pytest.fixture
def scripted() -> ScriptedAgent:
    """The server's agent and model; `scripted.set_script(…)` sets the next replies."""
    return ScriptedAgent()


@pytest.fixture
def options() -> dict[str, object]:
    """Settings overrides; a test module may replace this fixture."""
    return {}


@pytest.fixture
async def server_state(
    store: SqlStore, scripted: ScriptedAgent, options: dict[str, object]
) -> AsyncIterator[ServerState]:
    settings = Settings.model_validate(
        {"model": "gpt-4o", "context_limit": 8_000, "requests_per_minute": None, "trusted_tenants": [OWN_TENANT]}
        | options
    )
    async with UpstreamClient() as http_client:
        state = ServerState(
            store, settings, http_client=http_client, agent=scripted.agent, model_factory=scripted.get_model
        )
        state.turns.runners = (scripted,)
        # The connection that listens lasts as long as the store: no test counts its task as a leak.
        store.notifications.subscribe(lambda _: None)
        yield state
        await state.turns.stop_all()
        await state.relay.close()
        await state.wait_for_background()


@pytest.fixture
def app(server_state: ServerState) -> FastAPI:
    return create_app(server_state)


@asynccontextmanager
async def _client(app: FastAPI, store: SqlStore, tenant: str) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {await create_key_for(store, tenant)}"}
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://quire", headers=headers) as client:
        yield client


@pytest.fixture
async def client(app: FastAPI, store: SqlStore) -> AsyncIterator[httpx2.AsyncClient]:
    """In-process client: a streamed response arrives only when it is complete."""
    async with _client(app, store, OWN_TENANT) as client:
        yield client


@pytest.fixture
async def other_tenant_client(app: FastAPI, store: SqlStore) -> AsyncIterator[httpx2.AsyncClient]:
    """In-process client of another tenant."""
    async with _client(app, store, OTHER_TENANT) as client:
        yield client


@pytest.fixture
async def live_client(app: FastAPI, store: SqlStore) -> AsyncIterator[httpx2.AsyncClient]:
    """Client over a real connection: streams arrive live, and the client can disconnect in the middle."""
    headers = {"Authorization": f"Bearer {await create_key_for(store, OWN_TENANT)}"}
    async with serve_app(app) as address, httpx2.AsyncClient(base_url=address, headers=headers, timeout=10) as client:
        yield client


@pytest.fixture
async def conversation(client: httpx2.AsyncClient) -> str:
    """Path of an empty conversation."""
    response = await client.post("/api/conversations", json={"id": "c"})
    assert response.status_code == 201, response.text
    return "/api/conversations/c"
