"""Who is let in: the key decides whose data it is and what may be done with it, and a refusal says nothing more."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request

from quire.errors import StoreBusy, StoreUnavailable
from quire.log import SCOPES, Key, SqlStore
from quire.server import identity
from quire.server.app import create_app
from quire.server.identity import BELIEVED, CALLER, OUTAGE, Caller, Door, caller_with
from quire.server.serving import Serving
from quire.settings import Settings

MINUTE = 60_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """The store's keys, and how often somebody asked for one."""

    def __init__(self, store: SqlStore) -> None:
        self._store, self.asked, self.fails = store, 0, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def key_shown(self, text: str) -> Key | None:
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        return await self._store.key_shown(text)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counting(store: SqlStore) -> Counting:
    return Counting(store)


@pytest.fixture
async def serving(store: SqlStore) -> AsyncIterator[Serving]:
    async with httpx.AsyncClient() as upstream:
        yield Serving(store, Settings(), client=upstream)


@pytest.fixture
def app(serving: Serving, counting: Counting, clock: Clock) -> FastAPI:
    made = create_app(serving)
    made.state.door = Door(counting, clock=clock)

    async def whoami(request: Request, caller: Annotated[Caller, Depends(caller_with("read"))]) -> dict[str, Any]:
        return {"tenant": caller.tenant, "key": caller.key, "scopes": sorted(caller.scopes)}

    made.add_api_route("/api/whoami", whoami)
    for scope in SCOPES:
        made.add_api_route(f"/api/takes/{scope}", whoami, dependencies=[Depends(caller_with(scope))], methods=["POST"])
    return made


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://quire.example") as made:
        yield made


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


async def ask(client: httpx.AsyncClient, text: str) -> httpx.Response:
    return await client.get("/api/whoami", headers=bearer(text))


async def test_a_key_speaks_for_its_tenant_with_its_scopes(client: httpx.AsyncClient, store: SqlStore):
    made, text = await store.for_tenant("a").create_key("laptop", ["chat", "read"])
    expected = {"tenant": "a", "key": made.id, "scopes": ["chat", "read"]}
    for headers in (
        bearer(text),
        {"authorization": f"bearer {text}"},
        {"AUTHORIZATION": f"BEARER  {text} "},
        {"api-key": text},
        {"Authorization": "Basic dTpw", "api-key": text},
    ):
        answer = await client.get("/api/whoami", headers=headers)
        assert (answer.status_code, answer.json()) == (200, expected)


def flipped(text: str, place: int) -> str:
    return text[:place] + ("a" if text[place] != "a" else "b") + text[place + 1 :]


REFUSED: dict[str, Callable[[str], list[tuple[str, str]]]] = {
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
    "quotation marks": lambda text: [("Authorization", f'Bearer "{text}"')],
    "another secret": lambda text: [("Authorization", f"Bearer {flipped(text, 60)}")],
    "another id": lambda text: [("Authorization", f"Bearer {flipped(text, 20)}")],
    "the id alone": lambda text: [("Authorization", f"Bearer {text[:32]}")],
    "a key of someone else's server": lambda _: [("Authorization", "Bearer sk-proj-abc")],
    "a very long key": lambda text: [("Authorization", f"Bearer {text * 1_000}")],
    "a word in api-key": lambda text: [("api-key", f"Bearer {text}")],
    "bytes that are no ASCII": lambda text: [("Authorization", f"Bearer {text[:-1]}\u00e9")],
    "the key in another header": lambda text: [("X-Api-Key", text), ("Cookie", f"key={text}")],
    "a header that would be the scope's": lambda _: [(CALLER, "admin"), ("quire-caller", "admin")],
}


async def test_every_refusal_is_the_same_whatever_is_wrong(client: httpx.AsyncClient, store: SqlStore):
    _, good = await store.create_key("good", SCOPES)
    revoked, gone = await store.create_key("revoked", SCOPES)
    await store.revoke_key(revoked.id)
    answers = {what: await _get(client, headers(good)) for what, headers in REFUSED.items()}
    answers["revoked"] = await ask(client, gone)
    answers["in the address"] = await client.get("/api/whoami", params={"key": good, "token": good, "api-key": good})
    assert (await ask(client, good)).status_code == 200
    first = answers["nothing"]
    assert first.json()["code"] == "invalid_key"
    assert first.headers["content-type"] == "application/problem+json"
    for what, answer in answers.items():
        assert answer.status_code == 401, what
        assert answer.headers["www-authenticate"].startswith("Bearer"), what
        assert answer.content == first.content, what
        assert set(answer.headers) == set(first.headers), what


async def _get(client: httpx.AsyncClient, headers: list[tuple[str, str]]) -> httpx.Response:
    return await client.get("/api/whoami", headers=[(name, value.encode("latin-1")) for name, value in headers])


async def test_an_expired_key_is_refused_though_it_was_believed_a_moment_ago(
    client: httpx.AsyncClient, store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    from quire.log.fresh import now

    made, text = await store.create_key("guest", ["read"], expires_at=now() + MINUTE)
    assert (await ask(client, text)).status_code == 200
    monkeypatch.setattr(identity, "now", lambda: made.expires_at)
    assert (await ask(client, text)).status_code == 401


@pytest.mark.parametrize("wanted", SCOPES)
async def test_a_scope_opens_what_takes_it_and_nothing_else(client: httpx.AsyncClient, store: SqlStore, wanted: str):
    for scope in SCOPES:
        _, text = await store.create_key(scope, [scope, "read"])
        answer = await client.post(f"/api/takes/{wanted}", headers=bearer(text))
        if wanted in (scope, "read"):
            assert answer.status_code == 200
        else:
            assert (answer.status_code, answer.json()["code"]) == (403, "key_scope_missing")
            assert wanted in answer.json()["detail"]
            assert "www-authenticate" not in answer.headers


async def test_what_another_tenant_has_is_not_there(client: httpx.AsyncClient, store: SqlStore):
    await store.for_tenant("a").create_conversation("theirs", title="a secret")
    _, mine = await store.for_tenant("b").create_key("mine", SCOPES)
    _, theirs = await store.for_tenant("a").create_key("theirs", SCOPES)
    statuses = {
        key: (await client.get("/api/conversations/theirs", headers=bearer(text))).status_code
        for key, text in {"mine": mine, "theirs": theirs}.items()
    }
    assert statuses == {"mine": 404, "theirs": 200}


async def test_nothing_under_the_api_answers_without_a_key(app: FastAPI, client: httpx.AsyncClient):
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
        # Not one of them answers with anything else, whether the rest of the request is as it must be or not.
        answer = await client.request(method, path, content=b"{")
        assert answer.status_code == 401, (path, method)
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


async def test_a_route_that_forgets_to_ask_for_a_caller_is_still_closed(app: FastAPI, client: httpx.AsyncClient):
    app.add_api_route("/api/forgotten", lambda: "open")
    assert (await client.get("/api/forgotten")).status_code == 401
    assert (await client.get("/api/no/such/route")).status_code == 401


async def test_the_body_of_a_stranger_is_not_read(app: FastAPI):
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("somebody read the body")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/api/conversations", "raw_path": b"/api/conversations",
        "query_string": b"", "headers": [(b"content-length", b"1000")], "http_version": "1.1", "scheme": "http",
        "server": ("quire.example", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await app(scope, receive, send)
    assert sent[0]["status"] == 401


async def test_a_server_without_its_guard_for_a_laptop_lets_nobody_in(serving: Serving):
    serving.local = True
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(serving)), base_url="http://localhost"
    ) as asking:
        assert (await asking.get("/api/conversations")).status_code == 401


# what is remembered


async def test_a_key_is_looked_up_once_in_ten_seconds(
    client: httpx.AsyncClient, store: SqlStore, counting: Counting, clock: Clock
):
    _, text = await store.create_key("busy", ["read"])
    for _ in range(20):
        assert (await ask(client, text)).status_code == 200
    assert counting.asked == 1
    clock.now += BELIEVED
    await ask(client, text)
    assert counting.asked == 2


async def test_a_revoked_key_stops_within_ten_seconds(client: httpx.AsyncClient, store: SqlStore, clock: Clock):
    made, text = await store.create_key("laptop", ["read"])
    assert (await ask(client, text)).status_code == 200
    await store.revoke_key(made.id)
    clock.now += BELIEVED
    assert (await ask(client, text)).status_code == 401
    assert (await ask(client, text)).status_code == 401


async def test_a_key_revoked_over_the_api_stops_at_once(client: httpx.AsyncClient, store: SqlStore):
    made, text = await store.create_key("laptop", ["read"])
    _, chief = await store.create_key("chief", ["admin"])
    assert (await ask(client, text)).status_code == 200
    assert (await client.delete(f"/api/keys/{made.id}", headers=bearer(chief))).status_code == 204
    assert (await ask(client, text)).status_code == 401


async def test_only_good_keys_are_remembered_and_only_so_many(
    store: SqlStore, counting: Counting, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(identity, "REMEMBERED", 3)
    door = Door(counting)
    texts = [(await store.create_key(f"key {number}", ["read"]))[1] for number in range(5)]
    for text in texts:
        for wrong in (flipped(text, 60), "x" * 100):
            assert await door.key(wrong) is None
        assert await door.key(text) is not None
    counting.asked = 0
    for text in texts[2:]:
        assert await door.key(text) is not None
    assert counting.asked == 0
    assert await door.key(texts[0]) is not None
    assert counting.asked == 1


async def test_a_secret_is_not_believed_because_another_of_the_same_key_was(store: SqlStore, counting: Counting):
    door = Door(counting)
    _, text = await store.create_key("laptop", ["read"])
    assert await door.key(text) is not None
    assert await door.key(flipped(text, 60)) is None


async def test_while_the_store_is_away_nobody_is_let_in_unless_requests_are_passed_on(
    client: httpx.AsyncClient, serving: Serving, store: SqlStore, counting: Counting, clock: Clock
):
    _, text = await store.create_key("known", ["read"])
    _, other = await store.create_key("never seen", ["read"])
    assert (await ask(client, text)).status_code == 200
    counting.fails = StoreUnavailable()
    assert (await ask(client, text)).status_code == 200
    clock.now += BELIEVED
    assert (await ask(client, text)).status_code == 503
    await serving.change({"store_down": "pass"})
    assert (await ask(client, text)).status_code == 200
    assert (await ask(client, other)).status_code == 503
    clock.now += OUTAGE
    assert (await ask(client, text)).status_code == 503


async def test_a_busy_store_is_not_taken_for_one_that_is_away(
    client: httpx.AsyncClient, serving: Serving, store: SqlStore, counting: Counting, clock: Clock
):
    await serving.change({"store_down": "pass"})
    _, text = await store.create_key("known", ["read"])
    assert (await ask(client, text)).status_code == 200
    counting.fails, clock.now = StoreBusy(), clock.now + BELIEVED
    assert (await ask(client, text)).status_code == 503


async def test_many_at_once_are_told_apart(client: httpx.AsyncClient, store: SqlStore):
    texts = {tenant: (await store.for_tenant(tenant).create_key("k", ["read"]))[1] for tenant in "abcdef"}
    wanted = [tenant for tenant in texts for _ in range(5)]
    answers = await asyncio.gather(*(ask(client, texts[tenant]) for tenant in wanted))
    assert [answer.json()["tenant"] for answer in answers] == wanted


# how often


async def test_a_key_is_stopped_at_its_rate_and_told_when_to_come_back(
    client: httpx.AsyncClient, serving: Serving, store: SqlStore, clock: Clock
):
    _, text = await store.create_key("slow", ["read"], requests_per_minute=3)
    _, other = await store.create_key("usual", ["read"])
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
    await serving.change({"requests_per_minute": None})
    assert "ratelimit" not in (await ask(client, other)).headers


async def test_a_request_is_counted_once_however_many_scopes_its_route_takes(
    client: httpx.AsyncClient, store: SqlStore
):
    _, text = await store.create_key("slow", ["read", "write"], requests_per_minute=10)
    answer = await client.post("/api/takes/write", headers=bearer(text))
    assert answer.headers["ratelimit"].startswith('"key";r=9;')


async def test_wrong_keys_take_nothing_from_the_right_ones(client: httpx.AsyncClient, store: SqlStore):
    _, text = await store.create_key("slow", ["read"], requests_per_minute=2)
    for _ in range(5):
        assert (await ask(client, flipped(text, 60))).status_code == 401
    assert (await ask(client, text)).status_code == 200
