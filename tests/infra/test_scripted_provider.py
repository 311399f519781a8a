"""The scripted provider: every reply is valid for the official SDKs, streamed and whole; faults are as scripted."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from infra.scripted_provider import (
    ScriptedCall,
    ScriptedError,
    ScriptedProvider,
    ScriptedReply,
    ScriptedUsage,
    WireFormatName,
    call_tool,
    play,
    run_scripted_provider,
)

FORMATS: tuple[WireFormatName, ...] = ("chat", "messages", "responses")
TOOL_SCHEMA = {"type": "object", "properties": {"quay": {"type": "string"}}}
CALLS = (ScriptedCall("measure_tide", {"quay": "north"}), ScriptedCall("measure_tide", {"quay": "south"}))
REPLY = ScriptedReply(
    "I will look.", calls=CALLS, thinking="Which quay?", usage=ScriptedUsage(1000, cached_tokens=400, output_tokens=7)
)
SUMMARY = {
    "thinking": "Which quay?",
    "text": "I will look.",
    "calls": [("measure_tide", {"quay": "north"}), ("measure_tide", {"quay": "south"})],
    "tokens": (1000, 400, 7),
}


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with run_scripted_provider() as provider:
        yield provider


async def ask(provider: ScriptedProvider, format: WireFormatName, *, stream: bool) -> dict[str, Any]:
    """Asks through the official SDK and summarizes what it parsed."""
    match format:
        case "chat":
            return await ask_chat(provider, stream=stream)
        case "messages":
            return await ask_messages(provider, stream=stream)
        case "responses":
            return await ask_responses(provider, stream=stream)


async def ask_chat(provider: ScriptedProvider, *, stream: bool) -> dict[str, Any]:
    function = {"name": "measure_tide", "parameters": TOOL_SCHEMA}
    request: Any = {
        "model": "m",
        "messages": [{"role": "user", "content": "Tide?"}],
        "tools": [{"type": "function", "function": function}],
    }
    async with openai.AsyncOpenAI(base_url=provider.openai_url, api_key="k", max_retries=0) as client:
        if stream:
            thinking = ""
            async with client.chat.completions.stream(**request) as events:
                async for event in events:
                    if event.type == "chunk" and event.chunk.choices:
                        delta = event.chunk.choices[0].delta.model_dump()
                        thinking += delta.get("reasoning_content") or ""
                completion = await events.get_final_completion()
        else:
            completion = await client.chat.completions.create(**request)
            thinking = completion.choices[0].message.model_dump().get("reasoning_content", "")
    message, usage = completion.choices[0].message, completion.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    calls = [each.function for each in message.tool_calls or () if each.type == "function"]
    return {
        "thinking": thinking,
        "text": message.content or "",
        "calls": [(each.name, json.loads(each.arguments)) for each in calls],
        "tokens": (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens),
    }


async def ask_messages(provider: ScriptedProvider, *, stream: bool) -> dict[str, Any]:
    request: Any = {
        "model": "m",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "Tide?"}],
        "tools": [{"name": "measure_tide", "input_schema": TOOL_SCHEMA}],
    }
    async with anthropic.AsyncAnthropic(base_url=provider.url, api_key="k", max_retries=0) as client:
        if stream:
            async with client.messages.stream(**request) as events:
                message = await events.get_final_message()
        else:
            message = await client.messages.create(**request)
    usage = message.usage
    cached = usage.cache_read_input_tokens or 0
    return {
        "thinking": "".join(block.thinking for block in message.content if block.type == "thinking"),
        "text": "".join(block.text for block in message.content if block.type == "text"),
        "calls": [(block.name, block.input) for block in message.content if block.type == "tool_use"],
        "tokens": (usage.input_tokens + cached, cached, usage.output_tokens),
    }


async def ask_responses(provider: ScriptedProvider, *, stream: bool) -> dict[str, Any]:
    request: Any = {
        "model": "m",
        "input": "Tide?",
        "tools": [{"type": "function", "name": "measure_tide", "parameters": TOOL_SCHEMA, "strict": False}],
    }
    async with openai.AsyncOpenAI(base_url=provider.openai_url, api_key="k", max_retries=0) as client:
        if stream:
            async with client.responses.stream(**request) as events:
                response = await events.get_final_response()
        else:
            response = await client.responses.create(**request)
    usage = response.usage
    assert usage is not None
    summaries = [part.text for item in response.output if item.type == "reasoning" for part in item.summary]
    calls = [item for item in response.output if item.type == "function_call"]
    return {
        "thinking": "".join(summaries),
        "text": response.output_text,
        "calls": [(item.name, json.loads(item.arguments)) for item in calls],
        "tokens": (usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens),
    }


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("format", FORMATS)
async def test_the_official_sdk_reads_the_whole_reply(provider: ScriptedProvider, format: WireFormatName, stream: bool):
    provider.script = play(REPLY)
    assert await ask(provider, format, stream=stream) == SUMMARY
    (request,) = provider.requests
    assert request.format == format
    assert request.tool_names == ["measure_tide"]
    assert json.loads(request.raw) == request.body


@pytest.mark.parametrize("format", FORMATS)
async def test_a_tool_is_called_the_first_times_only(provider: ScriptedProvider, format: WireFormatName):
    provider.script = call_tool(CALLS[0], times=2, text="Low.")
    replies = [await ask(provider, format, stream=True) for _ in range(3)]
    assert [len(each["calls"]) for each in replies] == [1, 1, 0]
    assert replies[-1]["text"] == "Low."


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("format", FORMATS)
async def test_an_overflow_is_answered_in_the_words_of_the_format(
    provider: ScriptedProvider, format: WireFormatName, stream: bool
):
    provider.window_tokens = 10
    words = {"chat": "maximum context length is 10", "messages": "> 10 maximum", "responses": "context window"}
    if format == "responses" and stream:
        # OpenAI reports it in the stream, which the SDK gives back as a failed response.
        body = {"model": "m", "input": "Tide? " * 20, "stream": True}
        answer = await post(provider, "/v1/responses", body)
        assert '"code": "context_length_exceeded"' in answer
        assert "response.completed" not in answer
    else:
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match=words[format]):
            await ask(provider, format, stream=stream)
    assert provider.refused == provider.requests


async def post(provider: ScriptedProvider, path: str, body: dict[str, Any]) -> str:
    async with httpx2.AsyncClient(base_url=provider.url) as client:
        return (await client.post(path, json=body)).text


@pytest.mark.parametrize("format", FORMATS)
async def test_a_scripted_error_is_the_exception_of_the_sdk(provider: ScriptedProvider, format: WireFormatName):
    provider.script = play(ScriptedReply(error=ScriptedError(429, "rate_limit_error", "slow down")))
    with pytest.raises((openai.RateLimitError, anthropic.RateLimitError), match="slow down"):
        await ask(provider, format, stream=True)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("format", FORMATS)
async def test_a_cut_ends_the_connection_before_the_reply(
    provider: ScriptedProvider, format: WireFormatName, stream: bool
):
    paths = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
    provider.script = play(ScriptedReply("One two three.", cut_after_events=3))
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "input": "x", "stream": stream}
    with pytest.raises(httpx2.TransportError):
        await post(provider, paths[format], body)


async def test_a_namespace_and_a_custom_call_are_items_of_their_own(provider: ScriptedProvider):
    calls = (
        ScriptedCall("measure_tide", {"quay": "north"}, namespace="mcp__harbour"),
        ScriptedCall("apply_patch", custom_input="*** Begin Patch"),
    )
    provider.script = play(ScriptedReply(calls=calls))
    answer = json.loads(await post(provider, "/v1/responses", {"model": "m", "input": "x"}))
    first, second = answer["output"]
    assert (first["type"], first["namespace"]) == ("function_call", "mcp__harbour")
    assert (second["type"], second["input"]) == ("custom_tool_call", "*** Begin Patch")
    assert first["call_id"] != second["call_id"]


async def test_tokens_are_counted_where_the_formats_have_a_route(provider: ScriptedProvider):
    async with anthropic.AsyncAnthropic(base_url=provider.url, api_key="k") as client:
        count = await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "x" * 400}])
    assert count.input_tokens > 100
    async with openai.AsyncOpenAI(base_url=provider.openai_url, api_key="k") as client:
        assert (await client.responses.input_tokens.count(model="m", input="x" * 400)).input_tokens > 100
    assert provider.requests == []
    assert len(provider.received) == 2
