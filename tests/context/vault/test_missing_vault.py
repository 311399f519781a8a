"""A vault whose folder is missing: a warning, links marked broken, and everything else continues."""

import logging
from pathlib import Path

import pytest

from quire.context.vault import BrokenLink, ResolvedLink, Vault
from quire.engine import Engine, EngineConfig
from quire.settings import Settings
from quire.store import SqlStore

NOTE = "# Mid\n\nA note about mills.\n"


def make_engine(store: SqlStore, vault: Path) -> Engine:
    return Engine(store, EngineConfig.create(Settings(model="gpt-4o"), vault=vault))


def test_a_missing_folder_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        vault = Vault(tmp_path / "gone")
    assert vault.is_missing
    assert f"The vault {tmp_path / 'gone'} does not exist" in caplog.text
    assert vault.resolve("[[Mid]]") == BrokenLink("the vault's folder is missing")
    [wikilink, mention] = vault.find_references("See [[Mid]] and @data/wind.csv.")
    assert (wikilink.reference.path, wikilink.reference.snippet) == (None, "Not found: the vault's folder is missing.")
    assert mention.text is None
    assert list(vault.scan()) == []


def test_a_folder_that_exists_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert not Vault(tmp_path).is_missing
    assert not caplog.records


def test_links_work_once_the_folder_is_there(tmp_path: Path):
    vault = Vault(tmp_path / "notes")
    assert isinstance(vault.resolve("[[Mid]]"), BrokenLink)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "Mid.md").write_text(NOTE)
    assert vault.resolve("[[Mid]]") == ResolvedLink("Mid.md")


async def test_the_conversation_continues_and_the_link_is_broken(store: SqlStore, tmp_path: Path):
    conversation = await make_engine(store, tmp_path / "gone").conversation("c")
    request = await conversation.prepare("See [[Mid]].")
    assert [(row.name, row.reason) for row in request.manifest.decisions if row.kind == "document"] == [
        ("[[Mid]]", "not_found")
    ]
    assert "- [[Mid]]: Not found: the vault's folder is missing." in request.to_chat()["messages"][-1]["content"]
    reply = await conversation.record("I cannot see it.", request=request)
    assert (await conversation.replay(reply.seq)).mismatch is None


async def test_a_folder_that_disappears_keeps_its_index(store: SqlStore, tmp_path: Path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "Mid.md").write_text(NOTE)
    engine = make_engine(store, folder)
    assert engine.vault is not None
    assert [step async for step in engine.index_vault()]
    folder.rename(tmp_path / "elsewhere")
    assert [step async for step in engine.index_vault()] == []
    assert [each.path for each in await store.documents.list(engine.vault.name)] == ["Mid.md"]
    conversation = await engine.conversation("c")
    assert "[[Mid]]: Not found" in (await conversation.prepare("See [[Mid]].")).to_chat()["messages"][-1]["content"]
