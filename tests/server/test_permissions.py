"""Who may do what: every route, by every role and credential, on what is one's own, shared, another's, and elsewhere.

The expected answers come from the table of permissions that the docs print, the routes from the OpenAPI document and
from the routes of SCIM.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
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
from sqlalchemy import update
from test_tenant_isolation_routes import BODIES_BY_SCHEMA, QUERIES_BY_SUFFIX

from infra.sizes import IS_FULL_SIZE
from infra.token_issuer import TokenIssuer, run_token_issuer
from quire.access.keys import KEY_SCOPES, KeyScope
from quire.db.database import TransactionOptions
from quire.db.schema import sessions
from quire.model import Message, ThinkingPart, ToolCallPart
from quire.model.ids import now
from quire.model.people import USER_ROLES, UserRole, make_space
from quire.server import gateway
from quire.server.app import create_app
from quire.server.auth import SCOPES_BY_ACTION, RequireAction
from quire.server.routes import ROUTERS
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore
from quire.team.identity_provider import ProviderTokens
from quire.team.permissions import PERMISSIONS, PERSON_SCOPES, Relation, render_permission_table
from quire.team.routes import scim
from quire.team.scim import PATCH_SCHEMA
from quire.team.sign_in import SignedIn
from quire.team.store import TeamStore

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
}
PATH_VALUES = {
    "seq": "1", "call": "call-1", "type": "tool", "name": "guarded", "digest": "0" * 64,
    "memory": "0" * 26, "key": "0" * 26, "response_id": "resp_none", "item": "msg_none",
    "model": "gpt-4o", "path": "embeddings",
}  # fmt: skip
DENIALS = ("do not allow this", "has no such conversation", "has no such person", "needs the scope", "needs a session")
"""In the text of every refusal, in the error format of each API."""
FREE_PATHS = {"/healthz", "/readyz", "/metrics"}
"""Routes without a caller."""
SCIM_BODY = {
    "schemas": [PATCH_SCHEMA],
    "userName": "someone",
    "displayName": "someone",
    "Operations": [{"op": "replace", "path": "displayName", "value": "someone"}],
}
SESSION_PLACES = ("own", "shared with me", "shared with all", "another's", "the tenant's", "other tenant's", "unknown")
"""Whose conversation a request is about."""
OTHER_PLACES = ("own", "another's")


def list_routes() -> list[Operation]:
    """Every operation that has a caller. Those of SCIM are in no OpenAPI document, because SCIM describes itself."""
    scim_routes = [
        Operation(method.lower(), route.path_format, {"tags": ["scim"], "parameters": []})
        for route in scim.router.routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods)
    ]
    return [*(each for each in list_operations() if each.path not in FREE_PATHS), *scim_routes]


@dataclass(frozen=True)
class Credential:
    """What a request presents, and what that may do by the docs."""

    name: str
    headers: dict[str, str]
    owner: str
    """Whose conversations are its own: a person's, or the tenant's."""
    actor: str = ""
    scopes: frozenset[KeyScope] = PERSON_SCOPES
    roles: frozenset[UserRole] | None = None
    """None for keys of the tenant itself."""
    is_known: bool = True
    is_session: bool = False

    @property
    def places(self) -> tuple[str, ...]:
        return SESSION_PLACES if self.is_session and self.is_known else OTHER_PLACES


def list_api_routes() -> list[APIRoute]:
    """Every route of the server, also those that are in no OpenAPI document."""
    routers = (gateway.router, gateway.responses_router, gateway.conversations_router, gateway.gemini_router, *ROUTERS)
    return [
        each
        for router in (*routers, gateway.other_paths_router)
        for each in router.routes
        if isinstance(each, APIRoute)
    ]


def find_action(operation: Operation) -> str | None:
    """The action that the operation's route names in its dependencies."""
    [route] = [
        each
        for each in list_api_routes()
        if each.path_format == operation.path and operation.method.upper() in each.methods
    ]
    found = set[str]()

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
    issuer: TokenIssuer

    def space(self, name: str) -> SqlStore:
        if name == TENANT:
            return self.store.for_tenant(TENANT)
        return self.store.for_tenant(make_space(OTHER_TENANT if name == "stranger" else TENANT, self.ids[name]))

    async def count_audit(self) -> int:
        return (await TeamStore(self.store.for_tenant(TENANT)).audit.get_head()).seq

    async def make_credentials(self) -> list[Credential]:
        """Sessions of every role, and of people who may not work any more; keys and tokens of every kind."""

        def make_session(name: str, *, is_known: bool = True) -> Credential:
            headers = {"cookie": self.cookies[name], "origin": URL} if name in self.cookies else {}
            roles = frozenset[UserRole](each for each in USER_ROLES if each == name)
            actor = self.ids.get(name, "")
            return Credential(
                f"session of {name}", headers, name, actor, roles=roles, is_known=is_known, is_session=True
            )

        async def make_key(
            name: str, owner: str, *scopes: KeyScope, is_known: bool = True, **options: Any
        ) -> Credential:
            key, text = await self.space(owner).keys.create(name, scopes, **options)
            roles = None if owner == TENANT else frozenset[UserRole]({"member"})
            headers = {"Authorization": f"Bearer {text}"}
            return Credential(name, headers, owner, key.id, key.scopes, roles, is_known=is_known)

        token = self.issuer.sign({"aud": "quire-workloads", "sub": "ci:build", "nonce": None, "exp": 2**33})
        workload_scopes = frozenset[KeyScope]({"read", "write", "chat"})
        revoked = await make_key("revoked key", TENANT, *KEY_SCOPES, is_known=False)
        await self.store.for_tenant(TENANT).keys.revoke(revoked.actor)
        expired = await make_key("expired key", TENANT, *KEY_SCOPES, is_known=False, expires_at=now() + 100_000)
        await asyncio.sleep(0.1)
        return [
            *(make_session(role) for role in USER_ROLES),
            make_session("nobody", is_known=False),
            make_session("someone without a role", is_known=False),
            make_session("someone disabled", is_known=False),
            make_session("someone whose session has expired", is_known=False),
            await make_key("key of a person with all scopes", "member", *KEY_SCOPES),
            await make_key("key of a person to read", "member", "read"),
            await make_key("key of someone without a role", "someone without a role", *KEY_SCOPES, is_known=False),
            await make_key("key of someone disabled", "someone disabled", *KEY_SCOPES, is_known=False),
            await make_key("key of the tenant with all scopes", TENANT, *KEY_SCOPES),
            *[await make_key(f"key of the tenant to {scope}", TENANT, scope) for scope in KEY_SCOPES],
            expired,
            revoked,
            Credential(
                "token of a workload",
                {"Authorization": f"Bearer {token}"},
                TENANT,
                "ci:build",
                workload_scopes,
                frozenset({"member"}),
            ),
        ]


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenIssuer]:
    with run_token_issuer() as issuer:
        yield issuer


@pytest.fixture
async def people(store: SqlStore, scripted: ScriptedAgent, issuer: TokenIssuer) -> AsyncIterator[People]:
    scripted.set_script("A reply.", repeat=True)
    workloads = {issuer.url: {"audience": "quire-workloads", "subjects": {"ci:*": TENANT}}}
    values = {
        "model": "gpt-4o",
        "requests_per_minute": None,
        "sign_in": make_sign_in(
            URL, "http://127.0.0.1:2", client_secret_env=None, workloads=workloads, provisioning="scim"
        ),
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
        roles: dict[str, list[UserRole]] = {role: [role] for role in USER_ROLES} | {
            "victim": ["member"],
            "someone without a role": ["member"],
            "someone disabled": ["owner"],
            "someone whose session has expired": ["owner"],
        }
        for name in (*roles, "stranger"):
            tenant = OTHER_TENANT if name == "stranger" else TENANT
            given: list[UserRole] = roles.get(name, ["member"])
            user = await TeamStore(store.for_tenant(tenant)).users.confirm(
                f"subject of {name}", name=name, email=f"{name}@example.org", roles=given
            )
            ids[name] = user.id
            session = await app.state.access.sign_in._create_session(
                SignedIn(tenant, user), ProviderTokens(None, None, None)
            )
            cookies[name] = f"quire-session-1={session}"
            space = store.for_tenant(make_space(tenant, user.id))
            await space.create_conversation("c", title=f"title of {name}")
            await space.append("c", *[scripted_message(name)])
        team = TeamStore(store.for_tenant(TENANT))
        await team.users.confirm("subject of someone without a role", name="", email="", roles=[])
        await store.base.database.write(
            lambda connection: connection.execute(
                update(sessions)
                .where(sessions.c.user_id == ids["someone whose session has expired"])
                .values(expires_at=1)
            ),
            TransactionOptions(TENANT),
        )
        await team.users.set_disabled(ids["someone disabled"], True)
        async with serve_app(app) as url:
            yield People(url, app, store, ids, cookies, issuer)
        await state.turns.stop_all()
        await state.relay.close()
        await state.wait_for_background()


def scripted_message(name: str) -> Message:
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
    if "scim" in operation.spec.get("tags", ()) and operation.method in ("post", "put", "patch"):
        body = SCIM_BODY
    async with client.stream(operation.method, path, params=query, json=body) as response:
        if response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream"):
            return 200, ""
        await response.aread()
    return response.status_code, response.text if response.status_code >= 400 else ""


def test_a_key_needs_the_same_scope_whether_people_sign_in_or_not():
    assert SCOPES_BY_ACTION.items() <= {action: each.scope for action, each in PERMISSIONS.items()}.items()


def test_every_route_names_its_action():
    actions = {str(each): find_action(each) for each in list_routes()}
    assert [name for name, action in actions.items() if action is None] == []
    # `approve` is part of a route that calls models, and asked for there.
    assert set(PERMISSIONS) - set(actions.values()) == {"approve"}


CELL_STEP = 1 if IS_FULL_SIZE else 31
"""In CI every 31st cell: each credential and each place, on other routes."""


async def test_each_route_answers_by_the_table(people: People):
    """Each cell: is the request let in as the table says, and does it leave exactly the entry that it must?"""
    operations, credentials = list_routes(), await people.make_credentials()
    team = TeamStore(people.store.for_tenant(TENANT))
    cells = [
        (operation, credential, place)
        for operation in operations
        for credential in credentials
        for place in credential.places
        # What is not about one conversation cannot be shared.
        if "conversation" in operation.path_parameters or not place.startswith("shared")
    ]
    assert len(cells) > 5_000
    async with httpx2.AsyncClient(base_url=people.url, timeout=20) as client:
        for operation, credential, place in cells[::CELL_STEP]:
            action = find_action(operation)
            assert action is not None
            owner = {"own": credential.owner, "the tenant's": TENANT, "other tenant's": "stranger"}.get(place, "victim")
            conversation = re.sub(r"\W+", "-", f"{action}-{credential.name}-{place}")
            if "conversation" in operation.path_parameters:
                if owner in people.ids or owner == TENANT:
                    await create_again(people, owner, conversation)
                if place.startswith("shared"):
                    readers = ["*"] if place == "shared with all" else [people.ids[credential.owner]]
                    await team.shares.set_readers(people.ids["victim"], conversation, readers)
            user = {"own": None, "the tenant's": "team", "unknown": "0" * 26}.get(place, people.ids.get(owner))
            before = await people.count_audit()
            client.headers = credential.headers
            status, text = await call(client, operation, conversation=conversation, user=user, id=people.ids["victim"])
            cell = f"{operation} by {credential.name} on {place}: {status} {text}"
            entries = [(each.actor, each.action, each.allowed) for each in await team.audit.list(after=before)]
            if not credential.is_known:
                assert (status, entries) == (401, []), cell
            elif not credential.is_session and place != "own":
                assert (status, entries) == (403, []), cell
                assert "needs a session" in text, cell
            elif place in ("other tenant's", "unknown"):
                assert (status, entries) == (404, []), cell
                assert "has no such person" in text, cell
            else:
                permission, relation = PERMISSIONS[action], find_relation(place)
                has_role = credential.roles is None or permission.allows(credential.roles, relation)
                is_allowed = has_role and permission.scope in credential.scopes
                is_approval = operation.body == "ApprovalBody"
                is_let_in = is_allowed and not (is_approval and "approve" not in credential.scopes)
                assert status != 401, cell
                assert is_let_in == (not any(each in text for each in DENIALS)), cell
                expected = [(credential.actor, action, is_allowed)] if relation in permission.audited else []
                assert entries == expected, cell
    assert await team.audit.verify() == []


def find_relation(place: str) -> Relation:
    return "own" if place == "own" else "shared" if place.startswith("shared") else "other"


async def test_of_random_operations_each_leaves_the_traces_that_it_must(people: People):
    """Whatever people do, in any order: one entry for each audited action, none for others, in an unbroken chain."""
    random, operations = Random(7), list_routes()
    trail = TeamStore(people.store.for_tenant(TENANT)).audit
    [directory] = [each for each in await people.make_credentials() if each.name == "key of the tenant to scim"]
    expected = list[tuple[str, str]]()
    for number in range(1_000 if IS_FULL_SIZE else 60):
        operation, role = random.choice(operations), random.choice(USER_ROLES)
        owner = random.choice([role, "victim", "victim", random.choice(USER_ROLES)])
        conversation = f"random-{number}"
        await create_again(people, owner, conversation)
        is_shared = random.random() < 0.3 and owner != role and "conversation" in operation.path_parameters
        if is_shared:
            await TeamStore(people.store.for_tenant(TENANT)).shares.set_readers(people.ids[owner], conversation, ["*"])
        user = people.ids[owner] if owner != role or random.random() < 0.5 else None
        relation: Relation = "own" if owner == role else "shared" if is_shared else "other"
        actor, headers = people.ids[role], {"cookie": people.cookies[role], "origin": URL}
        if "scim" in operation.spec.get("tags", ()):
            actor, headers, user, relation = directory.actor, directory.headers, None, "own"
        async with httpx2.AsyncClient(base_url=people.url, headers=headers, timeout=20) as client:
            await call(client, operation, conversation=conversation, user=user, id=people.ids["victim"])
        action = find_action(operation)
        assert action is not None
        if relation in PERMISSIONS[action].audited:
            expected.append((actor, action))
    entries = await trail.list(limit=2_000)
    assert [(each.actor, each.action) for each in entries] == expected
    assert await trail.verify() == []


READER_ROUTES = {"GET /shared/{conversation}", "GET /api/conversations/{conversation}/transcript"}
"""All that people read of a conversation that is shared with them: its transcript, with secrets masked."""


async def test_readers_of_a_shared_conversation_see_its_masked_transcript_and_nothing_else(people: People):
    """Every route about a conversation refuses its readers, and so does a new one, unless `READER_ROUTES` names it."""
    secret = f"ghp_{'a1B2c3D4e5F6' * 3}"
    space, team = people.space("victim"), TeamStore(people.store.for_tenant(TENANT))
    await space.create_conversation("shared", title=f"deploy with {secret}")
    await space.set_tags("shared", [secret.lower()])
    await space.append(
        "shared",
        Message.user(f"Use {secret}."),
        Message(
            role="assistant",
            parts=(ThinkingPart(text=f"It is {secret}."), ToolCallPart(id="1", name="sh", arguments=f'"{secret}"')),
        ),
        Message.tool("1", secret),
    )
    await team.shares.set_readers(people.ids["victim"], "shared", [people.ids["member"]])
    headers = {"cookie": people.cookies["member"], "origin": URL}
    let_in = set[str]()
    async with httpx2.AsyncClient(base_url=people.url, headers=headers, timeout=20) as client:
        for route in (each for each in list_api_routes() if "{conversation" in each.path_format):
            values = PATH_VALUES | {"conversation": "shared", "id": people.ids["victim"]}
            path = re.sub(r"{(\w+)(:path)?}", lambda match, values=values: values[match[1]], route.path_format)
            query = {"user": people.ids["victim"]} | QUERIES_BY_SUFFIX.get(path.rpartition("/")[2], {})
            for method in sorted(route.methods or ()):
                async with client.stream(method, path, params=query, json={}) as response:
                    is_open = response.headers.get("content-type", "").startswith("text/event-stream")
                    text = "" if is_open else (await response.aread()).decode()
                name = f"{method} {route.path_format}"
                assert secret.lower() not in text.lower(), name
                if response.status_code != 404 or "has no such conversation" not in text:
                    let_in.add(name)
    assert let_in == READER_ROUTES


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
