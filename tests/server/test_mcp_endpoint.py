"""`/mcp` by the official client over a real connection: keys, scopes, tenants, hosts, limits."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from fastapi import FastAPI
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from server_helpers import create_key_for, serve_app

from quire.log.types import ConversationOrigin
from quire.model import Message
from quire.server.app import create_app
from quire.server.mcp_endpoint import MAX_MCP_REQUEST_BYTES
from quire.server.state import ServerState
from quire.store import SqlStore

READING_NAMES = ["history_search", "history_read", "history_list", "context_explain", "memory_search"]
WRITING_NAMES = ["memory_write", "context_usage", "context_drop", "context_restore"]
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
HEADERS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}


@pytest.fixture
def options() -> dict[str, object]:
    return {"mcp_hosts": ["quire.example.org"]}


@pytest.fixture
async def conversations(server_state: ServerState) -> None:
    for tenant, name, text in (
        ("default", "ours", "Our sluice gate has the Rotterdam valve."),
        ("elsewhere", "theirs", "Their zeppelin lands at noon."),
    ):
        store = server_state.engine_for(tenant).store
        await store.create_conversation(name, origin=ConversationOrigin(client="codex"))
        await store.append(name, Message.user(text))


@asynccontextmanager
async def connect(address: str, key: str, *, mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http_client:
        transport = streamable_http_client(f"{address}/mcp", http_client=http_client)
        async with Client(transport, mode=mode) as client:
            yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.usefixtures("conversations")
async def test_the_official_client_uses_tools_resources_and_prompts(app: FastAPI, store: SqlStore, mode: str):
    key = await create_key_for(store, "default", "read")
    async with serve_app(app) as address, connect(address, key, mode=mode) as client:
        assert [each.name for each in (await client.list_tools()).tools] == READING_NAMES
        found = await client.call_tool("history_search", {"query": "valve"})
        assert found.structured_content is not None
        assert [hit["conversation"] for hit in found.structured_content["hits"]] == ["ours"]
        [resource] = (await client.list_resources()).resources
        assert "Rotterdam" in (await client.read_resource(resource.uri)).model_dump_json()
        assert "Rotterdam" in (await client.get_prompt("resume", {"conversation": "ours"})).model_dump_json()


@pytest.mark.every_database
@pytest.mark.usefixtures("conversations")
async def test_each_key_reads_its_own_tenant(app: FastAPI, store: SqlStore):
    ours, theirs = await create_key_for(store, "default", "read"), await create_key_for(store, "elsewhere", "read")
    async with serve_app(app) as address, connect(address, ours) as client, connect(address, theirs) as other:
        for caller, mine, foreign in ((client, "ours", "theirs"), (other, "theirs", "ours")):
            listed = await caller.call_tool("history_list", {})
            assert listed.structured_content is not None
            assert [each["id"] for each in listed.structured_content["conversations"]] == [mine]
            refused = await caller.call_tool("history_read", {"conversation": foreign})
            assert refused.is_error
            assert f"no conversation '{foreign}'" in refused.model_dump_json()
        # Interleaved requests of two tenants never see each other's rows.
        answers = await asyncio.gather(
            *(each.call_tool("history_search", {"query": "valve zeppelin"}) for each in [client, other] * 5)
        )
    for answer, mine in zip(answers, ["ours", "theirs"] * 5, strict=True):
        assert answer.structured_content is not None
        assert [hit["conversation"] for hit in answer.structured_content["hits"]] == [mine]


@pytest.mark.usefixtures("conversations")
async def test_memory_write_needs_the_scope(app: FastAPI, store: SqlStore):
    reader = await create_key_for(store, "default", "read")
    writer = await create_key_for(store, "default", "read", "write")
    arguments = {"text": "The gate has a Rotterdam valve.", "conversation": "ours", "number": 1}
    async with serve_app(app) as address:
        async with connect(address, reader) as client:
            refused = await client.call_tool("memory_write", arguments)
            assert refused.is_error
            assert "scope `write`" in refused.model_dump_json()
        async with connect(address, writer) as client:
            assert [each.name for each in (await client.list_tools()).tools] == [*READING_NAMES, *WRITING_NAMES]
            assert not (await client.call_tool("memory_write", arguments)).is_error


@pytest.mark.parametrize("key", ["none", "wrong", "chat"])
async def test_a_key_with_the_scope_read_is_needed(app: FastAPI, store: SqlStore, key: str):
    text = await create_key_for(store, "default", "chat") if key == "chat" else "quire_x"
    headers = {} if key == "none" else {"Authorization": f"Bearer {text}"}
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.post("/mcp", json=PING, headers=HEADERS | headers)
    assert response.status_code == (403 if key == "chat" else 401)
    assert response.json()["detail"]


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost", None, 200),
        ("127.0.0.1:8300", None, 200),
        ("[::1]:8300", None, 200),
        ("quire.example.org", None, 200),
        ("QUIRE.example.org:443", "https://quire.example.org", 200),
        ("evil.example.org", None, 421),
        ("localhost.evil.org", None, 421),
        ("localhost", "http://evil.example.org", 421),
        ("localhost", "null", 421),
        ("", None, 421),
    ],
)
async def test_only_known_hosts_are_served(app: FastAPI, store: SqlStore, host: str, origin: str | None, status: int):
    headers = HEADERS | {"Host": host, "X-Quire-Key": await create_key_for(store, "default", "read")}
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.post("/mcp", json=PING, headers=headers | ({"Origin": origin} if origin else {}))
    assert response.status_code == status, response.text
    if status == 421:
        assert "mcp_hosts" in response.json()["detail"]


async def test_other_methods_and_large_bodies_are_refused(client: httpx2.AsyncClient):
    headers = HEADERS | {"Host": "localhost"}
    for method in ("GET", "DELETE", "PUT"):
        response = await client.request(method, "/mcp", headers=headers)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
    large = {**PING, "params": {"_meta": {"x": "y" * MAX_MCP_REQUEST_BYTES}}}
    assert (await client.post("/mcp", json=large, headers=headers)).status_code == 413
    broken = await client.post("/mcp", content="{", headers=headers | {"Content-Type": "application/json"})
    assert broken.status_code == 400
    assert (await client.post("/mcp", json=PING, headers=headers)).json()["result"] == {}


async def test_the_local_user_needs_the_token(server_state: ServerState):
    app = create_app(server_state, token="secret")
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.post("/mcp", json=PING, headers=HEADERS)).status_code == 401
        request = {**PING, "method": "tools/list"}
        response = await client.post("/mcp", json=request, headers=HEADERS | {"Authorization": "Bearer secret"})
    names = [each["name"] for each in json.loads(response.text)["result"]["tools"]]
    assert names == [*READING_NAMES, *WRITING_NAMES]
