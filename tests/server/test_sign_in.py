"""Sign-in with a real identity provider: code flow, device flow, sessions, refresh, logout, outages, two servers."""

import asyncio
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from server_helpers import ScriptedAgent
from sign_in_helpers import PEOPLE, TENANT, TeamServer, serve_team
from sqlalchemy import select, update

from infra.oidc_provider import OidcProvider, find_free_port, run_provider, sign_in_by_forms
from quire.db.database import TransactionOptions
from quire.db.schema import sessions
from quire.errors import SignInUnavailable
from quire.server.app import create_app
from quire.store import SqlStore
from quire.team import identity_provider, login
from quire.team import sign_in as sign_in_module
from quire.team.identity_provider import ProviderTokens
from quire.team.routes import sign_in as sign_in_routes
from quire.team.store import TeamStore


@pytest.fixture(scope="module")
def port() -> int:
    return find_free_port()


@pytest.fixture(scope="module")
def provider(port: int) -> Iterator[OidcProvider]:
    with run_provider(f"http://127.0.0.1:{port}/auth/callback") as provider:
        provider.command(groups=PEOPLE)
        yield provider


@pytest.fixture
async def team(
    store: SqlStore, provider: OidcProvider, scripted: ScriptedAgent, port: int
) -> AsyncIterator[TeamServer]:
    async with serve_team(store, provider, scripted, port=port) as team:
        yield team


async def test_a_person_signs_in_works_and_signs_out(team: TeamServer, store: SqlStore, provider: OidcProvider):
    async with team.open_browser() as stranger:
        refused = await stranger.get("/api/conversations")
        assert (refused.status_code, refused.json()["code"]) == (401, "sign_in_required")
        sent_away = await stranger.get("/?conversation=c")
        assert sent_away.headers["location"] == "/auth/login?return_to=%2F%3Fconversation%3Dc"
    async with team.open_browser("ann", path="/auth/login?return_to=/auth/account") as ann:
        account = await ann.get("/auth/account")
        assert "ann@example.org, member of harbour" in account.text
        assert (await ann.post("/api/conversations", json={"id": "c"})).status_code == 201
        [user] = await TeamStore(store.for_tenant(TENANT)).users.list()
        assert [each.id for each in await store.for_tenant(f"{TENANT}/{user.id}").list_conversations()] == ["c"]
        session = read_session(ann, team)
        out = await ann.post("/auth/logout")
        assert out.headers["location"].startswith(f"{provider.issuer}/session/end?")
        # The session is gone on the server, not only in this browser.
        assert (await call_with(team, session)).status_code == 401
        confirmed = await sign_in_by_forms(ann, out.headers["location"], "ann")
        assert "You are signed out" in confirmed.text
    trail = [(each.action, each.actor) for each in await TeamStore(store.for_tenant(TENANT)).audit.list()]
    assert trail == [("sign_in", user.id), ("sign_out", user.id)]


def read_session(browser: httpx2.AsyncClient, team: TeamServer) -> str:
    """The session cookie, as the browser sends it."""
    name = f"quire-session-{team.url.rpartition(':')[2]}"
    return next(f"{each.name}={each.value}" for each in browser.cookies.jar if each.name == name)


async def call_with(team: TeamServer, cookie: str, **headers: str) -> httpx2.Response:
    """Reads with this cookie, without the rest of the browser."""
    async with httpx2.AsyncClient(base_url=team.url, headers={"cookie": cookie, **headers}) as client:
        return await client.get("/api/conversations")


async def test_someone_without_a_group_of_the_settings_is_not_let_in(team: TeamServer, store: SqlStore):
    async with team.open_browser() as browser:
        refused = await sign_in_by_forms(browser, f"{team.url}/auth/login", "nemo")
        assert refused.status_code == 403
        assert "None of your groups has access" in refused.text
        assert (await browser.get("/api/conversations")).status_code == 401
    async with team.open_browser() as browser:
        refused = await sign_in_by_forms(browser, f"{team.url}/auth/login?tenant=lighthouse", "ann")
        assert "no access" in refused.text or "has access to the tenant" in refused.text
    assert await TeamStore(store.for_tenant("lighthouse")).users.list() == []


async def test_quire_login_gets_a_key_by_the_device_flow_that_ends_with_the_person(team: TeamServer, store: SqlStore):
    async with httpx2.AsyncClient(base_url=team.url) as terminal, team.open_browser() as browser:
        codes = (await terminal.post("/auth/device")).json()
        poll = {"device_code": codes["device_code"]}
        assert (await terminal.post("/auth/device/key", json=poll)).json()["pending"] is True
        await sign_in_by_forms(browser, codes["verification_uri_complete"], "ann")
        answer = (await terminal.post("/auth/device/key", json=poll)).json()
        assert (answer["email"], answer["tenant"]) == ("ann@example.org", TENANT)
        headers = {"Authorization": f"Bearer {answer['key']}"}
        assert (await terminal.post("/api/conversations", json={"id": "c"}, headers=headers)).status_code == 201
        # The code is used up.
        assert (await terminal.post("/auth/device/key", json=poll)).status_code == 403
        [ann] = await TeamStore(store.for_tenant(TENANT)).users.list()
        await TeamStore(store.for_tenant(TENANT)).users.set_disabled(ann.id, True)
        team.app.state.access._key_roles.clear()
        refused = await terminal.get("/api/conversations", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (401, "invalid_key")


async def test_the_command_waits_for_the_browser_and_prints_the_key(
    team: TeamServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    opened = asyncio.Queue[str]()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(login.webbrowser, "open", lambda url: loop.call_soon_threadsafe(opened.put_nowait, url))
    # The provider wants five seconds between two polls.
    pauses = SimpleNamespace(sleep=lambda _: time.sleep(0.05), monotonic=time.monotonic)
    monkeypatch.setattr(login, "time", pauses)
    command = asyncio.create_task(asyncio.to_thread(login.command, team.url))
    async with team.open_browser() as browser:
        await sign_in_by_forms(browser, await opened.get(), "ben")
        await asyncio.wait_for(command, 20)
    printed = capsys.readouterr()
    assert "Signed in as ben@example.org, tenant harbour." in printed.err
    headers = {"Authorization": f"Bearer {printed.out.strip()}"}
    async with httpx2.AsyncClient(base_url=team.url, headers=headers) as program:
        assert (await program.get("/api/conversations")).status_code == 200
        assert (await program.get("/api/keys")).json()["code"] == "insufficient_scope"


async def test_roles_follow_the_groups_of_the_provider_and_sessions_end_with_them(
    team: TeamServer, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sign_in_module, "REFRESH_SECONDS", 0)
    async with team.open_browser("ann") as ann:
        assert (await ann.get("/api/users")).json()["code"] == "role_required"
        provider.command(groups={"ann": ["captains"]})
        try:
            assert (await ann.get("/api/users")).status_code == 200
            provider.command(groups={"ann": []})
            ended = await ann.get("/api/conversations")
            assert (ended.status_code, ended.json()["code"]) == (401, "sign_in_required")
            assert "None of your groups" in ended.json()["detail"]
        finally:
            provider.command(groups=PEOPLE)
        assert (await ann.get("/api/conversations")).status_code == 401


async def test_who_was_removed_at_the_provider_is_out_at_the_next_refresh(
    team: TeamServer, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch
):
    provider.command(groups={"zoe": ["crew"]})
    async with team.open_browser("zoe") as zoe:
        assert (await zoe.get("/api/conversations")).status_code == 200
        monkeypatch.setattr(sign_in_module, "REFRESH_SECONDS", 0)
        await expire_refresh(team)
        provider.command(block="zoe")
        ended = await zoe.get("/api/conversations")
        assert (ended.status_code, ended.json()["code"]) == (401, "sign_in_required")


async def test_a_session_that_the_provider_cannot_confirm_ends_after_fifteen_minutes(
    team: TeamServer, monkeypatch: pytest.MonkeyPatch
):
    """Without a refresh token, the provider is asked by another sign-in."""
    encrypt = sign_in_module._encrypt_tokens
    monkeypatch.setattr(
        sign_in_module, "_encrypt_tokens", lambda tokens, secret: encrypt(tokens._replace(refresh_token=None), secret)
    )
    async with team.open_browser("ann") as ann:
        assert (await ann.get("/api/conversations")).status_code == 200
        await expire_refresh(team)
        ended = await ann.get("/api/conversations")
        assert (ended.status_code, ended.json()["code"]) == (401, "sign_in_required")
        # The page leads to the provider, which confirms the person without a question.
        assert (await ann.get("/")).headers["location"].startswith("/auth/login")


async def test_a_refresh_without_an_id_token_reads_the_groups_elsewhere(
    team: TeamServer, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch
):
    service = team.app.state.access.sign_in.provider
    refresh = service.refresh

    async def refresh_without_id_token(token: str) -> ProviderTokens:
        return (await refresh(token))._replace(id_token=None)

    monkeypatch.setattr(service, "refresh", refresh_without_id_token)
    async with team.open_browser("ann") as ann:
        provider.command(groups={"ann": []})
        try:
            await expire_refresh(team)
            assert (await ann.get("/api/conversations")).status_code == 401
        finally:
            provider.command(groups=PEOPLE)


@pytest.mark.parametrize("path", ["/auth/device", "/auth/device/key", "/auth/callback"])
async def test_who_is_not_signed_in_cannot_flood_the_provider(
    path: str, team: TeamServer, monkeypatch: pytest.MonkeyPatch
):
    asked = 0

    async def count(*_: Any, **__: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        raise SignInUnavailable("not asked in this test")

    monkeypatch.setattr(team.app.state.access.sign_in.provider, "_post", count)
    monkeypatch.setattr(sign_in_routes, "PROVIDER_CALLS_PER_MINUTE", 5, raising=False)
    pending = urlsafe_b64encode(json.dumps(["secret", "/", None]).encode()).decode()
    state = sign_in_module._derive("secret", "state")
    async with team.open_browser() as stranger:
        cookie = {"cookie": f"{team.app.state.access.sign_in._cookie_format.format('pending')}={pending}"}
        for _ in range(10):
            if path == "/auth/callback":
                last = await stranger.get(path, params={"state": state, "code": "x"}, headers=cookie)
            else:
                last = await stranger.post(path, json={"device_code": "x"})
    assert asked == 5
    assert last.status_code == 429
    assert int(last.headers["retry-after"]) > 0


async def expire_refresh(team: TeamServer) -> None:
    """Makes the refresh of all sessions due."""
    await team.state.store.base.database.write(
        lambda connection: connection.execute(update(sessions).values(refresh_at=0)), TransactionOptions(TENANT)
    )


async def test_while_the_provider_is_down_people_go_on_and_new_ones_are_told(team: TeamServer, provider: OidcProvider):
    async with team.open_browser("ann") as ann, team.open_browser() as ben:
        provider.command(down=True)
        try:
            await expire_refresh(team)
            assert (await ann.get("/api/conversations")).status_code == 200
            team.app.state.access.sign_in.provider._issuers[provider.issuer]._fetched = None
            told = await ben.get("/auth/login", follow_redirects=True)
            assert told.status_code == 503
            assert "Sign-in is not possible at the moment" in told.text
        finally:
            provider.command(down=False)
        assert (await sign_in_by_forms(ben, f"{team.url}/auth/login", "ben")).url.host == "127.0.0.1"
        assert (await ben.get("/api/conversations")).status_code == 200


async def test_new_keys_of_the_provider_are_fetched_when_a_token_needs_them(
    team: TeamServer, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch
):
    async with team.open_browser("ann"):
        pass
    provider.command(rotate=True)
    # Anyone can send tokens with unknown keys, so the keys are not fetched again at once.
    async with team.open_browser() as early:
        refused = await sign_in_by_forms(early, f"{team.url}/auth/login", "ann")
        assert "none of its issuer" in refused.text
    monkeypatch.setattr(identity_provider, "KEY_REFETCH_SECONDS", 0)
    async with team.open_browser("ann") as ann:
        assert (await ann.get("/api/conversations")).status_code == 200


@pytest.mark.every_database
async def test_a_session_counts_on_every_server_and_ends_on_all_at_once(
    team: TeamServer, store: SqlStore, scripted: ScriptedAgent
):
    second = create_app(team.state)
    transport = httpx2.ASGITransport(second)
    async with team.open_browser("ann") as ann, team.open_browser("cora") as cora:
        headers = {"cookie": read_session(ann, team)}
        async with httpx2.AsyncClient(transport=transport, base_url=team.url, headers=headers) as other_node:
            assert (await other_node.get("/api/conversations")).status_code == 200
            [found] = [each for each in (await cora.get("/api/users")).json()["items"] if each["name"] == "ann"]
            disabled = await cora.patch(f"/api/users/{found['id']}", json={"disabled": True})
            assert disabled.json()["disabled_at"] is not None
            assert (await other_node.get("/api/conversations")).status_code == 401
            assert (await ann.get("/api/conversations")).status_code == 401
    async with team.open_browser() as browser:
        refused = await sign_in_by_forms(browser, f"{team.url}/auth/login", "ann")
        assert "has disabled this account" in refused.text


async def test_the_database_has_nothing_with_which_to_act_as_a_person(team: TeamServer, store: SqlStore):
    async with team.open_browser("ann") as ann:
        secret = read_session(ann, team).rpartition(".")[2]
        rows = await store.base.database.read(
            lambda connection: [dict(row) for row in connection.execute(select(sessions)).mappings()],
            TransactionOptions(TENANT),
        )
    [row] = rows
    stored = repr(row)
    assert secret not in stored
    # The provider's tokens are JSON Web Tokens, or long random texts; both are in the encrypted column only.
    tokens = sign_in_module._decrypt_tokens(row["tokens"], secret)
    assert tokens.id_token is not None
    assert tokens.id_token not in stored
    assert tokens.refresh_token not in stored
    assert sign_in_module._decrypt_tokens(row["tokens"], "another").refresh_token is None
