"""Routes for API keys: own tenant only, text returned once, no more scopes than the creating key."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from quire.access.keys import KEY_SCOPES
from quire.model.ids import now
from quire.server.app import create_app
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore

HOUR = 3_600_000_000
"""In microseconds."""


@pytest.fixture
async def client(store: SqlStore) -> AsyncIterator[httpx2.AsyncClient]:
    """Client with a key of tenant a that has every scope."""
    _, text = await store.for_tenant("a").keys.create("chief", KEY_SCOPES)
    async with UpstreamClient() as upstream:
        app = create_app(ServerState(store, Settings(), http_client=upstream))
        headers = {"Authorization": f"Bearer {text}"}
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://quire.example", headers=headers) as client:
            yield client


@pytest.mark.every_database
async def test_a_key_is_created_returned_once_used_and_revoked(client: httpx2.AsyncClient, store: SqlStore):
    created = await client.post(
        "/api/keys", json={"name": "script", "scopes": ["chat", "read"], "requests_per_minute": 9}
    )
    assert (created.status_code, created.headers["cache-control"]) == (201, "no-store")
    text = created.json()["key"]
    verified = await store.keys.verify(text)
    assert verified is not None
    assert (verified.tenant, verified.id, verified.requests_per_minute) == ("a", created.json()["id"], 9)
    listed = await client.get("/api/keys")
    assert [each["name"] for each in listed.json()["items"]] == ["script", "chief"]
    assert listed.json()["items"][0] == {name: value for name, value in created.json().items() if name != "key"}
    assert text[33:] not in listed.text
    assert (await client.delete(f"/api/keys/{verified.id}")).status_code == 204
    assert await store.keys.verify(text) is None
    assert (await client.get("/api/keys")).json()["items"][0]["revoked_at"] is not None


async def test_keys_are_listed_in_pages(client: httpx2.AsyncClient, store: SqlStore):
    for number in range(4):
        await store.for_tenant("a").keys.create(f"key {number}", ["read"])
    names, cursor = [], None
    while True:
        page = (await client.get("/api/keys", params={"limit": 2, **({"cursor": cursor} if cursor else {})})).json()
        names += [each["name"] for each in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert sorted(names) == ["chief", "key 0", "key 1", "key 2", "key 3"]


@pytest.mark.every_database
async def test_another_tenants_keys_are_not_there(client: httpx2.AsyncClient, store: SqlStore):
    theirs, text = await store.for_tenant("b").keys.create("theirs", ["read"])
    assert "theirs" not in (await client.get("/api/keys")).text
    answer = await client.delete(f"/api/keys/{theirs.id}")
    assert (answer.status_code, answer.json()["code"]) == (404, "key_not_found")
    assert await store.keys.verify(text) is not None


async def test_a_key_gives_no_scope_that_it_lacks(client: httpx2.AsyncClient, store: SqlStore):
    _, clerk = await store.for_tenant("a").keys.create("clerk", ["admin", "read"])
    headers = {"Authorization": f"Bearer {clerk}"}
    for scopes, status in ((["read"], 201), (["admin", "read"], 201), (["read", "chat"], 403), (["write"], 403)):
        answer = await client.post("/api/keys", json={"name": "n", "scopes": scopes}, headers=headers)
        assert answer.status_code == status


async def test_a_created_key_has_the_limits_of_its_creator_and_ends_with_it(
    client: httpx2.AsyncClient, store: SqlStore
):
    limits: dict[str, Any] = {"expires_at": now() + HOUR, "requests_per_minute": 50, "models": ["gpt-4o", "claude-*"]}
    creator, text = await store.for_tenant("a").keys.create("creator", ["admin", "chat"], **limits)
    headers = {"Authorization": f"Bearer {text}"}

    async def create(key: dict[str, str], **fields: Any) -> httpx2.Response:
        return await client.post("/api/keys", json={"name": "n", "scopes": ["admin", "chat"], **fields}, headers=key)

    child = (await create(headers)).json()
    assert {name: child[name] for name in limits} == limits
    assert child["created_by"] == creator.id
    shorter = {"expires_at": limits["expires_at"] - 1, "requests_per_minute": 5, "models": ["claude-9", "gpt-4o"]}
    grandchild = (await create({"Authorization": f"Bearer {child['key']}"}, **shorter)).json()
    assert {name: grandchild[name] for name in limits} == shorter
    for fields in (
        {"expires_at": limits["expires_at"] + 1},
        {"requests_per_minute": 51},
        {"models": ["gpt-4o-mini"]},
        {"models": ["*"]},
        {"models": ["claude-?*"]},
        {"scopes": ["admin", "read"]},
    ):
        answer = await create(headers, **fields)
        assert answer.status_code == 403, (fields, answer.text)
    for key in (child, grandchild):
        assert (await client.get("/api/keys", headers={"Authorization": f"Bearer {key['key']}"})).status_code == 200
    assert (await client.delete(f"/api/keys/{creator.id}")).status_code == 204
    for key in (child, grandchild):
        assert (await client.get("/api/keys", headers={"Authorization": f"Bearer {key['key']}"})).status_code == 401
    assert (await client.get("/api/keys")).status_code == 200


@pytest.mark.parametrize("scope", ["read", "write", "chat"])
async def test_managing_keys_needs_the_admin_scope(client: httpx2.AsyncClient, store: SqlStore, scope: str):
    key, text = await store.for_tenant("a").keys.create("limited", [scope])
    headers = {"Authorization": f"Bearer {text}"}
    answers = [
        await client.get("/api/keys", headers=headers),
        await client.post("/api/keys", json={"name": "n", "scopes": [scope]}, headers=headers),
        await client.delete(f"/api/keys/{key.id}", headers=headers),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(403, "insufficient_scope")] * 3


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": " "},
        {"name": "x" * 201},
        {"scopes": []},
        {"scopes": ["all"]},
        {"scopes": "read"},
        {"scopes": ["read"] * 7},
        {"expires_at": 1},
        {"expires_at": -1},
        {"expires_at": 2**63},
        {"requests_per_minute": 0},
        {"requests_per_minute": 2**31},
    ],
)
async def test_what_cannot_be_a_key_is_refused(client: httpx2.AsyncClient, store: SqlStore, fields: dict[str, Any]):
    answer = await client.post("/api/keys", json={"name": "n", "scopes": ["read"], **fields})
    assert answer.status_code in (400, 422)
    assert len(await store.for_tenant("a").keys.list()) == 1


@pytest.mark.parametrize("id", ["x", "0" * 25, "0" * 27, "%00" * 26, "%F0%9F%94%91", "A" * 26, "0" * 26 + "%0A"])
async def test_what_cannot_be_an_id_is_refused(client: httpx2.AsyncClient, id: str):
    assert (await client.delete(f"/api/keys/{id}")).status_code == 422
