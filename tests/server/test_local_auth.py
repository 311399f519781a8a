"""Authentication of the local user: the token gives access, pages of other sites get none."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st

from quire.access.keys import KEY_SCOPES
from quire.errors import InvalidConfiguration
from quire.server import auth
from quire.server.addresses import check_loopback, generate_token, server_url
from quire.server.app import create_app
from quire.server.auth import CALLER_SCOPE_KEY, LocalAuthMiddleware
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import DEFAULT_TENANT, SqlStore

TOKEN = "t0ken-of_this-Server"
PORT = 8765
BASE_URL = f"http://127.0.0.1:{PORT}"
COOKIE = f"quire-{PORT}={TOKEN}"


def make_app() -> FastAPI:
    """Application that returns its caller."""
    app = FastAPI()

    async def whoami(request: Request) -> dict[str, Any]:
        caller = request.scope.get(CALLER_SCOPE_KEY)
        return {"tenant": caller.tenant, "scopes": sorted(caller.scopes)} if caller is not None else {}

    app.add_api_route("/{rest:path}", whoami, methods=["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
    app.add_middleware(LocalAuthMiddleware, token=TOKEN)
    return app


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(make_app()), base_url=BASE_URL) as client:
        yield client


def bearer_header(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


LOCAL_IDENTITY = {"tenant": DEFAULT_TENANT, "scopes": sorted(KEY_SCOPES)}


# hosts

OWN_HOSTS = [
    "127.0.0.1", "127.0.0.1:8765", "127.0.0.1:1", "127.0.0.1:65535", "localhost", "localhost:8765", "LocalHost:8765",
    "[::1]", "[::1]:8765",
]  # fmt: skip

FOREIGN_HOSTS = [
    "",
    " ",
    "evil.example",
    "evil.example:8765",
    "127.0.0.1.evil.example",
    "127.0.0.1.nip.io:8765",
    "localhost.evil.example",
    "localhost.",
    "localhost.:8765",
    "notlocalhost",
    "xlocalhost:8765",
    "127.0.0.1@evil.example",
    "evil.example@127.0.0.1",
    "localhost:8765@evil.example",
    "evil.example#localhost",
    "localhost/evil.example",
    "localhost\\evil.example",
    "http://localhost",
    "localhost:",
    "localhost:port",
    "localhost:8765:8765",
    "localhost:876599",
    "localhost:-1",
    "localhost, evil.example",
    "evil.example, localhost",
    "localhost evil.example",
    "0.0.0.0:8765",
    "192.168.1.5:8765",
    "10.0.0.1",
    "169.254.169.254",
    "127.1",
    "127.0.0.2",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "::1",
    "::1:8765",
    "[::1",
    "[::]:8765",
    "[::ffff:127.0.0.1]",
    "[0:0:0:0:0:0:0:1]",
    "localhost\x00",
    "localhost\x0b",
    "l\u00f6calhost",
    "localhost\u00a0",
    "localhost:\u0661",
]


def host_bytes(host: str) -> bytes:
    return host.encode("utf-8")


@pytest.mark.parametrize("host", OWN_HOSTS)
async def test_this_machines_own_names_are_answered(client: httpx2.AsyncClient, host: str):
    answer = await client.get("/api/x", headers={"Host": host, **bearer_header(TOKEN)})
    assert (answer.status_code, answer.json()) == (200, LOCAL_IDENTITY)


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_any_other_name_is_refused_even_with_the_token(client: httpx2.AsyncClient, host: str):
    for path in ("/api/x", "/", "/healthz", f"/?token={TOKEN}"):
        answer = await client.get(
            path, headers=[(b"Host", host_bytes(host)), (b"Authorization", f"Bearer {TOKEN}".encode())]
        )
        check_foreign(answer)


def check_foreign(answer: httpx2.Response) -> None:
    assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin_request")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "set-cookie" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("access-control-")]


async def call_middleware(
    headers: list[tuple[bytes, bytes]], path: str = "/api/x", *, kind: str = "http", query: bytes = b""
) -> list[dict[str, Any]]:
    """Returns what the middleware sends, without an HTTP client that would correct the headers."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "accepted", "caller": scope.get(CALLER_SCOPE_KEY)})

    scope = {"type": kind, "method": "GET", "path": path, "query_string": query, "headers": headers}
    await LocalAuthMiddleware(app, token=TOKEN)(scope, receive, send)
    return sent


AUTHORIZED = (b"authorization", f"Bearer {TOKEN}".encode())


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        [b"localhost", b"localhost"],
        [b"localhost", b"evil.example"],
        [b"evil.example", b"localhost"],
        [b"localhost:8765", b"localhost:8766"],
    ],
)
async def test_a_request_has_exactly_one_host(hosts: list[bytes]):
    [start, *_] = await call_middleware([AUTHORIZED, *((b"host", host) for host in hosts)])
    assert start["status"] == 403
    [accepted] = await call_middleware([AUTHORIZED, (b"host", b"localhost")])
    assert accepted["type"] == "accepted"


@pytest.mark.parametrize(
    "name", ["X-Forwarded-Host", "X-Host", "X-Forwarded-Server", "X-HTTP-Host-Override", "Forwarded"]
)
async def test_what_a_proxy_would_say_of_the_host_counts_for_nothing(client: httpx2.AsyncClient, name: str):
    foreign = await client.get("/api/x", headers={"Host": "evil.example", name: "localhost", **bearer_header(TOKEN)})
    assert foreign.status_code == 403


@given(st.text())
async def test_of_all_texts_only_these_names_are_ours(host: str):
    answer = await call_middleware([AUTHORIZED, (b"host", host.encode(errors="replace"))])
    ours = host.lower().partition(":")[0] in ("localhost", "127.0.0.1") or host.startswith("[::1]")
    assert ours or answer[0]["status"] == 403


# origins

FOREIGN_ORIGINS = [
    "",
    "null",
    "NULL",
    "*",
    "http://evil.example",
    "https://evil.example",
    "http://evil.example:8765",
    f"https://127.0.0.1:{PORT}",
    "http://127.0.0.1",
    "http://127.0.0.1:3000",
    "http://127.0.0.1:80",
    f"http://localhost:{PORT}",
    f"http://[::1]:{PORT}",
    f"http://127.0.0.1:{PORT}.evil.example",
    f"http://127.0.0.1.evil.example:{PORT}",
    f"http://evil.example/127.0.0.1:{PORT}",
    f"http://127.0.0.1:{PORT}@evil.example",
    f"http://evil.example#127.0.0.1:{PORT}",
    f"http://127.0.0.1:{PORT}/",
    f"http://127.0.0.1:{PORT}/page",
    f"http://127.0.0.1:{PORT} http://evil.example",
    f"http://127.0.0.1:{PORT}, http://evil.example",
    f"//127.0.0.1:{PORT}",
    f"127.0.0.1:{PORT}",
    f"http:127.0.0.1:{PORT}",
    f"http://127.0.0.1:0{PORT}",
    f"ws://127.0.0.1:{PORT}",
    "file://",
    "chrome-extension://abcdefghijklmnop",
    "moz-extension://abcdefghijklmnop",
    "app://obsidian.md",
    "data:text/html,x",
    f"http://127.0.0.1:{PORT}\x00",
]

METHODS = ["GET", "POST", "DELETE", "OPTIONS"]


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
async def test_a_page_of_another_origin_is_refused_whatever_it_brings(client: httpx2.AsyncClient, origin: str):
    for method in METHODS:
        for credentials in ({"Cookie": COOKIE}, bearer_header(TOKEN)):
            headers = {"Origin": origin.encode(), **credentials}
            check_foreign(await client.request(method, "/api/x", headers=headers))
    check_foreign(await client.get("/", params={"token": TOKEN}, headers={"Origin": origin.encode()}))


@pytest.mark.parametrize("host", OWN_HOSTS)
async def test_our_own_page_may_ask_under_each_of_our_names(client: httpx2.AsyncClient, host: str):
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin", "Cookie": COOKIE}
    for method in METHODS:
        assert (await client.request(method, "/api/x", headers=headers)).json() == LOCAL_IDENTITY


async def test_one_foreign_origin_among_several_is_enough():
    ours, theirs = (b"origin", b"http://localhost"), (b"origin", b"http://evil.example")
    for origins in ([ours, theirs], [theirs, ours]):
        [start, *_] = await call_middleware([AUTHORIZED, (b"host", b"localhost"), *origins])
        assert start["status"] == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "", "same-origin, cross-site", "anything"])
@pytest.mark.parametrize("mode", ["navigate", "no-cors", "cors", "websocket"])
async def test_what_a_browser_calls_foreign_is_refused(client: httpx2.AsyncClient, site: str, mode: str):
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Cookie": COOKIE}
    check_foreign(await client.get("/api/x", headers=headers))
    check_foreign(await client.get("/", params={"token": TOKEN}, headers=headers))


async def test_a_preflight_is_refused(client: httpx2.AsyncClient):
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    check_foreign(await client.options("/api/x", headers=headers))


async def test_websockets_are_closed_before_they_open():
    for path in ("/", "/api/x"):
        headers = [AUTHORIZED, (b"host", b"localhost")]
        assert await call_middleware(headers, path, kind="websocket") == [{"type": "websocket.close", "code": 1008}]


# the token


async def test_the_token_becomes_a_cookie_and_leaves_the_address(client: httpx2.AsyncClient):
    answer = await client.get("/", params={"token": TOKEN, "conversation": "a&b=/ü", "token ": "x"})
    assert answer.status_code == 303
    assert TOKEN not in answer.headers["location"]
    assert httpx2.QueryParams(answer.headers["location"].partition("?")[2]) == httpx2.QueryParams(
        {"conversation": "a&b=/ü", "token ": "x"}
    )
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert name == COOKIE
    assert {each.lower() for each in attributes} == {"httponly", "path=/", "samesite=strict"}
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert (await client.get("/api/x")).json() == LOCAL_IDENTITY


async def test_the_address_that_is_printed_leads_in(client: httpx2.AsyncClient):
    client.base_url = ""
    answer = await client.get(server_url("127.0.0.1", PORT, TOKEN), follow_redirects=True)
    assert (answer.status_code, answer.json()) == (200, LOCAL_IDENTITY)
    assert str(answer.url) == f"{BASE_URL}/"
    assert server_url("::1", 80) == "http://[::1]:80/"


@pytest.mark.parametrize("next_", ["//evil.example", "/\\evil.example", "https://evil.example"])
async def test_logging_in_leads_to_our_own_page_alone(client: httpx2.AsyncClient, next_: str):
    answer = await client.get("/", params={"token": TOKEN, "next": next_})
    assert answer.headers["location"].startswith("/?next=")
    [start, *_] = await call_middleware([(b"host", b"localhost")], path=next_, query=f"token={TOKEN}".encode())
    assert start["status"] == 401


@pytest.mark.parametrize(
    "wrong", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), " " + TOKEN, TOKEN + "\x00", "\u00e9" * 20, "x" * 50_000]
)
async def test_another_token_opens_nothing(client: httpx2.AsyncClient, wrong: str):
    answers = [
        await client.get("/", params={"token": wrong}),
        await client.get("/api/x", headers=[(b"Authorization", f"Bearer {wrong}.".encode())]),
        await client.get("/api/x", headers=[(b"api-key", f"{wrong}.".encode())]),
        await client.get("/api/x", headers=[(b"Cookie", f"quire-{PORT}={wrong}.".encode())]),
        await client.get("/api/x", params={"token": TOKEN}),
        await client.post("/", params={"token": TOKEN}),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "set-cookie" not in answer.headers


async def test_a_person_with_an_outdated_address_gets_a_page_and_a_program_gets_json(client: httpx2.AsyncClient):
    visit = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for params in ({"token": "outdated"}, {}):
        page = await client.get("/", params=params, headers=visit)
        assert (page.status_code, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert "<code>quire serve --open</code>" in page.text
        assert "`" not in page.text
        assert "set-cookie" not in page.headers
        assert "default-src 'none'" in page.headers["content-security-policy"]
    for answer in (await client.get("/", params={"token": "outdated"}), await client.get("/api/x", headers=visit)):
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"


async def test_the_token_leaves_the_other_headers_to_the_client_if_it_has_its_own(client: httpx2.AsyncClient):
    own = {"Authorization": "Bearer sk-own", "x-api-key": "sk-other"}
    assert (await client.get("/api/x", headers=own)).status_code == 401
    assert (await client.get("/api/x", headers={**own, "X-Quire-Key": TOKEN})).json() == LOCAL_IDENTITY
    assert (await client.get("/api/x", headers={"X-Quire-Key": "x", **bearer_header(TOKEN)})).status_code == 401


async def test_the_first_of_two_tokens_in_the_address_counts(client: httpx2.AsyncClient):
    assert (await client.get(f"/?token=x&token={TOKEN}")).status_code == 401
    twice = await client.get(f"/?token={TOKEN}&token={TOKEN}")
    assert (twice.status_code, twice.headers["location"]) == (303, "/")


@pytest.mark.parametrize(
    ("cookie", "status"),
    [
        (COOKIE, 200),
        (f"a=b; {COOKIE};c", 200),
        (f"quire-{PORT}=old; {COOKIE}", 200),
        (f"quire-1={TOKEN}", 401),
        (f"Quire-{PORT}={TOKEN}", 401),
        (f"xquire-{PORT}={TOKEN}", 401),
        (f'quire-{PORT}="{TOKEN}"', 401),
        (f"quire-{PORT}", 401),
        (f"quire-{PORT}=", 401),
        (";;=;", 401),
    ],
)
async def test_the_cookie_is_the_one_of_this_port(client: httpx2.AsyncClient, cookie: str, status: int):
    assert (await client.get("/api/x", headers={"Cookie": cookie})).status_code == status


async def test_tokens_are_compared_in_constant_time(client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    compared: list[tuple[bytes, bytes]] = []

    class RecordingHmac:
        @staticmethod
        def compare_digest(candidate: bytes, token: bytes) -> bool:
            compared.append((candidate, token))
            return False

    monkeypatch.setattr(auth, "hmac", RecordingHmac)
    await client.get("/api/x", headers={**bearer_header("a"), "Cookie": f"quire-{PORT}=b"})
    await client.get("/", params={"token": TOKEN})
    assert compared == [(candidate, TOKEN.encode()) for candidate in (b"a", b"b", TOKEN.encode())]


async def test_health_needs_no_token_but_is_refused_to_other_sites(client: httpx2.AsyncClient):
    for path in ("/healthz", "/readyz"):
        assert (await client.get(path)).json() == {}
        assert (await client.get(f"{path}/x")).status_code == 401
    check_foreign(await client.get("/healthz", headers={"Sec-Fetch-Site": "cross-site"}))


def test_every_server_has_a_token_of_its_own():
    assert len({generate_token() for _ in range(100)}) == 100
    assert all(len(generate_token()) == 43 for _ in range(10))
    with pytest.raises(InvalidConfiguration):
        LocalAuthMiddleware(make_app(), token="")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_it_listens_on_this_machine(host: str):
    assert check_loopback(host) == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "quire.example", "127.0.0.1.example", "*"])
def test_it_listens_nowhere_else(host: str):
    with pytest.raises(InvalidConfiguration, match="quire key create"):
        check_loopback(host)


# the whole server


@pytest.fixture
async def server_client(store: SqlStore) -> AsyncIterator[httpx2.AsyncClient]:
    async with UpstreamClient() as upstream:
        app = create_app(ServerState(store, Settings(), http_client=upstream, is_local=True), token=TOKEN)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=BASE_URL) as client:
            yield client


async def test_the_token_does_what_a_key_with_every_scope_does(server_client: httpx2.AsyncClient, store: SqlStore):
    created = await server_client.post("/api/conversations", json={"title": "mine"}, headers=bearer_header(TOKEN))
    assert created.status_code == 201
    assert (await store.get_conversation(created.json()["id"])).title == "mine"
    assert (await server_client.get("/api/keys", headers={"Cookie": COOKIE})).status_code == 200
    assert "ratelimit" not in created.headers


async def test_a_key_opens_a_local_server_too_as_far_as_it_reaches(server_client: httpx2.AsyncClient, store: SqlStore):
    _, text = await store.keys.create("script", ["read"])
    assert (await server_client.get("/api/conversations", headers=bearer_header(text))).status_code == 200
    assert (await server_client.post("/api/conversations", json={}, headers=bearer_header(text))).status_code == 403
    assert (await server_client.get("/api/conversations", headers=bearer_header(text[:-1]))).status_code == 401
    check_foreign(
        await server_client.get("/api/conversations", headers={"Host": "evil.example", **bearer_header(text)})
    )


async def test_nothing_but_health_answers_without_the_token(server_client: httpx2.AsyncClient):
    for path in ("/", "/api/conversations", "/api/openapi.json", "/v1/models", "/metrics", "/index.html", "/no/such"):
        assert (await server_client.get(path)).status_code == 401, path
