"""Conversations and compaction items of OpenAI's Responses, from the log; with OpenAI's SDK and its agents."""

from typing import Any

import agents
import openai
import pytest
from agents.memory import OpenAIResponsesCompactionSession
from openai import AsyncOpenAI
from openai.types.responses import Response
from responses_helpers import Json, check_events, check_response, parse_events
from server_helpers import create_key_for
from test_gateway_responses import MODEL, ask, run_responses_gateway
from test_responses_state import echo, list_texts, run_chain

from infra.scripted_provider import ProviderRequest, ScriptedCall, ScriptedReply, play
from quire.model import Entry
from quire.proxy import response_items
from quire.proxy.response_items import build_entry_items
from quire.store import SqlStore

ODD_ITEMS: list[Any] = [
    {}, {"type": 5}, {"id": "msg_x_0"}, {"type": "message"}, {"role": "user", "content": 5}, {"role": 7},
    {"role": "user", "content": "a\u0000b"}, {"role": "user", "content": [{"type": "input_text"}]},
    {"type": "function_call_output"}, {"type": "function_call", "call_id": 1, "name": []},
    {"type": "item_reference"}, {"type": "compaction", "encrypted_content": "quire1.bad"},
    {"type": "compaction", "encrypted_content": "quire1.WyJjIiwwLDEsbnVsbF0=.00"},
]  # fmt: skip


async def test_a_conversation_has_the_items_of_all_its_responses(store: SqlStore):
    async with run_responses_gateway(store, echo, "chat") as (client, provider, _):
        first: list[Any] = [{"type": "message", "role": "developer", "content": "Obey."}]
        conversation = await client.conversations.create(items=first, metadata={"title": "Mills"})
        assert (conversation.id[:5], conversation.metadata) == ("conv_", {"title": "Mills"})
        for number in range(3):
            response = await ask(client, f"Q{number}", stream=number % 2 == 0, conversation=conversation.id)
            assert response.conversation is not None
            assert response.conversation.id == conversation.id
        added: list[Any] = [
            {"role": "user", "content": "By the way"},
            {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "empty"},
        ]
        page = await client.conversations.items.create(conversation.id, items=added)
        assert [item.type for item in page.data] == ["message", "function_call", "function_call_output"]
        await ask(client, "Q3", stream=False, conversation={"id": conversation.id})
        roles = [message["role"] for message in provider.requests[-1].items]
        assert roles == ["system", *["user", "assistant"] * 3, "user", "assistant", "tool", "user"]
        listed = [item async for item in client.conversations.items.list(conversation.id, order="asc", limit=4)]
        assert len(listed) == 1 + 2 * 4 + 3
        assert listed[7:10] == page.data
        assert await client.conversations.items.retrieve(page.data[1].id, conversation_id=conversation.id) == listed[8]  # pyright: ignore
        metadata = {"title": "Wheels", "topic": "Mühlen", "user": "7"}
        renamed = await client.conversations.update(conversation.id, metadata=metadata)
        assert renamed.metadata == metadata
        assert (await client.conversations.retrieve(conversation.id)) == renamed
        noted = await client.conversations.update(conversation.id, metadata={"user": "8"})
        assert noted.metadata == {"title": "Wheels", "user": "8"}
        assert (await client.conversations.retrieve(conversation.id)) == noted
        with pytest.raises(openai.UnprocessableEntityError):
            await client.conversations.update(conversation.id, metadata={"topic": "x" * 513})
        (stored,) = await store.list_conversations()
        assert (stored.title, f"conv_{stored.id}") == ("Wheels", conversation.id)
        assert len(await store.list_branches(stored.id)) == 1


@pytest.mark.every_database
@pytest.mark.parametrize("upstream", ["chat", "responses"])
async def test_an_item_is_found_by_its_id_without_reading_the_others(
    store: SqlStore, upstream: Any, monkeypatch: pytest.MonkeyPatch
):
    async with run_responses_gateway(store, echo, upstream) as (client, *_):
        conversation = await client.conversations.create(items=[{"role": "user", "content": "First"}])
        for number in range(3):
            await ask(client, f"Q{number}", stream=False, conversation=conversation.id)
        items = client.conversations.items
        listed = [item async for item in items.list(conversation.id, order="asc")]
        assert [item async for item in items.list(conversation.id, order="asc", limit=1)] == listed
        assert [item async for item in items.list(conversation.id, order="desc", limit=1)] == listed[::-1]
        read: list[int] = []

        def build(entry: Entry) -> list[Any]:
            read.append(entry.seq)
            return build_entry_items(entry)

        monkeypatch.setattr(response_items, "build_entry_items", build)
        for item in listed:
            read.clear()
            assert await items.retrieve(item.id or "", conversation_id=conversation.id) == item
            assert len(read) == 1
        read.clear()
        digest = (listed[0].id or "").split("_")[1]
        for unknown in ("none", "msg_none", "msg_none_0", f"msg_{digest}_0_999_0", f"msg_{digest}_x_y_z", "%", "_" * 9):
            with pytest.raises(openai.NotFoundError):
                await items.retrieve(unknown, conversation_id=conversation.id)
            with pytest.raises(openai.BadRequestError):
                await items.list(conversation.id, after=unknown)
        assert read == []


@pytest.mark.every_database
async def test_items_and_conversations_are_purged(store: SqlStore):
    async with run_responses_gateway(store, echo, "chat") as (client, provider, _):
        conversation = await client.conversations.create(items=[{"role": "user", "content": "Secret"}])
        (secret,) = (await client.conversations.items.list(conversation.id)).data
        await client.conversations.items.delete(secret.id or "", conversation_id=conversation.id)
        assert (await client.conversations.items.list(conversation.id)).data == []
        with pytest.raises(openai.NotFoundError):
            await client.conversations.items.retrieve(secret.id or "", conversation_id=conversation.id)
        await ask(client, "Q0", stream=False, conversation=conversation.id)
        assert b"Secret" not in provider.requests[-1].raw
        other = client.with_options(api_key=await create_key_for(store, "other"))
        for reader, id_ in ((other, conversation.id), (client, "conv_unknown")):
            with pytest.raises(openai.NotFoundError):
                await reader.conversations.retrieve(id_)
            with pytest.raises(openai.NotFoundError):
                await ask(reader, "Q0", stream=False, conversation=id_)
        deleted = await client.conversations.delete(conversation.id)
        assert (deleted.object, deleted.deleted) == ("conversation.deleted", True)
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(conversation.id)


async def test_agents_of_the_sdk_continue_a_conversation(store: SqlStore):
    """`openai-agents` with `conversation_id` sends only new items, also tool outputs."""
    script = play(ScriptedReply(calls=(ScriptedCall("read", {"path": "a"}),)), ScriptedReply("It is empty."))
    async with run_responses_gateway(store, script, "chat") as (client, provider, _):
        paths: list[str] = []

        @agents.function_tool
        def read(path: str) -> str:
            """Reads a file."""
            paths.append(path)
            return "empty"

        model = agents.OpenAIResponsesModel(MODEL, client)
        agent = agents.Agent(name="reader", instructions="Be brief.", tools=[read], model=model)
        config = agents.RunConfig(tracing_disabled=True)
        conversation = await client.conversations.create()
        for question in ("Read a.", "And now?"):
            result = await agents.Runner.run(agent, question, conversation_id=conversation.id, run_config=config)
            assert result.final_output == "It is empty."
        assert paths == ["a"]
        roles = [message["role"] for message in provider.requests[-1].items]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
        (stored,) = await store.list_conversations()
        assert (f"conv_{stored.id}", len(await store.list_branches(stored.id))) == (conversation.id, 1)
        session = agents.OpenAIConversationsSession(conversation_id=conversation.id, openai_client=client)
        assert [item.get("type") for item in await session.get_items()] == [
            "message", "function_call", "function_call_output", "message", "message", "message"
        ]  # fmt: skip


def summarize(request: ProviderRequest) -> ScriptedReply:
    """Replies at length, so that a history is worth compacting."""
    return ScriptedReply("word " * 60 + "end")


@pytest.mark.parametrize("mode", ["previous_response_id", "input"])
async def test_a_history_is_compacted_on_demand(store: SqlStore, mode: str):
    async with run_responses_gateway(store, summarize, "chat") as (client, provider, _):
        responses = await run_chain(client, range(20))
        history: Any = {"previous_response_id": responses[-1].id}
        if mode == "input":
            history = {"input": await list_history(client, responses[-1])}
        compacted = await client.responses.compact(model=MODEL, **history)
        *kept, item = compacted.output
        assert (compacted.object, item.type) == ("response.compaction", "compaction")
        assert all(each.type == "message" for each in kept)
        (conversation,) = await store.list_conversations()
        assert [entry.seq for entry in await store.read_range(conversation.id, kinds=["compaction"])] == [41]
        items: list[Any] = [
            *(each.to_dict(warnings=False) for each in compacted.output),
            {"role": "user", "content": "Go on."},
        ]
        reply = await ask(client, items, stream=False)
        sent = list_texts(provider.requests[-1])
        assert any("<quire:summary" in text for text in sent)
        assert sent[-1].endswith("Go on.")
        assert len(provider.requests[-1].items) < 41
        await ask(client, [*items, *(each.to_dict() for each in reply.output), *items[-1:]], stream=False)
        branches = [await store.list_branches(each.id) for each in await store.list_conversations()]
        assert [len(each) for each in branches] == [1, 1]


async def list_history(client: AsyncOpenAI, response: Response) -> list[Json]:
    items = [item.to_dict() async for item in client.responses.input_items.list(response.id, order="asc", limit=100)]
    return [*items, *(item.to_dict() for item in response.output)]


async def test_a_history_that_is_too_short_to_compact_stays_as_it_is(store: SqlStore):
    async with run_responses_gateway(store, echo, "chat") as (client, provider, _):
        responses = await run_chain(client, range(1))
        compacted = await client.responses.compact(model=MODEL, previous_response_id=responses[-1].id)
        assert [item.type for item in compacted.output] == ["compaction"]
        items: list[Any] = [
            *(each.to_dict(warnings=False) for each in compacted.output),
            {"role": "user", "content": "Go on."},
        ]
        await ask(client, items, stream=False)
        assert list_texts(provider.requests[-1]) == ["Q0", "Answer to Q0", "Go on."]
        other = client.with_options(api_key=await create_key_for(store, "other"))
        forged = {**items[0], "encrypted_content": items[0]["encrypted_content"][:-1] + "g"}
        foreign = {"type": "compaction", "encrypted_content": "gAAAA"}
        for reader, item in ((other, items[0]), (client, forged), (client, foreign)):
            with pytest.raises(openai.BadRequestError):
                await ask(reader, [item, items[-1]], stream=False)


async def test_the_session_of_the_agents_sdk_compacts_its_history(store: SqlStore):
    async with run_responses_gateway(store, summarize, "chat") as (client, provider, _):
        session = OpenAIResponsesCompactionSession(
            "s",
            agents.SQLiteSession("s"),
            client=client,
            model=MODEL,
            should_trigger_compaction=lambda context: len(context["session_items"]) >= 40,
        )
        agent = agents.Agent(name="writer", model=agents.OpenAIResponsesModel(MODEL, client))
        config = agents.RunConfig(tracing_disabled=True)
        lengths: list[int] = []
        for number in range(23):
            await agents.Runner.run(agent, f"Q{number}", session=session, run_config=config)
            lengths.append(len(await session.get_items()))
        assert lengths[18] == 38
        assert max(lengths[19:]) < 38
        assert "<quire:summary" in provider.requests[-1].raw.decode()
        assert list_texts(provider.requests[-1])[-1] == "Q22"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_trigger_is_answered_with_a_compaction_item(store: SqlStore, stream: bool):
    async with run_responses_gateway(store, summarize, "chat") as (client, provider, harness):
        responses = await run_chain(client, range(20))
        sent = len(provider.requests)
        history = await list_history(client, responses[-1])
        body = {"model": MODEL, "input": [*history, {"type": "compaction_trigger"}], "stream": stream, "store": False}
        answer = await harness.http.post("/v1/responses", json=body)
        response = answer.json() if not stream else parse_events(answer.content)[-1]["response"]
        if stream:
            check_events(parse_events(answer.content), is_open=False)
        check_response(response, is_open=False)
        (item,) = response["output"]
        assert (item["type"], response["status"]) == ("compaction", "completed")
        assert len(provider.requests) == sent
        await ask(client, [item, {"role": "user", "content": "Go on."}], stream=False)
        assert "<quire:summary" in provider.requests[-1].raw.decode()
        assert len(await store.list_conversations()) == 2


async def test_an_odd_item_is_stored_or_refused(store: SqlStore):
    async with run_responses_gateway(store, "Yes.", "chat") as (_, _, harness):
        conversation = (await harness.http.post("/v1/conversations", json={})).json()["id"]
        for item in ODD_ITEMS:
            listed = (await harness.http.get(f"/v1/conversations/{conversation}/items?limit=100")).json()["data"]
            added = await harness.http.post(f"/v1/conversations/{conversation}/items", json={"items": [item]})
            assert added.status_code in (200, 400), (item, added.text)
            items = (await harness.http.get(f"/v1/conversations/{conversation}/items?limit=100")).json()["data"]
            assert len(items) == len(listed) + len(added.json().get("data", ()))
            for path in ("", "/compact"):
                answer = await harness.http.post(f"/v1/responses{path}", json={"model": MODEL, "input": [item]})
                assert answer.status_code in (200, 400), (item, answer.text)


async def test_a_key_that_may_only_call_models_reads_nothing_of_the_log(store: SqlStore):
    async with run_responses_gateway(store, "Yes.", "chat") as (client, _, harness):
        response = await ask(client, "the code is 4711", stream=False)
        (conversation,) = await store.list_conversations()
        response_path, path = f"/v1/responses/{response.id}", f"/v1/conversations/conv_{conversation.id}"
        item = (await harness.http.get(f"{path}/items")).json()["data"][0]["id"]
        paths = [response_path, f"{response_path}/input_items", path, f"{path}/items", f"{path}/items/{item}"]
        for scope, status in (("chat", 403), ("read", 200)):
            headers = {"Authorization": f"Bearer {await create_key_for(store, 'default', scope)}"}
            for each in paths:
                answer = await harness.http.get(each, headers=headers)
                assert answer.status_code == status, (each, answer.text)
                assert status == 200 or "4711" not in answer.text
