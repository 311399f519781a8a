"""A server to which people sign in, with a real identity provider, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from fastapi import FastAPI
from server_helpers import ScriptedAgent, serve_app

from infra.oidc_provider import CLIENT_SECRET, OidcProvider, find_free_port, sign_in_by_forms
from quire.server.app import create_app
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore

TENANT = "harbour"
GROUPS = {
    "crew": {"tenant": TENANT, "role": "member"},
    "captains": {"tenant": TENANT, "role": "owner"},
    "inspectors": {"tenant": TENANT, "role": "auditor"},
    "engineers": {"tenant": TENANT, "role": "operator"},
    "pilots": {"tenant": "lighthouse", "role": "member"},
}
PEOPLE = {
    "ann": ["crew"],
    "ben": ["crew"],
    "cora": ["captains"],
    "ida": ["inspectors"],
    "otto": ["engineers"],
    "pia": ["pilots"],
    "nemo": ["strangers"],
}
"""Groups of the people at the provider."""


@dataclass
class TeamServer:
    url: str
    app: FastAPI
    state: ServerState

    @asynccontextmanager
    async def open_browser(
        self, name: str | None = None, *, path: str = "/auth/login"
    ) -> AsyncIterator[httpx2.AsyncClient]:
        """A browser, signed in under a name if one is given."""
        headers = {"Origin": self.url}
        async with httpx2.AsyncClient(base_url=self.url, timeout=10) as browser:
            if name is not None:
                response = await sign_in_by_forms(browser, f"{self.url}{path}", name)
                assert str(response.url).startswith(self.url), response.text
                assert response.status_code in (200, 404), response.text
                browser.headers.update(headers)
            yield browser


def make_sign_in(url: str, issuer: str, **changes: Any) -> dict[str, Any]:
    return {
        "issuer": issuer,
        "client_id": "quire",
        "client_secret_env": "TEAM_SECRET",
        "url": url,
        "groups": GROUPS,
        **changes,
    }


@asynccontextmanager
async def serve_team(
    store: SqlStore,
    provider: OidcProvider,
    scripted: ScriptedAgent,
    *,
    port: int,
    url: str | None = None,
    **settings: Any,
) -> AsyncIterator[TeamServer]:
    """A server on this port, which people open at this URL; the provider knows it."""
    url = url or f"http://127.0.0.1:{port}"
    sign_in = make_sign_in(url, provider.issuer, **settings.pop("sign_in", {}))
    values = {"model": "gpt-4o", "context_limit": 8_000, "requests_per_minute": None, "sign_in": sign_in} | settings
    async with UpstreamClient() as http_client:
        state = ServerState(
            store,
            Settings.model_validate(values),
            http_client=http_client,
            agent=scripted.agent,
            environ={"TEAM_SECRET": CLIENT_SECRET},
            model_factory=scripted.get_model,
        )
        state.turns.runners = (scripted,)
        store.notifications.subscribe(lambda _: None)
        app = create_app(state)
        async with serve_app(app, port=port) as _:
            yield TeamServer(url, app, state)
        await state.turns.stop_all()
        await state.relay.close()
        await state.wait_for_background()


__all__ = ["find_free_port"]
