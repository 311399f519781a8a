"""Attacks on sign-in, sessions, sharing and roles, each with what must come of it.

The provider is real. `ATTACK_PATHS` and the parameters below are the list of attempts.
"""

import json
import re
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from server_helpers import ScriptedAgent, create_key_for
from sign_in_helpers import PEOPLE, TENANT, TeamServer, serve_team

from infra.oidc_provider import OidcProvider, find_free_port, run_provider, sign_in_by_forms
from infra.token_issuer import FOREIGN_KEY, TokenIssuer, run_token_issuer
from quire.model import Message
from quire.model.people import make_space
from quire.store import SqlStore
from quire.team.sign_in import check_return_path
from quire.team.store import TeamStore

SECRET_WORD = "gannet"


@pytest.fixture(scope="module")
def port() -> int:
    return find_free_port()


@pytest.fixture(scope="module")
def provider(port: int) -> Iterator[OidcProvider]:
    with run_provider(f"http://127.0.0.1:{port}/auth/callback") as provider:
        provider.command(groups=PEOPLE)
        yield provider


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenIssuer]:
    with run_token_issuer() as issuer:
        yield issuer


@pytest.fixture
async def team(
    store: SqlStore, provider: OidcProvider, scripted: ScriptedAgent, port: int, issuer: TokenIssuer
) -> AsyncIterator[TeamServer]:
    workloads = {issuer.url: {"audience": "quire-workloads", "subjects": {"ci:*": TENANT}}}
    async with serve_team(store, provider, scripted, port=port, sign_in={"workloads": workloads}) as team:
        yield team


def cookie_name(team: TeamServer, name: str) -> str:
    return f"quire-{name}-{team.url.rpartition(':')[2]}"


def read_cookie(browser: httpx2.AsyncClient, team: TeamServer, name: str = "session") -> str:
    return next(each.value or "" for each in browser.cookies.jar if each.name == cookie_name(team, name))


def make_pending(secret: str, return_to: str = "/", tenant: str | None = None) -> str:
    return urlsafe_b64encode(json.dumps([secret, return_to, tenant]).encode()).decode()


OPEN_REDIRECTS = [
    "https://evil.example", "//evil.example", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)", "evil",
    "", "/\t/evil.example", "/\n/evil.example", "///evil.example", "/auth/logout", "/auth/login", "/auth/callback",
    "http:evil.example", "/\u2028/evil", "/" + "a" * 2_000, None, 7, "/\0/evil",
]  # fmt: skip


@pytest.mark.parametrize("path", OPEN_REDIRECTS)
def test_a_sign_in_never_ends_on_another_site(path: Any):
    assert check_return_path(path) == "/"


@pytest.mark.parametrize("path", ["/", "/?conversation=c", "/shared/c?user=x", "/auth/account"])
def test_a_sign_in_returns_to_where_it_began(path: str):
    assert check_return_path(path) == path


async def test_a_forged_answer_of_the_provider_signs_nobody_in(team: TeamServer, provider: OidcProvider):
    async with httpx2.AsyncClient(base_url=team.url) as browser:
        start = await browser.get("/auth/login")
        state = parse_qs(urlsplit(start.headers["location"]).query)["state"][0]
        answers: dict[str, dict[str, str]] = {
            "nothing": {},
            "no state": {"code": "x"},
            "another state": {"code": "x", "state": "y"},
            "empty state": {"code": "x", "state": ""},
            "no code": {"state": state},
            "invented code": {"code": "x", "state": state},
            "another provider": {"code": "x", "state": state, "iss": "https://evil.example"},
            "refused": {"error": "access_denied", "state": state},
            "script in the reason": {"error": "x", "error_description": "<script>alert(1)</script>", "state": state},
        }
        for name, query in answers.items():
            refused = await browser.get("/auth/callback", params=query)
            assert refused.status_code == 403, name
            assert "<script>" not in refused.text, name
            assert cookie_name(team, "session") not in refused.headers.get("set-cookie", ""), name
        assert (await browser.get("/api/conversations")).status_code == 401


async def test_an_answer_counts_once_and_only_in_the_browser_that_asked(team: TeamServer):
    """Login CSRF, replayed codes, and a code that was stolen from another browser."""
    async with httpx2.AsyncClient(base_url=team.url) as ann, httpx2.AsyncClient(base_url=team.url) as victim:
        start = (await ann.get("/auth/login")).headers["location"]
        answer = await follow_to_callback(ann, start, "ann", team)
        # Without the cookie of the start, and with the cookie of another start.
        assert (await victim.get(answer)).status_code == 403
        await victim.get("/auth/login")
        assert (await victim.get(answer)).status_code == 403
        pending = read_cookie(ann, team, "pending")
        assert (await ann.get(answer)).status_code == 303
        # A second use, even with the cookie of the start.
        replayed = await victim.get(answer, headers={"cookie": f"{cookie_name(team, 'pending')}={pending}"})
        assert replayed.status_code == 403
        for client in (victim,):
            assert (await client.get("/api/conversations")).status_code == 401


async def follow_to_callback(browser: httpx2.AsyncClient, url: str, name: str, team: TeamServer) -> str:
    """Signs in at the provider, and stops before the callback; returns its address."""
    callbacks = list[str]()

    async def stop(request: httpx2.Request) -> None:
        if request.url.path == "/auth/callback":
            callbacks.append(str(request.url))
            raise httpx2.TooManyRedirects("stopped", request=request)

    browser.event_hooks["request"].append(stop)
    with pytest.raises(httpx2.TooManyRedirects):
        await sign_in_by_forms(browser, url, name)
    browser.event_hooks["request"].clear()
    return callbacks[0]


async def test_a_session_is_new_at_each_sign_in_and_none_can_be_planted(team: TeamServer):
    async with httpx2.AsyncClient(base_url=team.url) as browser:
        browser.cookies.set(cookie_name(team, "session"), "planted.secret", domain="127.0.0.1")
        await sign_in_by_forms(browser, f"{team.url}/auth/login", "ann")
        values = [each.value for each in browser.cookies.jar if each.name == cookie_name(team, "session")]
        assert any(each != "planted.secret" for each in values)
        own = next(each for each in values if each != "planted.secret")
        forged = ["planted.secret", "", ".", "x", own + "x", own[:-1], own.replace(".", "", 1), own.swapcase()]
        tenant, _, secret = own.partition(".")
        elsewhere = urlsafe_b64encode(b"lighthouse").decode().rstrip("=")
        forged += [f"{elsewhere}.{secret}", f"{tenant}.{secret}.{secret}", f"{tenant}.", f".{secret}", "%00.%00", "é.x"]
    for value in forged:
        headers = {"cookie": f"{cookie_name(team, 'session')}={value}".encode()}
        async with httpx2.AsyncClient(base_url=team.url) as client:
            assert (await client.get("/api/conversations", headers=headers)).status_code == 401, value
    # Twice: one of them is not ours.
    doubled = {"cookie": f"{cookie_name(team, 'session')}={own}; {cookie_name(team, 'session')}=x"}
    async with httpx2.AsyncClient(base_url=team.url) as client:
        assert (await client.get("/api/conversations", headers=doubled)).status_code == 401
        assert (
            await client.get(
                "/api/conversations",
                headers={"cookie": doubled["cookie"][: -len(f"; {cookie_name(team, 'session')}=x")]},
            )
        ).status_code == 200


CROSS_SITE_HEADERS: list[dict[str, str]] = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1"},
    {"origin": "http://localhost"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    {"origin": "https://evil.example", "sec-fetch-site": "same-origin"},
    {},
]
WRITES = [
    ("POST", "/api/conversations"),
    ("DELETE", "/api/conversations/c"),
    ("POST", "/api/keys"),
    ("PUT", "/api/conversations/c/readers"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/auth/logout"),
    ("POST", "/mcp"),
]


async def test_pages_of_other_sites_cannot_use_a_session(team: TeamServer):
    async with team.open_browser("ann") as ann:
        del ann.headers["origin"]
        for method, path in WRITES:
            for headers in CROSS_SITE_HEADERS:
                refused = await ann.request(method, path, json={}, headers=headers)
                assert refused.status_code in (403, 421), f"{method} {path} {headers}: {refused.status_code}"
        # Reads too, unless the person follows a link.
        assert (await ann.get("/api/conversations", headers={"sec-fetch-site": "cross-site"})).status_code == 403
        assert (await ann.get("/api/conversations")).status_code == 200


SETTING_CHANGES: list[dict[str, Any]] = [
    {"encryption": {"tenants": ["nobody"], "key_env": "HOME"}},
    {"encryption": {"key_command": ["sh", "-c", "true"]}},
    {"encryption": None},
    {"tenant_masking": {}},
    {"sign_in": None},
    {"sign_in": {"groups": {"*": {"tenant": TENANT, "role": "owner"}}}},
    {"database_url": "sqlite:///elsewhere.db"},
    {"agent": "/etc/passwd"},
    {"trusted_tenants": [TENANT]},
    {"model": "another"},
]


async def test_no_role_and_no_key_reaches_keys_masking_or_sign_in_by_the_settings(team: TeamServer, store: SqlStore):
    before = team.state.settings
    key = await create_key_for(store, TENANT)
    async with team.open_browser("otto") as otto, team.open_browser("cora") as cora:
        program = {"Authorization": f"Bearer {key}"}
        async with httpx2.AsyncClient(base_url=team.url, headers=program) as client:
            for caller in (otto, cora, client):
                for changes in SETTING_CHANGES:
                    refused = await caller.patch("/api/settings", json={"changes": changes})
                    assert refused.status_code == 403, changes
                    preview = {"conversation": "c", "changes": changes}
                    answer = await caller.post("/api/settings/preview", json=preview)
                    assert answer.status_code in (400, 403, 404), changes
        # The page shows settings, and none of these.
        shown = (await cora.get("/api/settings")).text
        assert not any(f'"{name}"' in shown for name in ("encryption", "sign_in", "tenant_masking", "database_url"))
    assert team.state.settings == before


async def test_a_forged_cookie_names_no_tenant_to_the_store(team: TeamServer, monkeypatch: pytest.MonkeyPatch):
    """Without a key and a session, nobody fills what the store remembers of tenants."""
    asked, original = set[str](), SqlStore.for_tenant

    def for_tenant(store: SqlStore, tenant: str, **options: Any) -> SqlStore:
        asked.add(tenant)
        return original(store, tenant, **options)

    monkeypatch.setattr(SqlStore, "for_tenant", for_tenant)
    async with httpx2.AsyncClient(base_url=team.url) as stranger:
        for name in ("forged", "f" * 5_000, "harbour/forged", TENANT):
            session = f"{urlsafe_b64encode(name.encode()).decode().rstrip('=')}.secret"
            for path in ("/", "/api/conversations", "/auth/account", "/shared/c?user=x"):
                answer = await stranger.get(path, headers={"cookie": f"{cookie_name(team, 'session')}={session}"})
                assert answer.status_code in (303, 401)
    assert asked <= {TENANT, "default"}


async def test_another_persons_things_are_out_of_reach_by_every_address(team: TeamServer, store: SqlStore):
    async with team.open_browser("ann") as ann, team.open_browser("ben") as ben, team.open_browser("pia") as pia:
        people = {each.name: each for each in await TeamStore(store.for_tenant(TENANT)).users.list()}
        space = store.for_tenant(make_space(TENANT, people["ann"].id))
        await space.create_conversation("c", title=SECRET_WORD)
        await space.append("c", Message.user(f"The {SECRET_WORD} dives."))
        key = (await ann.post("/api/keys", json={"name": "k", "scopes": ["read", "admin"]})).json()
        by_key = {"Authorization": f"Bearer {key['key']}"}
        paths = ["/api/conversations/c", "/api/conversations/c/entries", "/api/conversations/c/export", "/shared/c"]
        lists = ["/api/conversations", f"/api/search?query={SECRET_WORD}", "/api/stats", "/api/memories", "/api/keys"]
        users = [people["ann"].id, f"{people['ann'].id}/", f"../{people['ann'].id}", "team", "*", "", "%00", TENANT]
        for client, name in ((ben, "ben"), (pia, "pia")):
            for path in (*paths, *lists):
                for user in (None, *users):
                    query = "" if user is None else f"{'&' if '?' in path else '?'}{urlencode({'user': user})}"
                    answer = await client.get(f"{path}{query}")
                    assert SECRET_WORD not in answer.text, f"{name}: {path}{query}"
            for method, path in WRITES[1:4]:
                answer = await client.request(
                    method, f"{path}?user={people['ann'].id}", json={"readers": ["*"], "name": "x", "scopes": ["read"]}
                )
                assert answer.status_code == 404, f"{name}: {method} {path}: {answer.text}"
            # A key of one's own reaches only what is one's own, and takes no orders about others.
            own_key = (await client.post("/api/keys", json={"name": "k", "scopes": ["read", "admin"]})).json()["key"]
            headers = {"Authorization": f"Bearer {own_key}"}
            async with httpx2.AsyncClient(base_url=team.url, headers=headers) as program:
                assert SECRET_WORD not in (await program.get("/api/conversations")).text
                for path in (*paths, "/api/audit", "/api/users"):
                    refused = await program.get(f"{path}?user={people['ann'].id}")
                    assert refused.status_code == 403, f"{path}: {refused.text}"
                assert (await program.get("/api/audit")).status_code == 403
        async with httpx2.AsyncClient(base_url=team.url, headers=by_key) as program:
            assert SECRET_WORD in (await program.get("/api/conversations")).text


async def test_a_shared_conversation_can_be_read_and_nothing_else(team: TeamServer, store: SqlStore):
    async with team.open_browser("ann") as ann, team.open_browser("ben") as ben, team.open_browser("pia") as pia:
        await ann.post("/api/conversations", json={"id": "c", "title": SECRET_WORD})
        await ann.post("/api/conversations/c/messages", json={"messages": [f"The {SECRET_WORD} <b>dives</b>."]})
        await ann.post("/api/conversations", json={"id": "private", "title": "cormorant"})
        shared = await ann.put("/api/conversations/c/readers", json={"readers": ["ben@example.org"]})
        assert shared.status_code == 200, shared.text
        link = shared.json()["link"]
        user = parse_qs(urlsplit(link).query)["user"][0]
        page = await ben.get(link)
        assert f"The {SECRET_WORD} &lt;b&gt;dives&lt;/b&gt;." in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert SECRET_WORD in (await ben.get(f"/api/conversations/c/transcript?user={user}")).text
        assert [each["conversation"] for each in (await ben.get("/api/shared")).json()["items"]] == ["c"]
        assert "c</a> by ann" in (await ben.get("/auth/account")).text
        for path in (
            "/api/conversations/private",
            "/api/conversations/c",
            "/api/conversations",
            "/api/search?query=cormorant",
            "/api/memories",
        ):
            answer = await ben.get(f"{path}{'&' if '?' in path else '?'}user={user}")
            assert answer.status_code == 404, path
        for method, path in (
            ("PATCH", "/api/conversations/c"),
            ("DELETE", "/api/conversations/c"),
            ("POST", "/api/conversations/c/messages"),
            ("POST", "/api/conversations/c/send"),
            ("POST", "/api/conversations/c/pins"),
            ("PUT", "/api/conversations/c/compaction"),
            ("POST", "/api/conversations/c/branches"),
            ("PUT", "/api/conversations/c/readers"),
        ):
            assert (await ben.request(method, f"{path}?user={user}", json={})).status_code == 404, path
        # A link is no key: others are sent to sign in, or see nothing.
        async with httpx2.AsyncClient(base_url=team.url) as stranger:
            sent = await stranger.get(link)
            assert sent.headers["location"].startswith("/auth/login?return_to=%2Fshared%2Fc")
        assert (await pia.get(link)).status_code == 404
        await ann.put("/api/conversations/c/readers", json={"readers": []})
        assert (await ben.get(link)).status_code == 404
        assert (await ann.put("/api/conversations/c/readers", json={"readers": ["pia@example.org"]})).status_code == 404
        reads = [
            each for each in await TeamStore(store.for_tenant(TENANT)).audit.list() if each.action in ("read", "search")
        ]
        assert reads
        assert not any(SECRET_WORD in each.target for each in reads)


async def test_an_erased_conversation_is_not_shared_any_more(team: TeamServer):
    async with team.open_browser("ann") as ann, team.open_browser("ben") as ben:
        await ann.post("/api/conversations", json={"id": "gone"})
        await ann.post("/api/conversations/gone/messages", json={"messages": [f"The {SECRET_WORD} dives."]})
        link = (await ann.put("/api/conversations/gone/readers", json={"readers": ["*"]})).json()["link"]
        assert SECRET_WORD in (await ben.get(link)).text
        assert (await ann.delete("/api/conversations/gone")).status_code == 204
        assert SECRET_WORD not in (await ben.get(link)).text


async def test_a_workload_presents_a_token_of_its_platform(team: TeamServer, issuer: TokenIssuer, store: SqlStore):
    good = {"aud": "quire-workloads", "sub": "ci:build", "nonce": None}
    async with httpx2.AsyncClient(base_url=team.url) as program:

        async def call(token: str, path: str = "/api/conversations", method: str = "GET") -> httpx2.Response:
            headers = {"Authorization": f"Bearer {token}"}
            return await program.request(method, path, headers=headers, json={"id": "w"} if method == "POST" else None)

        assert (await call(issuer.sign(good), method="POST")).status_code == 201
        assert [each.id for each in await store.for_tenant(TENANT).list_conversations()] == ["w"]
        for path in ("/api/keys", "/api/audit", "/api/users"):
            assert (await call(issuer.sign(good), path)).status_code == 403
        bad: dict[str, str] = {
            "another subject": issuer.sign(good | {"sub": "cd:build"}),
            "audience of the sign-in": issuer.sign(good | {"aud": "quire"}),
            "another issuer": issuer.sign(good | {"iss": "https://evil.example"}),
            "expired": issuer.sign(good | {"exp": 1}),
            "foreign key": issuer.sign(good, key=FOREIGN_KEY),
        }
        for name, token in bad.items():
            refused = await call(token)
            assert (refused.status_code, refused.json()["code"]) == (401, "sign_in_required"), name


async def test_tokens_of_people_are_no_api_keys(team: TeamServer, provider: OidcProvider, store: SqlStore):
    """Token confusion: an ID token of the provider, and a key of the tenant itself in place of a session."""
    async with team.open_browser("ann") as ann:
        from quire.team import sign_in as service

        secret = read_cookie(ann, team).rpartition(".")[2]
        session = await TeamStore(store.for_tenant(TENANT)).sessions.find(service._hash_secret(secret))
        assert session is not None
        id_token = service._decrypt_tokens(session.tokens, secret).id_token
        async with httpx2.AsyncClient(base_url=team.url, headers={"Authorization": f"Bearer {id_token}"}) as client:
            assert (await client.get("/api/conversations")).status_code == 401
        # A header with a wrong key is not replaced by the cookie.
        assert (await ann.get("/api/conversations", headers={"x-api-key": "quire_x"})).status_code == 401
    key = await create_key_for(store, TENANT)
    async with httpx2.AsyncClient(base_url=team.url, headers={"Authorization": f"Bearer {key}"}) as client:
        assert (await client.get("/api/conversations")).status_code == 200
        assert (await client.get("/api/audit")).status_code == 200


def test_the_docs_list_the_attempts_and_their_number():
    """Each row of the table names a list of attempts, which it counts."""
    from test_bad_tokens import BAD_TOKENS
    from test_scim import BAD_REQUESTS

    page = (Path(__file__).parents[2] / "docs" / "security-model.md").read_text()
    counted = {
        "open redirect": len(OPEN_REDIRECTS),
        "cross-site request forgery": len(CROSS_SITE_HEADERS) * len(WRITES),
        "bad tokens": len(BAD_TOKENS),
        "settings of encryption, masking and sign-in": 2 * 3 * len(SETTING_CHANGES),
        "malformed SCIM requests": len(BAD_REQUESTS),
    }
    rows = {name: int(number) for name, number in re.findall(r"^\| ([^|]+?) \| (\d+) \|", page, re.MULTILINE)}
    assert {name: rows.get(name) for name in counted} == counted
    assert sum(rows.values()) > 300
