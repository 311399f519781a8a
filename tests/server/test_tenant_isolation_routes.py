"""Tenant isolation: every operation of the API with IDs of another tenant returns 404 and changes nothing.

The IDs are real: the same test then uses them as their owner.
"""

import re
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from openapi_helpers import Operation, list_operations
from server_helpers import ScriptedAgent, parse_events

from quire.model import Compaction, Span
from quire.server.state import ServerState
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

BODIES_BY_SCHEMA: dict[str, dict[str, Any]] = {
    "UpdateConversationBody": {"title": "mine now", "tags": ["mine"]},
    "ForkBody": {"fork_seq": 1},
    "AppendMessagesBody": {"messages": ["an intruder was here"]},
    "SendBody": {"message": "an intruder was here"},
    "StopBody": {},
    "ApprovalBody": {"approve": True},
    "AddItemBody": {"name": "guarded", "type": "tool"},
    "AddPinBody": {"seq": 1},
    "AddDropBody": {"seq": 1},
    "SetPriorityBody": {"priority": 9},
    "CompactBody": {},
    "EditSummaryBody": {"summary": "an intruder was here"},
    "MemoryBody": {"text": "an intruder was here"},
    "PreviewSettingsBody": {"conversation": "c", "changes": {}},
}
QUERIES_BY_SUFFIX: dict[str, dict[str, Any]] = {"diff": {"other": 0}, "why": {"item": "#1"}}
SHARED_PATHS = {"/api/agents/{name}"}
"""Paths whose names are the same for all tenants."""
SECRET_WORD = "gannet"


@pytest.fixture
async def ids(
    client: httpx2.AsyncClient, store: SqlStore, server_state: ServerState, scripted: ScriptedAgent, conversation: str
) -> dict[str, Any]:
    """IDs of one item of every kind, each containing a word that no other tenant may read."""
    scripted.set_script(f"The {SECRET_WORD} dives.", "and so on", repeat=True)
    events = parse_events(
        (await client.post(f"{conversation}/send", json={"message": f"What of the {SECRET_WORD}?"})).text
    )
    reply = next(each.data["entry"]["seq"] for each in events if each.event == "reply_recorded")
    await client.patch(conversation, json={"title": SECRET_WORD})
    memory = (await client.post("/api/memories", json={"text": f"The {SECRET_WORD} dives."})).json()["id"]
    blob = (await client.post("/api/blobs", content=SECRET_WORD.encode())).json()["blob"]
    key = (await client.post("/api/keys", json={"name": SECRET_WORD, "scopes": ["read"]})).json()["id"]
    talk = await server_state.engine_for("default").conversation("c")
    request = replace(await talk.prepare(f"And the {SECRET_WORD}?"), id="request-1")
    await talk.record(f"The {SECRET_WORD} again.", request=request)
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=1), summary=SECRET_WORD))
    return {
        "conversation": "c",
        "seq": reply,
        "call": "call-1",
        "type": "tool",
        "name": "guarded",
        "id": "request-1",
        "digest": blob,
        "memory": memory,
        "key": key,
    }


def tenant_operations() -> list[Operation]:
    """Operations on items of a tenant; deletions come last, that of the conversation at the end.

    Those under `/v1` have IDs of their own kind; test_responses_state.py and test_responses_conversations.py try them.
    Those of people exist only where people sign in; test_permissions.py tries them.
    """
    operations = [
        each
        for each in list_operations()
        if not each.path.startswith(("/v1/", "/v1beta/")) and "team" not in each.spec["tags"]
    ]
    by_id = [each for each in operations if each.path_parameters and each.path not in SHARED_PATHS]
    by_body = [each for each in operations if not each.path_parameters and each.body == "PreviewSettingsBody"]
    return sorted([*by_id, *by_body], key=lambda each: (each.method == "delete", -len(each.path)))


async def call_operation(client: httpx2.AsyncClient, operation: Operation, ids: dict[str, Any]) -> httpx2.Response:
    path = re.sub(r"{(\w+)(:path)?}", lambda match: str(ids[match[1]]), operation.path)
    query = {
        name: ids["seq"] if name == "other" else value
        for name, value in QUERIES_BY_SUFFIX.get(operation.path.rpartition("/")[2], {}).items()
    }
    body = BODIES_BY_SCHEMA[operation.body] if operation.body is not None else None
    if operation.path.endswith("/events"):
        # An endless stream; its status is enough.
        async with client.stream("GET", path) as response:
            if response.status_code != 200:
                await response.aread()
            return response
    return await client.request(operation.method, path, params=query, json=body)


async def test_another_tenant_s_ids_lead_nowhere_and_one_s_own_do(
    live_client: httpx2.AsyncClient,
    client: httpx2.AsyncClient,
    other_tenant_client: httpx2.AsyncClient,
    ids: dict[str, Any],
):
    before = (await client.get("/api/conversations/c/export")).content
    let_in = {
        str(each): answer
        for each in tenant_operations()
        if (answer := await call_operation(other_tenant_client, each, ids)).status_code != 404
    }
    assert let_in == {}
    assert (await client.get("/api/conversations/c/export")).content == before
    for operation in tenant_operations():
        answer = await call_operation(live_client, operation, ids)
        # No call waits for approval, and only the gateway stores bodies: these 404 are not of a missing conversation.
        code = "entry_not_found" if operation.path.endswith("/body") else "not_found"
        known = answer.status_code < 300 or (answer.status_code == 404 and answer.json()["code"] == code)
        # No compaction is undone at this moment.
        known = known or (operation.path.endswith("/redo") and answer.json()["code"] == "invalid_request")
        assert known, f"{operation}: {answer.status_code} {answer.text}"


async def test_everything_that_names_a_conversation_says_that_there_is_none(
    other_tenant_client: httpx2.AsyncClient, ids: dict[str, Any]
):
    about_one = [each for each in tenant_operations() if "conversation" in each.path_parameters]
    assert len(about_one) > 25
    for operation in about_one:
        answer = await call_operation(other_tenant_client, operation, ids)
        assert answer.json()["code"] == "conversation_not_found", str(operation)
        assert answer.headers["content-type"] == "application/problem+json"


async def test_no_list_shows_what_is_another_tenant_s(
    client: httpx2.AsyncClient, other_tenant_client: httpx2.AsyncClient, ids: dict[str, Any]
):
    lists = [each.path for each in list_operations() if each.method == "get" and not each.path_parameters]
    needed = {"/api/search": {"query": SECRET_WORD}, "/api/documents/content": {"path": "x"}}
    visible = [path for path in lists if SECRET_WORD in (await client.get(path, params=needed.get(path))).text]
    assert {"/api/conversations", "/api/memories", "/api/keys", "/api/search"} <= set(visible)
    for path in lists:
        assert SECRET_WORD not in (await other_tenant_client.get(path, params=needed.get(path))).text, path


async def test_what_points_at_another_tenant_s_things_leads_nowhere(
    other_tenant_client: httpx2.AsyncClient, ids: dict[str, Any]
):
    for path, query in (
        ("/api/search", {"query": SECRET_WORD, "conversation": "c"}),
        ("/api/memories", {"cursor": ids["memory"]}),
    ):
        assert (await other_tenant_client.get(path, params=query)).status_code == 404
    image = {"role": "user", "parts": [{"type": "image", "blob": ids["digest"]}]}
    await other_tenant_client.post("/api/conversations", json={"id": "own"})
    quoting = await other_tenant_client.post("/api/conversations/own/messages", json={"messages": [image]})
    assert (quoting.status_code, quoting.json()["code"]) == (404, "blob_not_found")


async def test_the_same_id_is_another_conversation_for_each(
    client: httpx2.AsyncClient, other_tenant_client: httpx2.AsyncClient, ids: dict[str, Any]
):
    assert (await other_tenant_client.post("/api/conversations", json={"id": "c"})).status_code == 201
    assert SECRET_WORD not in (await other_tenant_client.get("/api/conversations/c/entries")).text
    assert SECRET_WORD in (await client.get("/api/conversations/c/entries")).text
