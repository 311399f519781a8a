"""OpenAI's client, the gateway and a real model: a conversation that outgrows the context window five times."""

from collections.abc import Iterator

import pytest
from gateway_fixtures import run_gateway, user_message
from openai import AsyncOpenAI, BadRequestError

from infra.llama import LocalModel, LocalModelAddress
from quire.store import SqlStore

CONTEXT_TOKENS = 1_024
WINDOW_COUNT = 5

PLACES = ("the mill", "the harbour", "the orchard", "the chapel", "the quarry", "the ferry")


@pytest.fixture(scope="module")
def small_model(local_model: LocalModelAddress) -> Iterator[LocalModel]:
    """A model with a small context window; `local_model` skips the test if none is installed."""
    with LocalModel(context=CONTEXT_TOKENS) as model:
        yield model


def make_report(number: int) -> str:
    place = PLACES[number % len(PLACES)]
    return f"Report {number} from {place}: " + f"the keeper of {place} counts sacks, ropes and lamps, and writes. " * 28


@pytest.mark.real_model
@pytest.mark.slow
async def test_the_real_model_answers_the_official_client_through_the_gateway(
    store: SqlStore, local_model: LocalModelAddress
):
    async with run_gateway(
        store, local_model.url, timeout_seconds=60, model=local_model.name, context_limit=4_096
    ) as harness:
        create = harness.openai.chat.completions.with_raw_response.create
        whole = await create(model=local_model.name, messages=[user_message("Say hello.")], max_tokens=8)
        content = whole.parse().choices[0].message.content
        assert await harness.load_messages(whole.headers["x-quire-conversation"]) == [
            ("user", "Say hello."),
            ("assistant", content),
        ]
        stream = await harness.openai.chat.completions.create(
            model=local_model.name, messages=[user_message("Say hello.")], max_tokens=8, stream=True
        )
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        recorded = await harness.load_messages(stream.response.headers["x-quire-conversation"])
        assert recorded == [("user", "Say hello."), ("assistant", streamed)]
        assert [model.id for model in (await harness.openai.models.list()).data] == [local_model.name]


@pytest.mark.nightly
@pytest.mark.real_model
@pytest.mark.every_postgres
async def test_a_conversation_runs_past_its_window_and_the_same_list_alone_overflows(
    store: SqlStore, small_model: LocalModel
):
    """The gateway is configured with a larger window: it learns the real one from the first overflow."""
    async with run_gateway(
        store, small_model.url, timeout_seconds=60, model=small_model.name, context_limit=2_048
    ) as harness:
        history: list[dict[str, str]] = [{"role": "system", "content": "You keep the books. Answer in five words."}]
        tokens = number = 0
        while tokens < WINDOW_COUNT * CONTEXT_TOKENS:
            number += 1
            history.append(user_message(make_report(number)))
            raw = await harness.openai.chat.completions.with_raw_response.create(
                model=small_model.name, messages=history, max_tokens=6, temperature=0
            )
            reply = raw.parse()
            assert reply.usage is not None
            assert reply.usage.prompt_tokens + reply.usage.completion_tokens <= CONTEXT_TOKENS
            history.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
            recorded = await store.get_request(raw.headers["x-quire-request"])
            assert recorded.manifest.forwarded is not None
            assert recorded.manifest.forwarded.client_list_tokens is not None
            tokens = recorded.manifest.forwarded.client_list_tokens
        assert recorded.manifest.forwarded.form == "fitted"
        conversation = raw.headers["x-quire-conversation"]
        assert [text for _, text in await harness.load_messages(conversation)] == [
            line["content"] for line in history[1:]
        ]
        assert await store.verify_conversation(conversation) == []
        async with AsyncOpenAI(base_url=small_model.url, api_key="none", max_retries=0) as straight:
            with pytest.raises(BadRequestError, match="exceed"):
                await straight.chat.completions.create(
                    model=small_model.name, messages=[*history, user_message("And now?")], max_tokens=12
                )
