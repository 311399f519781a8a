"""SCIM 2.0: what directories send, who loses access by it, and what a client of the standard finds wrong.

The bodies are those of the RFC's examples and those that Entra ID and Okta document.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from server_helpers import ScriptedAgent, create_key_for
from sign_in_helpers import TENANT, TeamServer, find_free_port, serve_team

from infra.oidc_provider import OidcProvider
from quire.model.people import make_space
from quire.store import SqlStore
from quire.team.identity_provider import ProviderTokens
from quire.team.sign_in import SignedIn
from quire.team.store import TeamStore

USER = "urn:ietf:params:scim:schemas:core:2.0:User"
ENTERPRISE = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"
GROUP = "urn:ietf:params:scim:schemas:core:2.0:Group"
PATCH = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
ERROR = "urn:ietf:params:scim:api:messages:2.0:Error"


@pytest.fixture
async def team(store: SqlStore, scripted: ScriptedAgent) -> AsyncIterator[TeamServer]:
    """A server whose people come from a directory. No request goes to the identity provider."""
    nowhere = cast(OidcProvider, SimpleNamespace(issuer="http://127.0.0.1:2"))
    sign_in = {"provisioning": "scim"}
    async with serve_team(store, nowhere, scripted, port=find_free_port(), sign_in=sign_in) as team:
        yield team


@pytest.fixture
async def directory(team: TeamServer, store: SqlStore) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the SCIM routes with the tenant's key."""
    key = await create_key_for(store, TENANT, "scim")
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/scim+json"}
    async with httpx2.AsyncClient(base_url=f"{team.url}/scim/v2/", headers=headers, timeout=20) as client:
        yield client


def make_patch(*operations: dict[str, Any]) -> dict[str, Any]:
    return {"schemas": [PATCH], "Operations": list(operations)}


async def create_user(directory: httpx2.AsyncClient, name: str, /, **attributes: Any) -> dict[str, Any]:
    body = {"schemas": [USER], "userName": name, "externalId": f"subject of {name}", **attributes}
    created = await directory.post("Users", json=body)
    assert created.status_code == 201, created.text
    return created.json()


async def create_group(directory: httpx2.AsyncClient, name: str, *members: str) -> dict[str, Any]:
    body = {"schemas": [GROUP], "displayName": name, "members": [{"value": each} for each in members]}
    created = await directory.post("Groups", json=body)
    assert created.status_code == 201, created.text
    return created.json()


async def sign_in(team: TeamServer, subject: str) -> httpx2.AsyncClient:
    """A browser with the session of a person, as `complete` makes it after the provider's answer."""
    service = team.app.state.access.sign_in
    signed_in: SignedIn = await service._confirm({"sub": subject}, None)
    session = await service._create_session(signed_in, ProviderTokens(None, None, None))
    cookie = f"quire-session-{team.url.rpartition(':')[2]}={session}"
    return httpx2.AsyncClient(base_url=team.url, headers={"cookie": cookie, "origin": team.url})


# What the RFC's examples, Entra ID and Okta send.


async def test_a_person_of_the_rfc_is_created_read_replaced_and_deleted(directory: httpx2.AsyncClient):
    """RFC 7644, sections 3.3, 3.4.1, 3.5.1 and 3.6."""
    body = {
        "schemas": [USER],
        "userName": "bjensen",
        "externalId": "bjensen",
        "name": {"formatted": "Ms. Barbara J Jensen III", "familyName": "Jensen", "givenName": "Barbara"},
    }
    created = await directory.post("Users", json=body)
    assert created.status_code == 201
    assert created.headers["content-type"] == "application/scim+json"
    user = created.json()
    assert created.headers["location"] == user["meta"]["location"]
    assert user["meta"]["location"].endswith(f"/scim/v2/Users/{user['id']}")
    assert user["meta"]["resourceType"] == "User"
    assert {name: user[name] for name in body} == body
    assert user["active"] is True
    read = await directory.get(f"Users/{user['id']}")
    assert (read.status_code, read.json()) == (200, user)
    replaced = await directory.put(
        f"Users/{user['id']}",
        json={
            "schemas": [USER],
            "id": user["id"],
            "userName": "bjensen",
            "externalId": "bjensen",
            "name": {"familyName": "Jensen", "givenName": "Barbara", "middleName": "Jane"},
            "roles": [],
            "emails": [{"value": "bjensen@example.com"}, {"value": "babs@jensen.org"}],
        },
    )
    assert replaced.status_code == 200
    assert replaced.json()["name"] == {"familyName": "Jensen", "givenName": "Barbara"}
    assert [each["value"] for each in replaced.json()["emails"]] == ["bjensen@example.com", "babs@jensen.org"]
    assert (await directory.delete(f"Users/{user['id']}")).status_code == 204
    for method in ("get", "delete"):
        missing = await directory.request(method, f"Users/{user['id']}")
        assert (missing.status_code, missing.json()["schemas"], missing.json()["status"]) == (404, [ERROR], "404")
    assert (await directory.get("Users")).json()["totalResults"] == 0


PATCHES: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("Okta deactivates", [{"op": "replace", "value": {"active": False}}], {"active": False}),
    ("Entra deactivates", [{"op": "Replace", "path": "active", "value": "False"}], {"active": False}),
    ("Entra, as it should be", [{"op": "Replace", "path": "active", "value": False}], {"active": False}),
    ("with the schema", [{"op": "replace", "path": f"{USER}:active", "value": False}], {"active": False}),
    (
        "Entra changes names",
        [
            {"op": "Add", "path": "name.givenName", "value": "Ann"},
            {"op": "Replace", "path": "displayName", "value": "Ann A"},
            {"op": "Replace", "path": 'emails[type eq "work"].value', "value": "new@example.org"},
        ],
        {
            "name": {"givenName": "Ann", "familyName": "Archer"},
            "displayName": "Ann A",
            "emails": [{"type": "work", "value": "new@example.org", "primary": True}],
        },
    ),
    (
        "Entra adds an address of another type",
        [{"op": "Add", "path": 'emails[type eq "home"].value', "value": "home@example.org"}],
        {
            "emails": [
                {"type": "work", "value": "ann@example.org", "primary": True},
                {"type": "home", "value": "home@example.org"},
            ]
        },
    ),
    (
        "Entra without a path",
        [{"op": "replace", "value": {"displayName": "New", "name.familyName": "Baker", "title": "Captain"}}],
        {"displayName": "New", "name": {"givenName": "A", "familyName": "Baker"}},
    ),
    (
        "what is not stored",
        [
            {"op": "Add", "path": f"{ENTERPRISE}:manager", "value": "26118915"},
            {"op": "Add", "path": f"{ENTERPRISE}:department", "value": "Harbour"},
            {"op": "Replace", "path": 'phoneNumbers[type eq "mobile"].value', "value": "1"},
        ],
        {},
    ),
    (
        "the RFC replaces an address",
        [{"op": "replace", "path": 'emails[type eq "work"]', "value": {"type": "work", "value": "x@example.org"}}],
        {"emails": [{"type": "work", "value": "x@example.org", "primary": True}]},
    ),
    (
        "the RFC removes an address",
        [{"op": "remove", "path": 'emails[type eq "work" and value eq "ann@example.org"]'}],
        {"emails": None},
    ),
    ("the RFC adds to emails", [{"op": "add", "value": {"emails": [{"value": "b@example.org"}]}}], {
        "emails": [{"type": "work", "value": "ann@example.org", "primary": True}, {"value": "b@example.org"}]
    }),
    ("another primary", [{"op": "add", "path": "emails", "value": [{"value": "b@example.org", "primary": True}]}], {
        "emails": [
            {"type": "work", "value": "ann@example.org", "primary": False},
            {"value": "b@example.org", "primary": True},
        ]
    }),
    ("a removed name", [{"op": "remove", "path": "name.givenName"}], {"name": {"familyName": "Archer"}}),
    ("a removed display name", [{"op": "remove", "path": "displayName"}], {"displayName": None}),
    ("a new name to sign in", [{"op": "replace", "path": "userName", "value": "anna"}], {"userName": "anna"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operations", "expected"), PATCHES, ids=[each[0] for each in PATCHES])
async def test_a_person_is_patched(
    directory: httpx2.AsyncClient, name: str, operations: list[dict[str, Any]], expected: dict[str, Any]
):
    attributes = {
        "displayName": "Ann",
        "name": {"givenName": "A", "familyName": "Archer"},
        "emails": [{"type": "work", "value": "ann@example.org", "primary": True}],
    }
    user = await create_user(directory, "ann", **attributes)
    patched = await directory.patch(f"Users/{user['id']}", json=make_patch(*operations))
    assert patched.status_code == 200, patched.text
    after = patched.json()
    assert {each: after.get(each) for each in expected} == expected
    unchanged = {each for each in user if each not in expected} - {"meta"}
    assert {each: after.get(each) for each in unchanged} == {each: user[each] for each in unchanged}
    assert (await directory.get(f"Users/{user['id']}")).json() == after
    assert after["meta"]["lastModified"] >= user["meta"]["lastModified"]


BAD_REQUESTS: list[tuple[str, str, Any, int, str | None]] = [
    ("POST", "Users", {"schemas": [USER]}, 400, "invalidValue"),
    ("POST", "Users", {"schemas": [USER], "userName": ""}, 400, "invalidValue"),
    ("POST", "Users", {"schemas": [USER], "userName": 7}, 400, "invalidValue"),
    ("POST", "Users", {"schemas": [USER], "userName": "x" * 201}, 400, "invalidValue"),
    ("POST", "Users", {"schemas": [USER], "userName": "x", "active": "perhaps"}, 400, "invalidValue"),
    ("POST", "Users", {"schemas": [USER], "userName": "x", "emails": [{"type": "work"}]}, 400, "invalidValue"),
    ("POST", "Users", {"schemas": [USER], "userName": "x", "emails": ["a"] * 21}, 400, "invalidValue"),
    ("POST", "Users", {"schemas": [USER], "userName": "ANN"}, 409, "uniqueness"),
    ("POST", "Users", {"schemas": [USER], "userName": "b", "externalId": "subject of ann"}, 409, "uniqueness"),
    ("POST", "Users", [], 400, "invalidSyntax"),
    ("PUT", "Users/{id}", {"schemas": [USER], "userName": "ben"}, 409, "uniqueness"),
    ("PATCH", "Users/{id}", {"Operations": []}, 400, "invalidSyntax"),
    ("PATCH", "Users/{id}", make_patch(), 400, "invalidSyntax"),
    ("PATCH", "Users/{id}", make_patch({"op": "move", "path": "active"}), 400, "invalidSyntax"),
    ("PATCH", "Users/{id}", make_patch({"op": "replace", "path": "active"}), 400, "invalidValue"),
    ("PATCH", "Users/{id}", make_patch({"op": "remove"}), 400, "noTarget"),
    ("PATCH", "Users/{id}", make_patch({"op": "remove", "path": "userName"}), 400, "invalidValue"),
    ("PATCH", "Users/{id}", make_patch({"op": "remove", "path": "active"}), 400, "invalidValue"),
    ("PATCH", "Users/{id}", make_patch({"op": "remove", "path": "id"}), 400, "mutability"),
    ("PATCH", "Users/{id}", make_patch({"op": "replace", "path": "emails[type", "value": 1}), 400, "invalidPath"),
    ("PATCH", "Users/{id}", make_patch({"op": "remove", "path": 'emails[type co "w"]'}), 400, "invalidFilter"),
    ("PATCH", "Users/{id}", make_patch({"op": "replace", "path": 'emails[type eq "x"]', "value": {}}), 400, "noTarget"),
    ("PATCH", "Users/{id}", make_patch({"op": "add", "path": "x", "value": 1}) | {"schemas": []}, 400, "invalidSyntax"),
    ("PATCH", "Users/unknown", make_patch({"op": "add", "path": "active", "value": True}), 404, None),
    ("PUT", "Users/unknown", {"schemas": [USER], "userName": "x"}, 404, None),
    ("GET", 'Users?filter=userName co "a"', None, 400, "invalidFilter"),
    ("GET", 'Users?filter=title eq "a"', None, 400, "invalidFilter"),
    ("GET", "Users?filter=userName eq", None, 400, "invalidFilter"),
    ("GET", 'Users?filter=userName eq "a" or userName eq "b"', None, 400, "invalidFilter"),
    ("GET", "Users?filter=userName eq 7", None, 400, "invalidFilter"),
    ("GET", f'Users?filter=userName eq "{"a" * 1_000}"', None, 400, "invalidFilter"),
    ("GET", "Users?count=many", None, 400, "invalidValue"),
    ("POST", "Groups", {"schemas": [GROUP]}, 400, "invalidValue"),
    ("POST", "Groups", {"schemas": [GROUP], "displayName": "g", "members": [{"value": "unknown"}]}, 404, None),
    ("POST", "Groups", {"schemas": [GROUP], "displayName": "g", "members": [7]}, 400, "invalidValue"),
    ("GET", "Groups/unknown", None, 404, None),
    ("GET", "Schemas/unknown", None, 404, None),
    ("GET", "Nowhere", None, 404, None),
    ("POST", "Bulk", {}, 404, None),
    ("DELETE", "Users", None, 405, None),
]  # fmt: skip


async def test_an_error_has_the_form_of_the_rfc_and_changes_nothing(directory: httpx2.AsyncClient):
    user = await create_user(directory, "ann")
    await create_user(directory, "ben")
    before = [(await directory.get(path)).json() for path in ("Users", "Groups")]
    for method, path, body, status, kind in BAD_REQUESTS:
        answer = await directory.request(method, path.replace("{id}", user["id"]), json=body)
        case = f"{method} {path} {body}: {answer.status_code} {answer.text}"
        assert answer.status_code == status, case
        assert answer.headers["content-type"] == "application/scim+json", case
        error = answer.json()
        assert (error["schemas"], error["status"], error.get("scimType")) == ([ERROR], str(status), kind), case
        assert error["detail"], case
    for body in (b"", b"{", b"[" * 100_000, b"\xff"):
        answer = await directory.post("Users", content=body)
        assert (answer.status_code, answer.json()["scimType"]) == (400, "invalidSyntax")
    assert [(await directory.get(path)).json() for path in ("Users", "Groups")] == before


async def test_filters_pages_and_attributes(directory: httpx2.AsyncClient):
    users = [await create_user(directory, f"Person{number}@example.org", emails=[
        {"value": f"p{number}@example.org", "type": "work"}
    ]) for number in range(7)]  # fmt: skip
    group = await create_group(directory, "crew", users[0]["id"], users[1]["id"])

    async def names(query: str) -> list[str]:
        answer = await directory.get(f"Users?{query}")
        assert answer.status_code == 200, answer.text
        return [each["userName"] for each in answer.json()["Resources"]]

    for query in (
        'filter=userName eq "person3@EXAMPLE.org"',
        'filter=USERNAME Eq "Person3@example.org"',
        f'filter={USER}:userName eq "Person3@example.org"',
        'filter=externalId eq "subject of Person3@example.org"',
        'filter=emails[type eq "work"].value eq "p3@example.org"',
        'filter=emails eq "p3@example.org"',
        f'filter=id eq "{users[3]["id"]}" and userName eq "Person3@example.org"',
        'filter=userName eq "Person3@example.org"&startIndex=1&count=100',
    ):
        assert await names(query) == ["Person3@example.org"], query
    assert await names('filter=userName eq "nobody"') == []
    assert await names('filter=userName eq "Person3@example.org" and externalId eq "another"') == []
    assert await names('filter=userName eq "a\\"b"') == []
    page = (await directory.get("Users?startIndex=3&count=2")).json()
    assert [page[name] for name in ("totalResults", "startIndex", "itemsPerPage")] == [7, 3, 2]
    assert [each["id"] for each in page["Resources"]] == [each["id"] for each in users[2:4]]
    assert (await directory.get("Users?count=0")).json()["Resources"] == []
    assert (await directory.get("Users?count=-5&startIndex=-3")).json()["startIndex"] == 1
    assert (await directory.get("Users?startIndex=100")).json()["totalResults"] == 7
    only = (await directory.get(f"Users/{users[0]['id']}?attributes=userName,emails.value")).json()
    assert only == {
        "schemas": [USER], "id": users[0]["id"], "userName": "Person0@example.org",
        "emails": [{"value": "p0@example.org"}],
    }  # fmt: skip
    assert "emails" not in (await directory.get(f"Users/{users[0]['id']}?excludedAttributes=emails")).json()
    groups = (await directory.get(f"Users/{users[0]['id']}")).json()["groups"]
    assert [(each["value"], each["display"]) for each in groups] == [(group["id"], "crew")]
    # As Entra ID asks for groups.
    for query in ('filter=displayName eq "crew"', f'filter=id eq "{group["id"]}" and members eq "{users[0]["id"]}"'):
        [found] = (await directory.get(f"Groups?excludedAttributes=members&{query}")).json()["Resources"]
        assert (found["id"], "members" in found) == (group["id"], False)
    nobody = await directory.get(f'Groups?filter=id eq "{group["id"]}" and members eq "{users[5]["id"]}"')
    assert nobody.json()["totalResults"] == 0


async def test_groups_are_patched_as_directories_do_it(directory: httpx2.AsyncClient):
    ids = [(await create_user(directory, f"p{number}"))["id"] for number in range(5)]
    group = await create_group(directory, "crew", ids[0])
    path = f"Groups/{group['id']}"

    async def members_after(*operations: dict[str, Any]) -> list[str]:
        patched = await directory.patch(path, json=make_patch(*operations))
        assert patched.status_code == 200, patched.text
        found = (await directory.get(path)).json()
        assert found.get("members") == patched.json().get("members")
        return [each["value"] for each in found.get("members", [])]

    # Entra ID.
    add = {"op": "Add", "path": "members", "value": [{"$ref": None, "value": each} for each in ids[1:4]]}
    assert await members_after(add) == sorted(ids[:4])
    assert await members_after(add) == sorted(ids[:4])
    assert await members_after({"op": "Remove", "path": "members", "value": [{"value": ids[3]}]}) == sorted(ids[:3])
    # Okta.
    by_filter = {"op": "remove", "path": f'members[value eq "{ids[2]}"]'}
    also = {"op": "add", "path": "members", "value": [{"value": ids[4], "display": "p4"}]}
    assert await members_after(by_filter, also) == sorted([*ids[:2], ids[4]])
    assert await members_after({"op": "replace", "value": {"id": group["id"], "displayName": "deck"}}) == sorted(
        [*ids[:2], ids[4]]
    )
    assert (await directory.get(path)).json()["displayName"] == "deck"
    assert await members_after({"op": "replace", "path": "members", "value": [{"value": ids[2]}]}) == [ids[2]]
    assert await members_after({"op": "remove", "path": "members"}) == []
    unknown = make_patch({"op": "add", "path": "members", "value": [{"value": "0" * 26}]})
    assert (await directory.patch(path, json=unknown)).status_code == 404
    replaced = await directory.put(path, json={"schemas": [GROUP], "displayName": "crew", "externalId": "g-1"})
    assert (replaced.json()["externalId"], "members" in replaced.json()) == ("g-1", False)
    assert (await directory.delete(path)).status_code == 204
    assert (await directory.get(path)).status_code == 404


@pytest.mark.nightly
async def test_a_client_of_the_standard_finds_nothing_wrong(team: TeamServer, directory: httpx2.AsyncClient):
    """scim2-tester reads the schemas of the server, and then creates, changes and reads what they describe."""
    from scim2_client.engines.httpx2 import SyncSCIMClient
    from scim2_tester import Status, check_server

    def check() -> list[Any]:
        with httpx2.Client(base_url=f"{team.url}/scim/v2", headers=dict(directory.headers), timeout=20) as client:
            return check_server(SyncSCIMClient(client))

    results = await asyncio.to_thread(check)
    wrong = {each.title: each.reason for each in results if each.status in (Status.ERROR, Status.CRITICAL)}
    # Queries by POST, which the RFC leaves open.
    assert wrong == {"search_with_attributes": "Not Found"}
    assert sum(each.status == Status.SUCCESS for each in results) > 50


# Who has access.


@pytest.mark.every_database
async def test_who_is_deactivated_loses_sessions_and_keys_on_every_node(
    team: TeamServer, store: SqlStore, directory: httpx2.AsyncClient, scripted: ScriptedAgent
):
    user = await create_user(directory, "ann", displayName="Ann", emails=[{"value": "ann@example.org"}])
    await create_group(directory, "crew", user["id"])
    from quire.server.app import create_app

    second = create_app(team.state)
    async with (
        await sign_in(team, "subject of ann") as ann,
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(second), base_url=team.url, headers=ann.headers
        ) as other_node,
    ):
        assert (await ann.post("/api/conversations", json={"id": "c"})).status_code == 201
        assert (await other_node.get("/api/conversations")).status_code == 200
        [person] = await TeamStore(store.for_tenant(TENANT)).users.list()
        assert (person.id, person.name, person.email, person.roles) == (
            user["id"], "Ann", "ann@example.org", {"member"},
        )  # fmt: skip
        key = (await ann.post("/api/keys", json={"name": "k", "scopes": ["read"]})).json()["key"]
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx2.AsyncClient(base_url=team.url, headers=headers) as program:
            assert (await program.get("/api/conversations")).status_code == 200
            off = await directory.patch(
                f"Users/{user['id']}", json=make_patch({"op": "Replace", "path": "active", "value": "False"})
            )
            assert off.json()["active"] is False
            # Who is replaced without `active` stays as inactive as before.
            same = {"schemas": [USER], "userName": "ann", "externalId": "subject of ann"}
            assert (await directory.put(f"Users/{user['id']}", json=same)).json()["active"] is False
            for browser in (ann, other_node):
                refused = await browser.get("/api/conversations")
                assert (refused.status_code, refused.json()["code"]) == (401, "sign_in_required")
            # A server remembers for ten seconds that a person may use keys.
            team.app.state.access._key_roles.clear()
            assert (await program.get("/api/conversations")).status_code == 401
            with pytest.raises(Exception, match="has deactivated it"):
                await sign_in(team, "subject of ann")
            on = await directory.patch(
                f"Users/{user['id']}", json=make_patch({"op": "replace", "value": {"active": True}})
            )
            assert on.json()["active"] is True
            # The old session does not come back.
            assert (await ann.get("/api/conversations")).status_code == 401
            async with await sign_in(team, "subject of ann") as again:
                assert (await again.get("/api/conversations")).json()["items"][0]["id"] == "c"
                assert (await directory.delete(f"Users/{user['id']}")).status_code == 204
                assert (await again.get("/api/conversations")).status_code == 401
            # Whoever is created again is the same person, with the same conversations.
            recreated = await create_user(directory, "ann")
            assert recreated["id"] == user["id"]
            with pytest.raises(Exception, match="None of your groups"):
                await sign_in(team, "subject of ann")
            await create_group(directory, "captains", user["id"])
            async with await sign_in(team, "subject of ann") as again:
                assert (await again.get("/api/conversations")).json()["items"][0]["id"] == "c"
    space = store.for_tenant(make_space(TENANT, user["id"]))
    assert [each.id for each in await space.list_conversations()] == ["c"]


async def test_roles_follow_the_groups_of_the_directory_at_once(team: TeamServer, directory: httpx2.AsyncClient):
    user = await create_user(directory, "ann")
    crew = await create_group(directory, "crew", user["id"])
    async with await sign_in(team, "subject of ann") as ann:
        assert (await ann.get("/api/users")).json()["code"] == "role_required"
        captains = await create_group(directory, "captains", user["id"])
        assert (await ann.get("/api/users")).status_code == 200
        # A group of another name gives nothing.
        await directory.patch(
            f"Groups/{captains['id']}",
            json=make_patch({"op": "replace", "value": {"displayName": "Former captains"}}),
        )
        assert (await ann.get("/api/users")).status_code == 403
        assert (await ann.get("/api/conversations")).status_code == 200
        await directory.delete(f"Groups/{crew['id']}")
        assert (await ann.get("/api/conversations")).status_code == 401
    # By the directory's id, too: Entra ID calls groups by it in its tokens.
    entra = await create_group(directory, "Besatzung", user["id"])
    await directory.patch(
        f"Groups/{entra['id']}", json=make_patch({"op": "add", "path": "externalId", "value": "crew"})
    )
    async with await sign_in(team, "subject of ann") as ann:
        assert (await ann.get("/api/conversations")).status_code == 200


async def test_an_owner_and_the_directory_disable_people_apart_from_each_other(
    team: TeamServer, store: SqlStore, directory: httpx2.AsyncClient
):
    user = await create_user(directory, "ann")
    await create_group(directory, "crew", user["id"])
    users = TeamStore(store.for_tenant(TENANT)).users
    await users.set_disabled(user["id"], True)
    # Directories send again and again what they have.
    for active in (True, False, True):
        body = {"schemas": [USER], "userName": "ann", "externalId": "subject of ann", "active": active}
        assert (await directory.put(f"Users/{user['id']}", json=body)).status_code == 200
    with pytest.raises(Exception, match="has disabled this account"):
        await sign_in(team, "subject of ann")
    await users.set_disabled(user["id"], False)
    async with await sign_in(team, "subject of ann") as ann:
        assert (await ann.get("/api/conversations")).status_code == 200
        await directory.patch(f"Users/{user['id']}", json=make_patch({"op": "replace", "value": {"active": False}}))
        await users.set_disabled(user["id"], False)
        assert (await ann.get("/api/conversations")).status_code == 401


async def test_people_of_the_claims_only_are_not_let_in_and_those_known_before_are_found_again(
    team: TeamServer, store: SqlStore, directory: httpx2.AsyncClient
):
    known = await TeamStore(store.for_tenant(TENANT)).users.confirm(
        "subject of ann", name="", email="", roles=["owner"]
    )
    service = team.app.state.access.sign_in
    with pytest.raises(Exception, match="subject of ann"):
        await service._confirm({"sub": "subject of ann", "groups": ["captains"]}, None)
    user = await create_user(directory, "ann")
    assert user["id"] == known.id
    # The roles of the token count no more.
    assert (await TeamStore(store.for_tenant(TENANT)).users.find(known.id)).roles == frozenset()


async def test_a_changed_row_gives_no_access(team: TeamServer, store: SqlStore, directory: httpx2.AsyncClient):
    from sqlalchemy import update

    from quire.db.database import TransactionOptions
    from quire.db.schema import directory_groups, directory_members

    ann, ben = await create_user(directory, "ann"), await create_user(directory, "ben")
    captains, _ = await create_group(directory, "captains", ann["id"]), await create_group(directory, "crew", ben["id"])
    for table, values in (
        (directory_groups, {"display_name": "captains"}),
        (directory_members, {"group_id": captains["id"]}),
    ):
        await store.base.database.write(
            lambda connection, table=table, values=values: connection.execute(
                update(table).where(table.c.tenant == TENANT).values(values)
            ),
            TransactionOptions(TENANT),
        )
    with pytest.raises(Exception, match="None of your groups"):
        await sign_in(team, "subject of ben")


# Whose key, and what it can reach.


@pytest.mark.every_database
async def test_a_directory_reaches_its_tenant_only_and_nothing_but_people(
    team: TeamServer, store: SqlStore, directory: httpx2.AsyncClient
):
    ann = await create_user(directory, "ann")
    other_key = await create_key_for(store, "lighthouse", "scim")
    async with httpx2.AsyncClient(
        base_url=f"{team.url}/scim/v2/", headers={"Authorization": f"Bearer {other_key}"}
    ) as other:
        assert (await other.get("Users")).json()["totalResults"] == 0
        for method in ("GET", "PUT", "PATCH", "DELETE"):
            body = {"schemas": [USER, PATCH], "userName": "x", "Operations": [{"op": "remove", "path": "active"}]}
            missing = await other.request(method, f"Users/{ann['id']}", json=body)
            assert missing.status_code == 404, method
        # The same names and ids of another directory are other people.
        pia = await create_user(other, "ann")
        assert pia["id"] != ann["id"]
        assert (await other.post("Groups", json={"displayName": "crew", "members": [{"value": ann["id"]}]})).is_error
        await create_group(other, "captains", pia["id"])
        # Captains are owners of the harbour, not of the lighthouse.
        assert (await TeamStore(store.for_tenant("lighthouse")).users.find(pia["id"])).roles == frozenset()
    for path in ("/api/conversations", "/api/users", "/api/audit", "/api/keys", "/v1/models"):
        refused = await directory.get(f"{team.url}{path}")
        assert refused.status_code == 403, path


async def test_no_other_key_or_session_provisions(team: TeamServer, store: SqlStore, directory: httpx2.AsyncClient):
    user = await create_user(directory, "otto")
    await create_group(directory, "engineers", user["id"])
    await create_group(directory, "captains", user["id"])
    everything_else = await create_key_for(store, TENANT, "read", "write", "chat", "approve", "admin")
    of_a_person = await create_key_for(store, make_space(TENANT, user["id"]), "scim", "admin")
    async with await sign_in(team, "subject of otto") as otto:
        refused = await otto.post("/api/keys", json={"name": "k", "scopes": ["scim"]})
        assert (refused.status_code, refused.json()["code"]) == (403, "insufficient_scope")
        attempts = {
            "session of an operator and owner": dict(otto.headers),
            "key with all other scopes": {"Authorization": f"Bearer {everything_else}"},
            "key of a person": {"Authorization": f"Bearer {of_a_person}"},
            "nothing": {},
            "wrong": {"Authorization": "Bearer quire_x"},
        }
        for name, headers in attempts.items():
            async with httpx2.AsyncClient(base_url=f"{team.url}/scim/v2/", headers=headers) as client:
                for path in ("Users", "Groups", "ServiceProviderConfig", f"Users/{user['id']}"):
                    answer = await client.get(path)
                    assert answer.status_code in (401, 403), f"{name}: {path}"
                    assert answer.json()["schemas"] == [ERROR]
                created = await client.post("Users", json={"schemas": [USER], "userName": "evil"})
                assert created.status_code in (401, 403), name
    assert (await directory.get("Users")).json()["totalResults"] == 1


async def test_without_the_setting_there_are_no_routes(store: SqlStore, scripted: ScriptedAgent):
    nowhere = cast(OidcProvider, SimpleNamespace(issuer="http://127.0.0.1:2"))
    key = await create_key_for(store, TENANT, "scim")
    async with (
        serve_team(store, nowhere, scripted, port=find_free_port()) as team,
        httpx2.AsyncClient(base_url=team.url, headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        assert (await client.get("/scim/v2/Users")).status_code == 404
        assert (await client.post("/scim/v2/Users", json={"userName": "x"})).status_code == 404


async def test_each_change_leaves_one_entry_that_says_whom_it_is_about(store: SqlStore, directory: httpx2.AsyncClient):
    user = await create_user(directory, "ann", displayName="Ann Archer")
    await directory.get("Users")
    await directory.patch(f"Users/{user['id']}", json=make_patch({"op": "replace", "value": {"active": False}}))
    await directory.patch(f"Users/{user['id']}", content=b"{")
    group = await create_group(directory, "crew", user["id"])
    await directory.delete(f"Groups/{group['id']}")
    await directory.delete("Users/unknown")
    trail = TeamStore(store.for_tenant(TENANT)).audit
    entries = [json.loads(each.target) for each in await trail.list()]
    assert entries == [
        {"route": "POST /scim/v2/Users", "externalId": "subject of ann"},
        {"route": "PATCH /scim/v2/Users/{id}", "id": user["id"], "active": "False"},
        {"route": "PATCH /scim/v2/Users/{id}", "id": user["id"]},
        {"route": "POST /scim/v2/Groups", "group": "crew"},
        {"route": "DELETE /scim/v2/Groups/{id}", "id": group["id"]},
        {"route": "DELETE /scim/v2/Users/{id}", "id": "unknown"},
    ]
    assert {each.action for each in await trail.list()} == {"provision"}
    assert not any("Archer" in each.target for each in await trail.list())
    assert await trail.verify() == []
