"""Search route: messages of one or all conversations, documents, memories; nothing purged."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from quire.log import ConversationOrigin
from quire.model import Draft, Message
from quire.server.routes import search as search_routes
from quire.server.state import ServerState
from quire.store import SqlStore


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    vault = tmp_path / "vault"
    vault.mkdir()
    (vault / "Lighthouse.md").write_text("# Lighthouse\n\nThe lamp of the lighthouse was lit in 1874.\n")
    (vault / "Bread.md").write_text("# Bread\n\nFlour, water, salt.\n")
    return {"vault": str(vault)}


async def search(client: httpx2.AsyncClient, query: str, **params: Any) -> dict[str, Any]:
    answer = await client.get("/api/search", params={"query": query, **params})
    assert answer.status_code == 200, answer.text
    return answer.json()


def hit_locations(answer: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(hit["conversation"]["id"], hit["entry"]["branch"], hit["entry"]["seq"]) for hit in answer["messages"]]


async def test_messages_of_one_conversation_are_found(client: httpx2.AsyncClient, store: SqlStore, conversation: str):
    entries = await store.append("c", Message.user("The gannet nests on the cliff."), Message.user("Bread is baked."))
    await store.create_conversation("d")
    await store.append("d", Message.user("Another gannet."))
    answer = await search(client, "gannet", conversation="c")
    assert hit_locations(answer)[0] == ("c", 0, entries[0].seq)
    assert {location[0] for location in hit_locations(answer)} == {"c"}
    assert answer["messages"][0]["entry"]["body"]["parts"][0]["text"] == "The gannet nests on the cliff."
    assert answer["complete"] is True


@pytest.mark.every_database
async def test_messages_of_all_conversations_and_branches_are_found(
    client: httpx2.AsyncClient, store: SqlStore, conversation: str
):
    [mine] = await store.append("c", Message.user("The gannet nests on the cliff."))
    await store.fork("c", at=mine.seq)
    [aside] = await store.append("c", Message.user("A gannet dives."), branch=1)
    await store.create_conversation("d")
    await store.append("d", Message.user("Nothing of the kind."), Message.assistant("No gannet here."))
    answer = await search(client, "gannet")
    assert sorted(hit_locations(answer)) == [("c", 0, mine.seq), ("c", 1, aside.seq), ("d", 0, 2)]
    scores = [hit["score"] for hit in answer["messages"]]
    assert scores == sorted(scores, reverse=True)
    assert len((await search(client, "gannet", limit=1))["messages"]) == 1
    [later] = await store.append("d", Message.user("One gannet after all."))
    assert ("d", 0, later.seq) in hit_locations(await search(client, "gannet"))


async def test_documents_and_memories_are_found(
    client: httpx2.AsyncClient, server_state: ServerState, conversation: str, store: SqlStore
):
    async for _ in server_state.engine_for("default").index_vault():
        pass
    memory = (await client.post("/api/memories", json={"text": "The lighthouse keeper is called Ada."})).json()
    answer = await search(client, "lighthouse")
    assert [hit["path"] for hit in answer["documents"]] == ["Lighthouse.md"]
    assert "1874" in answer["documents"][0]["text"]
    assert [(hit["id"], hit["text"]) for hit in answer["memories"]] == [(memory["id"], memory["text"])]
    await client.delete(f"/api/memories/{memory['id']}")
    assert (await search(client, "lighthouse"))["memories"] == []


@pytest.mark.every_database
async def test_what_was_purged_is_found_no_more(client: httpx2.AsyncClient, store: SqlStore, conversation: str):
    [secret] = await store.append("c", Message.user("The password is gannet."))
    assert hit_locations(await search(client, "gannet"))
    await client.delete(f"{conversation}/entries/{secret.seq}")
    assert (await search(client, "gannet"))["messages"] == []
    assert (await search(client, "gannet", conversation="c"))["messages"] == []


async def append_two_conversations(store: SqlStore) -> None:
    """One of Claude Code in a project, one of a chat, each with a gannet."""
    code = ConversationOrigin(client="claude-code", project="/home/ada/birds")
    await store.create_conversation("code", title="Birds", origin=code)
    await store.append(
        "code",
        Draft(body=Message.user("Count the gannets.", name="Ada"), created_at=1_000_000),
        Draft(body=Message.assistant("There are nine gannets on the cliff."), created_at=2_000_000),
    )
    await store.create_conversation("chat")
    await store.append("chat", Draft(body=Message.user("What does a gannet eat?", name="Bo"), created_at=3_000_000))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, {("code", 1), ("code", 2), ("chat", 1)}),
        ({"conversation": "chat"}, {("chat", 1)}),
        ({"conversation": ["chat", "code"], "role": "user"}, {("code", 1), ("chat", 1)}),
        ({"project": "/home/ada/birds"}, {("code", 1), ("code", 2)}),
        ({"source": "claude-code"}, {("code", 1), ("code", 2)}),
        ({"source": "codex"}, set()),
        ({"role": "assistant"}, {("code", 2)}),
        ({"person": "Ada"}, {("code", 1)}),
        ({"since": 2_000_000}, {("code", 2), ("chat", 1)}),
        ({"until": 2_000_000}, {("code", 1)}),
        ({"since": 2_000_000, "until": 3_000_000, "role": "user"}, set()),
    ],
)
async def test_messages_are_filtered(
    filters: dict[str, Any], expected: set[tuple[str, int]], client: httpx2.AsyncClient, store: SqlStore
):
    await append_two_conversations(store)
    answer = await search(client, "gannet", **filters)
    assert {(name, seq) for name, _, seq in hit_locations(answer)} == expected


async def test_messages_are_ordered_by_time_and_bounded_by_score(client: httpx2.AsyncClient, store: SqlStore):
    await append_two_conversations(store)
    oldest = await search(client, "gannet", order="oldest")
    assert [hit["entry"]["created_at"] for hit in oldest["messages"]] == [1_000_000, 2_000_000, 3_000_000]
    assert hit_locations(await search(client, "gannet", order="newest")) == hit_locations(oldest)[::-1]
    [best, *others] = (await search(client, "gannet cliff"))["messages"]
    assert best["entry"]["seq"] == 2
    assert 1 >= best["score"] > others[0]["score"] >= 0
    assert hit_locations(await search(client, "gannet cliff", min_score=best["score"])) == [("code", 0, 2)]


async def test_a_hit_has_an_excerpt_with_highlights_and_its_conversation(client: httpx2.AsyncClient, store: SqlStore):
    await append_two_conversations(store)
    [hit] = (await search(client, "gannet", role="assistant"))["messages"]
    assert hit["excerpt"] == "There are nine gannets on the cliff."
    assert [hit["excerpt"][start:end] for start, end in hit["highlights"]] == ["gannets"]
    assert (hit["conversation"]["title"], hit["conversation"]["origin"]["client"]) == ("Birds", "claude-code")
    [untitled] = (await search(client, "gannet", conversation="chat"))["messages"]
    assert untitled["conversation"]["title"] == "What does a gannet eat?"


@pytest.mark.parametrize(
    "params",
    [
        {"conversation": ["c"] * (search_routes.MAX_SEARCHED_CONVERSATIONS + 1)},
        {"conversation": "x" * 201},
        {"project": "x" * (search_routes.MAX_FILTER_CHARS + 1)},
        {"person": ""},
        {"role": "nobody"},
        {"order": "random"},
        {"min_score": 1.5},
        {"since": -1},
        {"until": 2**63},
        {"limit": 101},
    ],
)
async def test_filters_are_bounded(params: dict[str, Any], client: httpx2.AsyncClient):
    assert (await client.get("/api/search", params={"query": "x", **params})).status_code == 422


@pytest.mark.parametrize("query", ["", "x" * 1_001])
async def test_what_is_no_question_is_refused(query: str, client: httpx2.AsyncClient):
    assert (await client.get("/api/search", params={"query": query})).status_code == 422


@pytest.mark.parametrize("query", ["***", "\x00", "'; --", "the", '"a" OR b', "漢字"])
async def test_any_text_is_a_question(query: str, client: httpx2.AsyncClient, store: SqlStore, conversation: str):
    await store.append("c", Message.user("gannet"))
    assert await search(client, query)
    assert await search(client, query, conversation="c")


async def test_a_conversation_that_is_not_there_is_a_problem(client: httpx2.AsyncClient):
    missing = await client.get("/api/search", params={"query": "x", "conversation": "nowhere"})
    assert (missing.status_code, missing.json()["code"]) == (404, "conversation_not_found")
