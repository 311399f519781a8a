"""Models to choose from, and the status of the model that answers."""

import socket
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from fake_upstream import UpstreamRequest, run_fake_upstream
from infra.scripted_provider import run_scripted_provider
from quire.access.keys import KEY_SCOPES
from quire.errors import ModelRequestRejected
from quire.model import Message
from quire.server.routes.models import PROBLEM_SECONDS, REPORT_SECONDS, UpstreamProbe
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore


async def get_json(client: httpx2.AsyncClient, path: str, **params: Any) -> Any:
    response = await client.get(path, params=params)
    assert response.status_code == 200, response.text
    return response.json()


def find_closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def change_settings(server_state: ServerState, **changes: Any) -> None:
    await server_state.change_settings(changes)


async def test_the_price_list_names_models_of_the_same_provider(client: httpx2.AsyncClient):
    listed = await get_json(client, "/api/models")
    models = {each["name"]: each for each in listed["items"]}
    assert listed["default"] == "gpt-4o"
    assert listed["items"][0]["name"] == "gpt-4o"
    assert models["gpt-4o-mini"] == {
        "name": "gpt-4o-mini", "source": "price_list", "window": 128_000, "input_price": 0.15, "output_price": 0.6,
    }  # fmt: skip
    assert not any("embedding" in name or name.startswith("claude") for name in models)


async def test_models_of_an_upstream_and_of_the_settings_are_listed(
    client: httpx2.AsyncClient, server_state: ServerState
):
    with run_scripted_provider() as provider:
        await change_settings(
            server_state, base_url=f"{provider.url}/v1", models={"heron": {"window": 9_000}, "gpt-*": {"window": 9}}
        )
        listed = await get_json(client, "/api/models")
    assert [(each["name"], each["source"], each["window"]) for each in listed["items"]] == [
        ("gpt-4o", "settings", 9), ("heron", "settings", 9_000), ("scripted", "upstream", None),
    ]  # fmt: skip


async def test_the_status_says_whether_the_upstream_answers_and_lists_the_model(
    client: httpx2.AsyncClient, server_state: ServerState
):
    assert (await get_json(client, "/api/models/status"))["status"] == "unchecked"
    with run_scripted_provider() as provider:
        await change_settings(server_state, base_url=f"{provider.url}/v1")
        assert await get_json(client, "/api/models/status", model="scripted") == {
            "model": "scripted", "status": "ok", "problem": "", "host": provider.url.removeprefix("http://"),
        }  # fmt: skip
        unknown = await get_json(client, "/api/models/status")
        assert unknown["status"] == "unknown_model"
        assert "does not list the model gpt-4o" in unknown["problem"]
    await change_settings(server_state, base_url=f"http://127.0.0.1:{find_closed_port()}/v1")
    unreachable = await get_json(client, "/api/models/status")
    assert unreachable["status"] == "unreachable"
    assert "connection refused" in unreachable["problem"]
    assert "check that" in unreachable["problem"] or "check `base_url`" in unreachable["problem"]


async def test_a_report_is_cached_and_a_problem_for_a_shorter_time(server_state: ServerState):
    seconds, statuses = 0.0, [503, 200, 503]
    responses: list[int] = []

    async def respond(request: UpstreamRequest) -> None:
        responses.append(statuses[len(responses)])
        await request.respond({"data": []}, responses[-1])

    probe = UpstreamProbe(server_state, clock=lambda: seconds)
    async with run_fake_upstream(respond) as upstream:
        await change_settings(server_state, base_url=upstream.url)
        for time, status, count in (
            (0.0, "unreachable", 1),
            (PROBLEM_SECONDS - 0.1, "unreachable", 1),
            (PROBLEM_SECONDS, "ok", 2),
            (PROBLEM_SECONDS + REPORT_SECONDS - 0.1, "ok", 2),
            (PROBLEM_SECONDS + REPORT_SECONDS, "unreachable", 3),
        ):
            seconds = time
            assert ((await probe.check_model("heron")).status, len(responses)) == (status, count)


async def test_a_missing_key_is_explained_without_advice_for_programs(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with UpstreamClient() as http_client:
        state = ServerState(store, Settings.model_validate({"model": "openai:gpt-4o"}), http_client=http_client)
        report = await UpstreamProbe(state).check_model("openai:gpt-4o")
        assert report.status == "rejected"
        assert report.problem.startswith("The model openai:gpt-4o cannot be used: OPENAI_API_KEY is not set.")
        assert "pydantic" not in report.problem
        with pytest.raises(ModelRequestRejected, match="OPENAI_API_KEY is not set"):
            state.model_for()


async def test_a_key_sees_only_the_models_that_it_may_call(app: FastAPI, store: SqlStore):
    _, key = await store.for_tenant("default").keys.create("test", KEY_SCOPES, models=["gpt-4o*"])
    headers = {"Authorization": f"Bearer {key}"}
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://quire", headers=headers) as client:
        listed = await get_json(client, "/api/models")
        assert {each["name"] for each in listed["items"]} >= {"gpt-4o", "gpt-4o-mini"}
        assert all(each["name"].startswith("gpt-4o") for each in listed["items"])
        assert (await client.get("/api/models/status", params={"model": "o3"})).status_code == 403


async def test_the_usage_fits_the_model_that_is_named(
    client: httpx2.AsyncClient, server_state: ServerState, conversation: str
):
    await change_settings(server_state, context_limit=None, models={"small": {"window": 3_000}})
    assert (await get_json(client, f"{conversation}/usage", model="small"))["window"] == 3_000
    assert (await get_json(client, f"{conversation}/usage"))["window"] == 128_000


async def test_a_branch_is_exported_as_markdown(client: httpx2.AsyncClient, store: SqlStore, conversation: str):
    await store.append("c", Message.user("The key is sk-proj-" + "a1B2" * 12), Message.assistant("Noted."))
    response = await client.get(f"{conversation}/transcript")
    assert response.headers["content-type"].startswith("text/markdown")
    assert "attachment" in response.headers["content-disposition"]
    assert "Noted." in response.text
    assert "a1B2a1B2" not in response.text
