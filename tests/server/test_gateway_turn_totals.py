"""A turn whose steps come through the gateway, one request each, has its totals on its answer."""

import pytest
from gateway_fixtures import run_gateway, user_message

from fake_upstream import respond_with_text, run_fake_upstream
from quire.store import SqlStore

TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}


async def test_the_answer_has_the_totals_of_all_requests_of_its_turn(store: SqlStore):
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    calls = respond_with_text({"content": None, "tool_calls": [call]}, finish="tool_calls")
    async with run_fake_upstream(calls, respond_with_text("Waves.")) as up, run_gateway(store, up.url) as harness:
        history = [user_message("Look at the sea")]
        first = await harness.ask(*history, tools=[TOOL])
        history += [first.json()["choices"][0]["message"]]
        history += [{"role": "tool", "tool_call_id": "call_1", "content": "waves"}]
        second = await harness.ask(*history, tools=[TOOL])
        history += [second.json()["choices"][0]["message"], user_message("Thanks")]
        await harness.ask(*history, tools=[TOOL])
        conversation = second.headers["x-quire-conversation"]
        entries = await store.read_range(conversation, kinds=["message"], roles=["assistant"])
        step, answer, next_answer = [entry.metadata for entry in entries]
        assert step.turn is None
        assert answer.turn is not None
        assert step.usage is not None
        assert answer.usage is not None
        assert answer.turn.steps == 2
        assert answer.turn.usage.input_tokens == step.usage.input_tokens + answer.usage.input_tokens
        assert answer.turn.cost_usd > 0
        assert next_answer.turn is not None
        assert next_answer.turn.steps == 1


async def test_a_history_that_a_client_repeats_elsewhere_is_not_billed_again(store: SqlStore):
    """Without a session header, an edited list begins another conversation; so does a name of the client's own."""
    async with run_fake_upstream(respond_with_text("Waves.")) as up, run_gateway(store, up.url) as harness:
        history = [user_message("Look at the sea")]
        for question in ("And now?", "And then?"):
            reply = (await harness.ask(*history)).json()["choices"][0]["message"]
            history += [reply, user_message(question)]
        edited = await harness.ask(user_message("Look at the lake"), *history[1:])
        named = await harness.ask(*history, x_quire_conversation="own")
        assert len({each.headers["x-quire-conversation"] for each in (edited, named)}) == 2
    while await store.usage.count():
        pass
    totals = (await store.usage.read_report()).totals
    spent = sum([await store.get_conversation_cost(each.id) for each in await store.list_conversations()])
    assert (totals.requests, totals.unpriced_requests, totals.unpriced_turns) == (4, 0, 0)
    assert totals.cost_nanos / 1e9 == pytest.approx(spent)
    assert spent > 0
