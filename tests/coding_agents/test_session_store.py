"""The real Claude Agent SDK with Quire's session store: a session is resumed on a machine that has never seen it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.real_agents import CLAUDE_MODEL, Claude, find_claude
from infra.scripted_provider import ScriptedProvider, ScriptedReply
from quire.adapters.claude_agent_sdk import QuireSessionStore
from quire.engine import open_engine
from quire.engine.search import search_messages

pytestmark = pytest.mark.slow

FACT = "The cat of the lighthouse keeper is called Marmalade."


async def test_a_session_continues_on_another_machine(
    provider: ScriptedProvider,
    make_claude: Callable[..., Claude],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    sdk: Any = pytest.importorskip("claude_agent_sdk")
    provider.script = lambda request: ScriptedReply("Noted.")
    folder = tmp_path / "project"
    folder.mkdir()

    async def ask(machine: Claude, prompt: str, *, resume: str | None = None) -> str:
        """Runs one prompt, in the same project on any machine; returns the session's id."""
        config = str(machine.home / ".claude")
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", config)
        options = sdk.ClaudeAgentOptions(
            session_store=store,
            resume=resume,
            cwd=folder,
            env={**machine.make_environment(), "CLAUDE_CONFIG_DIR": config},
            model=CLAUDE_MODEL,
            cli_path=find_claude(),
        )
        messages = [message async for message in sdk.query(prompt=prompt, options=options)]
        return messages[-1].session_id

    async with open_engine(f"sqlite:///{tmp_path}/quire.db", model="gpt-4o") as engine:
        store = QuireSessionStore(engine)
        session = await ask(make_claude(provider.url), f"Remember: {FACT}")
        await store.flush()
        found = await search_messages(engine, "lighthouse keeper cat", limit=3)
        assert any(FACT in hit.entry.raw for hit in found.messages)
        provider.requests.clear()
        assert await ask(make_claude(provider.url), "What is the cat called?", resume=session) == session
        sent = json.dumps(provider.requests[-1].items)
        assert FACT in sent
        assert "What is the cat called?" in sent
        await store.flush()
        [record] = await engine.store.list_session(session)
        entries = await engine.store.read_range(record.id)
        assert sum(FACT in entry.raw for entry in entries) == 1
        assert any("What is the cat called?" in entry.raw for entry in entries)
