"""Who may do what: every route, by every role, on what is one's own, shared, another person's, and another tenant's.

The expected answers come from the table of permissions that the docs print, the routes from the OpenAPI document.
"""

import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from openapi_helpers import Operation, list_operations
from server_helpers import ScriptedAgent, serve_app
from sign_in_helpers import TENANT, make_sign_in
from test_tenant_isolation_routes import BODIES_BY_SCHEMA, QUERIES_BY_SUFFIX

from infra.sizes import IS_FULL_SIZE
from quire.access.permissions import PERMISSIONS, Action, Relation, render_permission_table
from quire.model.people import USER_ROLES, UserRole, make_space
from quire.server import gateway
from quire.server.app import create_app
from quire.server.auth import RequireAction
from quire.server.identity_provider import ProviderTokens
from quire.server.routes import ROUTERS
from quire.server.sign_in import SignedIn
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore

DOCS_PAGE = Path(__file__).parents[2] / "docs" / "sign-in.md"
URL = "http://127.0.0.1:1"
"""The address in the settings, by which requests are checked. No test opens it."""
OTHER_TENANT = "lighthouse"
BODIES = BODIES_BY_SCHEMA | {
    "ReadersBody": {"readers": []},
    "ChangeUserBody": {"disabled": False},
    "CreateKeyBody": {"name": "a key", "scopes": ["read"]},
    "CreateConversationBody": {},
    "ChangeSettingsBody": {"changes": {}},
    "NewBacktest": {"conversations": ["c"], "sample": None},
}
PATH_VALUES = {
    "seq": "1", "call": "call-1", "type": "tool", "name": "guarded", "digest": "0" * 64,
    "memory": "0" * 26, "key": "0" * 26, "backtest": "0" * 26, "response_id": "resp_none", "item": "msg_none",
    "model": "gpt-4o", "path": "embeddings",
}  # fmt: skip
DENIALS = ("do not allow this", "has no such conversation", "has no such person", "needs the scope")
"""In the text of every refusal, in the error format of each API."""
FREE_PATHS = {"/healthz", "/readyz", "/metrics"}
"""Routes without a caller."""


def find_action(operation: Operation) -> Action | None:
    """The action that the operation's route names in its dependencies."""
    routers = (gateway.router, gateway.responses_router, gateway.conversations_router, gateway.gemini_router, *ROUTERS)
    [route] = [
        each
        for router in (*routers, gateway.other_paths_router)
        for each in router.routes
        if isinstance(each, APIRoute)
        and each.path_format == operation.path
        and operation.method.upper() in each.methods
    ]
    found = set[Action]()

    def walk(dependant: Dependant) -> None:
        if isinstance(dependant.call, RequireAction):
            found.add(dependant.call.action)
        for each in dependant.dependencies:
            walk(each)

    walk(route.dependant)
    assert len(found) <= 1, f"{operation} names several actions: {found}"
    return next(iter(found), None)


@dataclass
class People:
    """A team in which every role has a person, each with a conversation `c`, and one person of another tenant."""

    url: str
    app: Any
    store: SqlStore
    ids: dict[str, str]
    cookies: dict[str, str]

    def open(self, name: str) -> httpx2.AsyncClient:
        headers = {"cookie": self.cookies[name], "origin": URL}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=20)

    def space(self, name: str) -> SqlStore:
        return self.store.for_tenant(make_space(OTHER_TENANT if name == "stranger" else TENANT, self.ids[name]))

    async def count_audit(self) -> int:
        return (await self.store.for_tenant(TENANT).audit.get_head()).seq


@pytest.fixture
async def people(store: SqlStore, scripted: ScriptedAgent) -> AsyncIterator[People]:
    scripted.set_script("A reply.", repeat=True)
    values = {
        "model": "gpt-4o",
        "requests_per_minute": None,
        "sign_in": make_sign_in(URL, "http://127.0.0.1:2", client_secret_env=None),
    }
    async with UpstreamClient() as http_client:
        state = ServerState(
            store,
            Settings.model_validate(values),
            http_client=http_client,
            agent=scripted.agent,
            model_factory=scripted.get_model,
        )
        state.turns.runners = (scripted,)
        store.notifications.subscribe(lambda _: None)
        app = create_app(state)
        ids, cookies = dict[str, str](), dict[str, str]()
        roles: dict[str, list[UserRole]] = {role: [role] for role in USER_ROLES} | {"victim": ["member"]}
        for name in (*roles, "stranger"):
            tenant = OTHER_TENANT if name == "stranger" else TENANT
            given: list[UserRole] = roles.get(name, ["member"])
            user = await store.for_tenant(tenant).users.confirm(
                f"subject of {name}", name=name, email=f"{name}@example.org", roles=given
            )
            ids[name] = user.id
            session = await app.state.sign_in._create_session(SignedIn(tenant, user), ProviderTokens(None, None, None))
            cookies[name] = f"quire-session-1={session}"
            space = store.for_tenant(make_space(tenant, user.id))
            await space.create_conversation("c", title=f"title of {name}")
            await space.append("c", *[scripted_message(name)])
        async with serve_app(app) as url:
            yield People(url, app, store, ids, cookies)
        await state.turns.stop_all()
        await state.relay.close()
        await state.wait_for_background()


def scripted_message(name: str) -> Any:
    from quire.model import Message

    return Message.user(f"The gannet of {name} dives.")


async def call(
    client: httpx2.AsyncClient, operation: Operation, *, conversation: str, user: str | None, id: str
) -> tuple[int, str]:
    """Status and error text of an operation."""
    values = PATH_VALUES | {"conversation": conversation, "id": id}
    path = re.sub(r"{(\w+)(:path)?}", lambda match: values[match[1]], operation.path)
    query: dict[str, Any] = dict(QUERIES_BY_SUFFIX.get(operation.path.rpartition("/")[2], {}))
    query |= {"user": user} if user is not None else {}
    body = BODIES.get(operation.body, {}) if operation.body is not None else None
    async with client.stream(operation.method, path, params=query, json=body) as response:
        if response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream"):
            return 200, ""
        await response.aread()
    return response.status_code, response.text if response.status_code >= 400 else ""


def test_every_route_names_its_action():
    actions = {str(each): find_action(each) for each in list_operations() if each.path not in FREE_PATHS}
    assert [name for name, action in actions.items() if action is None] == []
    # `approve` is part of a route that calls models, and asked for there. test_scim.py has the routes of SCIM.
    assert set(PERMISSIONS) - set(actions.values()) == {"approve", "read_directory", "provision"}


CELL_STEP = 1 if IS_FULL_SIZE else 7
"""In CI every seventh cell: each role and each relation, on other routes."""


async def test_each_route_answers_by_the_table(people: People):
    """Each cell: is the request let in as the table says, and does it leave exactly the entry that it must?"""
    operations = [each for each in list_operations() if each.path not in FREE_PATHS]
    cells = 0
    for operation in operations:
        action = find_action(operation)
        assert action is not None
        permission = PERMISSIONS[action]
        for role in USER_ROLES:
            async with people.open(role) as client:
                for place in ("own", "shared", "other", "other tenant"):
                    cells += 1
                    if cells % CELL_STEP:
                        continue
                    owner = {"own": role, "other tenant": "stranger"}.get(place, "victim")
                    is_about_one = "conversation" in operation.path_parameters
                    relation: Relation = "own" if place == "own" else "shared" if place == "shared" else "other"
                    if not is_about_one and relation == "shared":
                        relation = "other"
                    conversation = f"{action}-{role}-{place}".replace(" ", "-")
                    if is_about_one:
                        await create_again(people, owner, conversation)
                        if place == "shared":
                            shares = people.store.for_tenant(TENANT).shares
                            await shares.set_readers(people.ids["victim"], conversation, [people.ids[role]])
                    before = await people.count_audit()
                    user = None if place == "own" else people.ids[owner]
                    status, text = await call(
                        client, operation, conversation=conversation, user=user, id=people.ids["victim"]
                    )
                    cell = f"{operation} by {role} on {place}: {status} {text}"
                    is_let_in = status != 401 and not any(each in text for each in DENIALS)
                    if place == "other tenant":
                        assert status == 404, cell
                        assert "has no such person" in text, cell
                        assert await people.count_audit() == before, cell
                        continue
                    assert is_let_in == permission.allows(frozenset({role}), relation), cell
                    entries = await people.store.for_tenant(TENANT).audit.list(after=before)
                    expected = [(people.ids[role], action, is_let_in)] if relation in permission.audited else []
                    assert [(each.actor, each.action, each.allowed) for each in entries] == expected, cell
    assert cells == len(operations) * len(USER_ROLES) * 4
    assert cells > 1_000
    assert await people.store.for_tenant(TENANT).audit.verify() == []


async def test_of_random_operations_each_leaves_the_traces_that_it_must(people: People):
    """Whatever people do, in any order: one entry for each audited action, none for others, in an unbroken chain."""
    random, operations = Random(7), [each for each in list_operations() if each.path not in FREE_PATHS]
    trail = people.store.for_tenant(TENANT).audit
    expected = list[tuple[str, str]]()
    for number in range(1_000 if IS_FULL_SIZE else 60):
        operation, role = random.choice(operations), random.choice(USER_ROLES)
        owner = random.choice([role, "victim", "victim", random.choice(USER_ROLES)])
        conversation = f"random-{number}"
        await create_again(people, owner, conversation)
        is_shared = random.random() < 0.3 and owner != role and "conversation" in operation.path_parameters
        if is_shared:
            await people.store.for_tenant(TENANT).shares.set_readers(people.ids[owner], conversation, ["*"])
        async with people.open(role) as client:
            user = people.ids[owner] if owner != role or random.random() < 0.5 else None
            await call(client, operation, conversation=conversation, user=user, id=people.ids["victim"])
        relation: Relation = "own" if owner == role else "shared" if is_shared else "other"
        action = find_action(operation)
        assert action is not None
        if relation in PERMISSIONS[action].audited:
            expected.append((people.ids[role], action))
    entries = await trail.list(limit=2_000)
    assert [(each.actor, each.action) for each in entries] == expected
    assert await trail.verify() == []


async def create_again(people: People, owner: str, conversation: str) -> None:
    from quire.errors import ConversationExists

    space = people.space(owner)
    try:
        await space.create_conversation(conversation)
        await space.append(conversation, scripted_message(owner))
    except ConversationExists:
        pass


def test_the_docs_have_the_table():
    before, _, rest = DOCS_PAGE.read_text().partition("<!-- permissions -->\n")
    _, _, after = rest.partition("<!-- /permissions -->\n")
    text = f"{before}<!-- permissions -->\n{render_permission_table()}\n<!-- /permissions -->\n{after}"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        DOCS_PAGE.write_text(text)
    assert text == DOCS_PAGE.read_text(), "UPDATE_SNAPSHOTS=1 writes the table into the page"
