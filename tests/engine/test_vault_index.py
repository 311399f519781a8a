"""Search index of a vault: each folder has its own, whatever its name."""

from pathlib import Path

from quire.context.vault import Vault
from quire.engine import Engine, EngineConfig
from quire.engine.search import search_documents
from quire.settings import Settings
from quire.store import SqlStore


async def index_folder(store: SqlStore, folder: Path) -> Engine:
    engine = Engine(store, EngineConfig.create(Settings(), vault=folder))
    async for _ in engine.index_vault():
        pass
    return engine


async def search_keys(engine: Engine, query: str) -> list[str]:
    return [hit.key for hit in await search_documents(engine, query, limit=5)]


async def test_folders_of_the_same_name_have_separate_indexes(store: SqlStore, tmp_path: Path):
    private, work = tmp_path / "private" / "notes", tmp_path / "work" / "notes"
    for folder, name, text in ((private, "Diary.md", "The lighthouse treatment."), (work, "Plan.md", "Build a mill.")):
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
    first = await index_folder(store, private)
    second = await index_folder(store, work)
    assert await search_keys(first, "lighthouse") == ["Diary.md"]
    assert await search_keys(second, "lighthouse") == []
    assert await search_keys(second, "mill") == ["Plan.md"]


def test_a_folder_has_one_index_by_whatever_path_it_is_opened(tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "notes")
    paths = (tmp_path / "notes", tmp_path / "link", tmp_path / "notes" / ".." / "notes")
    assert len({Vault(path).name for path in paths}) == 1
