"""Routes for compaction (plan, run, edit, undo) and for documents."""

from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_helpers import ScriptedAgent, parse_events

LONG_TEXT = "The mill runs day and night while the river carries water. " * 12


@pytest.fixture
def scripted() -> ScriptedAgent:
    agent = ScriptedAgent()
    agent.set_script("Noted.", repeat=True)
    return agent


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "places").mkdir(parents=True)
    (folder / "Mills.md").write_text("# Mills\n\nWater mills grind grain.\n")
    (folder / "places" / "River.md").write_text("The river is long.\n")
    (folder / "data.csv").write_text("a,b\n")
    (tmp_path / "secret.md").write_text("not yours")
    return folder


@pytest.fixture
def options(vault: Path) -> dict[str, object]:
    return {"vault": str(vault), "recent_messages_to_keep": 2}


async def ask(client: httpx2.AsyncClient, conversation: str, message: str) -> None:
    answer = await client.post(f"{conversation}/send", json={"message": message})
    assert parse_events(answer.text)[-1].event == "turn_ended", answer.text


async def get_json(client: httpx2.AsyncClient, path: str, /, **params: Any) -> Any:
    answer = await client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_compaction_is_planned_done_edited_and_undone(client: httpx2.AsyncClient, conversation: str) -> None:
    for number in range(6):
        await ask(client, conversation, f"{number}: {LONG_TEXT}")
    path = f"{conversation}/compaction"
    before = await get_json(client, f"{conversation}/usage")
    status = await get_json(client, path)
    assert status["active"] is None
    assert status["plan"]["freed_tokens"] > 0
    done = (await client.post(path, json={"instructions": "Keep the numbers."})).json()
    assert done["active"]["compaction"]["covers"]["first"] == status["plan"]["covers"]["first"]
    assert done["active"]["compaction"]["instructions"] == "Keep the numbers."
    assert (await get_json(client, f"{conversation}/usage"))["total_tokens"] < before["total_tokens"]
    edited = (await client.put(path, json={"summary": "Mills, six times."})).json()
    assert edited["active"]["compaction"]["summary"] == "Mills, six times."
    undone = (await client.delete(path)).json()
    assert undone["active"]["compaction"]["summary"] == done["active"]["compaction"]["summary"]
    assert (await client.delete(path)).json()["active"] is None
    assert (await get_json(client, f"{conversation}/usage"))["total_tokens"] == before["total_tokens"]
    assert (await client.delete(path)).status_code in (400, 409)


async def test_documents_of_a_conversation_are_listed_with_their_uses(
    client: httpx2.AsyncClient, conversation: str
) -> None:
    await ask(client, conversation, "What of [[Mills]] and [[Nowhere]]?")
    await ask(client, conversation, "And [[Mills]] again?")
    mills, nowhere = (await get_json(client, f"{conversation}/references"))["items"]
    assert (mills["path"], nowhere["path"]) == ("Mills.md", None)
    assert len(mills["uses"]) == 2
    assert mills["uses"][0]["injected"]
    quoted = await client.get(f"/api/blobs/{mills['uses'][0]['blob']}")
    assert quoted.text == "# Mills\n\nWater mills grind grain.\n"
    assert quoted.headers["content-disposition"] == "attachment"


async def test_notes_and_files_are_found_by_a_part_of_their_names(client: httpx2.AsyncClient) -> None:
    everything = (await get_json(client, "/api/documents"))["items"]
    assert {each["name"] for each in everything} == {"Mills", "River", "data.csv"}
    assert [each["name"] for each in (await get_json(client, "/api/documents", query="ri"))["items"]] == ["River"]
    assert (await get_json(client, "/api/documents/content", path="places/River.md"))["text"] == "The river is long.\n"


@pytest.mark.parametrize(
    "path", ["../secret.md", "/etc/passwd", "places/../../secret.md", "nowhere.md", "places", "\0"]
)
async def test_nothing_outside_the_vault_is_read(client: httpx2.AsyncClient, path: str) -> None:
    refused = await client.get("/api/documents/content", params={"path": path})
    assert refused.status_code in (400, 404), refused.text
    assert "not yours" not in refused.text


async def test_a_file_that_is_brought_along_reads_back(
    client: httpx2.AsyncClient, other_tenant_client: httpx2.AsyncClient
) -> None:
    stored = await client.post("/api/blobs", content=b"\x89PNG...", headers={"Content-Type": "image/png"})
    assert stored.status_code == 201
    again = await client.get(f"/api/blobs/{stored.json()['blob']}")
    assert (again.content, again.headers["content-type"]) == (b"\x89PNG...", "image/png")
    assert (await other_tenant_client.get(f"/api/blobs/{stored.json()['blob']}")).status_code == 404
