"""Routes for the context: usage, preview, items, pins, the ledger of requests, settings, agents, memories."""

from typing import Any

import httpx2
import pytest
from server_helpers import ScriptedAgent, parse_events

from quire.model import Message
from quire.model.agents import Agent, AgentMemory, Reference, Rule
from quire.server.state import ServerState

AGENT = Agent(
    name="keeper",
    instructions="Be brief.",
    rules=(
        Rule(name="tone", text="Speak plainly.", include="always"),
        Rule(name="units", text="Metric only.", include="manual", description="How to measure"),
    ),
    references=(Reference(name="glossary", text="A quire is a gathering of leaves.", include="manual"),),
    memory=AgentMemory(files=()),
)


@pytest.fixture
def scripted() -> ScriptedAgent:
    agent = ScriptedAgent()
    agent.agent = AGENT
    agent.set_script(lambda prompt: f"Answer {len(prompt.messages)}.", repeat=True)
    return agent


async def ask(client: httpx2.AsyncClient, conversation: str, message: str) -> int:
    """Returns the sequence number of the reply."""
    answer = await client.post(f"{conversation}/send", json={"message": message})
    events = parse_events(answer.text)
    assert events[-1].event == "turn_ended", events[-1]
    return next(each.data["entry"]["seq"] for each in events if each.event == "reply_recorded")


async def get_json(client: httpx2.AsyncClient, path: str, /, **params: Any) -> Any:
    answer = await client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_meter_says_what_triggers(client: httpx2.AsyncClient, conversation: str) -> None:
    before = await get_json(client, f"{conversation}/usage")
    assert (before["window"], before["trigger_tokens"]) == (8_000, 6_800)
    assert {slot["slot"] for slot in before["slots"]} >= {"system", "messages"}
    await ask(client, conversation, "What is a quire?")
    assert (await get_json(client, f"{conversation}/usage"))["total_tokens"] > before["total_tokens"]


async def test_a_preview_has_a_decision_on_everything_and_changes_nothing(
    client: httpx2.AsyncClient, conversation: str
) -> None:
    manifest = await get_json(client, f"{conversation}/context", message="What of it?")
    reasons = {each["name"]: each["reason"] for each in manifest["decisions"] if each["name"] is not None}
    assert reasons["tone"] == "always"
    assert any(each["pending"] for each in manifest["decisions"])
    assert (await get_json(client, f"{conversation}/entries", kinds="message"))["items"] == []


async def test_the_end_of_a_turn_suggests_what_its_question_names(
    client: httpx2.AsyncClient, conversation: str
) -> None:
    answer = await client.post(f"{conversation}/send", json={"message": "What does the glossary say?"})
    end = parse_events(answer.text)[-1]
    assert end.data["suggestion"] == {"action": "add", "kind": "reference", "name": "glossary", "turns": None}
    answer = await client.post(f"{conversation}/send", json={"message": "And the glossary now?"})
    assert parse_events(answer.text)[-1].data["suggestion"] is None


async def test_items_are_added_to_and_removed_from_the_session(client: httpx2.AsyncClient, conversation: str) -> None:
    listed = (await get_json(client, f"{conversation}/items"))["items"]
    assert [(each["name"], each["agent_mode"], each["session_mode"]) for each in listed] == [
        ("tone", "always", "always"),
        ("units", "manual", None),
        ("glossary", "manual", None),
    ]
    assert listed[1]["description"] == "How to measure"
    added = await client.post(f"{conversation}/items", json={"name": "glossary", "type": "reference"})
    assert added.status_code == 201, added.text
    sent = await get_json(client, f"{conversation}/requests/{await ask(client, conversation, 'What is a quire?')}")
    assert {"tone", "glossary"} <= {each["name"] for each in sent["decisions"] if each["included"]}
    gone = await client.delete(f"{conversation}/items/reference/glossary")
    assert "glossary" not in [each["name"] for each in gone.json()["items"] if each["session_mode"] is not None]
    unknown = await client.post(f"{conversation}/items", json={"name": "nowhere"})
    assert (unknown.status_code, unknown.json()["code"]) == (400, "invalid_request")


async def test_a_message_is_pinned_and_unpinned(client: httpx2.AsyncClient, conversation: str) -> None:
    await ask(client, conversation, "Remember the number 4711.")
    first = (await get_json(client, f"{conversation}/entries", kinds="message"))["items"][0]["seq"]
    assert (await client.post(f"{conversation}/pins", json={"seq": first})).json() == {"pins": [first]}
    assert (await client.delete(f"{conversation}/pins/{first}")).json() == {"pins": []}
    assert (await client.post(f"{conversation}/pins", json={"seq": 999})).status_code in (400, 404)


async def test_a_priority_is_set_and_reset(client: httpx2.AsyncClient, conversation: str) -> None:
    await ask(client, conversation, "Remember the number 4711.")
    first = (await get_json(client, f"{conversation}/entries", kinds="message"))["items"][0]["seq"]
    url = f"{conversation}/priorities/{first}"
    expected = {"priorities": [{"message": first, "priority": 9}]}
    assert (await client.put(url, json={"priority": 9})).json() == expected
    assert (await client.put(url, json={"priority": None})).json() == {"priorities": []}
    assert (await client.put(url, json={"priority": 11})).status_code in (400, 422)
    assert (await client.put(f"{conversation}/priorities/999", json={"priority": 9})).status_code == 404


async def test_requests_are_listed_built_again_compared_and_explained(
    client: httpx2.AsyncClient, conversation: str
) -> None:
    replies = [await ask(client, conversation, f"Question {number}?") for number in range(3)]
    listed = (await get_json(client, f"{conversation}/requests"))["items"]
    assert [each["reply"] for each in listed] == replies
    assert [each["total_tokens"] for each in listed] == sorted(each["total_tokens"] for each in listed)
    assert all(each["usage"]["output_tokens"] for each in listed)
    assert [
        each["reply"] for each in (await get_json(client, f"{conversation}/requests", limit=1))["items"]
    ] == replies[-1:]
    again = await get_json(client, f"{conversation}/requests/{replies[1]}/replay")
    assert again["matches"]
    assert again["recorded_digest"] == again["rebuilt_digest"]
    assert again["payload"]["messages"][-1]["content"] == "Question 1?"
    compared = await get_json(client, f"{conversation}/requests/{replies[0]}/diff", other=replies[2])
    assert any(change["after"] is not None and change["span"] is not None for change in compared["changes"])
    why = await get_json(client, f"{conversation}/requests/{replies[2]}/why", item="tone")
    assert (why["included"], why["reason"]) == (True, "always")
    assert (await get_json(client, f"{conversation}/requests/{replies[2]}/why", item="#2"))["included"]
    for path in (f"/requests/{replies[0]}/why?item=nothing", "/requests/9999", "/requests/9999/replay"):
        assert (await client.get(conversation + path)).status_code == 404, path


async def test_changed_settings_can_be_previewed(
    client: httpx2.AsyncClient, conversation: str, server_state: ServerState
) -> None:
    for number in range(4):
        await ask(client, conversation, f"Question {number}? {'The mill runs day and night. ' * 30}")
    preview = await client.post(
        "/api/settings/preview", json={"conversation": "c", "changes": {"context_limit": 1_000, "strategy": "discard"}}
    )
    assert preview.status_code == 200, preview.text
    before, after = preview.json()["before"], preview.json()["after"]
    assert (before["usage"]["window"], after["usage"]["window"]) == (8_000, 1_000)
    assert after["plan"]["freed_tokens"] > 0
    assert server_state.settings.context_limit == 8_000
    wrong = await client.post("/api/settings/preview", json={"conversation": "c", "changes": {"context_threshold": 7}})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_configuration")
    hidden = await client.post("/api/settings/preview", json={"conversation": "c", "changes": {"base_url": "http://x"}})
    assert hidden.status_code == 400


async def test_settings_change_only_on_a_laptop(
    client: httpx2.AsyncClient, conversation: str, server_state: ServerState
) -> None:
    refused = await client.patch("/api/settings", json={"changes": {"strategy": "discard"}})
    assert (refused.status_code, refused.json()["code"]) == (403, "access_denied")
    server_state.is_local = True
    changed = await client.patch("/api/settings", json={"changes": {"strategy": "discard"}})
    assert changed.status_code == 200
    assert {each["name"]: each["value"] for each in changed.json()["items"]}["strategy"] == "discard"
    names = {each["name"] for each in (await get_json(client, "/api/settings"))["items"]}
    assert not names & {"database_url", "base_url", "upstreams"}
    await ask(client, conversation, "Which?")
    newest = (await get_json(client, f"{conversation}/requests"))["items"][-1]["reply"]
    assert (await get_json(client, f"{conversation}/requests/{newest}"))["policy"]["strategy"] == "discard"


async def test_an_agent_shows_what_it_brings(client: httpx2.AsyncClient) -> None:
    (agent,) = (await get_json(client, "/api/agents"))["items"]
    assert (agent["name"], agent["instructions"]) == ("keeper", "Be brief.")
    assert {"type": "rule", "name": "tone", "server": None, "include": "always", "enabled": True} in agent["items"]
    assert await get_json(client, "/api/agents/keeper") == agent
    assert (await client.get("/api/agents/other")).status_code == 404


async def test_memories_are_listed_corrected_and_retired(
    client: httpx2.AsyncClient, other_tenant_client: httpx2.AsyncClient
) -> None:
    ids = [(await client.post("/api/memories", json={"text": f"Fact {number}"})).json()["id"] for number in range(3)]
    page = await get_json(client, "/api/memories", limit=2)
    rest = await get_json(client, "/api/memories", limit=2, cursor=page["next_cursor"])
    assert [each["id"] for each in [*page["items"], *rest["items"]]] == ids[::-1]
    corrected = (await client.put(f"/api/memories/{ids[0]}", json={"text": "Better"})).json()
    assert (await client.put(f"/api/memories/{ids[0]}", json={"text": "Again"})).status_code == 409
    await client.delete(f"/api/memories/{ids[1]}")
    assert [each["text"] for each in (await get_json(client, "/api/memories"))["items"]] == ["Better", "Fact 2"]
    old = {each["id"]: each for each in (await get_json(client, "/api/memories", include_retired=True))["items"]}
    assert old[ids[0]]["replaced_by"] == corrected["id"]
    assert (await get_json(other_tenant_client, "/api/memories"))["items"] == []
    assert (await other_tenant_client.delete(f"/api/memories/{ids[2]}")).status_code == 404


async def test_a_message_written_by_hand_is_on_no_request(client: httpx2.AsyncClient, conversation: str) -> None:
    recorded = await client.post(f"{conversation}/messages", json={"messages": [Message.user("By hand").model_dump()]})
    assert recorded.status_code == 201, recorded.text
    assert (await get_json(client, f"{conversation}/requests"))["items"] == []
