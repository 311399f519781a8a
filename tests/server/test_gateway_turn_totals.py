"""A turn whose steps come through the gateway, one request each, has its totals on its answer."""

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
