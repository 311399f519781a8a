"""`AGENTS.md` in the vault belongs to every request, also without an agent."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cli.app import app
from quire.engine import Engine, EngineConfig
from quire.model.agents import Agent, AgentMemory
from quire.settings import Settings
from quire.store import SqlStore


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    (tmp_path / "AGENTS.md").write_text("Use tabs. @style.md")
    (tmp_path / "style.md").write_text("Short lines.")
    return tmp_path


def make_engine(store: SqlStore, vault: Path | None, agent: Agent | None = None, **changes: object) -> Engine:
    settings = Settings.model_validate({"model": "gpt-4o", **changes})
    return Engine(store, EngineConfig.create(settings, agent=agent, vault=vault))


async def prepare_payload(engine: Engine) -> str:
    return str((await (await engine.conversation()).prepare("Hello")).to_chat())


async def test_it_is_read_without_an_agent(store: SqlStore, vault: Path):
    conversation = await make_engine(store, vault).conversation("c")
    request = await conversation.prepare("Hello")
    assert [(row.name, row.slot, row.reason) for row in request.manifest.included if row.kind == "memory"] == [
        ("AGENTS.md", "memory", "memory"),
        ("style.md", "memory", "imported"),
    ]
    assert request.assembly.rendered.stable_messages == 2
    reply = await conversation.record("Hi", request=request)
    (vault / "AGENTS.md").write_text("Use spaces.")
    assert "Use spaces." in str((await conversation.prepare("Again")).to_chat())
    assert (await conversation.replay(reply.seq)).mismatch is None


async def test_memories_are_not_read_without_an_agent(store: SqlStore, vault: Path):
    await store.memories.add("default", "The user likes tides.", source="notes")
    assert "tides" not in await prepare_payload(make_engine(store, vault))


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (None, True),
        (Agent(name="a"), True),
        (Agent(name="a", memory=AgentMemory(enabled=False)), False),
        (Agent(name="a", memory=AgentMemory(enabled=False, files_enabled=True)), True),
        (Agent(name="a", memory=AgentMemory(files_enabled=False)), False),
    ],
)
async def test_an_agent_decides_for_itself(store: SqlStore, vault: Path, agent: Agent | None, expected: bool):
    assert ("Use tabs." in await prepare_payload(make_engine(store, vault, agent))) is expected


async def test_it_can_be_switched_off(store: SqlStore, vault: Path):
    assert "Use tabs." not in await prepare_payload(make_engine(store, vault, memory_integration=False))
    assert "Use tabs." not in await prepare_payload(make_engine(store, None))


async def test_the_command_shows_it(tmp_path: Path, vault: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"sqlite:///{tmp_path}/q.db"
    async with SqlStore.open(url) as store:
        await store.create_conversation("c")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QUIRE_DATABASE_URL", url)
    monkeypatch.setenv("QUIRE_VAULT", str(vault))
    result = await asyncio.to_thread(CliRunner().invoke, app, ["memory", "relevance", "c", "--json"])
    assert result.exit_code == 0, result.output
    assert [row["name"] for row in json.loads(result.stdout)["blocks"]] == ["AGENTS.md", "style.md"]
