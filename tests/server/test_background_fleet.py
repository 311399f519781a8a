"""Background responses of several server processes that are killed: each is recorded once, and none is lost."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fleet import Fleet
from server_helpers import create_key_for

from infra.sizes import IS_FULL_SIZE
from quire.store import SqlStore

pytestmark = [pytest.mark.every_database, pytest.mark.slow]

RESPONSES, KILLS, NODES = (200, 5, 3) if IS_FULL_SIZE else (10, 1, 2)
FINAL = ("completed", "failed", "cancelled", "incomplete")
QUESTION_CHARS = 2_000
"""The upstream repeats the question in pieces of eight characters, two milliseconds each."""
SEED = 7


async def request(client: httpx2.AsyncClient, fleet: Fleet, rng: random.Random, method: str, path: str, **more: Any):
    """Sends a request to a node that lives."""
    while True:
        port = rng.choice(fleet.ports)
        try:
            answer = await client.request(method, f"http://127.0.0.1:{port}{path}", **more)
        except httpx2.HTTPError:
            await asyncio.sleep(0.1)
            continue
        assert answer.status_code == 200, answer.text
        return answer.json()


async def test_responses_of_nodes_that_are_killed_are_recorded_once(store: SqlStore, database_url: str, tmp_path: Path):
    key, rng = await create_key_for(store, "default"), random.Random(SEED)
    fleet = Fleet(database_url, key, tmp_path, {"QUIRE_CONTEXT_LIMIT": "64000"})
    try:
        for _ in range(NODES):
            fleet.start_server()
        await fleet.wait_ready(timeout_seconds=180)
        headers = {"authorization": f"Bearer {key}"}
        started, ids = time.monotonic(), list[str]()
        async with httpx2.AsyncClient(timeout=20, headers=headers) as client:
            kill_at = set(rng.sample(range(1, RESPONSES), KILLS))
            for number in range(RESPONSES):
                text = f"{number}: " + "x" * QUESTION_CHARS
                body = {"model": "echo", "input": text, "background": True}
                ids.append((await request(client, fleet, rng, "POST", "/v1/responses", json=body))["id"])
                if number in kill_at:
                    victim = rng.choice(fleet.servers)
                    victim.kill()
                    victim.restart()
            async with asyncio.timeout(600 if IS_FULL_SIZE else 120):
                for response_id in ids:
                    while True:
                        answer = await request(client, fleet, rng, "GET", f"/v1/responses/{response_id}")
                        if answer["status"] in FINAL:
                            break
                        await asyncio.sleep(0.2)
                    assert (answer["status"], answer["error"]) == ("completed", None)
        print(f"{RESPONSES} responses, {KILLS} kills, {NODES} nodes: {time.monotonic() - started:.1f} s")
    finally:
        fleet.stop()
    conversations = await store.list_conversations(limit=RESPONSES + 10)
    assert len(conversations) == RESPONSES
    questions: set[str] = set()
    for conversation in conversations:
        assert len(await store.list_branches(conversation.id)) == 1
        question, reply = await store.read_range(conversation.id, kinds=["message"])
        assert question.message.text in reply.message.text
        assert not reply.metadata.incomplete
        questions.add(question.message.text.partition(":")[0])
    assert questions == {str(number) for number in range(RESPONSES)}
    assert await store.all_tenants.list_unanswered(limit=10) == []
