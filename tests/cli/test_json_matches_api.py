"""The JSON of the command line is that of the API: the same object has the same fields and values in both."""

import asyncio
import json
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest
from cli_fixtures import TIDES_ID, CliHome, invoke_cli, run_json
from scripted_server import scripted_server

from quire.access.keys import KEY_SCOPES
from quire.cli.engine_setup import load_cli_settings, resolve_database_url
from quire.context.agent_loader import load_agent
from quire.model.events import TurnEvent
from quire.schemas.turn_events import SCHEMA_BY_EVENT
from quire.server.app import create_app
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.store import SqlStore

CONVERSATION = f"/api/conversations/{TIDES_ID}"
REPLY = 7


def call_api(method: str, path: str, **options: Any) -> httpx2.Response:
    """Sends a request to a server with the settings and the database of the commands."""
    settings = load_cli_settings().settings
    agent = load_agent(Path(settings.agent)) if settings.agent is not None else None
    overrides = agent.setting_overrides if agent is not None else {}

    async def send() -> httpx2.Response:
        async with SqlStore.open(resolve_database_url(settings)) as store, UpstreamClient() as upstream:
            _, key = await store.keys.create("test", KEY_SCOPES)
            merged = settings.model_validate({**settings.model_dump(), **overrides, "trusted_tenants": ["default"]})
            state = ServerState(store, merged, http_client=upstream, agent=agent)
            transport = httpx2.ASGITransport(create_app(state))
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx2.AsyncClient(transport=transport, base_url="http://quire", headers=headers) as client:
                response = await client.request(method, path, **options)
                await state.wait_for_background()
                return response

    return asyncio.run(send())


def get_json(path: str, **query: Any) -> Any:
    response = call_api("GET", path, params=query)
    assert response.status_code == 200, response.text
    return response.json()


def test_entries_and_the_state_of_their_branch(home: CliHome):
    printed, page = run_json("context", "show", "--messages", "--first", "1"), get_json(f"{CONVERSATION}/entries")
    assert {each["kind"] for each in page["items"]} == {"message", "compaction", "pin", "context_change"}
    assert printed["entries"] == page["items"]
    assert (printed["head"], printed["state"]) == (page["head"], page["state"])
    [hit] = run_json("search", "spring tide", TIDES_ID, "--limit", "1")["messages"]
    [found] = get_json("/api/search", query="spring tide", conversation=TIDES_ID, limit=1)["messages"]
    assert hit == found


def test_plan_active_compaction_and_usage(home: CliHome):
    status = get_json(f"{CONVERSATION}/compaction")
    assert status["plan"] is not None
    assert run_json("context", "compact", "--preview")["plan"] == status["plan"]
    assert run_json("context", "show", "--summary")["active"] == status["active"]
    manifest, usage = run_json("context", "show")["manifest"], get_json(f"{CONVERSATION}/usage")
    assert {name: manifest[name] for name in usage.keys() & manifest.keys()} == {
        name: usage[name] for name in ("slots", "total_tokens", "trigger_tokens", "exact")
    }
    items = get_json(f"{CONVERSATION}/items")["items"]
    assert run_json("context", "items")["items"] == [each for each in items if each["session_mode"] is not None]


def test_manifests_decisions_replays_and_differences(home: CliHome):
    requests = f"{CONVERSATION}/requests"
    assert run_json("context", "show")["manifest"] == get_json(f"{CONVERSATION}/context")
    assert run_json("context", "show", "--reply", str(REPLY))["manifest"] == get_json(f"{requests}/{REPLY}")
    why = run_json("context", "why", "2", "--reply", str(REPLY))
    assert why["decision"] == get_json(f"{requests}/{REPLY}/why", item="2")
    for printed, returned in (
        (run_json("context", "show", "--request", "--reply", str(REPLY)), get_json(f"{requests}/{REPLY}/replay")),
        (run_json("context", "diff", "--from", "3", "--to", "7"), get_json(f"{requests}/3/diff", other=7)),
    ):
        assert returned.items() <= printed.items()


def test_conversations_memories_and_keys(home: CliHome):
    [printed, _] = run_json("conversation", "list")["conversations"]
    detail = get_json(CONVERSATION)
    assert printed == {name: detail[name] for name in printed.keys() & detail.keys()} | {"entries": 12}
    assert printed.keys() >= detail.keys() - {"can_share", "cost_usd", "sub_agents", "unpriced_requests"}
    assert run_json("memory", "search")["memories"] == get_json("/api/memories")["items"]
    listed = get_json("/api/keys")["items"]
    assert run_json("key", "list")["keys"] == listed


def test_the_events_of_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with scripted_server(lambda _: "Twelve.") as server:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("QUIRE_BASE_URL", server.url)
        monkeypatch.setenv("QUIRE_MODEL", "miller-1")
        monkeypatch.chdir(tmp_path)
        asked = invoke_cli("ask", "How many?", "c", "--json")
        printed = json.loads(asked.stdout)
        entries = run_json("context", "show", "--messages", "c", "--first", "1")["entries"]
        # The question was answered before, so the API replays its turn from the log.
        stream = call_api("POST", "/api/conversations/c/send", json={"message": "How many?", "after": 0})
    data = [line.removeprefix("data: ") for line in stream.text.splitlines() if line.startswith("data: ")]
    started, question, reply, ended = map(json.loads, data)
    assert started["message"] == entries[0]["body"]
    assert [question["entry"], reply["entry"]] == entries
    assert reply["entry"]["seq"] == printed["seq"]
    assert {name: printed[name] for name in ("reason", "usage", "branch")} == {
        name: ended[name] for name in ("reason", "usage", "branch")
    }
    assert printed["manifest"] == run_json("context", "show", "c", "--reply", str(printed["seq"]))["manifest"]


def test_every_event_has_a_schema_with_its_fields():
    assert set(SCHEMA_BY_EVENT) == set(get_args(TurnEvent))
    for event, schema in SCHEMA_BY_EVENT.items():
        fields = {"problem" if name == "error" else name for name in event.__dataclass_fields__}
        assert set(schema.model_fields) == fields | {"event", "branch"}
