"""Backtests over HTTP: they run as jobs, with progress, for one tenant."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from server_helpers import create_key_for

from quire.backtest import combine_variants, run_backtest, runner, select_conversations
from quire.engine import Conversation
from quire.jobs import JobRunner, LocalJobs
from quire.lab import routes as backtest_routes
from quire.lab.schemas import BacktestSchema
from quire.model import Message
from quire.server.state import ServerState
from quire.store import SqlStore, backtests


@pytest.fixture(autouse=True)
async def jobs(server_state: ServerState) -> AsyncIterator[LocalJobs]:
    runner = JobRunner(server_state.store, lambda tenant, model: server_state.engine_for(tenant, model=model))
    async with LocalJobs(runner) as jobs:
        server_state.jobs = jobs
        yield jobs


async def create_conversations(state: ServerState, count: int, *, turns: int = 6) -> None:
    engine = state.engine_for("default")
    for number in range(count):
        conversation: Conversation = await engine.conversation(f"c{number}")
        for turn in range(turns):
            question = f"question {turn}: " + "why " * 40
            await conversation.append(question, Message.assistant(f"answer {turn}: " + "so " * 40))


async def start(client: httpx2.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post("/api/backtests", json=body)
    assert response.status_code == 202, response.text
    return response.json()


async def wait_until_done(client: httpx2.AsyncClient, id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        # Polling, as a client does.
        while (progress := (await client.get(f"/api/backtests/{id}")).json())["status"] == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return progress


async def test_the_result_is_that_of_the_command(client: httpx2.AsyncClient, server_state: ServerState):
    await create_conversations(server_state, 5)
    started = await start(client, strategies=["discard", "hybrid"], windows=[1_000], sample=None)
    assert (started["status"], started["conversations"], started["simulated"]) == ("running", 5, 0)
    done = await wait_until_done(client, started["id"])
    assert (done["status"], done["simulated"], done["is_sample"]) == ("done", 5, False)
    engine = server_state.engine_for("default")
    report = await run_backtest(
        engine, combine_variants(["discard", "hybrid"], windows=[1_000]), await select_conversations(engine.store)
    )
    expected = BacktestSchema.from_report(report).model_dump(mode="json")
    for mine, theirs in zip(done["result"].pop("variants"), expected.pop("variants"), strict=True):
        assert mine["tokens"]["value"] == pytest.approx(theirs["tokens"]["value"])
        assert mine["compactions"]["value"] > 0
        assert mine["by_turn"] == theirs["by_turn"]
    assert done["result"] == expected
    [listed] = (await client.get("/api/backtests")).json()["items"]
    assert (listed["id"], listed["status"], "result" in listed) == (started["id"], "done", False)


async def test_a_sample_has_confidence_intervals(client: httpx2.AsyncClient, server_state: ServerState):
    await create_conversations(server_state, 6, turns=2)
    done = await wait_until_done(client, (await start(client, strategies=["hybrid"], sample=4, seed=1))["id"])
    assert (done["conversations"], done["is_sample"]) == (4, True)
    assert done["result"]["variants"][0]["tokens"]["plus_minus"] is not None


@pytest.mark.parametrize(
    "body",
    [
        {"strategies": ["unheard-of"]},
        {"strategies": []},
        {"windows": [10]},
        {"strategies": ["hybrid"], "windows": [1_000 + number for number in range(20)], "models": ["a", "b"]},
        {"sample": backtest_routes.MAX_SAMPLE + 1},
        {"colour": "red"},
    ],
)
async def test_what_cannot_be_simulated_is_refused(
    client: httpx2.AsyncClient, server_state: ServerState, body: dict[str, Any]
):
    await create_conversations(server_state, 1, turns=1)
    assert (await client.post("/api/backtests", json=body)).status_code in (400, 422)
    assert (await client.get("/api/backtests")).json()["items"] == []


async def test_the_number_of_conversations_has_a_bound(
    client: httpx2.AsyncClient, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
):
    response = await client.post("/api/backtests", json={})
    assert "no conversation" in response.json()["detail"]
    monkeypatch.setattr(runner, "MAX_CONVERSATIONS", 2)
    await create_conversations(server_state, 3, turns=1)
    response = await client.post("/api/backtests", json={"sample": None})
    assert (response.status_code, "draw a sample" in response.json()["detail"]) == (400, True)
    assert (await client.post("/api/backtests", json={"conversations": ["absent"]})).status_code == 404


async def test_one_runs_at_a_time_until_it_is_deleted(
    client: httpx2.AsyncClient, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
):
    await create_conversations(server_state, 2, turns=1)
    server_state.jobs = None
    first = await start(client)
    assert (await client.post("/api/backtests", json={})).status_code == 409
    assert (await client.delete(f"/api/backtests/{first['id']}")).status_code == 204
    assert (await client.delete(f"/api/backtests/{first['id']}")).status_code == 404
    assert (await client.get(f"/api/backtests/{first['id']}")).status_code == 404
    await start(client)


async def test_only_the_newest_are_stored(
    client: httpx2.AsyncClient, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(backtests, "MAX_STORED_BACKTESTS", 2)
    await create_conversations(server_state, 1, turns=1)
    ids = [(await wait_until_done(client, (await start(client))["id"]))["id"] for _ in range(3)]
    listed = (await client.get("/api/backtests")).json()["items"]
    assert [each["id"] for each in listed] == [ids[2], ids[1]]


async def test_another_tenant_and_a_key_to_read_start_nothing(
    client: httpx2.AsyncClient,
    other_tenant_client: httpx2.AsyncClient,
    server_state: ServerState,
    app: FastAPI,
    store: SqlStore,
):
    await create_conversations(server_state, 1, turns=1)
    started = (await start(client))["id"]
    await wait_until_done(client, started)
    assert (await other_tenant_client.get("/api/backtests")).json()["items"] == []
    assert (await other_tenant_client.get(f"/api/backtests/{started}")).status_code == 404
    assert (await other_tenant_client.delete(f"/api/backtests/{started}")).status_code == 404
    assert (await other_tenant_client.post("/api/backtests", json={"conversations": ["c0"]})).status_code == 404
    reader = {"Authorization": f"Bearer {await create_key_for(store, 'default', 'read')}"}
    assert (await client.get(f"/api/backtests/{started}", headers=reader)).status_code == 200
    assert (await client.post("/api/backtests", json={}, headers=reader)).status_code == 403
    assert (await client.delete(f"/api/backtests/{started}", headers=reader)).status_code == 403


@pytest.mark.every_database
async def test_a_backtest_whose_jobs_were_lost_continues_when_it_is_read(
    client: httpx2.AsyncClient, server_state: ServerState, jobs: LocalJobs, monkeypatch: pytest.MonkeyPatch
):
    await create_conversations(server_state, 2, turns=1)
    server_state.jobs = None
    started = (await start(client))["id"]
    server_state.jobs = jobs
    assert (await client.get(f"/api/backtests/{started}")).json()["status"] == "running"
    await jobs.wait_until_idle()
    assert (await client.get(f"/api/backtests/{started}")).json()["simulated"] == 0
    monkeypatch.setattr(backtest_routes, "STALLED_MICROSECONDS", -1_000_000)
    assert (await wait_until_done(client, started))["status"] == "done"


async def test_a_shard_that_fails_again_and_again_ends_the_backtest(
    client: httpx2.AsyncClient, server_state: ServerState, jobs: LocalJobs, monkeypatch: pytest.MonkeyPatch
):
    await create_conversations(server_state, 1, turns=1)
    monkeypatch.setattr(runner, "MAX_SHARD_ATTEMPTS", 0)
    done = await wait_until_done(client, (await start(client))["id"])
    assert (done["status"], done["result"]) == ("failed", None)
    assert "see the log of the workers" in done["failure"]


async def test_conversations_that_were_purged_meanwhile_are_skipped(
    client: httpx2.AsyncClient, server_state: ServerState, jobs: LocalJobs, monkeypatch: pytest.MonkeyPatch
):
    await create_conversations(server_state, 2, turns=1)
    server_state.jobs = None
    started = (await start(client))["id"]
    await server_state.store.purge("c0")
    server_state.jobs = jobs
    monkeypatch.setattr(backtest_routes, "STALLED_MICROSECONDS", -1_000_000)
    result = (await wait_until_done(client, started))["result"]
    assert (result["conversations"] + result["skipped"], result["skipped"]) == (2, 1)
