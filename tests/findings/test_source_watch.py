"""A server of the user imports what agents write, from programs that were imported before, and is idle otherwise."""

import asyncio
import time
from pathlib import Path

import pytest

from infra.agent_homes import plant, write_clean_session
from quire.engine import open_engine, source_scan
from quire.engine.file_import import ImportOptions
from quire.engine.source_scan import (
    FoundFile,
    FoundSource,
    find_sources,
    import_sources,
    select_changed,
    select_outdated,
    watch_sources,
)
from quire.log.observations import FileVersion, make_file_key
from quire.sources.registry import SOURCES

IDLE_FILES = 100


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_scan, "MIN_WATCH_SECONDS", 0.05)
    monkeypatch.setattr(source_scan, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(source_scan, "MAX_CPU_SHARE", 1.0)


@pytest.mark.usefixtures("quick")
async def test_what_an_agent_writes_is_imported(tmp_path: Path):
    projects, env = tmp_path / ".claude" / "projects", {"HOME": str(tmp_path)}
    write_clean_session(projects, 1)
    async with open_engine(f"sqlite:///{tmp_path}/quire.db") as engine, watch_sources(engine, env):
        await asyncio.sleep(0.5)
        assert await engine.store.list_conversations(limit=10) == []  # Nothing was imported before.
        await import_sources(engine, find_sources(env), ImportOptions())
        assert len(await engine.store.list_conversations(limit=10)) == 1
        plant(projects, "large_file", 2)
        async with asyncio.timeout(20):
            while len(await engine.store.list_conversations(limit=10)) < 2:  # noqa: ASYNC110 (a poll of the database)
                await asyncio.sleep(0.1)


async def test_looking_for_changes_takes_a_small_share_of_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    projects, env = tmp_path / ".claude" / "projects", {"HOME": str(tmp_path)}
    path = write_clean_session(projects, 1, messages=2)
    for number in range(IDLE_FILES):
        (path.parent / f"{number}.jsonl").symlink_to(path)
    monkeypatch.setattr(source_scan, "MIN_WATCH_SECONDS", 0.01)
    async with open_engine(f"sqlite:///{tmp_path}/quire.db") as engine:
        await import_sources(engine, find_sources(env), ImportOptions())
        pauses: list[float] = []
        used: list[float] = []
        original = source_scan._find_changed

        def measure(watchers: object) -> object:
            pauses.append(time.monotonic())
            found = original(watchers)  # pyright: ignore[reportArgumentType]
            used.append(found[1])
            return found

        monkeypatch.setattr(source_scan, "_find_changed", measure)
        async with watch_sources(engine, env):
            while len(pauses) < 3:  # noqa: ASYNC110 (filled by a thread)
                await asyncio.sleep(0.1)
    # From one look to the next, the look took at most half a percent.
    shares = [cost / (later - earlier) for cost, earlier, later in zip(used, pauses, pauses[1:], strict=False)]
    assert max(shares) <= 0.005, shares


def test_files_that_an_earlier_reader_read_are_read_again_only_where_that_is_asked_for(tmp_path: Path):
    source = SOURCES["codex"]
    path = tmp_path / "rollout-1.jsonl"
    key = make_file_key(source.name, str(path))
    found = [FoundSource(source, (), [FoundFile(path, 1, 1)])]
    for reads, is_outdated in ((source.reads - 1, True), (source.reads, False)):
        known = {key: FileVersion(key, 1, 1, reads)}
        assert select_changed(found, known) == []
        assert bool(select_changed(found, known, rereads=True)) == is_outdated
        assert bool(select_outdated(found, known)) == is_outdated
