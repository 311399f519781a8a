"""Anthropic's Messages through the gateway, by the official SDK: native, and translated to chat completions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anthropic
import pytest
from anthropic import AsyncAnthropic
from gateway_fixtures import GatewayHarness, run_gateway

from infra.scripted_provider import (
    ProviderRequest,
    Script,
    ScriptedCall,
    ScriptedProvider,
    ScriptedReply,
    call_tool,
    play,
    run_scripted_provider,
)
from quire.store import SqlStore

MODEL = "claude-sonnet-5-5"
TOOL: dict[str, Any] = {
    "name": "read",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}
FORMATS = ("messages", "chat")


@asynccontextmanager
async def run_claude_gateway(
    store: SqlStore, script: Script, speaks: str, *, window_tokens: int | None = None, **upstream: Any
) -> AsyncIterator[tuple[AsyncAnthropic, ScriptedProvider, GatewayHarness]]:
    """A gateway whose upstream for Claude is a scripted provider that speaks one format."""
    with run_scripted_provider(script, window_tokens=window_tokens) as provider:
        settings = {"upstreams": {"claude-*": {"base_url": provider.openai_url, "speaks": [speaks], **upstream}}}
        if window_tokens is not None:
            settings["models"] = {MODEL: {"window": window_tokens}}
        async with run_gateway(store, provider.openai_url, **settings) as harness:
            key = harness.http.headers["authorization"].removeprefix("Bearer ")
            async with AsyncAnthropic(base_url=str(harness.http.base_url), api_key=key, max_retries=0) as client:
                yield client, provider, harness


async def ask(client: AsyncAnthropic, messages: list[Any], *, stream: bool, **more: Any) -> anthropic.types.Message:
    options: Any = {"model": MODEL, "max_tokens": 500, "messages": messages, **more}
    if not stream:
        return await client.messages.create(**options)
    async with client.messages.stream(**options) as events:
        return await events.get_final_message()


@pytest.mark.parametrize("speaks", FORMATS)
async def test_results_and_text_in_one_message_are_one_conversation(store: SqlStore, speaks: str):
    calls = [ScriptedCall("read", {"path": "a"}), ScriptedCall("read", {"path": "b"})]
    async with run_claude_gateway(store, call_tool(*calls, text="Both are empty."), speaks) as (client, _, _):
        messages: list[Any] = [{"role": "user", "content": "Compare a and b."}]
        reply = await ask(client, messages, stream=False, tools=[TOOL], system="Be brief.")
        uses = [block for block in reply.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": "empty"} for use in uses]
        messages += [
            {"role": "assistant", "content": [block.model_dump() for block in reply.content]},
            {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]},
        ]
        reply = await ask(client, messages, stream=False, tools=[TOOL], system="Be brief.")
        assert reply.stop_reason == "end_turn"
        [conversation] = await store.list_conversations()
        entries = await store.read_range(conversation.id, kinds=["message"])
        assert [entry.message.role for entry in entries] == ["user", "assistant", "tool", "tool", "user", "assistant"]
        assert len(await store.list_branches(conversation.id)) == 1


async def test_a_native_request_reaches_the_upstream_byte_for_byte(store: SqlStore):
    body = b'{"model": "claude-sonnet-5-5",  "max_tokens": 5, "messages": [{"role":"user","content":"Hi"}], "x": 1.0}'
    async with run_claude_gateway(store, play(ScriptedReply("Yes.")), "messages") as (_, provider, harness):
        answer = await harness.http.post(
            "/v1/messages?beta=true", content=body, headers={"anthropic-beta": "new-1", "anthropic-unheard-of": "2"}
        )
        assert answer.status_code == 200
        request = provider.requests[0]
        assert (request.raw, request.path) == (body, "/v1/messages?beta=true")
        assert (request.headers["anthropic-beta"], request.headers["anthropic-unheard-of"]) == ("new-1", "2")
        assert not {"authorization", "x-api-key"} & request.headers.keys()


async def test_what_has_no_place_is_named(store: SqlStore):
    async with run_claude_gateway(store, play(ScriptedReply("Yes.")), "chat") as (client, provider, harness):
        answer = await client.messages.with_raw_response.create(
            model=MODEL,
            max_tokens=100,
            messages=[
                {"role": "user", "content": "Hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "text", "text": "Yes?"},
                    ],
                },
                {"role": "user", "content": "Go on"},
            ],
            tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}],  # pyright: ignore
            extra_body={"context_management": {"edits": []}},
        )
        manifest = (await harness.http.get(f"/api/requests/{answer.headers['x-quire-request']}")).json()["manifest"]
        assert manifest["forwarded"]["dropped"] == [
            "context_management",
            "tools[web_search_20250305]",
            "messages[thinking]",
        ]
        assert answer.headers["x-quire-dropped"] == "3"
        assert "hm" not in provider.requests[0].raw.decode()


@pytest.mark.parametrize("speaks", FORMATS)
async def test_an_overflow_is_refused_natively_and_fitted_translated(store: SqlStore, speaks: str):
    long = [{"role": role, "content": "word " * 400} for role in ("user", "assistant") * 8]
    async with run_claude_gateway(store, play(ScriptedReply("Yes.")), speaks, window_tokens=2_000) as (client, up, _):
        messages = [*long, {"role": "user", "content": "And now?"}]
        if speaks == "chat":
            reply = await ask(client, messages, stream=False)
            assert reply.content[0].text == "Yes."  # pyright: ignore
            assert len(up.requests[-1].raw) < 10_000
        else:
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
                await ask(client, messages, stream=False)


@pytest.mark.parametrize("speaks", FORMATS)
async def test_tokens_are_counted(store: SqlStore, speaks: str):
    async with run_claude_gateway(store, play(ScriptedReply("Yes.")), speaks) as (client, up, _):
        messages: Any = [{"role": "user", "content": "word " * 100}]
        count = await client.messages.count_tokens(model=MODEL, messages=messages, tools=[TOOL])
        assert 100 < count.input_tokens < 800
        assert [request.is_count for request in up.received] == ([True] if speaks == "messages" else [])


@pytest.mark.parametrize("speaks", FORMATS)
async def test_a_thread_is_served_from_the_log(store: SqlStore, speaks: str):
    async with run_claude_gateway(store, play(ScriptedReply("Yes.")), speaks) as (client, provider, _):
        options: Any = {"model": MODEL, "max_tokens": 100, "betas": ["message-threads-2026-08-12"]}
        create: Any = {"thread": {"type": "create"}}
        first = await client.beta.messages.create(
            **options, system="Be brief.", tools=[TOOL], messages=[user("Hi")], extra_body=create
        )
        go_on: Any = {"thread": {"type": "continue", "previous_message_id": first.id}}
        for question in ("One?", "Two?"):
            await client.beta.messages.create(**options, messages=[user(question)], extra_body=go_on)
        body = provider.requests[-1].body
        texts = [message["content"] for message in body["messages"]]
        if speaks == "chat":
            assert texts == ["Be brief.", "Hi", "Yes.", "Two?"]
            assert [tool["function"]["name"] for tool in body["tools"]] == ["read"]
        else:
            # The scripted provider knows every thread.
            assert body["thread"]["previous_message_id"] == first.id
        [conversation] = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 2
        unknown: Any = {"thread": {"type": "continue", "previous_message_id": "msg_unknown"}}
        with pytest.raises(anthropic.NotFoundError, match="thread_not_found"):
            await client.beta.messages.create(**options, messages=[user("Hi")], extra_body=unknown)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def test_a_list_without_the_newest_reply_forks_though_the_head_is_cached(store: SqlStore):
    """As Claude Code's `/compact` sends it: the newest reply is missing, and the prompt follows the tool's result."""

    def choose(request: ProviderRequest) -> ScriptedReply:
        call = ScriptedCall("read", {"path": "a"})
        return ScriptedReply("Seen.") if request.newest_results else ScriptedReply("Reading.", calls=(call,))

    async with run_claude_gateway(store, choose, "chat", window_tokens=3_000) as (client, _, _):
        messages: list[Any] = []
        for question in ("One?", "Two?"):
            messages.append(user(question))
            reply = await ask(client, messages, stream=False, tools=[TOOL])
            use = next(block for block in reply.content if block.type == "tool_use")
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "word " * 900}
            messages += [
                {"role": "assistant", "content": [block.model_dump() for block in reply.content]},
                {"role": "user", "content": [result]},
            ]
            reply = await ask(client, messages, stream=False, tools=[TOOL])
            messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})
        newest_results = messages[-2]["content"]
        prompt = {"role": "user", "content": [*newest_results, {"type": "text", "text": "Summarise all of it."}]}
        reply = await ask(client, [*messages[:-2], prompt], stream=False, tools=[TOOL])
        assert reply.stop_reason in ("end_turn", "tool_use")
        [conversation] = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 2


async def test_unsigned_thinking_of_another_model_does_not_reach_a_provider(store: SqlStore):
    async with run_claude_gateway(store, play(ScriptedReply("Yes.")), "messages") as (client, provider, _):
        unsigned = {"type": "thinking", "thinking": "hm", "signature": "quire-unsigned"}
        signed = {"type": "thinking", "thinking": "aha", "signature": "s"}
        reply = {"role": "assistant", "content": [unsigned, signed, {"type": "text", "text": "Well."}]}
        answer = await client.messages.with_raw_response.create(
            model=MODEL, max_tokens=100, messages=[user("Hi"), cast("Any", reply), user("And?")]
        )
        assert [block["type"] for block in provider.requests[0].body["messages"][1]["content"]] == ["thinking", "text"]
        [conversation] = await store.list_conversations()
        [(_, manifest)] = await store.list_manifests(conversation.id)
        assert manifest.forwarded is not None
        assert (manifest.forwarded.form, manifest.forwarded.dropped) == ("edited", ("messages[thinking]",))
        assert answer.headers["x-quire-dropped"] == "1"
