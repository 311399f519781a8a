"""Background responses: passed to the provider that stores them for the caller alone, refused elsewhere."""

from typing import Any

import pytest
from gateway_fixtures import MODEL, run_gateway
from server_helpers import create_key_for

from fake_upstream import Responder, UpstreamRequest, respond_with_stream, run_fake_upstream
from quire.store import SqlStore

QUEUED = {"id": "resp_1", "object": "response", "status": "queued", "output": []}
OWN_ACCOUNT = {"speaks": ["responses"], "credentials": "client"}


def respond_with(body: object) -> Responder:
    async def respond(request: UpstreamRequest) -> None:
        await request.respond(body)

    return respond


async def test_the_caller_reads_and_cancels_it_at_the_provider(store: SqlStore):
    done, cancelled, deleted = ({**QUEUED, "status": each} for each in ("completed", "cancelled", "deleted"))
    async with run_fake_upstream(*map(respond_with, (QUEUED, done, done, cancelled, deleted))) as upstream:
        upstreams = {"*": {"base_url": upstream.url, **OWN_ACCOUNT}}
        async with run_gateway(store, upstream.url, upstreams=upstreams) as harness:
            key = await create_key_for(store, store.tenant)
            headers = {"x-quire-key": key, "authorization": "Bearer sk-own"}
            body = {"model": MODEL, "input": "One", "background": True}
            answer = await harness.http.post("/v1/responses", json=body, headers=headers)
            assert (answer.json(), answer.headers["x-quire-recorded"]) == (QUEUED, "no")
            for method, path, expected in (
                ("GET", "", done),
                ("GET", "?stream=true&starting_after=3", done),
                ("POST", "/cancel", cancelled),
                ("DELETE", "", deleted),
            ):
                answer = await harness.http.request(method, f"/v1/responses/resp_1{path}", headers=headers)
                assert answer.json() == expected
        assert upstream.bodies[0] == body
        assert [each.path for each in upstream.requests] == [
            "/v1/responses",
            "/v1/responses/resp_1",
            "/v1/responses/resp_1?stream=true&starting_after=3",
            "/v1/responses/resp_1/cancel",
            "/v1/responses/resp_1",
        ]
        assert {each.headers["authorization"] for each in upstream.requests} == {"Bearer sk-own"}
        assert await store.list_conversations() == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"speaks": ["chat"]}, "has no background responses"),
        ({"speaks": ["responses"]}, "an account of your own"),
    ],
)
async def test_an_upstream_without_them_or_with_a_shared_account_is_refused(
    store: SqlStore, settings: dict[str, Any], message: str
):
    async with run_fake_upstream(respond_with_stream()) as upstream:
        upstreams = {"*": {"base_url": upstream.url, **settings}}
        async with run_gateway(store, upstream.url, upstreams=upstreams) as harness:
            body = {"model": MODEL, "input": "One", "background": True}
            answer = await harness.http.post("/v1/responses", json=body)
            assert answer.status_code == 400
            assert message in answer.text
            assert "without `background`" in answer.text
            for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", ""), ("GET", "?stream=true")):
                answer = await harness.http.request(method, f"/v1/responses/resp_1{path}")
                assert answer.status_code == 404, (method, path)
        assert upstream.requests == []
