"""Compaction and documents over HTTP: what is planned is done, edited and undone; what is named can be read."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from calling import Teller, all_events

LONG = "The mill runs day and night while the river carries water. " * 12


@pytest.fixture
def teller() -> Teller:
    teller = Teller()
    teller.says("Noted.", repeat=True)
    return teller


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


async def ask(client: httpx.AsyncClient, conversation: str, message: str) -> None:
    answer = await client.post(f"{conversation}/send", json={"message": message})
    assert all_events(answer.text)[-1].event == "turn_ended", answer.text


async def get(client: httpx.AsyncClient, path: str, /, **asked: Any) -> Any:
    answer = await client.get(path, params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_compaction_is_planned_done_edited_and_undone(client: httpx.AsyncClient, conversation: str) -> None:
    for number in range(6):
        await ask(client, conversation, f"{number}: {LONG}")
    path = f"{conversation}/compaction"
    before = await get(client, f"{conversation}/usage")
    state = await get(client, path)
    assert state["active"] is None
    assert state["plan"]["tokens"] > 0
    done = (await client.post(path, json={"instructions": "Keep the numbers."})).json()
    assert done["active"]["compaction"]["covers"]["first"] == state["plan"]["covers"]["first"]
    assert done["active"]["compaction"]["instructions"] == "Keep the numbers."
    assert (await get(client, f"{conversation}/usage"))["total"] < before["total"]
    edited = (await client.put(path, json={"summary": "Mills, six times."})).json()
    assert edited["active"]["compaction"]["summary"] == "Mills, six times."
    undone = (await client.delete(path)).json()
    assert undone["active"]["compaction"]["summary"] == done["active"]["compaction"]["summary"]
    assert (await client.delete(path)).json()["active"] is None
    assert (await get(client, f"{conversation}/usage"))["total"] == before["total"]
    assert (await client.delete(path)).status_code in (400, 409)


async def test_documents_of_a_conversation_are_listed_with_their_uses(
    client: httpx.AsyncClient, conversation: str
) -> None:
    await ask(client, conversation, "What of [[Mills]] and [[Nowhere]]?")
    await ask(client, conversation, "And [[Mills]] again?")
    mills, nowhere = (await get(client, f"{conversation}/references"))["items"]
    assert (mills["path"], nowhere["path"]) == ("Mills.md", None)
    assert len(mills["uses"]) == 2
    assert mills["uses"][0]["injected"]
    quoted = await client.get(f"/api/blobs/{mills['uses'][0]['blob']}")
    assert quoted.text == "# Mills\n\nWater mills grind grain.\n"
    assert quoted.headers["content-disposition"] == "attachment"


async def test_notes_and_files_are_found_by_a_part_of_their_names(client: httpx.AsyncClient) -> None:
    everything = (await get(client, "/api/documents"))["items"]
    assert {each["name"] for each in everything} == {"Mills", "River", "data.csv"}
    assert [each["name"] for each in (await get(client, "/api/documents", query="ri"))["items"]] == ["River"]
    assert (await get(client, "/api/documents/content", path="places/River.md"))["text"] == "The river is long.\n"


@pytest.mark.parametrize(
    "path", ["../secret.md", "/etc/passwd", "places/../../secret.md", "nowhere.md", "places", "\0"]
)
async def test_nothing_outside_the_vault_is_read(client: httpx.AsyncClient, path: str) -> None:
    refused = await client.get("/api/documents/content", params={"path": path})
    assert refused.status_code in (400, 404), refused.text
    assert "not yours" not in refused.text


async def test_a_file_that_is_brought_along_reads_back(client: httpx.AsyncClient, stranger: httpx.AsyncClient) -> None:
    kept = await client.post("/api/blobs", content=b"\x89PNG...", headers={"Content-Type": "image/png"})
    assert kept.status_code == 201
    again = await client.get(f"/api/blobs/{kept.json()['blob']}")
    assert (again.content, again.headers["content-type"]) == (b"\x89PNG...", "image/png")
    assert (await stranger.get(f"/api/blobs/{kept.json()['blob']}")).status_code == 404
