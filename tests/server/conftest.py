"""A server on a real database, a model that follows a script, and clients of two tenants with keys of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from calling import Teller, key_for, served
from fastapi import FastAPI

from quire.log import SqlStore
from quire.server.app import create_app
from quire.server.serving import Serving
from quire.settings import Settings

OURS, THEIRS = "default", "elsewhere"


@pytest.fixture
def teller() -> Teller:
    """The server's model; `teller.says(…)` gives it its next lines."""
    return Teller()


@pytest.fixture
def options() -> dict[str, object]:
    """Settings that a module changes for its tests."""
    return {}


@pytest.fixture
async def serving(store: SqlStore, teller: Teller, options: dict[str, object]) -> AsyncIterator[Serving]:
    chosen = Settings.model_validate({"model": "gpt-4o", "context_limit": 8_000, "requests_per_minute": None} | options)
    async with httpx.AsyncClient() as outward:
        made = Serving(store, chosen, client=outward, agent=teller.agent, model=teller.named)
        made.turns.runners = (teller,)
        yield made
        await made.turns.stop()
        await made.settle()


@pytest.fixture
def app(serving: Serving) -> FastAPI:
    return create_app(serving)


@asynccontextmanager
async def _client(app: FastAPI, store: SqlStore, tenant: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {await key_for(store, tenant)}"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://quire", headers=headers) as client:
        yield client


@pytest.fixture
async def client(app: FastAPI, store: SqlStore) -> AsyncIterator[httpx.AsyncClient]:
    """Asks in the process: what it is told comes when all of it is there."""
    async with _client(app, store, OURS) as client:
        yield client


@pytest.fixture
async def stranger(app: FastAPI, store: SqlStore) -> AsyncIterator[httpx.AsyncClient]:
    """The same for another tenant."""
    async with _client(app, store, THEIRS) as client:
        yield client


@pytest.fixture
async def live(app: FastAPI, store: SqlStore) -> AsyncIterator[httpx.AsyncClient]:
    """Asks over a real connection: what it is told comes as it happens, and it can go away in the middle."""
    headers = {"Authorization": f"Bearer {await key_for(store, OURS)}"}
    async with served(app) as address, httpx.AsyncClient(base_url=address, headers=headers, timeout=10) as client:
        yield client


@pytest.fixture
async def conversation(client: httpx.AsyncClient) -> str:
    """An empty conversation of ours; its path begins everything that is asked about it."""
    made = await client.post("/api/conversations", json={"id": "c"})
    assert made.status_code == 201, made.text
    return "/api/conversations/c"
