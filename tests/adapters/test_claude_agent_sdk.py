"""The session store passes the SDK's own conformance suite, and its sessions are searchable conversations."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quire.adapters.claude_agent_sdk import QuireSessionStore, open_session_store
from quire.engine import Engine, open_engine
from quire.engine.search import search_messages
from quire.errors import InvalidRequest
from quire.log.transcripts import MAX_KEY_BYTES
from quire.store import SqlStore

sdk = pytest.importorskip("claude_agent_sdk", reason="THE CLAUDE AGENT SDK IS NOT INSTALLED (`just install-agents`)")

TRANSCRIPTS = Path(__file__).parents[1] / "importers/data/claude_code"
KEY = {"project_key": "-home-dev-project", "session_id": "7cca47ef-4465-4add-81dc-0d7e9d414038"}


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    async with open_engine(database_url, model="gpt-4o") as engine:
        yield engine


def read_entries() -> list[dict[str, Any]]:
    """The lines of a session that the real Claude Code wrote, with a compaction."""
    [path] = TRANSCRIPTS.rglob(f"{KEY['session_id']}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.every_database
async def test_all_contracts_of_the_sdk_hold(store: SqlStore):
    from claude_agent_sdk.testing import run_session_store_conformance

    number = iter(range(1_000))

    def make_store() -> Any:
        """An empty store for each contract: another tenant."""
        tenant = store.for_tenant(f"tenant {next(number)}")
        return QuireSessionStore(build_engine(tenant))

    await run_session_store_conformance(make_store)


def build_engine(store: SqlStore) -> Engine:
    from quire.engine.config import EngineConfig
    from quire.engine.runtime import EngineRuntime
    from quire.settings import Settings

    return Engine(store, EngineConfig.create(Settings(model="gpt-4o")), EngineRuntime())


async def test_a_session_is_loaded_as_it_was_and_its_messages_are_searchable(engine: Engine):
    entries = read_entries()
    store = QuireSessionStore(engine)
    for start in range(0, len(entries), 7):
        await store.append(KEY, entries[start : start + 7])
    await store.append(KEY, entries[:20])
    await store.flush()
    repeated = [entry for entry in entries[:20] if "uuid" not in entry]
    assert await store.load(KEY) == [*entries, *repeated]
    [record] = await engine.store.list_session(KEY["session_id"])
    assert record.origin is not None
    assert record.origin.client == "claude-code"
    stored = await engine.store.read_range(record.id)
    assert any(entry.kind == "compaction" for entry in stored)
    found = await search_messages(engine, "ahoy", limit=5)
    assert any(hit.entry.conversation == record.id for hit in found.messages)
    count = len(stored)
    await store.append(KEY, [{**entries[0], "note": "again"}])
    await store.flush()
    assert len(await engine.store.read_range(record.id)) == count
    [info] = await sdk.list_sessions_from_store(store, directory="/home/dev/project")
    assert info.session_id == KEY["session_id"]
    messages = await sdk.get_session_messages_from_store(store, KEY["session_id"], directory="/home/dev/project")
    assert any("After the summary." in json.dumps(message.message) for message in messages)


async def test_entries_are_opaque(engine: Engine):
    odd = [
        {
            "type": "x",
            "uuid": "a",
            "nul": "\x00",
            "surrogate": "\ud800",
            "number": 1e300,
            "nested": {"b": [None, True]},
        },
        {"type": "mode", "mode": "plan"},
        {"type": "mode", "mode": "plan"},
        {"type": "x", "uuid": ["no text"]},
    ]
    store = QuireSessionStore(engine)
    key = {"project_key": "../..", "session_id": "../../etc/passwd", "subpath": "../subagents/../../x"}
    await store.append(key, odd)
    await store.flush()
    assert await store.load(key) == odd
    with pytest.raises(InvalidRequest):
        await store.append({**key, "session_id": "x" * (MAX_KEY_BYTES + 1)}, odd)


async def test_a_purge_of_a_message_deletes_the_entries_of_its_session(engine: Engine):
    store = QuireSessionStore(engine)
    await store.append(KEY, read_entries())
    await store.append({**KEY, "subpath": "subagents/agent-1"}, [{"type": "x", "uuid": "a"}])
    await store.flush()
    [record] = await engine.store.list_session(KEY["session_id"])
    await engine.store.purge(record.id, [1])
    assert await store.load(KEY) is None
    assert await store.load({**KEY, "subpath": "subagents/agent-1"}) is not None
    assert await engine.store.verify_conversation(record.id) == []


async def test_a_value_is_purged_from_entries_too(engine: Engine):
    store = QuireSessionStore(engine)
    await store.append(KEY, [{"type": "mode", "uuid": "m", "secret": "only-in-an-entry"}])
    assert (await engine.store.purge_value("only-in-an-entry")).remaining == ()
    assert await store.load(KEY) is None


@pytest.mark.parametrize("purges", [False, True])
async def test_delete_leaves_messages_in_the_log_unless_told_otherwise(engine: Engine, purges: bool):
    store = QuireSessionStore(engine, purge_on_delete=purges)
    await store.append(KEY, read_entries())
    await store.flush()
    [record] = await engine.store.list_session(KEY["session_id"])
    await store.delete(KEY)
    assert await store.load(KEY) is None
    assert await engine.store.is_purged(record.id) is purges


def test_the_example_of_the_docs_runs(tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs/claude-agent-sdk.md").read_text()
    code, printed = page.split("```python\n")[1].split("```\n\n```text\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == printed.split("```")[0], done.stderr


async def test_a_closed_store_has_written_all_messages(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/quire.db"
    async with open_session_store(url, model="gpt-4o") as store:
        await store.append(KEY, read_entries())
    async with SqlStore.open(url) as log:
        assert await log.list_session(KEY["session_id"])
