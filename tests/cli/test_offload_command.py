"""`quire conversation offload` moves unused conversations, leaves others, and names those that were changed."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cli.app import app
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import index_messages
from quire.model import Message
from quire.settings import Settings
from quire.store import SqlStore

IN_2001 = 1_000_000_000_000_000


def test_unused_conversations_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, objects = tmp_path / "quire.db", tmp_path / "objects"

    async def fill() -> None:
        async with SqlStore.open(f"sqlite:///{path}") as store:
            for name in ("old", "changed", "new"):
                with monkeypatch.context() as patch:
                    if name != "new":
                        patch.setattr("quire.log.conversations.now", lambda: IN_2001)
                    await store.create_conversation(name)
                    await store.append(name, Message.user("When is the tide?"), Message.assistant("At noon."))
            while await store.usage.count():
                pass
            await index_messages(Engine(store, EngineConfig.create(Settings())))

    asyncio.run(fill())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE quire_entries SET at = 1 WHERE conversation = 'changed'")
    monkeypatch.setenv("QUIRE_DATABASE_URL", f"sqlite:///{path}")
    monkeypatch.setenv("QUIRE_OBJECT_STORAGE_URL", f"file://{objects}")
    result = CliRunner().invoke(app, ["conversation", "offload", "--unused-days", "30", "--json"])
    document = json.loads(result.stdout)
    assert (document["conversations"], document["changed"], document["unmoved"]) == (["old"], ["changed"], 1)
    assert "Rows of 1 conversation were changed" in result.stderr
    [moved] = [each for each in objects.rglob("*") if each.is_file()]
    assert moved.stat().st_size == document["object_bytes"]
    shown = CliRunner().invoke(app, ["conversation", "show", "old"])
    assert "At noon." in shown.stdout
    assert not moved.exists()


def test_without_object_storage_nothing_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QUIRE_DATABASE_URL", f"sqlite:///{tmp_path}/quire.db")
    result = CliRunner().invoke(app, ["conversation", "offload", "--unused-days", "30"])
    assert result.exit_code != 0
    assert "object_storage_url" in result.stderr
