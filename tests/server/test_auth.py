"""API key authentication: tenant, scopes, cache and rate limit; every refusal has the same text."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import Depends, FastAPI, Request

from quire.access.keys import KEY_SCOPES, ApiKey, Keys
from quire.errors import StoreBusy, StoreUnavailable
from quire.server import auth
from quire.server.app import create_app
from quire.server.auth import (
    CALLER_SCOPE_KEY,
    KEY_CACHE_OUTAGE_SECONDS,
    KEY_CACHE_SECONDS,
    SCOPES_BY_ACTION,
    KeyVerifier,
    require_action,
)
from quire.server.caller import Caller
from quire.server.rate_limits import SharedRateLimiter
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore

MINUTE_MICROSECONDS = 60_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class CountingKeys(Keys):
    """Keys of a store; counts look-ups and can be made to fail."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store.base)
        self.lookups = 0
        self.error: StoreUnavailable | StoreBusy | None = None

    async def verify(self, presented: str) -> ApiKey | None:
        self.lookups += 1
        if self.error is not None:
            raise self.error
        return await super().verify(presented)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counting_keys(store: SqlStore) -> CountingKeys:
    return CountingKeys(store)


@pytest.fixture
async def server_state(store: SqlStore) -> AsyncIterator[ServerState]:
    async with UpstreamClient() as upstream:
        yield ServerState(store, Settings(), http_client=upstream)


@pytest.fixture
def app(server_state: ServerState, counting_keys: CountingKeys, clock: Clock) -> FastAPI:
    app = create_app(server_state)
    app.state.key_verifier = KeyVerifier(counting_keys, clock=clock)
    app.state.rate_limiter = SharedRateLimiter(server_state.store, clock=clock)

    async def whoami(request: Request, caller: Annotated[Caller, Depends(require_action("read"))]) -> dict[str, Any]:
        return {"tenant": caller.tenant, "key": caller.key_id, "scopes": sorted(caller.scopes)}

    app.add_api_route("/api/whoami", whoami)
    for scope, action in {scope: action for action, scope in SCOPES_BY_ACTION.items()}.items():
        needed = [Depends(require_action(action))]
        app.add_api_route(f"/api/takes/{scope}", whoami, dependencies=needed, methods=["POST"])
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://quire.example") as client:
        yield client


def bearer_header(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


async def ask(client: httpx2.AsyncClient, text: str) -> httpx2.Response:
    return await client.get("/api/whoami", headers=bearer_header(text))


@pytest.mark.every_database
async def test_a_key_speaks_for_its_tenant_with_its_scopes(client: httpx2.AsyncClient, store: SqlStore):
    key, text = await store.for_tenant("a").keys.create("laptop", ["chat", "read"])
    expected = {"tenant": "a", "key": key.id, "scopes": ["chat", "read"]}
    for headers in (
        bearer_header(text),
        {"authorization": f"bearer {text}"},
        {"AUTHORIZATION": f"BEARER  {text} "},
        {"api-key": text},
        {"x-api-key": text},
        {"Authorization": "Basic dTpw", "api-key": text},
        {"Authorization": f"Bearer {text}", "x-api-key": text, "api-key": text},
        {"X-Quire-Key": text},
        {"X-Quire-Key": text, "Authorization": "Bearer sk-other", "x-api-key": "sk-third"},
    ):
        answer = await client.get("/api/whoami", headers=headers)
        assert (answer.status_code, answer.json()) == (200, expected)


def flip_char(text: str, index: int) -> str:
    return text[:index] + ("a" if text[index] != "a" else "b") + text[index + 1 :]


INVALID_HEADERS: dict[str, Callable[[str], list[tuple[str, str]]]] = {
    "nothing": lambda _: [],
    "an empty header": lambda _: [("Authorization", "")],
    "a scheme alone": lambda _: [("Authorization", "Bearer")],
    "a scheme and a space": lambda _: [("Authorization", "Bearer ")],
    "another scheme": lambda text: [("Authorization", f"Basic {text}")],
    "no scheme": lambda text: [("Authorization", text)],
    "two schemes": lambda text: [("Authorization", f"Bearer Bearer {text}")],
    "a comma": lambda text: [("Authorization", f"Bearer {text}, Bearer {text}")],
    "two headers": lambda text: [("Authorization", f"Bearer {text}"), ("Authorization", f"Bearer {text}")],
    "two headers of which one is wrong": lambda text: [
        ("Authorization", "Bearer x"),
        ("Authorization", f"Bearer {text}"),
    ],
    "two api-key headers": lambda text: [("api-key", text), ("api-key", "x")],
    "two x-api-key headers": lambda text: [("x-api-key", text), ("x-api-key", text)],
    "two keys": lambda text: [("Authorization", f"Bearer {text}"), ("x-api-key", "sk-other")],
    "two keys in the other order": lambda text: [("Authorization", "Bearer sk-other"), ("api-key", text)],
    "a wrong X-Quire-Key": lambda text: [("X-Quire-Key", "x"), ("Authorization", f"Bearer {text}")],
    "an empty X-Quire-Key": lambda text: [("X-Quire-Key", ""), ("Authorization", f"Bearer {text}")],
    "two X-Quire-Key headers": lambda text: [("X-Quire-Key", text), ("X-Quire-Key", text)],
    "a word in X-Quire-Key": lambda text: [("X-Quire-Key", f"Bearer {text}")],
    "a word in x-api-key": lambda text: [("x-api-key", f"Bearer {text}")],
    "quotation marks": lambda text: [("Authorization", f'Bearer "{text}"')],
    "another secret": lambda text: [("Authorization", f"Bearer {flip_char(text, 60)}")],
    "another id": lambda text: [("Authorization", f"Bearer {flip_char(text, 20)}")],
    "the id alone": lambda text: [("Authorization", f"Bearer {text[:32]}")],
    "a key of someone else's server": lambda _: [("Authorization", "Bearer sk-proj-abc")],
    "a very long key": lambda text: [("Authorization", f"Bearer {text * 1_000}")],
    "a word in api-key": lambda text: [("api-key", f"Bearer {text}")],
    "bytes that are no ASCII": lambda text: [("Authorization", f"Bearer {text[:-1]}\u00e9")],
    "the key in another header": lambda text: [("X-Key", text), ("Cookie", f"key={text}")],
    "a header that would be the scope's": lambda _: [(CALLER_SCOPE_KEY, "admin"), ("quire-caller", "admin")],
}


async def test_every_refusal_is_the_same_whatever_is_wrong(client: httpx2.AsyncClient, store: SqlStore):
    _, good = await store.keys.create("good", KEY_SCOPES)
    revoked, gone = await store.keys.create("revoked", KEY_SCOPES)
    await store.keys.revoke(revoked.id)
    answers = {name: await _get_raw(client, headers(good)) for name, headers in INVALID_HEADERS.items()}
    answers["revoked"] = await ask(client, gone)
    answers["in the address"] = await client.get("/api/whoami", params={"key": good, "token": good, "api-key": good})
    assert (await ask(client, good)).status_code == 200
    first = answers["nothing"]
    assert first.json()["code"] == "invalid_key"
    assert first.headers["content-type"] == "application/problem+json"
    for name, answer in answers.items():
        assert answer.status_code == 401, name
        assert answer.headers["www-authenticate"].startswith("Bearer"), name
        assert answer.content == first.content, name
        assert set(answer.headers) == set(first.headers), name


async def _get_raw(client: httpx2.AsyncClient, headers: list[tuple[str, str]]) -> httpx2.Response:
    return await client.get("/api/whoami", headers=[(name, value.encode("latin-1")) for name, value in headers])


async def test_an_expired_key_is_refused_though_it_was_believed_a_moment_ago(
    client: httpx2.AsyncClient, store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    from quire.model.ids import now

    key, text = await store.keys.create("guest", ["read"], expires_at=now() + MINUTE_MICROSECONDS)
    assert (await ask(client, text)).status_code == 200
    monkeypatch.setattr(auth, "now", lambda: key.expires_at)
    assert (await ask(client, text)).status_code == 401


@pytest.mark.parametrize("required", sorted(set(SCOPES_BY_ACTION.values())))
async def test_a_scope_opens_what_takes_it_and_nothing_else(client: httpx2.AsyncClient, store: SqlStore, required: str):
    for scope in KEY_SCOPES:
        _, text = await store.keys.create(scope, [scope, "read"])
        answer = await client.post(f"/api/takes/{required}", headers=bearer_header(text))
        if required in (scope, "read"):
            assert answer.status_code == 200
        else:
            assert (answer.status_code, answer.json()["code"]) == (403, "insufficient_scope")
            assert required in answer.json()["detail"]
            assert "www-authenticate" not in answer.headers


@pytest.mark.every_database
async def test_what_another_tenant_has_is_not_there(client: httpx2.AsyncClient, store: SqlStore):
    await store.for_tenant("a").create_conversation("theirs", title="a secret")
    _, mine = await store.for_tenant("b").keys.create("mine", KEY_SCOPES)
    _, theirs = await store.for_tenant("a").keys.create("theirs", KEY_SCOPES)
    statuses = {
        key: (await client.get("/api/conversations/theirs", headers=bearer_header(text))).status_code
        for key, text in {"mine": mine, "theirs": theirs}.items()
    }
    assert statuses == {"mine": 404, "theirs": 200}


async def test_nothing_under_the_api_answers_without_a_key(app: FastAPI, client: httpx2.AsyncClient):
    document = (await client.get("/api/openapi.json")).json()
    guarded = {
        (path, method): operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if path.startswith(("/api", "/v1"))
    }
    assert len(guarded) > 20
    for (path, method), operation in guarded.items():
        assert {"key": []} in operation["security"], (path, method)
        # All return 401, whether the rest of the request is valid or not.
        answer = await client.request(method, path, content=b"{")
        assert answer.status_code == 401, (path, method)
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


async def test_a_route_that_forgets_to_ask_for_a_caller_is_still_closed(app: FastAPI, client: httpx2.AsyncClient):
    app.add_api_route("/api/forgotten", lambda: "open")
    assert (await client.get("/api/forgotten")).status_code == 401
    assert (await client.get("/api/no/such/route")).status_code == 401


async def test_the_body_of_a_stranger_is_not_read(app: FastAPI):
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/api/conversations", "raw_path": b"/api/conversations",
        "query_string": b"", "headers": [(b"content-length", b"1000")], "http_version": "1.1", "scheme": "http",
        "server": ("quire.example", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await app(scope, receive, send)
    assert sent[0]["status"] == 401


async def test_a_local_server_without_its_middleware_refuses_everyone(server_state: ServerState):
    server_state.is_local = True
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(create_app(server_state)), base_url="http://localhost"
    ) as client:
        assert (await client.get("/api/conversations")).status_code == 401


# cache


async def test_a_key_is_looked_up_once_in_ten_seconds(
    client: httpx2.AsyncClient, store: SqlStore, counting_keys: CountingKeys, clock: Clock
):
    _, text = await store.keys.create("busy", ["read"])
    for _ in range(20):
        assert (await ask(client, text)).status_code == 200
    assert counting_keys.lookups == 1
    clock.now += KEY_CACHE_SECONDS
    await ask(client, text)
    assert counting_keys.lookups == 2


async def test_a_revoked_key_stops_within_ten_seconds(client: httpx2.AsyncClient, store: SqlStore, clock: Clock):
    key, text = await store.keys.create("laptop", ["read"])
    assert (await ask(client, text)).status_code == 200
    await store.keys.revoke(key.id)
    clock.now += KEY_CACHE_SECONDS
    assert (await ask(client, text)).status_code == 401
    assert (await ask(client, text)).status_code == 401


async def test_a_key_revoked_over_the_api_stops_at_once(client: httpx2.AsyncClient, store: SqlStore):
    key, text = await store.keys.create("laptop", ["read"])
    _, admin = await store.keys.create("chief", ["admin"])
    assert (await ask(client, text)).status_code == 200
    assert (await client.delete(f"/api/keys/{key.id}", headers=bearer_header(admin))).status_code == 204
    assert (await ask(client, text)).status_code == 401


async def test_only_valid_keys_are_cached_and_the_cache_is_bounded(
    store: SqlStore, counting_keys: CountingKeys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(auth, "KEY_CACHE_SIZE", 3)
    verifier = KeyVerifier(counting_keys)
    texts = [(await store.keys.create(f"key {number}", ["read"]))[1] for number in range(5)]
    for text in texts:
        for wrong in (flip_char(text, 60), "x" * 100):
            assert await verifier.verify(wrong) is None
        assert await verifier.verify(text) is not None
    counting_keys.lookups = 0
    for text in texts[2:]:
        assert await verifier.verify(text) is not None
    assert counting_keys.lookups == 0
    assert await verifier.verify(texts[0]) is not None
    assert counting_keys.lookups == 1


async def test_simultaneous_requests_share_a_look_up(store: SqlStore, counting_keys: CountingKeys):
    verifier = KeyVerifier(counting_keys)
    _, text = await store.keys.create("laptop", ["read"])
    requests = [asyncio.create_task(verifier.verify(text)) for _ in range(20)]
    await asyncio.sleep(0)
    requests[0].cancel()
    keys = await asyncio.gather(*requests[1:])
    assert all(keys)
    assert requests[0].cancelled()
    assert counting_keys.lookups == 1


async def test_a_key_evicted_during_a_look_up_is_looked_up_again(store: SqlStore, counting_keys: CountingKeys):
    verifier = KeyVerifier(counting_keys)
    key, text = await store.keys.create("laptop", ["read"])
    request = asyncio.create_task(verifier.verify(text))
    await asyncio.sleep(0)
    verifier.evict(key.id)
    await request
    await verifier.verify(text)
    assert counting_keys.lookups == 2


async def test_a_secret_is_not_believed_because_another_of_the_same_key_was(
    store: SqlStore, counting_keys: CountingKeys
):
    verifier = KeyVerifier(counting_keys)
    _, text = await store.keys.create("laptop", ["read"])
    assert await verifier.verify(text) is not None
    assert await verifier.verify(flip_char(text, 60)) is None


async def test_during_a_store_outage_keys_are_refused_unless_requests_pass_through(
    client: httpx2.AsyncClient, server_state: ServerState, store: SqlStore, counting_keys: CountingKeys, clock: Clock
):
    _, text = await store.keys.create("known", ["read"])
    _, other = await store.keys.create("never seen", ["read"])
    assert (await ask(client, text)).status_code == 200
    counting_keys.error = StoreUnavailable()
    assert (await ask(client, text)).status_code == 200
    clock.now += KEY_CACHE_SECONDS
    assert (await ask(client, text)).status_code == 503
    await server_state.change_settings({"on_store_failure": "pass_through"})
    assert (await ask(client, text)).status_code == 200
    assert (await ask(client, other)).status_code == 503
    clock.now += KEY_CACHE_OUTAGE_SECONDS
    assert (await ask(client, text)).status_code == 503


async def test_a_busy_store_is_not_taken_for_one_that_is_away(
    client: httpx2.AsyncClient, server_state: ServerState, store: SqlStore, counting_keys: CountingKeys, clock: Clock
):
    await server_state.change_settings({"on_store_failure": "pass_through"})
    _, text = await store.keys.create("known", ["read"])
    assert (await ask(client, text)).status_code == 200
    counting_keys.error, clock.now = StoreBusy(), clock.now + KEY_CACHE_SECONDS
    assert (await ask(client, text)).status_code == 503


@pytest.mark.every_database
async def test_concurrent_tenants_are_not_mixed_up(client: httpx2.AsyncClient, store: SqlStore):
    texts = {tenant: (await store.for_tenant(tenant).keys.create("k", ["read"]))[1] for tenant in "abcdef"}
    tenants = [tenant for tenant in texts for _ in range(5)]
    answers = await asyncio.gather(*(ask(client, texts[tenant]) for tenant in tenants))
    assert [answer.json()["tenant"] for answer in answers] == tenants


# rate limit


# On PostgreSQL, time is the database's: see test_shared_rate_limits.py.
async def test_a_key_is_rate_limited_and_gets_retry_after(
    client: httpx2.AsyncClient, server_state: ServerState, store: SqlStore, clock: Clock
):
    _, text = await store.keys.create("slow", ["read"], requests_per_minute=3)
    _, other = await store.keys.create("usual", ["read"])
    answers = [await ask(client, text) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["ratelimit"] for answer in answers[:3]] == [
        '"key";r=2;t=20',
        '"key";r=1;t=40',
        '"key";r=0;t=60',
    ]
    refused = answers[3]
    assert refused.headers["ratelimit-policy"] == '"key";q=3;w=60'
    assert refused.headers["retry-after"] == "20"
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["code"] == "too_many_requests"
    assert (await ask(client, other)).headers["ratelimit-policy"] == '"key";q=600;w=60'
    clock.now += 19.9
    assert (await ask(client, text)).status_code == 429
    clock.now += 0.2
    assert (await ask(client, text)).status_code == 200
    await server_state.change_settings({"requests_per_minute": None})
    assert "ratelimit" not in (await ask(client, other)).headers


async def test_a_request_is_counted_once_however_many_scopes_its_route_takes(
    client: httpx2.AsyncClient, store: SqlStore
):
    _, text = await store.keys.create("slow", ["read", "write"], requests_per_minute=10)
    answer = await client.post("/api/takes/write", headers=bearer_header(text))
    assert answer.headers["ratelimit"].startswith('"key";r=9;')


async def test_wrong_keys_take_nothing_from_the_right_ones(client: httpx2.AsyncClient, store: SqlStore):
    _, text = await store.keys.create("slow", ["read"], requests_per_minute=2)
    for _ in range(5):
        assert (await ask(client, flip_char(text, 60))).status_code == 401
    assert (await ask(client, text)).status_code == 200
