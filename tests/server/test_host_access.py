"""Tenants with API keys and the host: vault, agent and MCP tools are off unless the settings name the tenant."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from server_helpers import ScriptedAgent, create_key_for, open_event_stream, serve_app, tool_call_reply

from quire.model.agents import Agent, AgentTool, ToolServer
from quire.server import state
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import DEFAULT_TENANT, SqlStore

OWN_TENANT, OTHER_TENANT = "default", "elsewhere"
"""Tenants of the clients in conftest.py."""


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    vault = tmp_path / "vault"
    vault.mkdir()
    (vault / "diary.md").write_text("Nothing for strangers.")
    return {"vault": str(vault), "trusted_tenants": [OWN_TENANT]}


async def test_a_tenant_without_host_access_has_no_vault_and_no_agent(
    client: httpx2.AsyncClient, other_tenant_client: httpx2.AsyncClient
):
    for tenant_client, names, agent in ((client, ["diary"], "keeper"), (other_tenant_client, [], "default")):
        documents = (await tenant_client.get("/api/documents")).json()["items"]
        assert [document["name"] for document in documents] == names
        [found] = (await tenant_client.get("/api/agents")).json()["items"]
        assert found["name"] == agent
        assert bool(found["items"]) is bool(names)
    read = await other_tenant_client.get("/api/documents/content", params={"path": "diary.md"})
    assert read.status_code == 400
    assert "trusted_tenants" in read.json()["detail"]


async def test_a_tool_of_the_host_does_not_run_for_a_tenant_without_host_access(
    other_tenant_client: httpx2.AsyncClient, scripted: ScriptedAgent
):
    assert (await other_tenant_client.post("/api/conversations", json={"id": "c"})).status_code == 201
    model = scripted.set_script(tool_call_reply("call-1"), "Well.")
    answer = await other_tenant_client.post("/api/conversations/c/send", json={"message": "Run it."})
    assert "turn_ended" in answer.text
    assert "approval_requested" not in answer.text
    assert not scripted.ran_call_ids
    assert not model.prompts[0].tools


@pytest.mark.parametrize(("is_local", "tenants"), [(True, {DEFAULT_TENANT}), (False, set[str]())])
async def test_without_the_setting_only_the_local_user_has_host_access(
    store: SqlStore, scripted: ScriptedAgent, tmp_path: Path, is_local: bool, tenants: set[str]
):
    async with UpstreamClient() as http_client:
        settings = Settings(vault=str(tmp_path))
        server_state = ServerState(store, settings, http_client=http_client, agent=scripted.agent, is_local=is_local)
        for tenant in (DEFAULT_TENANT, OTHER_TENANT):
            engine = server_state.engine_for(tenant)
            assert (engine.vault is not None) is (tenant in tenants)
            assert (engine.agent.name == "keeper") is (tenant in tenants)


@pytest.fixture
async def chat_client(app: FastAPI, store: SqlStore) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {await create_key_for(store, OWN_TENANT, 'read', 'write', 'chat')}"}
    async with serve_app(app) as address, httpx2.AsyncClient(base_url=address, headers=headers, timeout=10) as client:
        yield client


async def test_a_chat_key_denies_tool_calls_and_approves_none(
    chat_client: httpx2.AsyncClient, conversation: str, scripted: ScriptedAgent
):
    scripted.set_script(tool_call_reply("call-1"), "Well.")
    async with open_event_stream(chat_client, f"{conversation}/send", json={"message": "Run it."}) as stream:
        await stream.read_until("approval_requested")
        approval = await chat_client.post(f"{conversation}/approvals/call-1", json={"approve": True})
        assert (approval.status_code, approval.json()["code"]) == (403, "insufficient_scope")
        assert "'approve'" in approval.json()["detail"]
        denial = await chat_client.post(f"{conversation}/approvals/call-1", json={"approve": False})
        assert denial.status_code == 204
        await stream.read_until("turn_ended")
    assert not scripted.ran_call_ids


@pytest.mark.parametrize(
    ("is_local", "tenants", "starts"), [(True, (), True), (False, ("observatory",), True), (False, (), False)]
)
async def test_mcp_servers_start_only_where_a_tenant_may_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool, tenants: tuple[str, ...], starts: bool
):
    started: list[object] = []

    class FakeServers:
        def __init__(self, servers: object, **_: object) -> None:
            started.append(servers)

        async def __aenter__(self) -> "FakeServers":
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def list_tools(self) -> list[AgentTool]:
            return []

    monkeypatch.setattr(state, "MCPServers", FakeServers)
    agent = Agent(name="keeper", servers=(ToolServer(name="s", command="true"),))
    settings = Settings(trusted_tenants=tenants)
    async with state.open_server_state(f"sqlite:///{tmp_path}/q.db", settings, agent=agent, is_local=is_local):
        assert bool(started) is starts
