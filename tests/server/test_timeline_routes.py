"""`GET /api/conversations/{id}/timeline`: all requests in columns of equal length, page by page."""

from typing import Any

import httpx2
import pytest
from server_helpers import ScriptedAgent, parse_events


@pytest.fixture
def scripted() -> ScriptedAgent:
    agent = ScriptedAgent()
    agent.set_script(lambda prompt: f"Answer {len(prompt.messages)}.", repeat=True)
    return agent


async def get_timeline(client: httpx2.AsyncClient, conversation: str, **params: int) -> Any:
    answer = await client.get(f"{conversation}/timeline", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_columns_belong_to_the_recorded_requests(client: httpx2.AsyncClient, conversation: str) -> None:
    for question in ("One?", "Two?", "Three?"):
        answer = await client.post(f"{conversation}/send", json={"message": question})
        assert parse_events(answer.text)[-1].event == "turn_ended"
    await client.post(f"{conversation}/pins", json={"seq": 1})
    timeline = await get_timeline(client, conversation)
    requests = (await client.get(f"{conversation}/requests")).json()["items"]
    assert timeline["replies"] == [each["reply"] for each in requests]
    assert timeline["total_tokens"] == [each["total_tokens"] for each in requests]
    assert timeline["created_at"] == [each["created_at"] for each in requests]
    assert timeline["turns"] == [1, 2, 3]
    columns = [
        each
        for name, each in timeline.items()
        if name not in ("limits", "estimated", "unpriced", "events", "unanswered") and type(each) is list
    ]
    assert {len(each) for each in (*columns, *timeline["slots"].values())} == {3}
    assert [sum(used) for used in zip(*timeline["slots"].values(), strict=True)] == timeline["total_tokens"]
    [limits] = timeline["limits"]
    assert (limits["window"], limits["trigger_tokens"]) == (8_000, requests[0]["trigger_tokens"])
    assert [(each["kind"], each["author"]) for each in timeline["events"]] == [("pin", "user")]
    first = await get_timeline(client, conversation, limit=2)
    rest = await get_timeline(client, conversation, since=first["next_since"])
    assert first["replies"] + rest["replies"] == timeline["replies"]
    assert (rest["next_since"], rest["events"]) == (None, timeline["events"])


async def test_an_unknown_conversation_is_not_found(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/api/conversations/none/timeline")).status_code == 404


async def test_another_tenant_sees_nothing(other_tenant_client: httpx2.AsyncClient, conversation: str) -> None:
    assert (await other_tenant_client.get(f"{conversation}/timeline")).status_code == 404
