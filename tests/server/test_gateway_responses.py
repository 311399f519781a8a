"""OpenAI's Responses through the gateway, by the official SDK: native, and translated to other formats."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gateway_fixtures import GatewayHarness, run_gateway
from openai import AsyncOpenAI
from openai.types.responses import Response
from responses_helpers import Json, check_events, check_response, parse_events

from infra.scripted_provider import (
    Script,
    ScriptedCall,
    ScriptedError,
    ScriptedProvider,
    ScriptedReply,
    ScriptedUsage,
    call_tool,
    play,
    run_scripted_provider,
)
from quire.model import ForwardedRequest
from quire.store import SqlStore

MODEL = "gpt-5"
FUNCTION: Json = {
    "type": "function", "name": "read", "description": "Reads a file.", "strict": False,
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
}  # fmt: skip
CUSTOM: Json = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
NAMESPACE: Json = {
    "type": "namespace",
    "name": "files",
    "description": "Files.",
    "tools": [{"type": "function", "name": "list", "parameters": {"type": "object", "properties": {}}}],
}


@asynccontextmanager
async def run_responses_gateway(
    store: SqlStore, script: Script | str, speaks: str, *, window_tokens: int | None = None, **settings: Any
) -> AsyncIterator[tuple[AsyncOpenAI, ScriptedProvider, GatewayHarness]]:
    """A gateway whose upstream is a scripted provider that speaks one format."""
    with run_scripted_provider(script, window_tokens=window_tokens) as provider:
        settings["upstreams"] = {"*": {"base_url": provider.openai_url, "speaks": [speaks]}}
        async with run_gateway(store, provider.openai_url, **settings) as harness:
            yield harness.openai, provider, harness


async def ask(client: AsyncOpenAI, items: Any, *, stream: bool, **more: Any) -> Response:
    options: Any = {"model": MODEL, "input": items, **more}
    if not stream:
        return await client.responses.create(**options)
    async with client.responses.stream(**options) as events:
        return await events.get_final_response()


async def load_forwarded(store: SqlStore, conversation: str) -> ForwardedRequest:
    entries = await store.read_range(conversation, kinds=["message"])
    forwarded = (await store.get_manifest(conversation, entries[-1].seq)).forwarded
    assert forwarded is not None
    return forwarded


def to_items(response: Response, *, bare: bool = False) -> list[Json]:
    """The output as a client sends it back: whole, or without IDs and states."""
    items = [item.to_dict() for item in response.output]
    return (
        [{key: value for key, value in item.items() if key not in ("id", "status")} for item in items]
        if bare
        else items
    )


@pytest.mark.parametrize("speaks", ["responses", "chat"])
async def test_items_without_ids_and_states_continue_the_conversation(store: SqlStore, speaks: str):
    calls = [ScriptedCall("read", {"path": "a"}), ScriptedCall("read", {"path": "b"})]
    async with run_responses_gateway(store, call_tool(*calls, text="Both are empty."), speaks) as (client, _, _):
        items: list[Any] = [{"role": "user", "content": "Context"}, {"role": "user", "content": "Compare a and b."}]
        options: Any = {"stream": False, "tools": [FUNCTION], "instructions": "Be brief."}
        first = await ask(client, items, **options)
        made = [item for item in first.output if item.type == "function_call"]
        outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "empty"} for call in made]
        items += [*to_items(first), *outputs]
        second = await ask(client, items, **options)
        # Some clients send back neither IDs nor states.
        items = [*items[:2], *to_items(first, bare=True), *outputs, *to_items(second, bare=True)]
        third = await ask(client, [*items, {"role": "user", "content": "Thanks."}], **options)
        assert third.id != second.id
        (conversation,) = await store.list_conversations()
        entries = await store.read_range(conversation.id, kinds=["message"])
        roles = [entry.message.role for entry in entries]
        assert roles == ["user", "user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
        assert len(await store.list_branches(conversation.id)) == 1
        forwarded = await load_forwarded(store, conversation.id)
        assert (forwarded.form, forwarded.dropped) == ("unchanged" if speaks == "responses" else "translated", ())


@pytest.mark.parametrize("speaks", ["chat", "messages"])
async def test_the_events_of_a_translated_stream_are_valid(store: SqlStore, speaks: str):
    reply = ScriptedReply(
        "Two files.", calls=(ScriptedCall("read", {"path": "a"}), ScriptedCall("read")), thinking="hm",
        usage=ScriptedUsage(input_tokens=50, cached_tokens=0, output_tokens=9),
    )  # fmt: skip
    async with run_responses_gateway(store, play(reply), speaks) as (_, _, harness):
        body = {"model": MODEL, "input": "Look.", "tools": [FUNCTION], "stream": True, "metadata": {"a": "b"}}
        answer = await harness.http.post("/v1/responses", json=body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = parse_events(answer.content)
        check_events(events)
        response = events[-1]["response"]
        assert [item["type"] for item in response["output"]] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        assert response["id"] == f"resp_{answer.headers['x-quire-request']}"
        assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (50, 9)
        assert response["metadata"] == {"a": "b"}
        whole = (await harness.http.post("/v1/responses", json={**body, "stream": False})).json()
        check_response(whole)
        assert [item["type"] for item in whole["output"]] == [item["type"] for item in response["output"]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("speaks", ["responses", "chat"])
async def test_custom_and_namespace_tools_work_both_ways(store: SqlStore, speaks: str, stream: bool):
    native = (ScriptedCall("apply_patch", custom_input="*** Begin"), ScriptedCall("list", namespace="files"))
    translated = (ScriptedCall("apply_patch", {"input": "*** Begin"}), ScriptedCall("files__list"))
    calls = native if speaks == "responses" else translated
    replies = play(ScriptedReply(calls=calls), ScriptedReply("Done."))
    async with run_responses_gateway(store, replies, speaks) as (client, provider, _):
        items: list[Any] = [{"role": "user", "content": "Patch."}]
        tools = [CUSTOM, NAMESPACE]
        custom, function = (await ask(client, items, stream=stream, tools=tools)).output
        assert (custom.type, custom.name, custom.input) == ("custom_tool_call", "apply_patch", "*** Begin")  # pyright: ignore
        assert (function.type, function.namespace, function.name) == ("function_call", "files", "list")  # pyright: ignore
        items += [
            custom.to_dict(),
            function.to_dict(),
            {"type": "custom_tool_call_output", "call_id": custom.call_id, "output": "ok"},  # pyright: ignore
            {"type": "function_call_output", "call_id": function.call_id, "output": "a"},  # pyright: ignore
        ]
        assert (await ask(client, items, stream=stream, tools=tools)).output_text == "Done."
        sent = provider.requests[1].body
        if speaks == "chat":
            assert provider.requests[0].tool_names == ["apply_patch", "files__list"]
            functions = [call["function"] for call in sent["messages"][1]["tool_calls"]]
            assert [(each["name"], json.loads(each["arguments"])) for each in functions] == [
                ("apply_patch", {"input": "*** Begin"}),
                ("files__list", {}),
            ]
            assert [message["role"] for message in sent["messages"][2:]] == ["tool", "tool"]
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 1
        entries = await store.read_range(conversation.id, kinds=["message"])
        assert [call.name for call in entries[1].message.tool_calls] == ["apply_patch", "files__list"]


async def test_a_native_request_and_its_stream_pass_byte_for_byte(store: SqlStore):
    body = b'{"model": "gpt-5",  "input": [{"role":"user","content":"Hi"}], "stream": true, "unheard_of": 1.0}'
    async with run_responses_gateway(store, play(ScriptedReply("Yes.", thinking="hm")), "responses") as (
        _,
        provider,
        harness,
    ):
        answer = await harness.http.post("/v1/responses?include[]=x", content=body)
        request = provider.requests[0]
        assert (request.raw, request.path) == (body, "/v1/responses?include[]=x")
        events = parse_events(answer.content)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"]["id"].startswith("resp_")
        assert (await load_forwarded(store, answer.headers["x-quire-conversation"])).form == "unchanged"


async def test_reasoning_returns_to_its_upstream(store: SqlStore):
    async with run_responses_gateway(store, play(ScriptedReply("Yes.", thinking="hm")), "responses") as (
        client,
        provider,
        _,
    ):
        items: list[Any] = [{"role": "user", "content": "Hi"}]
        first = await ask(client, items, stream=False)
        assert first.output[0].type == "reasoning"
        await ask(client, [*items, *to_items(first), {"role": "user", "content": "Go on"}], stream=True)
        assert provider.requests[1].items[1]["encrypted_content"].startswith("sealed")
        (conversation,) = await store.list_conversations()
        assert (await load_forwarded(store, conversation.id)).replayable


async def test_what_has_no_place_is_named(store: SqlStore):
    async with run_responses_gateway(store, "Yes.", "chat") as (_, provider, harness):
        body = {
            "model": MODEL,
            "stream": False,
            "input": [
                {"role": "developer", "content": [{"type": "input_text", "text": "You are a coding agent."}]},
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "Listen."}, {"type": "input_audio", "data": "x"}],
                },
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
                {"type": "web_search_call", "id": "ws_1", "status": "completed"},
                {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
                {"role": "user", "content": "Go on"},
            ],
            "tools": [FUNCTION, {"type": "web_search"}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "low", "summary": "auto"},
            "store": False,
            "metadata": {"a": "b"},
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k",
            "client_metadata": {"session_id": "s"},
        }
        answer = await harness.http.post("/v1/responses", json=body)
        response = answer.json()
        check_response(response, is_open=False)
        assert (response["store"], response["metadata"], response["prompt_cache_key"]) == (False, {"a": "b"}, "k")
        forwarded = await load_forwarded(store, answer.headers["x-quire-conversation"])
        assert set(forwarded.dropped) == {
            "include", "prompt_cache_key", "client_metadata", "reasoning.summary", "tools[web_search]",
            "messages[input_audio]", "messages[thinking]", "messages[web_search_call]",
        }  # fmt: skip
        sent = provider.requests[0].body
        assert (sent["reasoning_effort"], sent["tool_choice"], sent["parallel_tool_calls"]) == ("low", "auto", True)
        assert sent["messages"][0] == {"role": "system", "content": "You are a coding agent."}


async def test_truncation_fits_a_native_request(store: SqlStore):
    async with run_responses_gateway(store, "Yes.", "responses", context_limit=4_000) as (_, provider, harness):
        turns = [
            item
            for number in range(40)
            for item in (
                {"role": "user", "content": f"Question {number}: " + "word " * 60},
                {"role": "assistant", "content": f"Answer {number}: " + "word " * 60},
            )
        ]
        leading = {"type": "message", "role": "developer", "content": "Be brief."}
        items = [leading, *turns, {"role": "user", "content": "Last?"}]
        body = {"model": MODEL, "input": items, "truncation": "auto", "max_output_tokens": 100, "unheard_of": 1}
        answer = await harness.http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        sent = provider.requests[0].body
        assert (sent["unheard_of"], sent["input"][0]) == (1, leading)
        assert len(sent["input"]) < len(items)
        assert sent["input"][-1]["content"] == "Last?"
        assert (await load_forwarded(store, answer.headers["x-quire-conversation"])).form == "fitted"


@pytest.mark.parametrize("speaks", ["responses", "chat"])
async def test_a_stream_that_is_cut_ends_with_an_error(store: SqlStore, speaks: str):
    """`test_format_streams` cuts it at every event."""
    reply = ScriptedReply("Two words.", calls=(ScriptedCall("read", {"path": "a"}),), cut_after_events=5)
    async with run_responses_gateway(store, play(reply), speaks) as (_, _, harness):
        body = {"model": MODEL, "input": "Look.", "tools": [FUNCTION], "stream": True}
        answer = await harness.http.post("/v1/responses", json=body)
        events = parse_events(answer.content)
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"]["error"]["code"] == "server_error"
        if speaks != "responses":
            check_events(events)
        seen = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        recorded = [await harness.load_messages(each.id) for each in await store.list_conversations()]
        assert recorded == [[("user", "Look."), ("assistant", seen)]]


async def test_a_failure_within_a_native_stream_passes(store: SqlStore):
    error = ScriptedError(400, "invalid_request_error", "Too long.", "context_length_exceeded")
    async with run_responses_gateway(store, play(ScriptedReply(error=error)), "responses") as (_, _, harness):
        answer = await harness.http.post("/v1/responses", json={"model": MODEL, "input": "Hi", "stream": True})
        events = parse_events(answer.content)
        assert events[-1]["response"]["error"] == {"code": "context_length_exceeded", "message": "Too long."}
        [exchange] = await store.list_unanswered()
        assert (exchange.outcome, exchange.status, exchange.describe()) == ("refused", 200, "Too long.")


async def test_a_client_of_chat_completions_with_an_upstream_of_this_format(store: SqlStore):
    script = call_tool(ScriptedCall("read", {"path": "a"}), text="It is empty.")
    tool: Any = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
    async with run_responses_gateway(store, script, "responses") as (client, provider, _):
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Read a."}]

        async def complete() -> Any:
            options: Any = {"model": MODEL, "messages": messages, "tools": [tool], "max_tokens": 50}
            return (await client.chat.completions.create(**options)).choices[0]

        choice = await complete()
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("read", {"path": "a"})
        made = {"id": call.id, "type": "function", "function": {"name": "read", "arguments": call.function.arguments}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": call.id, "content": "empty"},
        ]
        choice = await complete()
        assert (choice.finish_reason, choice.message.content) == ("stop", "It is empty.")
        sent = provider.requests[1].body
        assert (sent["store"], sent["max_output_tokens"], sent["instructions"]) == (False, 50, "Be brief.")
        assert [item["type"] for item in sent["input"]] == ["message", "function_call", "function_call_output"]
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 1


@pytest.mark.parametrize("speaks", ["responses", "chat"])
async def test_input_tokens_are_counted(store: SqlStore, speaks: str):
    async with run_responses_gateway(store, "Yes.", speaks) as (client, provider, _):
        count = await client.responses.input_tokens.count(model=MODEL, input="How many tokens are these?")
        assert (count.object, count.input_tokens > 5) == ("response.input_tokens", True)
        assert provider.requests == []


async def test_tools_in_an_item_of_the_input_are_offered(store: SqlStore):
    """As Codex sends them to some models: no `tools`, but an item with a namespace of custom tools."""
    exec_tool = {"type": "custom", "name": "exec", "description": "Runs code."}
    item: Any = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "namespace", "name": "functions", "description": "", "tools": [exec_tool]}],
    }
    call = ScriptedCall("functions__exec", {"input": "1 + 1"})
    async with run_responses_gateway(store, call_tool(call, text="Two."), "chat") as (client, provider, _):
        response = await client.responses.create(
            model=MODEL,
            input=[item, {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Add."}],
        )
        assert provider.requests[0].tool_names == ["functions__exec"]
        output: Any = response.output[0]
        assert (output.type, output.name, output.input) == ("custom_tool_call", "exec", "1 + 1")
