"""Anthropic's message threads and token counts, by the official SDK, with upstreams that have neither."""

from typing import Any

import pytest
from anthropic import beta_async_tool
from format_clients import MODEL, make_anthropic, run_matrix_gateway

from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedReply, WireFormatName
from payload_oracle import count_payload
from quire.store import SqlStore
from quire.wire import wire_format_for
from quire.wire.tokens import counter_for

speaks_other_formats = pytest.mark.parametrize("speaks", ["chat", "responses"])


@beta_async_tool
async def read(path: str) -> str:
    """Reads a file.

    Args:
        path: The file.
    """
    return f"contents of {path}"


def choose_reply(request: ProviderRequest) -> ScriptedReply:
    """Reads two files for the first question, and answers every other with a text."""
    if request.newest_results:
        return ScriptedReply("They differ.")
    is_first = sum(item.get("role") == "user" for item in request.items) == 1
    calls = (ScriptedCall("read", {"path": "a"}), ScriptedCall("read", {"path": "b"}))
    return ScriptedReply("Reading.", calls=calls) if is_first else ScriptedReply("Yes.")


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def list_texts(request: ProviderRequest) -> list[str]:
    texts = [item.get("content") or item.get("output") or "" for item in request.items]
    return [text for text in texts if isinstance(text, str) and text]


@speaks_other_formats
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_thread_with_a_tool_runner_and_a_fork(store: SqlStore, speaks: WireFormatName, stream: bool):
    async with (
        run_matrix_gateway(store, choose_reply, client="messages", speaks=speaks) as harness,
        make_anthropic(harness.gateway) as client,
    ):
        thread = client.beta.messages.thread(
            model=MODEL, max_tokens=300, system="Be brief.", tools=[read], messages=[user("Compare a and b.")]
        )
        final = await thread.tool_runner(stream=stream).until_done()
        assert final.content[0].text == "They differ."  # pyright: ignore
        assert thread.previous_message_id == final.id
        fork = thread.fork()
        assert (await thread.send(user("Really?"))).content[0].text == "Yes."  # pyright: ignore
        newest = harness.provider.requests[-1]
        assert newest.tool_names == ["read"]
        history = ["Compare a and b.", "Reading.", "contents of a", "contents of b", "They differ."]
        assert [text for text in list_texts(newest) if text != "Be brief."] == [*history, "Really?"]
        assert "Be brief." in newest.raw.decode()
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 1
        # The fork sends the whole history, and leaves it at its newest reply.
        assert fork.previous_message_id is None
        assert (await fork.send(user("Why?"))).content[0].text == "Yes."  # pyright: ignore
        assert (await fork.send(user("And then?"))).content[0].text == "Yes."  # pyright: ignore
        forked = [text for text in list_texts(harness.provider.requests[-1]) if text != "Be brief."]
        assert forked == [*history, "Why?", "Yes.", "And then?"]
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 2
        assert len(harness.provider.requests) == 5


async def test_a_lost_thread_is_sent_again(store: SqlStore):
    """The SDK recovers from `thread_not_found` by sending its whole history."""
    async with (
        run_matrix_gateway(store, choose_reply, client="messages", speaks="chat") as harness,
        make_anthropic(harness.gateway) as client,
    ):
        thread = client.beta.messages.thread(model=MODEL, max_tokens=300, messages=[user("One?"), user("Two?")])
        await thread.send()
        (conversation,) = await store.list_conversations()
        await store.purge(conversation.id)
        assert (await thread.send(user("Three?"))).content[0].text == "Yes."  # pyright: ignore
        assert "Three?" in list_texts(harness.provider.requests[-1])


WEATHER_TOOL: Any = {
    "name": "get_current_weather",
    "description": "Get the current weather in a given location",
    "input_schema": {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
            "unit": {
                "type": "string",
                "description": "The unit of temperature to return",
                "enum": ["celsius", "fahrenheit"],
            },
        },
        "required": ["location"],
    },
}
WEATHER_SYSTEM = "You are a helpful assistant that can answer to questions about the weather."
WEATHER_QUESTION = "What's the weather like in San Francisco?"
REPORTED_TOKENS = 101
"""Prompt tokens that OpenAI's API reported for this request, in its cookbook."""


async def test_tokens_are_counted_as_the_upstream_counts_them(store: SqlStore):
    options: Any = {
        "model": "gpt-4o",
        "system": WEATHER_SYSTEM,
        "tools": [WEATHER_TOOL],
        "messages": [user(WEATHER_QUESTION)],
    }
    async with (
        run_matrix_gateway(store, "Sunny.", client="messages", speaks="chat") as harness,
        make_anthropic(harness.gateway) as client,
    ):
        counted = await client.messages.with_raw_response.count_tokens(**options)
        count = await counted.parse()
        assert counted.headers["x-quire-exact"] == "yes"
        assert abs(count.input_tokens - REPORTED_TOKENS) <= 0.02 * REPORTED_TOKENS
        options["messages"] = [
            user("word " * 300),
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "t", "name": "get_current_weather", "input": {"location": "Bonn"}}
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "rain " * 50}]},
        ]
        tokens = (await client.messages.count_tokens(**options)).input_tokens
        await client.messages.create(**options, max_tokens=50)
        (request,) = harness.provider.requests
        upstream_tokens = count_payload(wire_format_for("chat", model="gpt-4o"), request.body, counter_for("gpt-4o"))
        assert abs(tokens - upstream_tokens) <= 0.02 * upstream_tokens
