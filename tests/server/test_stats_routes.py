"""Insights over HTTP: the usage of the tenant, and documents that are used together."""

from pathlib import Path
from typing import Any

import httpx2

from infra.agent_homes import plant
from quire.engine import Engine
from quire.engine.config import EngineConfig
from quire.engine.file_import import import_files
from quire.model import DocumentReference, Draft, Message, Usage
from quire.model.entry_metadata import TurnTotals
from quire.model.ids import now
from quire.settings import Settings
from quire.sources.registry import SOURCES
from quire.store import SqlStore


async def append_turn(
    store: SqlStore, conversation: str, *documents: str, cost: float | None = 0.5, at: int | None = None
) -> None:
    usage = Usage(model="gpt-4o", input_tokens=100, cache_read_tokens=25)
    references = tuple(DocumentReference(link=name, path=name) for name in documents)
    await store.append(
        conversation,
        Draft(body=Message.user("A question?"), references=references, created_at=at or now()),
        Draft(
            body=Message.assistant("An answer."),
            usage=usage,
            turn=TurnTotals(steps=1, usage=usage, cost_usd=cost or 0.0),
            cost_usd=cost or 0.0,
            cost_incomplete=cost is None,
            created_at=at or now(),
        ),
    )


async def get_stats(client: httpx2.AsyncClient, **params: Any) -> dict[str, Any]:
    response = await client.get("/api/stats", params=params)
    assert response.status_code == 200, response.text
    return response.json()


async def test_what_was_just_appended_is_counted(client: httpx2.AsyncClient, store: SqlStore):
    await store.create_conversation("c", title="Boats")
    await append_turn(store, "c", "plan.md")
    stats = await get_stats(client)
    assert (stats["totals"]["turns"], stats["totals"]["cost_usd"], stats["totals"]["cache_share"]) == (1, 0.5, 0.25)
    assert list(stats["groups"]) == ["day", "model", "project", "source", "slot", "tool"]
    assert [each["name"] for each in stats["documents"]] == ["plan.md"]
    [turn] = stats["turns"]
    assert (turn["conversation"], turn["title"], turn["seq"]) == ("c", "Boats", 2)
    assert stats["pending_branches"] == 0


async def test_a_turn_without_a_price_is_counted_as_such(client: httpx2.AsyncClient, store: SqlStore):
    await store.create_conversation("c")
    await append_turn(store, "c", cost=None)
    await append_turn(store, "c", cost=0.5)
    stats = await get_stats(client)
    names = ("cost_usd", "unpriced_turns", "unpriced_requests", "unpriced_tokens")
    assert [stats["totals"][name] for name in names] == [0.5, 1, 1, 100]
    assert [each["cost_usd"] for each in stats["turns"]] == [0.5, None]


async def test_it_can_be_limited_to_a_dimension_and_a_time(client: httpx2.AsyncClient, store: SqlStore):
    await store.create_conversation("c")
    await append_turn(store, "c", at=5)
    assert (await get_stats(client))["totals"]["turns"] == 0
    stats = await get_stats(client, since=0, by="day")
    assert [each["name"] for each in stats["groups"].pop("day")] == ["1970-01-01"]
    assert stats["groups"] == {}
    assert (await client.get("/api/stats", params={"by": "moon"})).status_code == 422


async def test_documents_that_the_same_conversations_use_form_a_graph(client: httpx2.AsyncClient, store: SqlStore):
    for name, documents in {"c": ("a.md", "b.md"), "d": ("a.md", "b.md", "c.md")}.items():
        await store.create_conversation(name)
        await append_turn(store, name, *documents)
    graph = (await client.get("/api/stats/references")).json()
    assert graph["documents"] == ["a.md", "b.md", "c.md"]
    assert graph["pairs"][0] == {"first": "a.md", "second": "b.md", "conversations": 2}
    assert len(graph["pairs"]) == 3


async def test_findings_are_those_of_the_tenants_own_imports(
    client: httpx2.AsyncClient, store: SqlStore, tmp_path: Path
):
    assert (await client.get("/api/stats/findings")).json()["findings"] == []
    plant(tmp_path, "large_file", 2)
    source = SOURCES["claude-code"]
    await import_files(Engine(store, EngineConfig.create(Settings())), source, list(source.find_files(tmp_path)))
    document = (await client.get("/api/stats/findings")).json()
    [finding] = document["findings"]
    assert (finding["kind"], finding["total"]) == ("large_file", 1)
    assert "schema_2.sql" in finding["evidence"][0]["text"]
    assert document["agents"][0]["name"] == "claude-code"
