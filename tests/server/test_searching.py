"""Search over HTTP: messages of one conversation or of all, documents, memories; nothing that was purged."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.engine import searching
from quire.log import SqlStore
from quire.model import Message
from quire.server.serving import Serving


@pytest.fixture
def options(tmp_path: Path) -> dict[str, object]:
    vault = tmp_path / "vault"
    vault.mkdir()
    (vault / "Lighthouse.md").write_text("# Lighthouse\n\nThe lamp of the lighthouse was lit in 1874.\n")
    (vault / "Bread.md").write_text("# Bread\n\nFlour, water, salt.\n")
    return {"vault": str(vault)}


async def found(client: httpx.AsyncClient, query: str, **asked: Any) -> dict[str, Any]:
    answer = await client.get("/api/search", params={"query": query, **asked})
    assert answer.status_code == 200, answer.text
    return answer.json()


def places(answer: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(hit["conversation"], hit["entry"]["branch"], hit["entry"]["seq"]) for hit in answer["messages"]]


async def test_messages_of_one_conversation_are_found(client: httpx.AsyncClient, store: SqlStore, conversation: str):
    said = await store.append("c", Message.user("The gannet nests on the cliff."), Message.user("Bread is baked."))
    await store.create_conversation("d")
    await store.append("d", Message.user("Another gannet."))
    answer = await found(client, "gannet", conversation="c")
    assert places(answer)[0] == ("c", 0, said[0].seq)
    assert {place[0] for place in places(answer)} == {"c"}
    assert answer["messages"][0]["entry"]["body"]["parts"][0]["text"] == "The gannet nests on the cliff."
    assert answer["complete"] is True


async def test_messages_of_all_conversations_and_branches_are_found(
    client: httpx.AsyncClient, store: SqlStore, conversation: str
):
    [mine] = await store.append("c", Message.user("The gannet nests on the cliff."))
    await store.fork("c", at=mine.seq)
    [aside] = await store.append("c", Message.user("A gannet dives."), branch=1)
    await store.create_conversation("d")
    await store.append("d", Message.user("Nothing of the kind."), Message.assistant("No gannet here."))
    answer = await found(client, "gannet")
    assert sorted(places(answer)) == [("c", 0, mine.seq), ("c", 1, aside.seq), ("d", 0, 2)]
    scores = [hit["score"] for hit in answer["messages"]]
    assert scores == sorted(scores, reverse=True)
    assert len((await found(client, "gannet", limit=1))["messages"]) == 1
    [later] = await store.append("d", Message.user("One gannet after all."))
    assert ("d", 0, later.seq) in places(await found(client, "gannet"))


async def test_documents_and_memories_are_found(
    client: httpx.AsyncClient, serving: Serving, conversation: str, store: SqlStore
):
    async for _ in serving.engine("default").index_vault():
        pass
    made = (await client.post("/api/memories", json={"text": "The lighthouse keeper is called Ada."})).json()
    answer = await found(client, "lighthouse")
    assert [hit["path"] for hit in answer["documents"]] == ["Lighthouse.md"]
    assert "1874" in answer["documents"][0]["text"]
    assert [(hit["id"], hit["text"]) for hit in answer["memories"]] == [(made["id"], made["text"])]
    await client.delete(f"/api/memories/{made['id']}")
    assert (await found(client, "lighthouse"))["memories"] == []


async def test_what_was_purged_is_found_no_more(client: httpx.AsyncClient, store: SqlStore, conversation: str):
    [secret] = await store.append("c", Message.user("The password is gannet."))
    assert places(await found(client, "gannet"))
    await client.delete(f"{conversation}/entries/{secret.seq}")
    assert (await found(client, "gannet"))["messages"] == []
    assert (await found(client, "gannet", conversation="c"))["messages"] == []


async def test_much_that_is_not_indexed_yet_is_said_and_found_later(
    client: httpx.AsyncClient, store: SqlStore, serving: Serving, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(searching, "ON_THE_WAY", 2)
    for name in "abcde":
        await store.create_conversation(name)
        await store.append(name, Message.user(f"A gannet for {name}."))
    first = await found(client, "gannet")
    assert first["complete"] is False
    assert 2 <= len(first["messages"]) < 5
    await serving.settle()
    later = await found(client, "gannet")
    assert later["complete"] is True
    assert {place[0] for place in places(later)} == set("abcde")


async def test_only_so_many_conversations_are_looked_into(
    client: httpx.AsyncClient, store: SqlStore, conversation: str, monkeypatch: pytest.MonkeyPatch
):
    await store.append("c", Message.user("The gannet of long ago."))
    monkeypatch.setattr(searching, "RECENT", 1)
    assert places(await found(client, "gannet"))
    await store.create_conversation("newer")
    assert places(await found(client, "gannet")) == []


@pytest.mark.parametrize("query", ["", "x" * 1_001])
async def test_what_is_no_question_is_refused(query: str, client: httpx.AsyncClient):
    assert (await client.get("/api/search", params={"query": query})).status_code == 422


@pytest.mark.parametrize("query", ["***", "\x00", "'; --", "the", '"a" OR b', "漢字"])
async def test_any_text_is_a_question(query: str, client: httpx.AsyncClient, store: SqlStore, conversation: str):
    await store.append("c", Message.user("gannet"))
    assert await found(client, query)
    assert await found(client, query, conversation="c")


async def test_a_conversation_that_is_not_there_is_a_problem(client: httpx.AsyncClient):
    missing = await client.get("/api/search", params={"query": "x", "conversation": "nowhere"})
    assert (missing.status_code, missing.json()["code"]) == (404, "conversation_not_found")
