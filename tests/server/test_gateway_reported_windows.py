"""Context windows from upstream errors: which reports are trusted, for whom, and for how long."""

from typing import Any

import pytest
from gateway_fixtures import assistant_message, run_gateway, user_message
from server_helpers import create_key_for

from fake_upstream import Responder, UpstreamRequest, respond_with_text, run_fake_upstream
from quire.agent.turn import run_turn
from quire.errors import ModelContextOverflow
from quire.llm import get_model
from quire.llm.error_mapping import classify_error
from quire.model import Message
from quire.model.events import TurnEnded
from quire.store import SqlStore
from quire.wire.chat.render import OpenAIChatFormat
from quire.wire.tokens import counter_for

ECHO = "prompt is too long: 200 tokens > 4"


def report_window(window: int, *, error: dict[str, Any] | None = None) -> Responder:
    """Rejects what is longer than the window, with the token counts in the message."""

    async def respond(request: UpstreamRequest) -> None:
        tokens = len(request.raw) // 4
        if tokens <= window:
            return await respond_with_text("Noted.")(request)
        message = f"This model's maximum context length is {window} tokens. Your messages resulted in {tokens} tokens."
        return await request.respond({"error": {"message": message, **(error or {})}}, 400)

    return respond


async def echo_response_format(request: UpstreamRequest) -> None:
    """Repeats an unknown response format in its error, as llama.cpp does."""
    kind = request.body.get("response_format", {}).get("type")
    if kind is None:
        return await respond_with_text("Noted.")(request)
    return await request.respond({"error": {"code": 400, "message": f"Unknown type: {kind}"}}, 400)


@pytest.mark.parametrize("echo", [ECHO, '{"code":"context_length_exceeded","n_prompt_tokens":200,"n_ctx":4}'])
async def test_a_client_cannot_shrink_a_window_by_an_echo_in_an_error(store: SqlStore, echo: str):
    async with run_fake_upstream(echo_response_format) as up, run_gateway(store, up.url) as harness:
        answer = await harness.ask(user_message("Hello, how are you?"), response_format={"type": echo})
        assert answer.status_code == 400
        assert len(up.requests) == 1
        assert (await harness.ask(user_message("Hello, how are you?"))).status_code == 200


@pytest.mark.every_database
async def test_a_reported_window_holds_for_one_tenant(store: SqlStore):
    """The text states the true count, so the report is trusted, but only within the tenant that caused it."""
    long_history = [
        message
        for number in range(6)
        for message in (user_message(f"{number} " + "counting sacks and ropes " * 40), assistant_message("Noted."))
    ]
    async with (
        run_fake_upstream(report_window(600)) as up,
        run_gateway(store, up.url, model="unknown-model", context_limit=8_000) as harness,
    ):

        async def count_calls(**headers: str) -> int:
            before = len(up.requests)
            body = {"model": "unknown-model", "messages": [*long_history, user_message("And now?")], "max_tokens": 50}
            answer = await harness.post(body, **headers)
            assert answer.status_code == 200, answer.text
            return len(up.requests) - before

        other = {"authorization": f"Bearer {await create_key_for(store, 'other')}"}
        assert [await count_calls(), await count_calls()] == [2, 1]
        assert [await count_calls(**other), await count_calls(**other)] == [2, 1]


def enforce_window(window: int) -> Responder:
    """A provider that counts every prompt and refuses those above its window, in OpenAI's words."""
    wire_format, counter = OpenAIChatFormat("gpt-4o"), counter_for("gpt-4o")

    async def respond(request: UpstreamRequest) -> None:
        tokens = wire_format.request_overhead + wire_format.count_messages(request.body["messages"], counter)
        if tokens <= window:
            usage = {"prompt_tokens": tokens, "completion_tokens": 2, "total_tokens": tokens + 2}
            return await respond_with_text("Noted.", usage=usage)(request)
        message = (
            f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} "
            "tokens. Please reduce the length of the messages."
        )
        error = {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}
        return await request.respond({"error": error}, 400)

    return respond


def make_long_texts() -> list[str]:
    return [f"{number} " + "counting sacks and ropes " * 40 for number in range(36)]


CONFIGURED_WINDOW, REAL_WINDOW = 8_000, 1_000


@pytest.mark.parametrize("way", ["library", "send", "gateway"])
async def test_a_real_window_of_an_eighth_takes_one_correction(store: SqlStore, way: str):
    settings: dict[str, Any] = {"model": "gpt-4o", "context_limit": CONFIGURED_WINDOW}
    async with (
        run_fake_upstream(enforce_window(REAL_WINDOW)) as up,
        run_gateway(store, up.url, **settings) as harness,
    ):
        engine = harness.server_state.engine_for("default")
        conversation = await engine.conversation("c")
        texts = make_long_texts()
        await conversation.append(*(each for text in texts for each in (text, Message.assistant("Noted."))))
        history = [each for text in texts for each in (user_message(text), assistant_message("Noted."))]

        async def ask(question: str) -> None:
            match way:
                case "library":
                    model = get_model("gpt-4o", base_url=up.url, api_key="sk")
                    events = [event async for event in run_turn(conversation, question, model=model)]
                    assert isinstance(events[-1], TurnEnded), events[-1]
                case "send":
                    answer = await harness.http.post("/api/conversations/c/send", json={"message": question})
                    assert "turn_ended" in answer.text, answer.text
                case _:
                    history.append(user_message(question))
                    answer = await harness.ask(*history, max_tokens=100)
                    assert answer.status_code == 200, answer.text
                    history.append(assistant_message("Noted."))

        calls: list[int] = []
        for number in range(3):
            before = len(up.requests)
            await ask(f"And number {number}?")
            calls.append(len(up.requests) - before)
        assert calls == [2, 1, 1]
        assert engine.policy.window == REAL_WINDOW
        assert harness.server_state.engine_for("other").policy.window == CONFIGURED_WINDOW


LIES = [
    "prompt is too long: 200 tokens > 4",
    "This model's maximum context length is 600 tokens. However, your messages resulted in 999999 tokens.",
    "prompt is too long: 30 tokens > 20",
    "maximum context length",
]


@pytest.mark.parametrize("lie", LIES)
async def test_a_lying_error_text_changes_nothing_through_send_either(store: SqlStore, lie: str):
    async def respond(request: UpstreamRequest) -> None:
        await request.respond({"error": {"message": f"Unknown type: {lie}"}}, 400)

    async with (
        run_fake_upstream(respond) as up,
        run_gateway(store, up.url, context_limit=CONFIGURED_WINDOW) as harness,
    ):
        engine = harness.server_state.engine_for("default")
        conversation = await engine.conversation("c")
        await conversation.append(*(each for text in make_long_texts()[:8] for each in (text, Message.assistant("ok"))))
        answer = await harness.http.post("/api/conversations/c/send", json={"message": "And now?"})
        assert "turn_failed" in answer.text
        assert len(up.requests) == 1
        assert engine.policy.window == CONFIGURED_WINDOW
        assert (await engine.runtime.load_calibration(engine.store, "gpt-4o")).samples == 0
        assert (await store.get_branch("c")).state.compaction_count == 0


LLAMA_FIELDS = {"type": "exceed_context_size_error", "n_prompt_tokens": 20_031, "n_ctx": 8_192}


@pytest.mark.parametrize(
    ("body", "structured"),
    [
        ({"error": LLAMA_FIELDS}, True),
        (LLAMA_FIELDS, True),
        ({"error": {"message": ECHO, "code": "context_length_exceeded"}}, False),
        ({"detail": [{"msg": ECHO, "input": LLAMA_FIELDS}]}, False),
        ({"error": {"message": f"Unknown: {LLAMA_FIELDS}".replace("'", '"')}}, False),
        (f"Unknown: {LLAMA_FIELDS}".replace("'", '"'), False),
        ({"error": {**LLAMA_FIELDS, "n_ctx": 10**400}}, False),
    ],
)
def test_only_fields_of_the_error_itself_are_structured(body: object, structured: bool):
    error = classify_error(400, body)
    assert isinstance(error, ModelContextOverflow)
    assert error.is_structured is structured


def test_fields_of_the_error_come_before_those_of_what_it_repeats():
    error = classify_error(400, {"error": {**LLAMA_FIELDS, "message": '{"n_prompt_tokens": 20031, "n_ctx": 600}'}})
    assert isinstance(error, ModelContextOverflow)
    assert (error.tokens, error.window) == (20_031, 8_192)
