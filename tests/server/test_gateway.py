"""The gateway: what comes in goes on unchanged where it fits, is kept as it was said, and can be read again."""

import json
from hashlib import sha256

import pytest
from gateway_parts import MODEL, Gateway, assistant, gateway, system, user

from quire.engine import Engine
from quire.errors import RequestNotFound
from quire.log import SqlStore
from quire.settings import Settings
from upstream import DONE, completion, event, says, streams, upstream


def engine_on(store: SqlStore) -> Engine:
    return Engine(store, settings=Settings(model=MODEL))


async def replayed(kept: Gateway, id: str):
    found = await kept.store.request(id)
    conversation = await engine_on(kept.store).conversation(found.conversation, branch=found.branch)
    return found, await conversation.replay(found.seq)


async def test_the_openai_client_is_answered_and_the_turn_is_kept(store: SqlStore):
    async with upstream(says("Good morning.")) as up, gateway(store, up.url) as kept:
        raw = await kept.openai.chat.completions.with_raw_response.create(model=MODEL, messages=[user("Hello")])
        reply = raw.parse()
        assert reply.choices[0].message.content == "Good morning."
        conversation = raw.headers["x-quire-conversation"]
        assert raw.headers["x-quire-branch"] == "0"
        assert await kept.said(conversation) == [("user", "Hello"), ("assistant", "Good morning.")]
        found = await store.request(raw.headers["x-quire-request"])
        assert (found.conversation, found.branch, found.seq) == (conversation, 0, 2)
        assert found.manifest.sent is not None
        assert found.manifest.sent.form == "as_received"
        with pytest.raises(RequestNotFound):
            await store.request("nobody's")


async def test_a_stream_goes_through_as_it_comes_and_is_kept_whole(store: SqlStore):
    async with upstream(says("One two three")) as up, gateway(store, up.url) as kept:
        stream = await kept.openai.chat.completions.create(model=MODEL, messages=[user("Count")], stream=True)
        words = [chunk.choices[0].delta.content async for chunk in stream]
        assert "".join(word for word in words if word) == "One two three"
        conversation = stream.response.headers["x-quire-conversation"]
        assert await kept.said(conversation) == [("user", "Count"), ("assistant", "One two three")]


ODD = b"""{ "temperature": 0.70, "model":"gpt-4o",
  "messages" : [ {"content":"Gr\\u00fc\\u00dfe \xf0\x9f\x8c\xb8","role":"user"} ],
  "unheard_of": {"b": [1.0, 1e3, null], "a": ""}, "user": "u-1" }"""


async def test_a_request_that_fits_reaches_the_upstream_byte_for_byte(store: SqlStore):
    async with upstream(says("Yes.")) as up, gateway(store, up.url) as kept:
        answer = await kept.post(ODD, openai_organization="org-1")
        assert answer.status_code == 200
        assert up.asked[0].raw == ODD
        assert up.asked[0].headers["openai-organization"] == "org-1"
        assert "authorization" not in up.asked[0].headers
        assert answer.content == json.dumps(completion("Yes.")).encode()
        manifest = (await store.request(answer.headers["x-quire-request"])).manifest
        assert manifest.sent is not None
        assert manifest.sent.digest == sha256(ODD).hexdigest()
        assert manifest.sent.same


async def test_the_bytes_of_a_stream_are_the_upstreams_own(store: SqlStore):
    pieces = (b": hello\n\n", event("A"), event("B")[:20], event("B")[20:], event({}, "stop"), DONE)
    async with upstream(streams(*pieces)) as up, gateway(store, up.url) as kept:
        answer = await kept.ask(user("Go"), stream=True)
        assert answer.content == b"".join(pieces)
        assert answer.headers["content-type"] == "text/event-stream"


async def test_instructions_are_not_history_and_may_change_from_day_to_day(store: SqlStore):
    async with upstream(says("Aye.")) as up, gateway(store, up.url) as kept:
        first = await kept.ask(system("It is Monday."), user("Hello"))
        second = await kept.ask(system("It is Tuesday."), user("Hello"), assistant("Aye."), user("And now?"))
        assert second.headers["x-quire-conversation"] == first.headers["x-quire-conversation"]
        assert await kept.said(first.headers["x-quire-conversation"]) == [
            ("user", "Hello"), ("assistant", "Aye."), ("user", "And now?"), ("assistant", "Aye."),
        ]  # fmt: skip
        for answer, day in ((first, "Monday"), (second, "Tuesday")):
            found, replay = await replayed(kept, answer.headers["x-quire-request"])
            assert replay.matches
            assert replay.pages is not None
            assert replay.pages.system == f"It is {day}."
            assert found.manifest.sent is not None
            assert found.manifest.sent.same


async def test_what_a_replay_gives_is_what_the_upstream_was_sent(store: SqlStore):
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}}
    tool = {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
    }
    calls = says({"content": None, "tool_calls": [call]}, finish="tool_calls")
    async with upstream(calls, says("Waves.")) as up, gateway(store, up.url) as kept:
        history = [system("Be brief."), user("Look at the sea")]
        first = await kept.ask(*history, tools=[tool])
        history += [first.json()["choices"][0]["message"]]
        history += [{"role": "tool", "tool_call_id": "call_1", "content": "waves"}]
        second = await kept.ask(*history, tools=[tool])
        conversation = second.headers["x-quire-conversation"]
        assert conversation == first.headers["x-quire-conversation"]
        assert [role for role, _ in await kept.said(conversation)] == ["user", "assistant", "tool", "assistant"]
        for answer, asked in ((first, up.asked[0]), (second, up.asked[1])):
            found, replay = await replayed(kept, answer.headers["x-quire-request"])
            assert replay.matches
            assert replay.pages is not None
            payload = replay.pages.payload()
            assert payload["messages"] == asked.body["messages"]
            assert payload["tools"] == asked.body["tools"]
            assert found.manifest.sent is not None
            assert found.manifest.sent.same


async def test_another_name_for_the_model_is_all_that_changes(store: SqlStore):
    named = {"house": {"base_url": "", "model": "up-7b", "key_from": "UP_KEY", "context_limit": 8_000}}
    async with upstream(says("Yes.")) as up:
        named["house"]["base_url"] = up.url
        async with gateway(store, up.url, upstreams=named) as kept:
            answer = await kept.ask(user("Hello"), model="house", seed=1)
            assert up.asked[0].body == {"model": "up-7b", "messages": [user("Hello")], "seed": 1}
            assert up.asked[0].headers["authorization"] == "Bearer sk-up"
            manifest = (await store.request(answer.headers["x-quire-request"])).manifest
            assert manifest.sent is not None
            assert (manifest.sent.form, manifest.policy.window) == ("renamed", 8_000)


async def test_a_model_without_an_upstream_is_refused_in_both_forms(store: SqlStore):
    async with (
        upstream(says("Yes.")) as up,
        gateway(store, up.url, base_url=None, upstreams={"known-*": {"base_url": up.url}}) as kept,
    ):
        answer = await kept.ask(user("Hello"), model="unknown")
        assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
        assert "unknown" in answer.json()["error"]["message"]
        assert (await kept.ask(user("Hello"), model="known-1")).status_code == 200


async def test_models_are_those_that_requests_can_reach(store: SqlStore):
    async def lists(asked):
        await asked.answer({"object": "list", "data": [{"id": "up-1"}, {"id": "other"}]})

    async with upstream(lists) as up:
        given = {"house": {"base_url": up.url, "model": "up-1"}, "up-*": {"base_url": up.url}}
        async with gateway(store, up.url, base_url=None, upstreams=given) as kept:
            found = await kept.openai.models.list()
            assert [model.id for model in found.data] == ["house", "up-1"]


async def test_the_upstreams_errors_pass_through_and_nothing_is_kept(store: SqlStore):
    async def fails(asked):
        await asked.answer(b'{"error": {"message": "slow down"}}', 429, retry_after="7", x_request_id="up-9")

    async with upstream(fails) as up, gateway(store, up.url) as kept:
        answer = await kept.ask(user("Hello"), x_quire_conversation="c")
        assert answer.status_code == 429
        assert answer.content == b'{"error": {"message": "slow down"}}'
        assert (answer.headers["retry-after"], answer.headers["x-request-id"]) == ("7", "up-9")
        assert await store.conversations() == []
