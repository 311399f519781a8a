"""Routes for conversations: their origin, and lists by session, project, client and purpose."""

from typing import Any

import httpx2
import pytest
from openapi_helpers import assert_conforms

from quire.log import ConversationOrigin
from quire.store import SqlStore

MAIN = ConversationOrigin(client="claude-code", session="s1", project="/home/ann/mill")
ORIGINS = {
    "plain": None,
    "main": MAIN,
    "title": MAIN.model_copy(update={"purpose": "title"}),
    "agent": MAIN.model_copy(update={"agent": "reviewer", "parent_agent": "planner", "purpose": "subagent"}),
    "other": ConversationOrigin(client="codex", session="s2", project="/home/ann/wheel"),
}


@pytest.fixture(autouse=True)
async def _conversations(store: SqlStore) -> None:
    for name, origin in ORIGINS.items():
        await store.create_conversation(name, origin=origin)


async def get_page(client: httpx2.AsyncClient, /, **params: Any) -> dict[str, Any]:
    answer = await client.get("/api/conversations", params=params)
    assert answer.status_code == 200, answer.text
    assert_conforms(answer.json(), schema="Page_ConversationSchema_")
    return answer.json()


async def test_a_conversation_has_its_origin(client: httpx2.AsyncClient):
    listed = {item["id"]: item["origin"] for item in (await get_page(client))["items"]}
    assert listed == {name: origin and origin.model_dump() for name, origin in ORIGINS.items()}
    for name, origin in listed.items():
        detail = (await client.get(f"/api/conversations/{name}")).json()
        assert_conforms(detail, schema="ConversationDetailSchema")
        assert detail["origin"] == origin
    assert listed["agent"] == {
        "client": "claude-code",
        "session": "s1",
        "project": "/home/ann/mill",
        "agent": "reviewer",
        "parent_agent": "planner",
        "purpose": "subagent",
    }


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"session": "s1"}, ["agent", "title", "main"]),
        ({"session": "s1", "purpose": "main"}, ["main"]),
        ({"purpose": "main"}, ["other", "main", "plain"]),
        ({"purpose": "title"}, ["title"]),
        ({"client": "codex"}, ["other"]),
        ({"project": "/home/ann/mill"}, ["agent", "title", "main"]),
        ({"client": "codex", "session": "s1"}, []),
        ({"session": "unknown"}, []),
    ],
)
async def test_conversations_are_listed_by_origin(
    client: httpx2.AsyncClient, params: dict[str, str], expected: list[str]
):
    assert [item["id"] for item in (await get_page(client, **params))["items"]] == expected
    pages, cursor = [], None
    for _ in range(len(expected) + 1):
        page = await get_page(client, **params, limit=1, **({"cursor": cursor} if cursor else {}))
        pages += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert pages == expected


@pytest.mark.every_database
async def test_a_filter_finds_nothing_of_another_tenant(other_tenant_client: httpx2.AsyncClient):
    assert (await get_page(other_tenant_client, session="s1"))["items"] == []


@pytest.mark.parametrize("value", ["", "x" * 501])
async def test_a_filter_has_a_bounded_length(client: httpx2.AsyncClient, value: str):
    for name in ("session", "project", "client", "purpose"):
        assert (await client.get("/api/conversations", params={name: value})).status_code == 422
