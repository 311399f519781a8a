"""State of OpenAI's Responses that the log has: chains by `previous_response_id`, reads, deletes."""

from typing import Any

import openai
import pytest
from gateway_fixtures import run_gateway
from openai import AsyncOpenAI
from openai.types.responses import Response
from responses_helpers import Json, check_response, parse_events
from server_helpers import create_key_for
from test_gateway_responses import CUSTOM, FUNCTION, MODEL, NAMESPACE, ask, run_responses_gateway

from fake_upstream import make_chunk_event, make_completion, make_sse_event, respond_with_stream, run_fake_upstream
from infra.llama import LocalModelAddress
from infra.scripted_provider import (
    ProviderRequest,
    ScriptedCall,
    ScriptedError,
    ScriptedReply,
    ScriptedUsage,
    call_tool,
    play,
)
from quire.store import SqlStore

CHAIN_TURNS = 300
"""Turns of a chain on the local model; they take a quarter of an hour."""
CONTEXT_TOKENS = 1_024
UPSTREAMS = ("chat", "messages", "responses")
CUTS = {"chat": 2, "messages": 4, "responses": 6}
"""Events of a reply before its text is complete."""
UNKNOWN = ScriptedError(
    404, "invalid_request_error", "Previous response with id 'x' not found.", "previous_response_not_found"
)


def echo(request: ProviderRequest) -> ScriptedReply:
    """Replies with the newest message, as a provider without state of its own does."""
    if request.format == "responses" and request.body.get("previous_response_id"):
        return ScriptedReply(error=UNKNOWN)
    content = request.items[-1]["content"]
    text = content if isinstance(content, str) else "".join(piece["text"] for piece in content)
    return ScriptedReply(f"Answer to {text}")


async def run_chain(client: AsyncOpenAI, numbers: range, previous: str | None = None, **more: Any) -> list[Response]:
    responses: list[Response] = []
    for number in numbers:
        response = await ask(client, f"Q{number}", stream=number % 2 == 0, previous_response_id=previous, **more)
        responses.append(response)
        previous = response.id
    return responses


def list_texts(request: ProviderRequest) -> list[str]:
    """Texts of the messages of the user and the assistant."""
    texts: list[str] = []
    for item in request.items:
        content = item["content"]
        if item["role"] != "system":
            texts.append(content if isinstance(content, str) else "".join(piece["text"] for piece in content))
    return texts


@pytest.mark.parametrize("speaks", UPSTREAMS)
async def test_a_chain_of_responses_is_one_branch(store: SqlStore, speaks: str):
    async with run_responses_gateway(store, echo, speaks) as (client, provider, _):
        responses = await run_chain(client, range(40))
        assert [response.output_text for response in responses] == [f"Answer to Q{number}" for number in range(40)]
        if speaks != "responses":
            previous = [response.previous_response_id for response in responses[1:]]
            assert previous == [each.id for each in responses[:-1]]
        texts = [text for number in range(39) for text in (f"Q{number}", f"Answer to Q{number}")]
        assert list_texts(provider.requests[-1]) == [*texts, "Q39"]
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 1
        assert len(await store.read_range(conversation.id, kinds=["message"])) == 80


async def test_a_long_chain_fits_the_window(store: SqlStore):
    def answer(request: ProviderRequest) -> ScriptedReply:
        return ScriptedReply("word " * 100)

    async with run_responses_gateway(store, answer, "chat", context_limit=4_000) as (client, provider, _):
        await run_chain(client, range(40), max_output_tokens=200)
        assert list_texts(provider.requests[-1])[-1] == "Q39"
        assert len(provider.requests[-1].items) < 60
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 1


@pytest.mark.parametrize("speaks", UPSTREAMS)
async def test_a_response_that_is_continued_twice_is_a_branch(store: SqlStore, speaks: str):
    async with run_responses_gateway(store, echo, speaks) as (client, provider, _):
        responses = await run_chain(client, range(10))
        forked = await run_chain(client, range(100, 103), responses[5].id)
        texts = [text for number in (0, 1, 2, 3, 4, 5, 100, 101) for text in (f"Q{number}", f"Answer to Q{number}")]
        assert list_texts(provider.requests[-1]) == [*texts, "Q102"]
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 2
        # The first branch goes on where it was.
        await run_chain(client, range(10, 11), responses[-1].id)
        assert "Q100" not in list_texts(provider.requests[-1])
        page = await client.responses.input_items.list(forked[-1].id, limit=3, order="desc")
        assert [item.to_dict()["content"][0]["text"] for item in page.data] == [  # pyright: ignore
            "Q102", "Answer to Q101", "Q101"
        ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("speaks", UPSTREAMS)
async def test_a_response_is_read_as_it_was_given(store: SqlStore, speaks: str, stream: bool):
    usage = ScriptedUsage(input_tokens=50, cached_tokens=20, output_tokens=9)
    calls = (ScriptedCall("apply_patch", {"input": "*** Begin"}), ScriptedCall("files__list"), ScriptedCall("read"))
    if speaks == "responses":
        calls = (ScriptedCall("apply_patch", custom_input="*"), ScriptedCall("list", namespace="files"), calls[2])
    script = play(ScriptedReply("Two files.", calls=calls, thinking="hm", usage=usage))
    async with run_responses_gateway(store, script, speaks) as (_, _, harness):
        body = {
            "model": MODEL,
            "input": [{"role": "developer", "content": "Obey."}, {"role": "user", "content": "Look."}],
            "stream": stream,
            "instructions": "Be brief.",
            "tools": [FUNCTION, CUSTOM, NAMESPACE],
            "metadata": {"a": "b"},
            "max_output_tokens": 100,
            "temperature": 0.5,
            "reasoning": {"effort": "low"},
        }
        answer = await harness.http.post("/v1/responses", json=body)
        given = parse_events(answer.content)[-1]["response"] if stream else answer.json()
        found = (await harness.http.get(f"/v1/responses/{given['id']}")).json()
        check_response(found, is_open=False)
        if speaks != "responses":
            assert found == given
        names = ("id", "output", "status", "created_at", "model")
        assert {name: found[name] for name in names} == {name: given[name] for name in names}
        assert (found["usage"]["total_tokens"], found["metadata"]) == (given["usage"]["total_tokens"], {"a": "b"})


@pytest.mark.parametrize("speaks", UPSTREAMS)
async def test_a_stream_that_broke_off_has_failed(store: SqlStore, speaks: str):
    reply = ScriptedReply("Two words.", cut_after_events=CUTS[speaks])
    async with run_responses_gateway(store, play(reply), speaks) as (_, _, harness):
        answer = await harness.http.post("/v1/responses", json={"model": MODEL, "input": "Look.", "stream": True})
        (conversation,) = await store.list_conversations()
        entries = await store.read_range(conversation.id, kinds=["message"])
        assert entries[-1].metadata.incomplete
        id_ = answer.text.split('"id":"')[1].split('"')[0]
        assert id_.startswith("resp_")
        found = (await harness.http.get(f"/v1/responses/{id_}")).json()
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")


@pytest.mark.parametrize("speaks", UPSTREAMS)
async def test_messages_of_the_developer_are_carried_over_and_instructions_are_not(store: SqlStore, speaks: str):
    async with run_responses_gateway(store, echo, speaks) as (client, provider, _):
        developer = {"role": "developer", "content": "Answer in French."}
        first = await ask(
            client, [developer, {"role": "user", "content": "Q0"}], stream=False, instructions="Only once."
        )
        responses = await run_chain(client, range(1, 4), first.id, instructions="Be brief.")
        sent = provider.requests[-1].raw
        assert sent.count(b"Answer in French.") == 1
        assert (b"Only once." in sent, b"Be brief." in sent) == (False, True)
        page = await client.responses.input_items.list(responses[-1].id, order="asc")
        assert page.data[0].to_dict()["content"][0]["text"] == "Answer in French."  # pyright: ignore


@pytest.mark.parametrize("speaks", UPSTREAMS)
async def test_tool_outputs_continue_the_response_that_called(store: SqlStore, speaks: str):
    calls = [ScriptedCall("read", {"path": "a"}), ScriptedCall("read", {"path": "b"})]
    script = call_tool(*calls, text="Both are empty.")

    def forgetful(request: ProviderRequest) -> ScriptedReply:
        return ScriptedReply(error=UNKNOWN) if request.body.get("previous_response_id") else script(request)

    async with run_responses_gateway(store, forgetful, speaks) as (client, _, _):
        first = await ask(client, "Compare a and b.", stream=False, tools=[FUNCTION])
        outputs: list[Any] = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "empty"}
            for item in first.output
            if item.type == "function_call"
        ]
        second = await ask(client, outputs, stream=True, tools=[FUNCTION], previous_response_id=first.id)
        assert second.output_text == "Both are empty."
        page = await client.responses.input_items.list(second.id, order="asc")
        assert [item.type for item in page.data] == [
            "message", "function_call", "function_call", "function_call_output", "function_call_output"
        ]  # fmt: skip
        assert [item.to_dict() for item in page.data[1:3]] == [item.to_dict() for item in first.output]
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 1


async def test_input_items_are_listed_in_pages(store: SqlStore):
    async with run_responses_gateway(store, echo, "chat") as (client, _, _):
        responses = await run_chain(client, range(12))
        last = responses[-1].id
        whole = [item.to_dict() async for item in client.responses.input_items.list(last, limit=5, order="asc")]
        texts = [text for number in range(11) for text in (f"Q{number}", f"Answer to Q{number}")]
        assert [item["content"][0]["text"] for item in whole] == [*texts, "Q11"]  # pyright: ignore
        newest_first = [item.to_dict() async for item in client.responses.input_items.list(last, limit=7)]
        assert newest_first == whole[::-1]
        assert len({item["id"] for item in whole}) == len(whole)
        given = [item.id for response in responses[:-1] for item in response.output]
        assert [item["id"] for item in whole if item["role"] == "assistant"] == given
        with pytest.raises(openai.BadRequestError):
            await client.responses.input_items.list(last, after="msg_unknown")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_reply_that_its_limit_cut_off_is_incomplete(store: SqlStore, stream: bool):
    pieces = (make_chunk_event("One, two"), make_chunk_event({}, "length"), make_sse_event("[DONE]"))
    completion = make_completion("One, two", "length")
    responder = respond_with_stream(*pieces) if stream else lambda request: request.respond(completion)
    async with run_fake_upstream(responder) as upstream, run_gateway(store, upstream.url) as harness:
        body = {"model": MODEL, "input": "Count.", "stream": stream, "max_output_tokens": 3}
        answer = await harness.http.post("/v1/responses", json=body)
        given = parse_events(answer.content)[-1]["response"] if stream else answer.json()
        found = (await harness.http.get(f"/v1/responses/{given['id']}")).json()
        assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert found["output"] == given["output"]


async def expect_not_found(client: AsyncOpenAI, response_id: str) -> None:
    """No route knows the response, and no request can continue it."""
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match="not found"):
            await call(response_id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.cancel(response_id)
    with pytest.raises(openai.BadRequestError) as raised:
        await ask(client, "Go on.", stream=False, previous_response_id=response_id)
    error: Any = raised.value
    assert (error.code, error.param) == ("previous_response_not_found", "previous_response_id")
    assert error.body["message"] == f"Previous response with id '{response_id}' not found."


@pytest.mark.parametrize("speaks", ["chat", "responses"])
async def test_a_deleted_response_is_not_found_and_stays_in_the_log(store: SqlStore, speaks: str):
    async with run_responses_gateway(store, echo, speaks) as (client, provider, harness):
        first, second = await run_chain(client, range(2))
        with pytest.raises(openai.BadRequestError, match="background"):
            await client.responses.cancel(second.id)
        deleted = (await harness.http.delete(f"/v1/responses/{second.id}")).json()
        assert deleted == {"id": second.id, "object": "response", "deleted": True}
        sent = len(provider.requests)
        await expect_not_found(client, second.id)
        assert len(provider.requests) == sent
        (conversation,) = await store.list_conversations()
        assert (await harness.load_messages(conversation.id))[-1] == ("assistant", "Answer to Q1")
        assert (await client.responses.retrieve(first.id)).id == first.id


@pytest.mark.every_database
@pytest.mark.parametrize("speaks", ["chat", "responses"])
async def test_the_response_of_another_tenant_is_not_found(store: SqlStore, speaks: str):
    async with run_responses_gateway(store, echo, speaks) as (client, provider, _):
        (response,) = await run_chain(client, range(1))
        sent = len(provider.requests)
        other = client.with_options(api_key=await create_key_for(store, "other"))
        await expect_not_found(other, response.id)
        await expect_not_found(client, "resp_unknown")
        assert len(provider.requests) == sent
        assert (await client.responses.retrieve(response.id)).output_text == "Answer to Q0"


@pytest.mark.parametrize("speaks", ["chat", "responses"])
async def test_a_response_that_is_not_stored_is_recorded_and_not_found(store: SqlStore, speaks: str):
    async with run_responses_gateway(store, echo, speaks) as (client, _, harness):
        (response,) = await run_chain(client, range(1), store=False)
        await expect_not_found(client, response.id)
        (conversation,) = await store.list_conversations()
        assert await harness.load_messages(conversation.id) == [("user", "Q0"), ("assistant", "Answer to Q0")]


async def test_a_reply_of_another_format_is_no_response(store: SqlStore):
    async with run_responses_gateway(store, "Yes.", "chat") as (client, _, harness):
        body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        message: Json = (await harness.http.post("/v1/messages", json=body)).json()
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(message["id"])


async def test_a_response_that_is_continued_keeps_its_history_without_context_management(store: SqlStore):
    async with run_responses_gateway(store, echo, "chat", context_management_enabled=False) as (client, provider, _):
        await run_chain(client, range(3))
        assert len(provider.requests[-1].items) == 5


async def test_a_reference_to_an_item_stands_for_the_item(store: SqlStore):
    script = play(ScriptedReply(calls=(ScriptedCall("read", {"path": "a"}),)), ScriptedReply("It is empty."))
    async with run_responses_gateway(store, script, "chat") as (client, provider, _):
        first = await ask(client, "Read a.", stream=False, tools=[FUNCTION])
        (call,) = first.output
        assert call.type == "function_call"
        items: list[Any] = [
            {"role": "user", "content": "Read a."},
            {"type": "item_reference", "id": call.id},
            {"type": "function_call_output", "call_id": call.call_id, "output": "empty"},
        ]
        second = await ask(client, items, stream=False, tools=[FUNCTION])
        # The type may be missing.
        items += [{"id": second.output[0].id}, {"role": "user", "content": "Thanks."}]
        await ask(client, items, stream=True, tools=[FUNCTION])
        assert [message["role"] for message in provider.requests[-1].items] == [
            "user", "assistant", "tool", "assistant", "user"
        ]  # fmt: skip
        assert provider.requests[-1].items[1]["tool_calls"][0]["function"]["name"] == "read"
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 1
        other = client.with_options(api_key=await create_key_for(store, "other"))
        for reader, id_ in ((other, call.id), (client, "fc_unknown_0"), (client, f"{call.id}0")):
            with pytest.raises(openai.BadRequestError, match="not found"):
                await ask(reader, [{"type": "item_reference", "id": id_}], stream=False)
        await client.responses.delete(first.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            await ask(client, items, stream=False)


@pytest.mark.nightly
@pytest.mark.real_model
async def test_a_chain_on_a_real_model_survives_a_restart(store: SqlStore, local_model: LocalModelAddress):
    """Many times the model's window, by `previous_response_id` alone; the second half on another server."""
    settings: Any = {"timeout_seconds": 600, "model": local_model.name, "context_limit": CONTEXT_TOKENS}
    question = "Report {} from the mill: " + "the keeper counts sacks, ropes and lamps. " * 3
    responses: list[Response] = []
    for half in range(2):
        async with run_gateway(store, local_model.url, **settings) as harness:
            for number in range(half * CHAIN_TURNS // 2, (half + 1) * CHAIN_TURNS // 2):
                response = await harness.openai.responses.create(
                    model=local_model.name,
                    input=question.format(number),
                    previous_response_id=responses[-1].id if responses else None,
                    max_output_tokens=4,
                    temperature=0,
                )
                assert response.usage is not None
                assert response.usage.total_tokens <= CONTEXT_TOKENS
                responses.append(response)
    async with run_gateway(store, local_model.url, **settings) as harness:
        client = harness.openai
        items = [item async for item in client.responses.input_items.list(responses[-1].id, order="asc", limit=100)]
        assert len(items) == 2 * CHAIN_TURNS - 1
        assert (await client.responses.retrieve(responses[0].id)).output == responses[0].output
        (conversation,) = await store.list_conversations()
        assert len(await store.list_branches(conversation.id)) == 1
        branched = await client.responses.create(
            model=local_model.name, input="Say hello.", previous_response_id=responses[5].id, max_output_tokens=4
        )
        items = [item async for item in client.responses.input_items.list(branched.id, order="asc", limit=100)]
        assert len(items) == 13
        assert len(await store.list_branches(conversation.id)) == 2
        other = client.with_options(api_key=await create_key_for(store, "other"))
        await expect_not_found(other, branched.id)
        await client.responses.delete(branched.id)
        await expect_not_found(client, branched.id)


async def test_a_purge_removes_what_a_response_repeats_of_its_request(store: SqlStore):
    async with run_responses_gateway(store, echo, "chat") as (client, _, harness):
        (first,) = await run_chain(client, range(1), metadata={"note": "quetzal"}, instructions="quetzal")
        purged, other = first.id, (await run_chain(client, range(1, 2), metadata={"note": "heron"}))[0].id
        recorded = await store.find_response(purged)
        await store.purge(recorded.conversation)
        answer = await harness.http.get(f"/v1/responses/{purged}")
        assert "quetzal" not in answer.text
        assert "Answer to Q0" not in answer.text
        assert (await client.responses.retrieve(other)).metadata == {"note": "heron"}
        assert (await client.responses.retrieve(other)).output_text == "Answer to Q1"
