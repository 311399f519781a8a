"""The official client, the gateway, and a real model behind it: a conversation that outgrows the window five times."""

from collections.abc import Iterator

import pytest
from gateway_parts import gateway, user
from openai import AsyncOpenAI, BadRequestError

from quire.log import SqlStore
from quire.testing.llama import Address, LocalModel

CONTEXT = 1_024
WINDOWS = 5

PLACES = ("the mill", "the harbour", "the orchard", "the chapel", "the quarry", "the ferry")


@pytest.fixture(scope="module")
def small_model(local_model: Address) -> Iterator[LocalModel]:
    """With a window that fills quickly; `local_model` has said whether there is one at all."""
    with LocalModel(context=CONTEXT) as model:
        yield model


def report(number: int) -> str:
    place = PLACES[number % len(PLACES)]
    return f"Report {number} from {place}: " + f"the keeper of {place} counts sacks, ropes and lamps, and writes. " * 28


@pytest.mark.slow
async def test_the_real_model_answers_the_official_client_through_the_gateway(store: SqlStore, local_model: Address):
    async with gateway(store, local_model.url, patience=60, model=local_model.name, context_limit=4_096) as kept:
        create = kept.openai.chat.completions.with_raw_response.create
        whole = await create(model=local_model.name, messages=[user("Say hello.")], max_tokens=8)
        said = whole.parse().choices[0].message.content
        assert await kept.said(whole.headers["x-quire-conversation"]) == [("user", "Say hello."), ("assistant", said)]
        stream = await kept.openai.chat.completions.create(
            model=local_model.name, messages=[user("Say hello.")], max_tokens=8, stream=True
        )
        heard = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        kept_lines = await kept.said(stream.response.headers["x-quire-conversation"])
        assert kept_lines == [("user", "Say hello."), ("assistant", heard)]
        assert [model.id for model in (await kept.openai.models.list()).data] == [local_model.name]


@pytest.mark.slow
async def test_a_conversation_runs_to_five_windows_and_the_same_list_alone_overflows(
    store: SqlStore, small_model: LocalModel
):
    """The window is not even known to the gateway: it learns it from the first overflow."""
    async with gateway(store, small_model.url, patience=60, model=small_model.name, context_limit=2_048) as kept:
        history: list[dict[str, str]] = [{"role": "system", "content": "You keep the books. Answer in five words."}]
        tokens = number = 0
        while tokens < WINDOWS * CONTEXT:
            number += 1
            history.append(user(report(number)))
            raw = await kept.openai.chat.completions.with_raw_response.create(
                model=small_model.name, messages=history, max_tokens=6, temperature=0
            )
            reply = raw.parse()
            assert reply.usage is not None
            assert reply.usage.prompt_tokens + reply.usage.completion_tokens <= CONTEXT
            history.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
            found = await store.request(raw.headers["x-quire-request"])
            assert found.manifest.sent is not None
            assert found.manifest.sent.listed is not None
            tokens = found.manifest.sent.listed
        assert found.manifest.sent.form == "fitted"
        conversation = raw.headers["x-quire-conversation"]
        assert [text for _, text in await kept.said(conversation)] == [line["content"] for line in history[1:]]
        assert await store.verify(conversation) == []
        async with AsyncOpenAI(base_url=small_model.url, api_key="none", max_retries=0) as straight:
            with pytest.raises(BadRequestError, match="exceed"):
                await straight.chat.completions.create(
                    model=small_model.name, messages=[*history, user("And now?")], max_tokens=12
                )
