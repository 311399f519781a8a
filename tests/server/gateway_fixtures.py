"""Fixtures for gateway tests: a gateway in front of an upstream, and message builders."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from openai import AsyncOpenAI
from server_helpers import create_key_for, serve_app

from quire.server.app import create_app
from quire.server.gateway import router
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore

MODEL = "gpt-4o"


@dataclass
class GatewayHarness:
    """A running gateway with its store and two clients."""

    server_state: ServerState
    store: SqlStore
    http: httpx2.AsyncClient
    """Authenticated by its own API key."""
    openai: AsyncOpenAI

    async def post(self, body: dict[str, Any] | bytes, **headers: str) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post("/v1/chat/completions", content=content, headers=sent_headers)

    async def ask(self, *messages: dict[str, Any], model: str = MODEL, **more: Any) -> httpx2.Response:
        headers = {name: more.pop(name) for name in list(more) if name.startswith("x_quire")}
        return await self.post({"model": model, "messages": list(messages), **more}, **headers)

    async def load_messages(self, conversation: str, branch: int = 0) -> list[tuple[str, str]]:
        """Reads the stored messages as pairs of role and text."""
        entries = await self.store.read_range(conversation, branch=branch, kinds=["message"])
        return [(entry.message.role, entry.message.text) for entry in entries]


async def list_messages(store: SqlStore) -> list[tuple[str, str]]:
    """The role and text of all messages. A conversation whose first request was refused has none."""
    records = await store.list_conversations()
    entries = [entry for each in records for entry in await store.read_range(each.id, kinds=["message"])]
    return [(entry.message.role, entry.message.text) for entry in entries]


@asynccontextmanager
async def run_gateway(
    store: SqlStore, upstream_url: str, *, timeout_seconds: float = 5.0, **settings: Any
) -> AsyncIterator[GatewayHarness]:
    """Runs a gateway on loopback that forwards every model to `upstream_url`."""
    values = {"model": MODEL, "base_url": upstream_url, "requests_per_minute": None, **settings}
    async with UpstreamClient(timeout_seconds=timeout_seconds, connect_timeout_seconds=2.0) as upstream_client:
        server_state = ServerState(
            store, Settings.model_validate(values), http_client=upstream_client, environ={"UP_KEY": "sk-up"}
        )
        app = create_app(server_state)
        if not any(getattr(route, "path", "") == "/v1/chat/completions" for route in app.routes):
            app.include_router(router)
        key = await create_key_for(store, store.tenant)
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            serve_app(app) as address,
            httpx2.AsyncClient(base_url=address, headers=headers, timeout=20) as client,
            httpx2.AsyncClient() as sdk_client,
            AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, http_client=sdk_client) as openai,
        ):
            yield GatewayHarness(server_state, store, client, openai)
            await server_state.wait_for_background()


def user_message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant_message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system_message(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def message_texts(messages: Iterable[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]
