"""Transcripts of the real agents as files of a test, and what an import of them stores."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from quire.engine import Engine
from quire.engine.config import EngineConfig
from quire.engine.file_import import ImportOptions, ImportReport, import_files
from quire.settings import Settings
from quire.sources.base import Source, SourceConversation, SourceMessage
from quire.sources.registry import SOURCES
from quire.store import SqlStore

DATA = Path(__file__).parent / "data"
FOLDERS = {"claude-code": DATA / "claude_code", "codex": DATA / "codex"}
DEFAULT_OPTIONS = ImportOptions()
JsonLine = dict[str, Any]


def copy_transcripts(name: str, target: Path) -> Path:
    """A copy of a source's transcripts that a test may change."""
    return Path(shutil.copytree(FOLDERS[name], target))


def write_lines(path: Path, lines: Iterable[JsonLine], *, age_seconds: float = 3_600) -> Path:
    """Writes a file that was last changed that long ago: of a file that still grows, the end is held back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    changed = time.time() - age_seconds
    os.utime(path, (changed, changed))
    return path


def read_lines(path: Path) -> list[JsonLine]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def edit_lines(path: Path, change: Callable[[JsonLine], None]) -> None:
    lines = read_lines(path)
    for line in lines:
        change(line)
    write_lines(path, lines)


def read_conversation(source: str, path: Path) -> tuple[SourceConversation, list[SourceMessage]]:
    """The only conversation of a file, and its messages; fails on any error."""
    [conversation] = SOURCES[source].read(path)
    assert isinstance(conversation, SourceConversation)
    messages: list[SourceMessage] = []
    for message in conversation.messages:
        assert isinstance(message, SourceMessage), message
        messages.append(message)
    return conversation, messages


def make_engine(store: SqlStore) -> Engine:
    return Engine(store, EngineConfig.create(Settings()))


async def import_path(
    store: SqlStore, source: str | Source, path: Path, options: ImportOptions = DEFAULT_OPTIONS
) -> ImportReport:
    chosen = SOURCES[source] if isinstance(source, str) else source
    engine = make_engine(store)
    report = await import_files(engine, chosen, list(chosen.find_files(path)), options)
    await engine.runtime.jobs.wait()
    return report


async def dump_store(store: SqlStore) -> dict[str, list[str]]:
    """Every conversation as its export."""
    records = await store.list_conversations(limit=10_000)
    return {each.id: [line async for line in store.export_conversation(each.id)] for each in records}


async def read_texts(store: SqlStore, conversation: str, *, branch: int = 0) -> list[str]:
    """Texts of the messages of a branch, calls and results by name."""
    entries = await store.read_range(conversation, branch=branch, kinds=["message"])
    return [
        entry.message.text
        or " ".join(call.name for call in entry.message.tool_calls)
        or " ".join(result.text for result in entry.message.tool_results)
        for entry in entries
    ]
