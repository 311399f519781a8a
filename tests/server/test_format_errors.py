"""Errors in every client format as exceptions of the official SDKs: the gateway's own, and the upstream's."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
from format_clients import (
    FORMATS,
    GEMINI_ERRORS,
    MODEL,
    PATHS,
    FormatClient,
    MatrixHarness,
    make_client,
    run_matrix_gateway,
    served_pairs,
)
from gateway_fixtures import list_messages, run_gateway
from server_helpers import create_key_for

from fake_upstream import UpstreamRequest, run_fake_upstream
from infra.scripted_provider import ScriptedError, ScriptedReply, WireFormatName
from quire.errors import StoreUnavailable
from quire.store import SqlStore

clients = pytest.mark.parametrize("client", FORMATS, ids=[f"client-{name}" for name in FORMATS])
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

UPSTREAM_ERRORS = {
    400: ScriptedError(400, "invalid_request_error", "`banana` is not a field."),
    401: ScriptedError(401, "authentication_error", "The key is wrong."),
    403: ScriptedError(403, "permission_error", "The key is not allowed to do this."),
    404: ScriptedError(404, "not_found_error", "There is no such model."),
    429: ScriptedError(429, "rate_limit_error", "Too many requests; slow down."),
    500: ScriptedError(500, "api_error", "Something broke."),
    503: ScriptedError(503, "overloaded_error", "The model is overloaded."),
    529: ScriptedError(529, "overloaded_error", "The API is overloaded."),
}
OVERFLOWS: dict[WireFormatName, ScriptedError] = {
    "chat": ScriptedError(
        400,
        "invalid_request_error",
        "This model's maximum context length is 900 tokens. However, your messages resulted in 950 tokens.",
        "context_length_exceeded",
    ),
    "messages": ScriptedError(400, "invalid_request_error", "prompt is too long: 950 tokens > 900 maximum"),
    "responses": ScriptedError(
        400, "invalid_request_error", "Your input exceeds the context window of this model.", "context_length_exceeded"
    ),
    "gemini": ScriptedError(
        400,
        "INVALID_ARGUMENT",
        "The input token count (950) exceeds the maximum number of tokens allowed (900).",
    ),
}
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Types of Anthropic's errors by status."""
GOOGLE_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Statuses of Google's errors; all others are `INTERNAL`."""


def get_error_class(client: WireFormatName, status: int) -> type[Exception]:
    """The class that the SDK of a format raises for a status."""
    if client == "gemini":
        return GEMINI_ERRORS[0]
    sdk: Any = anthropic if client == "messages" else openai
    names = {
        400: "BadRequestError",
        401: "AuthenticationError",
        403: "PermissionDeniedError",
        404: "NotFoundError",
        429: "RateLimitError",
    }
    if status == 413:
        return anthropic.ContentTooLargeError if client == "messages" else openai.APIStatusError
    return getattr(sdk, names.get(status, "InternalServerError"))


async def expect_error(client: FormatClient, status: int, *, stream: bool = False) -> Any:
    """Sends a question, and checks class and form of the error; returns the exception."""
    with pytest.raises(get_error_class(client.format, status)) as raised:
        await client.send([client.make_question("Hi")], stream=stream)
    error: Any = raised.value
    if client.format == "gemini":
        # Of a stream the SDK has read only the beginning of the error.
        assert (error.code, error.status) == (status, GOOGLE_STATUSES.get(status, "INTERNAL"))
        assert error.message
        return error
    assert error.status_code == status
    if client.format == "messages":
        body = error.response.json()
        assert (body["type"], body["error"]["type"]) == ("error", ERROR_TYPES[status])
        assert body["error"]["message"]
        assert error.response.headers["request-id"]
        assert body["request_id"] == error.response.headers["request-id"]
    else:
        body = error.response.json()["error"]
        assert body.keys() == {"message", "type", "param", "code"}
        assert body["message"]
    return error


@served_pairs
async def test_an_error_of_the_upstream(store: SqlStore, client: WireFormatName, speaks: WireFormatName):
    async with run_matrix_gateway(store, "Yes.", client=client, speaks=speaks) as harness:
        for status, error in UPSTREAM_ERRORS.items():
            harness.provider.script = lambda _, error=error: ScriptedReply(error=error)
            # An upstream of responses sends a rejected stream's error within the stream.
            is_late = speaks == "responses" and status == 400
            for stream in (False, True):
                if client == speaks:
                    body = harness.client.make_body([harness.client.make_question("Hi")], stream=stream)
                    answer = await harness.post(body)
                    if not (stream and is_late):
                        assert answer.status_code == status
                        assert json.dumps(answer.json()).encode() == answer.content
                        body = answer.json()["error"]
                        assert body.get("type", body.get("status")) == error.type
                    assert error.message.encode() in answer.content
                elif not (stream and is_late):
                    raised = await expect_error(harness.client, status, stream=stream)
                    assert error.message in str(raised)
                else:
                    with pytest.raises((openai.APIError, anthropic.APIError, *GEMINI_ERRORS)):
                        await harness.client.send([harness.client.make_question("Hi")], stream=True)
        assert await list_messages(store) == []


@streams
@served_pairs
async def test_an_overflow_of_the_upstream(
    store: SqlStore, client: WireFormatName, speaks: WireFormatName, stream: bool
):
    reply = ScriptedReply(error=OVERFLOWS[speaks])
    async with run_matrix_gateway(store, [reply], client=client, speaks=speaks) as harness:
        if stream and speaks == "responses":
            answer = await harness.post(harness.client.make_body([harness.client.make_question("Hi")], stream=True))
            words = "prompt is too long" if client == "messages" else "context_length_exceeded"
            assert words in answer.text.lower()
        elif client == speaks:
            answer = await harness.post(harness.client.make_body([harness.client.make_question("Hi")], stream=stream))
            assert (answer.status_code, OVERFLOWS[speaks].message in answer.text) == (400, True)
        else:
            error = await expect_error(harness.client, 400, stream=stream)
            if client == "messages":
                assert "prompt is too long: " in str(error)
                assert "capability_rejected: prompt_too_long" in str(error)
            elif client == "gemini":
                assert "exceeds the maximum number of tokens allowed" in error.message
            else:
                assert error.code == "context_length_exceeded"
                assert error.param == ("input" if client == "responses" else None)


async def break_connection(request: UpstreamRequest) -> None:
    request.abort_connection()


async def stay_silent(request: UpstreamRequest) -> None:
    await request.wait_until_closed()


@served_pairs
async def test_an_upstream_without_a_word(store: SqlStore, client: WireFormatName, speaks: WireFormatName):
    async with run_fake_upstream(break_connection) as up:
        upstream = {"*": {"base_url": up.url, "speaks": [speaks]}}
        async with (
            run_gateway(store, up.url, timeout_seconds=0.2, upstreams=upstream) as gateway,
            make_client(gateway, client) as sdk,
        ):
            for fault, status in ((break_connection, 502), (stay_silent, 504)):
                up.responders[:] = [fault]
                for stream in (False, True):
                    await expect_error(sdk, status, stream=stream)
        assert await list_messages(store) == []


OwnFault = Callable[[MatrixHarness, SqlStore, pytest.MonkeyPatch], Awaitable[None]]


async def remove_upstream(harness: MatrixHarness, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await harness.gateway.server_state.change_settings(
        {"upstreams": {"other-*": {"base_url": "http://127.0.0.1:9"}}, "base_url": None}
    )


async def lower_rate(harness: MatrixHarness, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await harness.gateway.server_state.change_settings({"requests_per_minute": 1})
    await harness.post(harness.client.make_body([harness.client.make_question("First")], stream=False))


async def lower_body_limit(harness: MatrixHarness, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await harness.gateway.server_state.change_settings({"max_request_bytes": 50})


async def lower_window(harness: MatrixHarness, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = harness.gateway.server_state.settings.upstreams["*"].model_dump() | {"overflow": "refuse"}
    await harness.gateway.server_state.change_settings({"context_limit": 2, "upstreams": {"*": upstream}})


async def break_store(harness: MatrixHarness, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*args: object, **kwargs: object) -> None:
        raise StoreUnavailable("The database does not answer.")

    await harness.gateway.server_state.change_settings({"on_store_failure": "refuse"})
    monkeypatch.setattr(type(store), "match_history", fail)


async def remove_key(harness: MatrixHarness, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.client.replace_key("sk-nothing")


async def take_scope(harness: MatrixHarness, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.client.replace_key(await create_key_for(store, "default", "read"))


OWN_FAULTS: list[tuple[OwnFault, int]] = [
    (lower_window, 400),
    (remove_key, 401),
    (take_scope, 403),
    (remove_upstream, 404),
    (lower_body_limit, 413),
    (lower_rate, 429),
    (break_store, 503),
]


@clients
@pytest.mark.parametrize(("fault", "status"), OWN_FAULTS, ids=[fault.__name__ for fault, _ in OWN_FAULTS])
async def test_an_error_of_the_gateway(
    store: SqlStore,
    monkeypatch: pytest.MonkeyPatch,
    client: WireFormatName,
    fault: OwnFault,
    status: int,
):
    speaks: WireFormatName = "gemini" if client == "gemini" else "chat"
    async with run_matrix_gateway(store, "Yes.", client=client, speaks=speaks) as harness:
        await fault(harness, store, monkeypatch)
        error = await expect_error(harness.client, status, stream=client == "chat")
        if status in (429, 503) and client != "gemini":
            assert int(error.response.headers["retry-after"]) >= 1
        if fault is lower_window:
            if client == "messages":
                assert "prompt is too long: " in str(error)
            elif client == "gemini":
                assert "exceeds the maximum number of tokens allowed (2)" in error.message
            else:
                assert error.code == "context_length_exceeded"
                assert error.param == ("input" if client == "responses" else None)
            assert harness.provider.requests == []


@clients
@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"model": "gpt-4o", "messages": 5, "input": 5, "max_tokens": 5}'],
    ids=["half", "list", "number"],
)
async def test_an_unreadable_body(store: SqlStore, client: WireFormatName, body: bytes):
    speaks: WireFormatName = "chat" if client != "chat" else "messages"
    async with run_matrix_gateway(store, "Yes.", client=client, speaks=speaks) as harness:
        answer = await harness.post(body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error.get("type", error.get("status")) in ("invalid_request_error", "INVALID_ARGUMENT")
        assert harness.provider.requests == []


@clients
async def test_an_unknown_route(store: SqlStore, client: WireFormatName):
    async with run_matrix_gateway(store, "Yes.", client=client, speaks="chat") as harness:
        answer = await harness.gateway.http.post(f"{PATHS[client]}/nowhere/at/all", json={"model": MODEL})
        assert answer.status_code in (404, 405)
        error = answer.json()["error"]
        assert error.get("type", error.get("status")) in (
            "not_found_error",
            "invalid_request_error",
            "NOT_FOUND",
        )
