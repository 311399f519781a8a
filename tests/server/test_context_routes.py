"""What the model sees, over HTTP: the meter, the next request, items, pins, and the ledger of those that were sent."""

from typing import Any

import httpx
import pytest
from calling import Teller, all_events

from quire.model import Message
from quire.model.agents import Agent, AgentMemory, Reference, Rule
from quire.server.serving import Serving

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
def teller() -> Teller:
    teller = Teller()
    teller.agent = AGENT
    teller.says(lambda prompt: f"Answer {len(prompt.messages)}.", repeat=True)
    return teller


async def ask(client: httpx.AsyncClient, conversation: str, message: str) -> int:
    """The number of the reply."""
    answer = await client.post(f"{conversation}/send", json={"message": message})
    events = all_events(answer.text)
    assert events[-1].event == "turn_ended", events[-1]
    return next(each.data["entry"]["seq"] for each in events if each.event == "reply_kept")


async def get(client: httpx.AsyncClient, path: str, /, **asked: Any) -> Any:
    answer = await client.get(path, params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_meter_says_what_triggers(client: httpx.AsyncClient, conversation: str) -> None:
    before = await get(client, f"{conversation}/usage")
    assert (before["window"], before["trigger"]) == (8_000, 6_800)
    assert {slot["slot"] for slot in before["slots"]} >= {"system", "messages"}
    await ask(client, conversation, "What is a quire?")
    assert (await get(client, f"{conversation}/usage"))["total"] > before["total"]


async def test_a_preview_has_a_decision_on_everything_and_changes_nothing(
    client: httpx.AsyncClient, conversation: str
) -> None:
    made = await get(client, f"{conversation}/context", message="What of it?")
    reasons = {each["name"]: each["reason"] for each in made["decisions"] if each["name"] is not None}
    assert reasons["tone"] == "always"
    assert any(each["asked"] for each in made["decisions"])
    assert (await get(client, f"{conversation}/entries", kinds="message"))["items"] == []


async def test_items_enter_and_leave_the_session(client: httpx.AsyncClient, conversation: str) -> None:
    listed = (await get(client, f"{conversation}/items"))["items"]
    assert [(each["name"], each["mode"], each["session"]) for each in listed] == [
        ("tone", "always", "always"),
        ("units", "manual", None),
        ("glossary", "manual", None),
    ]
    assert listed[1]["description"] == "How to measure"
    added = await client.post(f"{conversation}/items", json={"name": "glossary", "type": "reference"})
    assert added.status_code == 201, added.text
    sent = await get(client, f"{conversation}/requests/{await ask(client, conversation, 'What is a quire?')}")
    assert {"tone", "glossary"} <= {each["name"] for each in sent["decisions"] if each["included"]}
    gone = await client.delete(f"{conversation}/items/reference/glossary")
    assert "glossary" not in [each["name"] for each in gone.json()["items"] if each["session"] is not None]
    unknown = await client.post(f"{conversation}/items", json={"name": "nowhere"})
    assert (unknown.status_code, unknown.json()["code"]) == (400, "invalid_request")


async def test_a_message_is_pinned_and_unpinned(client: httpx.AsyncClient, conversation: str) -> None:
    await ask(client, conversation, "Remember the number 4711.")
    first = (await get(client, f"{conversation}/entries", kinds="message"))["items"][0]["seq"]
    assert (await client.post(f"{conversation}/pins", json={"number": first})).json() == {"pins": [first]}
    assert (await client.delete(f"{conversation}/pins/{first}")).json() == {"pins": []}
    assert (await client.post(f"{conversation}/pins", json={"number": 999})).status_code in (400, 404)


async def test_requests_are_listed_built_again_compared_and_explained(
    client: httpx.AsyncClient, conversation: str
) -> None:
    replies = [await ask(client, conversation, f"Question {number}?") for number in range(3)]
    listed = (await get(client, f"{conversation}/requests"))["items"]
    assert [each["reply"] for each in listed] == replies
    assert [each["total"] for each in listed] == sorted(each["total"] for each in listed)
    assert all(each["usage"]["output_tokens"] for each in listed)
    assert [each["reply"] for each in (await get(client, f"{conversation}/requests", limit=1))["items"]] == replies[-1:]
    again = await get(client, f"{conversation}/requests/{replies[1]}/replay")
    assert again["same"]
    assert again["recorded"] == again["rebuilt"]
    assert again["payload"]["messages"][-1]["content"] == "Question 1?"
    compared = await get(client, f"{conversation}/requests/{replies[0]}/diff", other=replies[2])
    assert any(change["after"] is not None and change["span"] is not None for change in compared["changes"])
    why = await get(client, f"{conversation}/requests/{replies[2]}/why", item="tone")
    assert (why["included"], why["reason"]) == (True, "always")
    assert (await get(client, f"{conversation}/requests/{replies[2]}/why", item="#2"))["included"]
    for path in (f"/requests/{replies[0]}/why?item=nothing", "/requests/9999", "/requests/9999/replay"):
        assert (await client.get(conversation + path)).status_code == 404, path


async def test_what_changed_settings_would_do_is_told_before_they_change(
    client: httpx.AsyncClient, conversation: str, serving: Serving
) -> None:
    for number in range(4):
        await ask(client, conversation, f"Question {number}? {'The mill runs day and night. ' * 30}")
    tried = await client.post(
        "/api/settings/preview", json={"conversation": "c", "changes": {"context_limit": 1_000, "strategy": "discard"}}
    )
    assert tried.status_code == 200, tried.text
    before, after = tried.json()["before"], tried.json()["after"]
    assert (before["usage"]["window"], after["usage"]["window"]) == (8_000, 1_000)
    assert after["plan"]["tokens"] > 0
    assert serving.settings.context_limit == 8_000
    wrong = await client.post("/api/settings/preview", json={"conversation": "c", "changes": {"context_threshold": 7}})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_configuration")
    hidden = await client.post("/api/settings/preview", json={"conversation": "c", "changes": {"base_url": "http://x"}})
    assert hidden.status_code == 400


async def test_settings_change_only_on_a_laptop(client: httpx.AsyncClient, conversation: str, serving: Serving) -> None:
    refused = await client.patch("/api/settings", json={"changes": {"strategy": "discard"}})
    assert (refused.status_code, refused.json()["code"]) == (403, "access_denied")
    serving.local = True
    changed = await client.patch("/api/settings", json={"changes": {"strategy": "discard"}})
    assert changed.status_code == 200
    assert {each["name"]: each["value"] for each in changed.json()["items"]}["strategy"] == "discard"
    shown = {each["name"] for each in (await get(client, "/api/settings"))["items"]}
    assert not shown & {"database_url", "base_url", "upstreams"}
    await ask(client, conversation, "Which?")
    newest = (await get(client, f"{conversation}/requests"))["items"][-1]["reply"]
    assert (await get(client, f"{conversation}/requests/{newest}"))["policy"]["strategy"] == "discard"


async def test_an_agent_shows_what_it_brings(client: httpx.AsyncClient) -> None:
    (agent,) = (await get(client, "/api/agents"))["items"]
    assert (agent["name"], agent["instructions"]) == ("keeper", "Be brief.")
    assert {"type": "rule", "name": "tone", "server": None, "include": "always", "enabled": True} in agent["items"]
    assert await get(client, "/api/agents/keeper") == agent
    assert (await client.get("/api/agents/other")).status_code == 404


async def test_memories_are_listed_corrected_and_retired(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient
) -> None:
    ids = [(await client.post("/api/memories", json={"text": f"Fact {number}"})).json()["id"] for number in range(3)]
    page = await get(client, "/api/memories", limit=2)
    rest = await get(client, "/api/memories", limit=2, cursor=page["next"])
    assert [each["id"] for each in [*page["items"], *rest["items"]]] == ids[::-1]
    corrected = (await client.put(f"/api/memories/{ids[0]}", json={"text": "Better"})).json()
    assert (await client.put(f"/api/memories/{ids[0]}", json={"text": "Again"})).status_code == 409
    await client.delete(f"/api/memories/{ids[1]}")
    assert [each["text"] for each in (await get(client, "/api/memories"))["items"]] == ["Better", "Fact 2"]
    old = {each["id"]: each for each in (await get(client, "/api/memories", retired=True))["items"]}
    assert old[ids[0]]["replaced_by"] == corrected["id"]
    assert (await get(stranger, "/api/memories"))["items"] == []
    assert (await stranger.delete(f"/api/memories/{ids[2]}")).status_code == 404


async def test_a_message_written_by_hand_is_on_no_request(client: httpx.AsyncClient, conversation: str) -> None:
    kept = await client.post(f"{conversation}/messages", json={"messages": [Message.user("By hand").model_dump()]})
    assert kept.status_code == 201, kept.text
    assert (await get(client, f"{conversation}/requests"))["items"] == []
