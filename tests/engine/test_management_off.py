"""Context management off: a request that does not fit is refused, and everything that only reads shows why."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cli.app import app
from quire.engine import Conversation, Engine, EngineConfig
from quire.errors import ContextOverflow
from quire.model import Compaction, Message
from quire.settings import Settings
from quire.store import SqlStore

SENTENCE = "Road dry, weather held, and we met no one until noon. "


async def make_conversation(store: SqlStore, turns: int) -> Conversation:
    settings = Settings(
        model="gpt-4o", context_limit=3_000, reserved_response_tokens=100, context_management_enabled=False
    )
    conversation = await Engine(store, EngineConfig.create(settings)).conversation("c")
    for number in range(turns):
        await conversation.append(f"m{number} {SENTENCE * 5}", Message.assistant("ok"))
    return conversation


@pytest.mark.parametrize("turns", [60, 400])
async def test_usage_shows_a_history_that_does_not_fit(store: SqlStore, turns: int):
    conversation = await make_conversation(store, turns)
    report = await conversation.usage()
    assert (report.status, report.available) == ("over", 0)
    assert report.total_tokens > report.window
    assert (await conversation.preview("and now?")).excluded
    with pytest.raises(ContextOverflow, match="message #"):
        await conversation.prepare("and now?")


async def test_usage_is_over_only_where_a_request_is_refused(store: SqlStore):
    conversation = await make_conversation(store, 34)
    trigger = conversation.engine.policy.trigger_tokens
    while (report := await conversation.usage()).total_tokens <= trigger:
        await conversation.append("more", Message.assistant("ok"))
    assert report.status == "near"
    await conversation.prepare("?")


async def test_a_manual_compaction_makes_it_fit(store: SqlStore):
    conversation = await make_conversation(store, 60)
    assert await conversation.plan_compaction() is not None
    entry = await conversation.compact()
    assert entry is not None
    assert isinstance(entry.body, Compaction)
    assert (await conversation.usage()).status == "ok"
    await conversation.prepare("and now?")


async def test_a_question_that_alone_does_not_fit_is_refused_whole(store: SqlStore):
    conversation = await make_conversation(store, 0)
    with pytest.raises(ContextOverflow, match="the newest message"):
        await conversation.prepare(SENTENCE * 1_000)


async def test_the_commands_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"sqlite:///{tmp_path}/q.db"
    async with SqlStore.open(url) as store:
        await make_conversation(store, 60)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QUIRE_DATABASE_URL", url)
    monkeypatch.setenv("QUIRE_CONTEXT_LIMIT", "3000")
    monkeypatch.setenv("QUIRE_CONTEXT_MANAGEMENT_ENABLED", "false")
    shown = await run_command("context", "show", "c")
    assert "is refused" in shown
    assert "quire context compact" in shown
    compacted = json.loads(await run_command("context", "compact", "c", "--json"))
    assert compacted["entry"]["kind"] == "compaction"
    assert "is refused" not in await run_command("context", "show", "c")


async def run_command(*words: str) -> str:
    """Runs a command in a thread, because it starts an event loop."""
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert result.exit_code == 0, result.output
    return result.stdout
