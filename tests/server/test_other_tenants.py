"""Every operation of the contract x the ids of another tenant: there is no such thing, and nothing is changed.

The ids are real ones, which the same test then uses as their owner.
"""

import re
from dataclasses import replace
from typing import Any

import httpx
import pytest
from calling import Teller, all_events
from contract_document import Operation, operations

from quire.log import SqlStore
from quire.model import Compaction, Span
from quire.server.serving import Serving

BODIES: dict[str, dict[str, Any]] = {
    "Renamed": {"title": "mine now"},
    "NewBranch": {"at": 1},
    "NewMessages": {"messages": ["an intruder was here"]},
    "Sending": {"message": "an intruder was here"},
    "Stop": {},
    "Decided": {"approve": True},
    "ItemNamed": {"name": "guarded", "type": "tool"},
    "PinNamed": {"number": 1},
    "CompactionWanted": {},
    "SummaryEdited": {"summary": "an intruder was here"},
    "MemoryWritten": {"text": "an intruder was here"},
    "Tried": {"conversation": "c", "changes": {}},
}
QUERIES: dict[str, dict[str, Any]] = {"diff": {"other": 0}, "why": {"item": "#1"}}
NOBODYS = {"/api/agents/{name}"}
"""What has a name that is the same for everyone."""
SECRET = "gannet"


@pytest.fixture
async def ids(
    client: httpx.AsyncClient, store: SqlStore, serving: Serving, teller: Teller, conversation: str
) -> dict[str, Any]:
    """One of everything, with a word in it that no stranger may read."""
    teller.says(f"The {SECRET} dives.", "and so on", repeat=True)
    heard = all_events((await client.post(f"{conversation}/send", json={"message": f"What of the {SECRET}?"})).text)
    reply = next(each.data["entry"]["seq"] for each in heard if each.event == "reply_kept")
    await client.patch(conversation, json={"title": SECRET})
    memory = (await client.post("/api/memories", json={"text": f"The {SECRET} dives."})).json()["id"]
    blob = (await client.post("/api/blobs", content=SECRET.encode())).json()["blob"]
    key = (await client.post("/api/keys", json={"name": SECRET, "scopes": ["read"]})).json()["id"]
    talk = await serving.engine("default").conversation("c")
    request = replace(await talk.prepare(f"And the {SECRET}?"), id="request-1")
    await talk.record(f"The {SECRET} again.", request=request)
    await store.append("c", Compaction(number=1, covers=Span(first=1, last=reply), summary=SECRET))
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


def owned() -> list[Operation]:
    """Those that name something which belongs to a tenant; what removes comes last, the conversation at the end."""
    by_id = [each for each in operations() if each.path_parameters and each.path not in NOBODYS]
    by_body = [each for each in operations() if not each.path_parameters and each.body == "Tried"]
    return sorted([*by_id, *by_body], key=lambda each: (each.method == "delete", -len(each.path)))


async def asked(client: httpx.AsyncClient, operation: Operation, ids: dict[str, Any]) -> httpx.Response:
    path = re.sub(r"{(\w+)(:path)?}", lambda found: str(ids[found[1]]), operation.path)
    query = {
        name: ids["seq"] if name == "other" else value
        for name, value in QUERIES.get(operation.path.rpartition("/")[2], {}).items()
    }
    body = BODIES[operation.body] if operation.body is not None else None
    if operation.path.endswith("/events"):
        # It has no end; how it begins is enough.
        async with client.stream("GET", path) as response:
            if response.status_code != 200:
                await response.aread()
            return response
    return await client.request(operation.method, path, params=query, json=body)


async def test_another_tenant_s_ids_lead_nowhere_and_one_s_own_do(
    live: httpx.AsyncClient, client: httpx.AsyncClient, stranger: httpx.AsyncClient, ids: dict[str, Any]
):
    before = (await client.get("/api/conversations/c/export")).content
    let_in = {str(each): answer for each in owned() if (answer := await asked(stranger, each, ids)).status_code != 404}
    assert let_in == {}
    assert (await client.get("/api/conversations/c/export")).content == before
    for operation in owned():
        answer = await asked(live, operation, ids)
        # Nothing waits for leave to run a call, and that is another thing than no conversation.
        known = answer.status_code < 300 or (answer.status_code == 404 and answer.json()["code"] == "not_found")
        assert known, f"{operation}: {answer.status_code} {answer.text}"


async def test_everything_that_names_a_conversation_says_that_there_is_none(
    stranger: httpx.AsyncClient, ids: dict[str, Any]
):
    about_one = [each for each in owned() if "conversation" in each.path_parameters]
    assert len(about_one) > 25
    for operation in about_one:
        answer = await asked(stranger, operation, ids)
        assert answer.json()["code"] == "conversation_not_found", str(operation)
        assert answer.headers["content-type"] == "application/problem+json"


async def test_no_list_shows_what_is_another_tenant_s(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, ids: dict[str, Any]
):
    lists = [each.path for each in operations() if each.method == "get" and not each.path_parameters]
    needed = {"/api/search": {"query": SECRET}, "/api/documents/content": {"path": "x"}}
    shown = [path for path in lists if SECRET in (await client.get(path, params=needed.get(path))).text]
    assert {"/api/conversations", "/api/memories", "/api/keys", "/api/search"} <= set(shown)
    for path in lists:
        assert SECRET not in (await stranger.get(path, params=needed.get(path))).text, path


async def test_what_points_at_another_tenant_s_things_leads_nowhere(stranger: httpx.AsyncClient, ids: dict[str, Any]):
    for path, query in (
        ("/api/search", {"query": SECRET, "conversation": "c"}),
        ("/api/memories", {"cursor": ids["memory"]}),
    ):
        assert (await stranger.get(path, params=query)).status_code == 404
    image = {"role": "user", "parts": [{"type": "image", "blob": ids["digest"]}]}
    await stranger.post("/api/conversations", json={"id": "own"})
    quoting = await stranger.post("/api/conversations/own/messages", json={"messages": [image]})
    assert (quoting.status_code, quoting.json()["code"]) == (404, "blob_not_found")


async def test_the_same_id_is_another_conversation_for_each(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient, ids: dict[str, Any]
):
    assert (await stranger.post("/api/conversations", json={"id": "c"})).status_code == 201
    assert SECRET not in (await stranger.get("/api/conversations/c/entries")).text
    assert SECRET in (await client.get("/api/conversations/c/entries")).text
