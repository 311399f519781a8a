"""Compactions of an agent itself, in its session through the gateway: what its summary lost is named."""

from typing import Any

import pytest
from gateway_fixtures import assistant_message, run_gateway, system_message, user_message

from fake_upstream import UpstreamRequest, make_completion, run_fake_upstream
from quire.cli.run_host import format_lost_facts
from quire.engine.client_compactions import find_client_compactions
from quire.store import SqlStore

PROMPT = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary."
SUMMARY = "<analysis>Port 7421.</analysis><summary>The user set up a server in /srv/quay.</summary>"


@pytest.mark.parametrize("reminders", [(), (system_message("Keep the user updated."),)])
async def test_the_facts_that_a_summary_of_the_agent_lost_are_listed(
    store: SqlStore, reminders: tuple[dict[str, Any], ...]
):
    async def respond(request: UpstreamRequest) -> None:
        is_prompt = user_message(PROMPT) in request.body["messages"]
        reply = SUMMARY if is_prompt else "Noted, I use /srv/quay. The build is QX4711Z."
        await request.respond(make_completion({"role": "assistant", "content": reply}, "stop"))

    question = user_message("<system-reminder>Today is 2026-11-17.</system-reminder>The port is 7421.")
    reply = assistant_message("Noted, I use /srv/quay. The build is QX4711Z.")
    async with run_fake_upstream(respond) as up, run_gateway(store, up.url) as harness:
        await harness.ask(question)
        await harness.ask(question, reply, user_message(PROMPT), *reminders)
        # The agent kept the user's words and the summary.
        await harness.ask(question, user_message("Summary: a server in /srv/quay."), user_message("Go on."))
        conversations = [each.id for each in await store.list_conversations()]
        lists = [
            (await harness.http.get(f"/api/conversations/{each}/client-compactions")).json() for each in conversations
        ]
        (found,) = [item for each in lists for item in each["items"]]
        record = await store.get_conversation(found["conversation"])
        (compaction,) = await find_client_compactions(store, record)
        assert await find_client_compactions(store, record, since=found["created_at"] + 1) == []
    assert (found["first"], found["messages"], found["lost_total"]) == (1, 2, len(found["lost"]))
    assert "The build is QX4711Z" in [fact["text"] for fact in found["lost"]]
    assert not any("2026" in fact["text"] for fact in found["lost"])
    note = format_lost_facts(compaction)
    assert "replaced 2 messages" in note
    assert "  #2 The build is QX4711Z" in note
    assert f"`quire context restore 1,2 {record.id}`" in note


async def test_each_line_of_an_earlier_summary_is_a_fact(store: SqlStore):
    async def respond(request: UpstreamRequest) -> None:
        is_prompt = user_message(PROMPT) in request.body["messages"]
        await request.respond(
            make_completion({"role": "assistant", "content": SUMMARY if is_prompt else "Noted."}, "stop")
        )

    opening = (
        "Another language model started to solve this problem and produced a summary of its thinking process. You also "
        "have access to the state of the tools. Here is the summary produced by the other language model, use the "
        "information in this summary to assist with your own analysis:"
    )
    earlier = user_message(f"{opening}\nThe tests wait for the tide.\nNobody deploys in the evening.")
    async with run_fake_upstream(respond) as up, run_gateway(store, up.url) as harness:
        await harness.ask(earlier)
        await harness.ask(earlier, assistant_message("Noted."), user_message(PROMPT))
        (record,) = await store.list_conversations()
        (compaction,) = await find_client_compactions(store, record)
    assert {fact.text for fact in compaction.lost.facts} == {
        "The tests wait for the tide",
        "Nobody deploys in the evening",
    }
