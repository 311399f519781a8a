"""Every call that goes upstream is checked and paid for: its body, its models, its cost, and what it refers to."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
from fastapi.routing import APIRoute
from gateway_fixtures import GatewayHarness, run_gateway
from server_helpers import create_key_for

from fake_upstream import FakeUpstream, UpstreamRequest, run_fake_upstream
from quire.server.gateway.responses_routes import conversations_router
from quire.server.gateway.responses_routes import router as responses_router
from quire.server.gateway.routes import other_paths_router
from quire.server.gateway.routes import router as gateway_router
from quire.store import SqlStore

TEXT = "word " * 1_000
CALL_DOLLARS = (1_000 * 2.5 + 100 * 10.0) / 1e6
"""Cost of one call of gpt-4o with the usage that the upstream reports."""
MESSAGES = [{"role": "user", "content": TEXT}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 100},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 100},
    "/v1/v1/messages": {"messages": MESSAGES, "max_tokens": 100},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/responses": {"input": TEXT, "max_output_tokens": 100},
    "/v1/responses/compact": {"input": TEXT},
    "/v1/responses/input_tokens": {"input": TEXT},
    "/v1/{path:path}": {"input": TEXT},
}
"""A body for each route that may call an upstream."""
FREE_PATHS = [path for path in BODIES if path.endswith("_tokens")]
LOCAL_PATHS = {
    "/v1/responses/{response_id}/cancel", "/v1/conversations", "/v1/conversations/{conversation}",
    "/v1/conversations/{conversation}/items",
}  # fmt: skip
"""Routes that answer from the log."""


async def respond(request: UpstreamRequest) -> None:
    path = request.path.partition("?")[0]
    usage = {"input_tokens": 1_000, "output_tokens": 100, "prompt_tokens": 1_000, "completion_tokens": 100}
    common = {"id": "x_1", "model": "gpt-4o", "usage": usage}
    await asyncio.sleep(0.02)
    if path.endswith("_tokens"):
        await request.respond({"input_tokens": 1_000})
    elif path.endswith("/chat/completions"):
        message = {"role": "assistant", "content": "yes"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        await request.respond({**common, "object": "chat.completion", "choices": [choice]})
    elif path.endswith("/messages"):
        content = [{"type": "text", "text": "yes"}]
        await request.respond(
            {**common, "type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}
        )
    elif "/responses" in path:
        content = [{"type": "output_text", "text": "yes", "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        await request.respond({**common, "object": "response", "status": "completed", "output": [item]})
    else:
        await request.respond({**common, "object": "list", "data": []})


@asynccontextmanager
async def open_gateway(store: SqlStore, **settings: Any) -> AsyncIterator[tuple[GatewayHarness, FakeUpstream]]:
    """Runs a gateway whose upstream has every format, with the operator's key."""
    async with run_fake_upstream(respond) as up:
        upstream = {"base_url": up.url, "speaks": ["chat", "messages", "responses"], **settings.pop("upstream", {})}
        settings = {"pass_other_paths": True, "upstreams": {"*": upstream}, **settings}
        async with run_gateway(store, up.url, **settings) as harness:
            yield harness, up


async def post(harness: GatewayHarness, route: str, body: dict[str, Any] | bytes, key: str | None = None):
    content = body if isinstance(body, bytes) else json.dumps({"model": "gpt-4o", **body}).encode()
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key is not None else {})}
    return await harness.http.post(route.replace("{path:path}", "embeddings"), content=content, headers=headers)


def test_every_route_that_may_call_an_upstream_is_tested_here():
    routers = (gateway_router, responses_router, conversations_router, other_paths_router)
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    assert {route.path for route in routes if "POST" in (route.methods or ())} == BODIES.keys() | LOCAL_PATHS


class TestSpending:
    @pytest.mark.every_database
    async def test_a_call_is_charged_to_its_key_and_refused_when_the_cap_is_spent(self, store: SqlStore):
        await store.create_conversation("c")
        async with open_gateway(store) as (harness, up):
            for sent, (route, body) in enumerate(BODIES.items(), start=1):
                key, text = await store.keys.create("no cap", ["chat"])
                capped, capped_text = await store.keys.create("capped", ["chat"], max_spend=CALL_DOLLARS)
                await store.spending.add_cost("c", CALL_DOLLARS, key_id=capped.id)
                assert (await post(harness, route, body, text)).status_code == 200
                charged = (await store.spending.sum_by_key()).get(key.id, 0.0)
                assert math.isclose(charged, 0.0 if route in FREE_PATHS else CALL_DOLLARS), route
                refused = await post(harness, route, body, capped_text)
                assert refused.status_code in (402, 403), (route, refused.text)
                assert len(up.requests) == sent, route

    @pytest.mark.parametrize(
        "route", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/responses/compact", *FREE_PATHS[::2]]
    )
    async def test_parallel_calls_hold_the_cap(self, store: SqlStore, route: str):
        cap = 2.5 * CALL_DOLLARS
        key, text = await store.keys.create("capped", ["chat"], max_spend=cap)
        async with open_gateway(store) as (harness, up):
            calls = [post(harness, route, BODIES[route], text) for _ in range(60)]
            statuses = [answer.status_code for answer in await asyncio.gather(*calls)]
            assert set(statuses) <= {200, 402, 429}
            assert statuses.count(200) == len(up.requests) > 0
            spent = (await store.spending.sum_by_key()).get(key.id, 0.0)
            if route in FREE_PATHS:
                assert spent == 0
            else:
                assert math.isclose(spent, len(up.requests) * CALL_DOLLARS)
                assert spent < cap + CALL_DOLLARS

    async def test_parallel_calls_of_paths_without_a_known_price_are_refused_to_a_key_with_a_cap(self, store: SqlStore):
        _, text = await store.keys.create("capped", ["chat"], max_spend=1.0)
        route = "/v1/{path:path}"
        async with open_gateway(store) as (harness, up):
            answers = await asyncio.gather(*[post(harness, route, BODIES[route], text) for _ in range(60)])
            assert ({answer.status_code for answer in answers}, up.requests) == ({403}, [])

    @pytest.mark.every_database
    async def test_a_compaction_costs_the_conversation_that_it_compacts(self, store: SqlStore):
        async with open_gateway(store, max_spend=1.99 * CALL_DOLLARS) as (harness, up):
            first = await post(harness, "/v1/responses", BODIES["/v1/responses"])
            conversation = first.headers["x-quire-conversation"]
            history = [
                {"role": "user", "content": TEXT},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
            ]
            statuses = [
                (await post(harness, "/v1/responses/compact", {"input": history})).status_code for _ in range(2)
            ]
            assert statuses == [200, 402]
            assert len(up.requests) == 2
            assert math.isclose(await store.spending.get_cost(conversation), 2 * CALL_DOLLARS)


REPEATED_FIELDS = [
    b'"model":"gpt-4o","model":"o1-pro"',
    b'"model":"o1-pro","model":"gpt-4o"',
    b'"mod\\u0065l":"o1-pro","model":"gpt-4o"',
    b'"Model":"o1-pro","model":"gpt-4o"',
    b'"model":"gpt-4o","max_tokens":1,"MAX_TOKENS":100000',
]
OTHER_MODELS: list[dict[str, Any]] = [
    {"model": "o1-pro"},
    {"models": ["o1-pro"]},
    {"fallbacks": ["o1-pro"]},
    {"Fallbacks": [{"model": "o1-pro"}]},
    {"context_window_fallbacks": [{"gpt-4o": ["o1-pro"]}]},
    {"tools": [{"type": "image_generation", "model": "gpt-image-1"}]},
]


class TestBodies:
    @pytest.mark.parametrize("models", [["gpt-4o"], None])
    async def test_no_field_goes_upstream_twice(self, store: SqlStore, models: list[str] | None):
        _, text = await store.keys.create("limited", ["chat"], models=models)
        async with open_gateway(store) as (harness, up):
            for route, body in BODIES.items():
                start = json.dumps({name: value for name, value in body.items() if name != "max_tokens"}).encode()[:-1]
                for fields in REPEATED_FIELDS:
                    answer = await post(harness, route, b"%b,%b}" % (start, fields), text)
                    assert (answer.status_code, len(up.requests)) == (400, 0), (route, fields, answer.text)

    async def test_a_field_is_found_after_messages_that_an_earlier_request_had(self, store: SqlStore):
        turns = [{"role": ("user", "assistant")[number % 2], "content": f"{number} {TEXT}"} for number in range(21)]
        async with open_gateway(store) as (harness, up):
            for number in (19, 21, 21):
                assert (await post(harness, "/v1/messages", {"messages": turns[:number], "max_tokens": 9})).is_success
            sent = json.dumps({"messages": turns, "max_tokens": 9, "model": "gpt-4o"}).encode()
            answer = await post(harness, "/v1/messages", sent[:-1] + b',"Model":"o1-pro"}')
            assert (answer.status_code, len(up.requests)) == (400, 3)

    async def test_a_key_with_a_list_of_models_names_no_other(self, store: SqlStore):
        _, text = await store.keys.create("limited", ["chat"], models=["gpt-4o"])
        async with open_gateway(store) as (harness, up):
            for route, body in BODIES.items():
                for fields in OTHER_MODELS:
                    answer = await post(harness, route, {**body, **fields}, text)
                    assert (answer.status_code, len(up.requests)) == (403, 0), (route, fields, answer.text)


def ask_with(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": "Hi"}, *parts]
    return {"input": [{"role": "user", "content": content}], **fields}


REFERENCES: list[tuple[str, dict[str, Any]]] = [
    ("responses", {"input": [{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": "msg_1"}]}),
    ("responses", {"input": [{"role": "user", "content": "Hi"}, {"id": "msg_1"}]}),
    ("responses", ask_with(previous_response_id="resp_of_another")),
    ("responses", ask_with(conversation="conv_of_another")),
    ("responses", ask_with(conversation={"id": "conv_of_another"})),
    ("responses", ask_with({"type": "input_file", "file_id": "file-1"})),
    ("responses", ask_with(tools=[{"type": "file_search", "vector_store_ids": ["vs_1"]}])),
    ("responses", ask_with(tools=[{"type": "code_interpreter", "container": "cntr_1"}])),
    ("responses", ask_with(tools=[{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f"]}}])),
    ("responses", {**ask_with(previous_response_id="resp_of_another"), "input": [{"role": "weird", "content": 7}]}),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]}),
    ("chat/completions", {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}, *MESSAGES]}),
    (
        "messages",
        {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": [{"type": "document", "source": {"type": "file", "fil\u0065_id": "f"}}]}
            ],
        },
    ),
    ("messages", {"max_tokens": 9, "container": "container_1", "messages": MESSAGES}),
]


class TestReferences:
    """A provider's account that tenants share has the items and files of all of them."""

    async def test_what_is_not_in_the_callers_log_is_refused(self, store: SqlStore):
        async with open_gateway(store, on_store_failure="pass_through") as (harness, up):
            for path, body in REFERENCES:
                more = ["responses/compact", "responses/input_tokens"] if path == "responses" else []
                for each in (path, *more):
                    answer = await post(harness, f"/v1/{each}", body)
                    assert answer.status_code in (400, 404), (each, body, answer.text)
                    assert not up.requests, (each, body)

    async def test_the_upstream_of_the_callers_own_account_gets_them(self, store: SqlStore):
        key = await create_key_for(store, "default")
        async with open_gateway(store, upstream={"credentials": "client"}) as (harness, up):
            headers = {"x-quire-key": key, "authorization": "Bearer sk-own"}
            for path, body in (REFERENCES[0], REFERENCES[5], REFERENCES[10]):
                sent = {"model": "gpt-4o", **body}
                answer = await harness.http.post(f"/v1/{path}", json=sent, headers=headers)
                assert answer.status_code == 200, answer.text
                assert up.bodies[-1] == sent

    async def test_a_tool_may_have_arguments_with_such_names(self, store: SqlStore):
        call = {"type": "tool_use", "id": "t1", "name": "read", "input": {"file_id": "7", "container": "x"}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
        messages = [*MESSAGES, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        async with open_gateway(store) as (harness, _):
            answer = await post(harness, "/v1/messages", {"max_tokens": 9, "messages": messages})
            assert answer.status_code == 200, answer.text


UNSERVED_PATHS = [
    "../admin", "%2e%2e/admin", "x/%2e%2e/%2e%2e/admin/keys", "..%2f..%2fadmin", "embeddings/",
    "/embeddings", "embeddings/../files", "embeddings/%2e%2e/files", "embeddings%3fx=1", "Embeddings",
    "chat/completions/", "chat//completions", "responses/resp_1/../resp_2", "@evil.example/x", "completions",
]  # fmt: skip


class TestOtherPaths:
    async def test_only_stateless_paths_are_passed(self, store: SqlStore):
        async with open_gateway(store) as (harness, up):
            key, body = harness.http.headers["authorization"], b'{"model":"gpt-4o","messages":[],"input":"x"}'
            for method, path in product(("GET", "POST", "DELETE"), UNSERVED_PATHS):
                # Clients remove dot segments by themselves.
                reader, writer = await asyncio.open_connection("127.0.0.1", harness.http.base_url.port)
                head = f"{method} /v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {key}\r\n"
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                answer = await reader.read()
                writer.close()
                assert answer.split(b" ", 2)[1] in (b"404", b"405"), (method, path, answer[:200])
            assert not up.requests

    async def test_a_passed_path_has_the_upstreams_model_and_says_that_it_is_not_recorded(self, store: SqlStore):
        async with open_gateway(store, upstream={"model": "text-embedding-3-small"}) as (harness, up):
            answer = await post(harness, "/v1/embeddings", {"input": "x"})
            assert answer.headers["x-quire-recorded"] == "no"
            assert (up.requests[0].path, up.bodies[0]["model"]) == ("/v1/embeddings", "text-embedding-3-small")
            assert (await post(harness, "/v1/embeddings", b"{not json")).status_code == 400
            assert (await harness.http.get("/v1/embeddings")).status_code == 404


class TestStoredPaths:
    async def test_stored_objects_are_reached_only_in_an_own_account_or_with_the_scope_admin(self, store: SqlStore):
        _, chat = await store.keys.create("chat", ["chat"])
        _, admin = await store.keys.create("admin", ["chat", "admin"])
        async with open_gateway(store) as (harness, up):
            for method, path in (("POST", "files"), ("GET", "files/f1/content"), ("DELETE", "files/f1")):
                refused = await harness.http.request(
                    method, f"/v1/{path}", headers={"authorization": f"Bearer {chat}"}, content=b"x"
                )
                assert refused.status_code == 403, path
            assert up.requests == []
            # A file may have any number of brackets.
            upload, headers = (
                b"[" * 300_000,
                {"authorization": f"Bearer {admin}", "content-type": "multipart/form-data"},
            )
            assert (await harness.http.post("/v1/files", headers=headers, content=upload)).status_code == 200
            assert (await harness.http.get("/v1/batches/b1?limit=2", headers=headers)).status_code == 200
            assert [each.path for each in up.requests] == ["/v1/files", "/v1/batches/b1?limit=2"]
            assert up.requests[0].raw == upload
            # The object of a batch repeats the usage of its calls with every read.
            assert await store.spending.sum_by_key() == {}
        async with open_gateway(store, upstream={"credentials": "client"}) as (harness, up):
            headers = {"authorization": "Bearer sk-own", "x-quire-key": chat}
            assert (await harness.http.get("/v1/files", headers=headers)).status_code == 200
            assert up.requests[0].headers["authorization"] == "Bearer sk-own"

    @pytest.mark.parametrize("passes", [False, True])
    async def test_what_is_not_spoken_is_refused_with_a_sentence(self, store: SqlStore, passes: bool):
        async with open_gateway(store, pass_other_paths=passes) as (harness, up):
            for path in ("realtime/sessions", "videos", *(("audio/speech", "images/edits") if not passes else ())):
                answer = await harness.http.post(f"/v1/{path}", json={"model": "gpt-4o"})
                assert answer.status_code == 404
                assert "Quire does not speak audio" in answer.json()["error"]["message"]
            assert up.requests == []
