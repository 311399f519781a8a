"""Sources whose programs cannot run here: their files are made from descriptions of the format."""

import sqlite3
from pathlib import Path
from typing import NamedTuple

import pytest

from importers.described_samples import DESCRIBED, write_copilot_chat, write_lm_studio, write_zed
from importers.transcript_files import import_path, read_texts
from infra.recorded_files import set_age
from quire.model import Compaction
from quire.sources.registry import SOURCES
from quire.store import SqlStore

CONDENSED = ["Greet.", "I will greet.", "ahoy", "The user was greeted.", "Once more.", "Ahoy."]


class Expected(NamedTuple):
    texts: list[str]
    compactions: int = 0
    tokens: tuple[int, int, int] = (0, 0, 0)
    """Input, of it cached, and output."""


EXPECTED = {
    "roo-code": Expected(CONDENSED, 1, (2_000, 200, 40)),
    "cline (extension)": Expected(CONDENSED, 1, (2_000, 200, 40)),
    "kilo (extension)": Expected(CONDENSED, 1, (2_000, 200, 40)),
    "goose": Expected(["Greet.", "shell", "ahoy", "The user was greeted.", "Once more.", "Ahoy.[aNewKind]"], 1),
    "amp": Expected(["Greet.", "I will greet.", "ahoy", "Ahoy.[a_new_kind]"], 0, (2_000, 200, 40)),
    "zed": Expected([*CONDENSED[:4], "Once more.[ANewKind]", "Ahoy."], 1, (2_000, 200, 40)),
    "lm-studio": Expected(["Be brief.", "Greet.", "Ahoy."], 0, (1_000, 0, 20)),
    "copilot-chat": Expected(["Greet.", "I will greet.", "ahoy", "Ahoy.", "Once more.", "Ahoy.[aNewKind]"]),
}


@pytest.mark.parametrize("sample", DESCRIBED)
async def test_what_a_format_describes_is_imported_once(sample: str, store: SqlStore, tmp_path: Path):
    source, expected = sample.partition(" ")[0], EXPECTED[sample]
    folder = DESCRIBED[sample](tmp_path / "files")
    set_age(folder, 3_600)
    report = await import_path(store, source, folder)
    assert (report.errors, report.conversations) == ([], 1)
    [record] = await store.list_conversations()
    entries = await store.read_range(record.id, branch=0)
    texts = [entry.body.summary if isinstance(entry.body, Compaction) else None for entry in entries]
    messages = iter(await read_texts(store, record.id))
    assert [next(messages) if text is None else text for text in texts] == expected.texts
    assert len([text for text in texts if text is not None]) == expected.compactions
    usages = [entry.metadata.usage for entry in entries if entry.metadata.usage]
    tokens = [(each.input_tokens, each.cache_read_tokens, each.output_tokens) for each in usages]
    assert (tuple(sum(column) for column in zip(*tokens, strict=True)) or (0, 0, 0)) == expected.tokens
    assert (await import_path(store, source, folder)).messages == 0


def test_formats_from_descriptions_are_experimental():
    described = {name for name in DESCRIBED if " " not in name}
    assert {name for name, source in SOURCES.items() if source.is_experimental} == described


async def test_a_version_that_is_not_selected_is_a_branch(store: SqlStore, tmp_path: Path):
    await import_path(store, "lm-studio", write_lm_studio(tmp_path / "files"))
    [record] = await store.list_conversations()
    assert len(await store.list_branches(record.id)) == 2
    assert await read_texts(store, record.id, branch=1) == ["Be brief.", "Greet.", "Hello."]
    assert record.origin is not None
    assert record.origin.project == "letters"


async def test_a_response_that_is_being_written_waits(store: SqlStore, tmp_path: Path):
    folder = write_copilot_chat(tmp_path / "files")
    first = await import_path(store, "copilot-chat", folder)
    set_age(folder, 3_600)
    second = await import_path(store, "copilot-chat", folder)
    assert (first.messages, second.messages) == (4, 2)
    [record] = await store.list_conversations()
    assert record.origin is not None
    assert record.origin.project == "/home/user/my project"


async def test_a_compressed_thread_is_unpacked(store: SqlStore, tmp_path: Path):
    zstd = pytest.importorskip("backports.zstd")
    folder = write_zed(tmp_path / "files")
    with sqlite3.connect(folder / "threads.db") as connection:
        [(data,)] = connection.execute("SELECT data FROM threads")
        connection.execute("UPDATE threads SET data = ?, data_type = 'zstd'", (zstd.compress(data),))
    connection.close()
    assert (await import_path(store, "zed", folder)).messages == len(CONDENSED)
    with sqlite3.connect(folder / "threads.db") as connection:
        connection.execute("UPDATE threads SET data = ?", (b"\x28\xb5\x2f\xfd broken",))
    connection.close()
    assert (await import_path(store, "zed", folder)).error_count == 1
