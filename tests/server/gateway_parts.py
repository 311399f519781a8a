"""What tests of the gateway need: a gateway in front of an upstream, and messages to send by it."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from calling import key_for, served
from openai import AsyncOpenAI

from quire.log import SqlStore
from quire.server.app import create_app
from quire.server.gateway import router
from quire.server.serving import Serving
from quire.settings import Settings

MODEL = "gpt-4o"


@dataclass
class Gateway:
    serving: Serving
    store: SqlStore
    http: httpx.AsyncClient
    """Asks with a key of its own."""
    openai: AsyncOpenAI

    async def post(self, body: dict[str, Any] | bytes, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post("/v1/chat/completions", content=content, headers=named)

    async def ask(self, *messages: dict[str, Any], model: str = MODEL, **more: Any) -> httpx.Response:
        headers = {name: more.pop(name) for name in list(more) if name.startswith("x_quire")}
        return await self.post({"model": model, "messages": list(messages), **more}, **headers)

    async def said(self, conversation: str, branch: int = 0) -> list[tuple[str, str]]:
        """What the log has, as role and text."""
        entries = await self.store.range(conversation, branch=branch, kinds=["message"])
        return [(entry.message.role, entry.message.text) for entry in entries]


@asynccontextmanager
async def gateway(store: SqlStore, url: str, *, patience: float = 5.0, **settings: Any) -> AsyncIterator[Gateway]:
    """A gateway on loopback whose every model is at this address."""
    given = {"model": MODEL, "base_url": url, "requests_per_minute": None, **settings}
    async with httpx.AsyncClient(timeout=httpx.Timeout(patience, connect=2.0)) as outward:
        serving = Serving(store, Settings.model_validate(given), client=outward, environ={"UP_KEY": "sk-up"})
        app = create_app(serving)
        if not any(getattr(route, "path", "") == "/v1/chat/completions" for route in app.routes):
            app.include_router(router)
        key = await key_for(store, "default")
        headers = {"Authorization": f"Bearer {key}"}
        async with (
            served(app) as address,
            httpx.AsyncClient(base_url=address, headers=headers, timeout=20) as client,
            AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0) as openai,
        ):
            yield Gateway(serving, store, client, openai)
            await serving.settle()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def texts(messages: Iterable[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]
