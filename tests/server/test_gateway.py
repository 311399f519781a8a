"""Gateway: pass-through of requests that fit, recording, and replay."""

import json
from hashlib import sha256

import pytest
from gateway_fixtures import MODEL, GatewayHarness, assistant_message, run_gateway, system_message, user_message

from fake_upstream import (
    SSE_DONE,
    make_chunk_event,
    make_completion,
    respond_with_stream,
    respond_with_text,
    run_fake_upstream,
)
from quire.engine import Engine, EngineConfig
from quire.errors import RequestNotFound
from quire.settings import Settings
from quire.store import SqlStore


def make_engine(store: SqlStore) -> Engine:
    return Engine(store, EngineConfig.create(Settings(model=MODEL)))


async def replay_request(harness: GatewayHarness, id: str):
    recorded = await harness.store.get_request(id)
    conversation = await make_engine(harness.store).conversation(recorded.conversation, branch=recorded.branch)
    return recorded, await conversation.replay(recorded.seq)


@pytest.mark.every_database
async def test_the_openai_client_is_answered_and_the_turn_is_recorded(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Good morning.")) as up, run_gateway(store, up.url) as harness:
        raw = await harness.openai.chat.completions.with_raw_response.create(
            model=MODEL, messages=[user_message("Hello")]
        )
        reply = raw.parse()
        assert reply.choices[0].message.content == "Good morning."
        conversation = raw.headers["x-quire-conversation"]
        assert raw.headers["x-quire-branch"] == "0"
        assert await harness.load_messages(conversation) == [("user", "Hello"), ("assistant", "Good morning.")]
        recorded = await store.get_request(raw.headers["x-quire-request"])
        assert (recorded.conversation, recorded.branch, recorded.seq) == (conversation, 0, 2)
        assert recorded.manifest.forwarded is not None
        assert recorded.manifest.forwarded.form == "unchanged"
        with pytest.raises(RequestNotFound):
            await store.get_request("unknown")


async def test_a_stream_passes_through_chunk_by_chunk_and_is_recorded_whole(store: SqlStore):
    async with run_fake_upstream(respond_with_text("One two three")) as up, run_gateway(store, up.url) as harness:
        stream = await harness.openai.chat.completions.create(
            model=MODEL, messages=[user_message("Count")], stream=True
        )
        words = [chunk.choices[0].delta.content async for chunk in stream]
        assert "".join(word for word in words if word) == "One two three"
        conversation = stream.response.headers["x-quire-conversation"]
        assert await harness.load_messages(conversation) == [("user", "Count"), ("assistant", "One two three")]


UNUSUAL_BODY = b"""{ "temperature": 0.70, "model":"gpt-4o",
  "messages" : [ {"content":"Gr\\u00fc\\u00dfe \xf0\x9f\x8c\xb8","role":"user"} ],
  "unheard_of": {"b": [1.0, 1e3, null], "a": ""}, "user": "u-1" }"""


async def test_a_request_that_fits_reaches_the_upstream_byte_for_byte(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Yes.")) as up, run_gateway(store, up.url) as harness:
        answer = await harness.post(UNUSUAL_BODY, openai_beta="1", unheard_of="1")
        assert answer.status_code == 200
        assert up.requests[0].raw == UNUSUAL_BODY
        assert up.requests[0].headers["openai-beta"] == "1"
        assert "unheard-of" not in up.requests[0].headers
        assert "authorization" not in up.requests[0].headers
        assert answer.content == json.dumps(make_completion("Yes.")).encode()
        manifest = (await store.get_request(answer.headers["x-quire-request"])).manifest
        assert manifest.forwarded is not None
        assert manifest.forwarded.digest == sha256(UNUSUAL_BODY).hexdigest()
        assert manifest.forwarded.replayable


async def test_the_bytes_of_a_stream_are_the_upstreams_own(store: SqlStore):
    pieces = (
        b": hello\n\n",
        make_chunk_event("A"),
        make_chunk_event("B")[:20],
        make_chunk_event("B")[20:],
        make_chunk_event({}, "stop"),
        SSE_DONE,
    )
    async with run_fake_upstream(respond_with_stream(*pieces)) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("Go"), stream=True)
        assert answer.content == b"".join(pieces)
        assert answer.headers["content-type"] == "text/event-stream"


async def test_instructions_are_not_history_and_may_change_from_day_to_day(store: SqlStore):
    async with run_fake_upstream(respond_with_text("Aye.")) as up, run_gateway(store, up.url) as harness:
        first = await harness.ask(system_message("It is Monday."), user_message("Hello"))
        second = await harness.ask(
            system_message("It is Tuesday."), user_message("Hello"), assistant_message("Aye."), user_message("And now?")
        )
        assert second.headers["x-quire-conversation"] == first.headers["x-quire-conversation"]
        assert await harness.load_messages(first.headers["x-quire-conversation"]) == [
            ("user", "Hello"), ("assistant", "Aye."), ("user", "And now?"), ("assistant", "Aye."),
        ]  # fmt: skip
        for answer, day in ((first, "Monday"), (second, "Tuesday")):
            recorded, replay = await replay_request(harness, answer.headers["x-quire-request"])
            assert replay.matches
            assert replay.rendered is not None
            assert replay.rendered.system == f"It is {day}."
            assert recorded.manifest.forwarded is not None
            assert recorded.manifest.forwarded.replayable
            assert recorded.manifest.stable_messages == replay.rendered.stable_messages


@pytest.mark.every_database
async def test_what_a_replay_gives_is_what_the_upstream_was_sent(store: SqlStore):
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}}
    tool = {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
    }
    calls = respond_with_text({"content": None, "tool_calls": [call]}, finish="tool_calls")
    async with run_fake_upstream(calls, respond_with_text("Waves.")) as up, run_gateway(store, up.url) as harness:
        history = [system_message("Be brief."), user_message("Look at the sea")]
        first = await harness.ask(*history, tools=[tool])
        history += [first.json()["choices"][0]["message"]]
        history += [{"role": "tool", "tool_call_id": "call_1", "content": "waves"}]
        second = await harness.ask(*history, tools=[tool])
        conversation = second.headers["x-quire-conversation"]
        assert conversation == first.headers["x-quire-conversation"]
        assert [role for role, _ in await harness.load_messages(conversation)] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        for answer, request in ((first, up.requests[0]), (second, up.requests[1])):
            recorded, replay = await replay_request(harness, answer.headers["x-quire-request"])
            assert replay.matches
            assert replay.rendered is not None
            payload = replay.rendered.to_payload()
            assert payload["messages"] == request.body["messages"]
            assert payload["tools"] == request.body["tools"]
            assert recorded.manifest.forwarded is not None
            assert recorded.manifest.forwarded.replayable
        # The call is stored, but belongs to the batch of its new result.
        assert recorded.manifest.stable_messages == 1


async def test_another_name_for_the_model_is_all_that_changes(store: SqlStore):
    upstreams = {"house": {"base_url": "", "model": "up-7b", "api_key_env": "UP_KEY"}}
    async with run_fake_upstream(respond_with_text("Yes.")) as up:
        upstreams["house"]["base_url"] = up.url
        async with run_gateway(store, up.url, upstreams=upstreams, models={"up-*": {"window": 8_000}}) as harness:
            answer = await harness.ask(user_message("Hello"), model="house", seed=1)
            assert up.requests[0].body == {"model": "up-7b", "messages": [user_message("Hello")], "seed": 1}
            assert up.requests[0].headers["authorization"] == "Bearer sk-up"
            manifest = (await store.get_request(answer.headers["x-quire-request"])).manifest
            assert manifest.forwarded is not None
            assert (manifest.forwarded.form, manifest.policy.window) == ("model_renamed", 8_000)


async def test_a_model_without_an_upstream_is_refused_in_both_forms(store: SqlStore):
    async with (
        run_fake_upstream(respond_with_text("Yes.")) as up,
        run_gateway(store, up.url, base_url=None, upstreams={"known-*": {"base_url": up.url}}) as harness,
    ):
        answer = await harness.ask(user_message("Hello"), model="unknown")
        assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
        assert "unknown" in answer.json()["error"]["message"]
        assert (await harness.ask(user_message("Hello"), model="known-1")).status_code == 200


async def test_models_are_those_that_requests_can_reach(store: SqlStore):
    async def list_models(request):
        await request.respond({"object": "list", "data": [{"id": "up-1"}, {"id": "other"}]})

    async with run_fake_upstream(list_models) as up:
        upstreams = {"house": {"base_url": up.url, "model": "up-1"}, "up-*": {"base_url": up.url}}
        async with run_gateway(store, up.url, base_url=None, upstreams=upstreams) as harness:
            models = await harness.openai.models.list()
            assert [model.id for model in models.data] == ["house", "up-1"]


async def test_the_upstreams_errors_pass_through_and_are_stored(store: SqlStore):
    async def reject(request):
        await request.respond(b'{"error": {"message": "slow down"}}', 429, retry_after="7", x_request_id="up-9")

    async with run_fake_upstream(reject) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("Hello"), x_quire_conversation="c")
        assert answer.status_code == 429
        assert answer.content == b'{"error": {"message": "slow down"}}'
        assert (answer.headers["retry-after"], answer.headers["x-request-id"]) == ("7", "up-9")
        [exchange] = await store.list_unanswered()
        assert (exchange.conversation, exchange.describe()) == ("c", "429: slow down")
