"""Search route: messages of one or all conversations, documents, memories; nothing purged."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from quire.engine import search as search_module
from quire.log import SqlStore
from quire.model import Message
from quire.server.state import ServerState


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
    return [(hit["conversation"], hit["entry"]["branch"], hit["entry"]["seq"]) for hit in answer["messages"]]


async def test_messages_of_one_conversation_are_found(client: httpx2.AsyncClient, store: SqlStore, conversation: str):
    entries = await store.append("c", Message.user("The gannet nests on the cliff."), Message.user("Bread is baked."))
    await store.create_conversation("d")
    await store.append("d", Message.user("Another gannet."))
    answer = await search(client, "gannet", conversation="c")
    assert hit_locations(answer)[0] == ("c", 0, entries[0].seq)
    assert {location[0] for location in hit_locations(answer)} == {"c"}
    assert answer["messages"][0]["entry"]["body"]["parts"][0]["text"] == "The gannet nests on the cliff."
    assert answer["complete"] is True


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


async def test_what_was_purged_is_found_no_more(client: httpx2.AsyncClient, store: SqlStore, conversation: str):
    [secret] = await store.append("c", Message.user("The password is gannet."))
    assert hit_locations(await search(client, "gannet"))
    await client.delete(f"{conversation}/entries/{secret.seq}")
    assert (await search(client, "gannet"))["messages"] == []
    assert (await search(client, "gannet", conversation="c"))["messages"] == []


async def test_much_that_is_not_indexed_yet_is_said_and_found_later(
    client: httpx2.AsyncClient, store: SqlStore, server_state: ServerState, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(search_module, "MAX_INLINE_SEGMENTS", 2)
    for name in "abcde":
        await store.create_conversation(name)
        await store.append(name, Message.user(f"A gannet for {name}."))
    first = await search(client, "gannet")
    assert first["complete"] is False
    assert 2 <= len(first["messages"]) < 5
    await server_state.wait_for_background()
    later = await search(client, "gannet")
    assert later["complete"] is True
    assert {location[0] for location in hit_locations(later)} == set("abcde")


async def test_the_number_of_searched_conversations_is_bounded(
    client: httpx2.AsyncClient, store: SqlStore, conversation: str, monkeypatch: pytest.MonkeyPatch
):
    await store.append("c", Message.user("The gannet of long ago."))
    monkeypatch.setattr(search_module, "MAX_SEARCHED_CONVERSATIONS", 1)
    assert hit_locations(await search(client, "gannet"))
    await store.create_conversation("newer")
    assert hit_locations(await search(client, "gannet")) == []


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
