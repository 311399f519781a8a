"""Transcripts that the real Claude Code and Codex write now are imported, and give the same as the fixtures."""

from pathlib import Path

import pytest

from importers.transcript_files import FOLDERS, import_path, read_texts
from infra.agent_transcripts import WRITERS
from infra.real_agents import find_claude, find_codex
from infra.scripted_provider import run_scripted_provider
from quire.store import SqlStore

pytestmark = pytest.mark.nightly

INSTALLED = {"claude-code": find_claude, "codex": find_codex}


@pytest.mark.parametrize("source", FOLDERS)
async def test_what_an_agent_writes_now_is_imported(source: str, store: SqlStore, tmp_path: Path):
    if INSTALLED[source]() is None:
        pytest.skip(f"{source.upper()} IS NOT INSTALLED: its test does not run (`just install-agents`)")
    with run_scripted_provider() as provider:
        folder = await WRITERS[source.replace("-", "_")](provider, tmp_path)
    live, recorded = store.for_tenant("live"), store.for_tenant("recorded")
    report = await import_path(live, source, folder)
    assert (report.files, report.conversations, report.error_count) == (3, 3, 0)
    await import_path(recorded, source, FOLDERS[source])
    assert await list_spoken(live) == await list_spoken(recorded)
    assert (await import_path(live, source, folder)).messages == 0


async def list_spoken(store: SqlStore) -> list[tuple[str | None, int, list[str]]]:
    """Of each conversation its purpose, its compactions, and what was said, without what the agents add."""
    spoken: list[tuple[str | None, int, list[str]]] = []
    for record in await store.list_conversations():
        assert await store.verify_conversation(record.id) == []
        texts = [text for text in await read_texts(store, record.id) if not text.startswith(("<", "Chunk ID", "{"))]
        texts = [text[:40] for text in texts if "agentId" not in text]
        compactions = await store.read_range(record.id, kinds=["compaction"])
        spoken.append((record.origin.purpose if record.origin else None, len(compactions), texts))
    return sorted(spoken, key=str)
