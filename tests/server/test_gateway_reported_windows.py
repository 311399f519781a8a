"""Context windows from upstream errors: which reports are trusted, for whom, and for how long."""

from typing import Any

import pytest
from gateway_fixtures import assistant_message, run_gateway, user_message
from server_helpers import create_key_for

from fake_upstream import Responder, UpstreamRequest, respond_with_text, run_fake_upstream
from quire.errors import ModelContextOverflow
from quire.llm.error_mapping import classify_error
from quire.log import SqlStore
from quire.server.gateway.reported_windows import (
    MIN_REPORTED_WINDOW_TOKENS,
    REPORTED_WINDOW_CACHE_SIZE,
    REPORTED_WINDOW_SECONDS,
    ReportedWindows,
    is_credible,
)
from quire.settings.schema import Upstream

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


HERE, ELSEWHERE = Upstream(base_url="http://here/v1"), Upstream(base_url="http://elsewhere/v1")


def test_a_report_belongs_to_a_tenant_an_upstream_and_a_model():
    windows = ReportedWindows()
    windows.add(600, tenant="a", upstream=HERE, model="m")
    assert windows.find(tenant="a", upstream=HERE, model="m") == 600
    assert windows.find(tenant="b", upstream=HERE, model="m") is None
    assert windows.find(tenant="a", upstream=ELSEWHERE, model="m") is None
    assert windows.find(tenant="a", upstream=HERE, model="other") is None


def test_a_report_expires():
    time = 0.0
    windows = ReportedWindows(clock=lambda: time)
    windows.add(600, tenant="a", upstream=HERE, model="m")
    time = REPORTED_WINDOW_SECONDS - 1
    assert windows.find(tenant="a", upstream=HERE, model="m") == 600
    time = REPORTED_WINDOW_SECONDS + 1
    assert windows.find(tenant="a", upstream=HERE, model="m") is None


def test_the_number_of_reports_is_bounded():
    windows = ReportedWindows()
    for number in range(REPORTED_WINDOW_CACHE_SIZE + 10):
        windows.add(600, tenant="a", upstream=HERE, model=f"m{number}")
    assert windows.find(tenant="a", upstream=HERE, model="m0") is None
    assert windows.find(tenant="a", upstream=HERE, model=f"m{REPORTED_WINDOW_CACHE_SIZE}") == 600


@pytest.mark.parametrize("window", [-1, 0, 4, MIN_REPORTED_WINDOW_TOKENS - 1])
def test_a_window_below_the_floor_is_not_learned(window: int):
    windows = ReportedWindows()
    windows.add(window, tenant="a", upstream=HERE, model="m")
    assert windows.find(tenant="a", upstream=HERE, model="m") is None


@pytest.mark.parametrize(
    ("error", "credible"),
    [
        (ModelContextOverflow(tokens=1_000, window=900), True),
        (ModelContextOverflow(tokens=1_900, window=900), True),
        (ModelContextOverflow(tokens=2_100, window=900), False),
        (ModelContextOverflow(tokens=400, window=300), False),
        (ModelContextOverflow(tokens=5_000, window=900, is_structured=True), True),
        (ModelContextOverflow(), False),
    ],
)
def test_a_count_in_a_message_must_agree_with_ours(error: ModelContextOverflow, credible: bool):
    assert is_credible(error, counted_tokens=1_000, max_input_tokens=4_000) is credible


def test_an_error_without_counts_is_credible_near_the_window():
    assert is_credible(ModelContextOverflow(), counted_tokens=2_500, max_input_tokens=4_000)


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
