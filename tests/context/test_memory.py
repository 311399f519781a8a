"""Memory blocks of a request: project files and an agent's memory entries."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.context.memory import (
    MAX_MEMORY_CHARS,
    build_memory_blocks,
    build_recalled_blocks,
    is_repeated_in,
    load_project_memory,
    validate_new_memory,
)
from quire.context.vault.paths import Root
from quire.errors import InvalidRequest
from quire.index.types import SearchHit
from quire.log.types import Citation, Memory


def make_memory(id: str, text: str, at: int = 1, seq: int | None = 3, source: str | None = None) -> Memory:
    cites = None if seq is None else Citation("c", 0, seq)
    return Memory(id, "a", text, cites, source, at, None, None)


def test_the_projects_files_come_whole_with_what_they_import(tmp_path: Path):
    (tmp_path / "AGENTS.md").write_text("Use tabs. See @style.md and @missing.md.")
    (tmp_path / "style.md").write_text("Short lines. Also @deep/more.md.")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "more.md").write_text("Back to @../AGENTS.md")
    memory = load_project_memory(Root(tmp_path), ["AGENTS.md", "NOTES.md"], max_chars=1_000)
    assert [(block.name, block.reason, block.is_required) for block in memory.blocks] == [
        ("AGENTS.md", "memory", True),
        ("style.md", "imported", False),
        ("deep/more.md", "imported", False),
    ]
    assert {row.name for row in memory.decisions} == {"@missing.md", "@../AGENTS.md"}
    assert not any(row.included for row in memory.decisions)


def test_a_file_that_leaves_the_project_is_refused_and_a_huge_one_is_cut(tmp_path: Path):
    (tmp_path / "AGENTS.md").write_text("x" * 500)
    memory = load_project_memory(Root(tmp_path), ["../secret.md", "AGENTS.md"], max_chars=100)
    assert [row.name for row in memory.decisions] == ["../secret.md"]
    [block] = memory.blocks
    assert block.text == "x" * 100 + "\n[… 400 of 500 characters left out; read AGENTS.md …]"


def test_entries_are_in_one_block_the_oldest_first_each_on_a_line_with_its_id():
    memories = [
        make_memory("2", "Likes\ntea.", seq=7),
        make_memory("1", "Lives in Rome.", seq=None, source="notes.md"),
    ]
    [block] = build_memory_blocks(memories)
    assert block.text == "- Lives in Rome. [1, from notes.md]\n- Likes tea. [2]"
    assert build_memory_blocks([]) == ()


def test_what_is_already_included_is_not_recalled():
    hits = [SearchHit("memory:a", key, 0, "", f"text {key}", 0.5, None) for key in "123"]
    assert [block.name for block in build_recalled_blocks(hits, included_ids=["2"])] == ["1", "3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  ", "text to remember is empty"),
        ("Likes tea!", "remembered already"),
        ("x" * (MAX_MEMORY_CHARS + 1), "a memory may have 2,000"),
    ],
)
def test_what_is_empty_known_or_too_long_is_not_remembered(text: str, message: str):
    with pytest.raises(InvalidRequest, match=message):
        validate_new_memory(text, existing=["likes tea"])


@pytest.mark.parametrize(
    ("fact", "text", "repeated"),
    [
        ("Harbour password: heron-77", "The secret harbour password is heron-77.", True),
        ("The user moved to Rome in May.", "#3 user: They moved to Rome, in May.\n#4 user: ok", True),
        ("The user's favourite colour is green.", "The user's favourite colour is blue.", False),
        ("The user likes tea.", "The user likes the sea.", False),
        ("The user.", "The user likes the sea.", False),
    ],
)
def test_a_reworded_fact_is_recognized(fact: str, text: str, repeated: bool):
    assert is_repeated_in(fact, text) is repeated


@given(st.lists(st.text(), max_size=4))
def test_no_entry_can_pass_for_two(texts: list[str]):
    memories = [make_memory(str(number), text) for number, text in enumerate(texts)]
    assert sum(len(block.text.split("\n")) for block in build_memory_blocks(memories)) == len(texts)


def test_a_cycle_of_imports_is_named_as_such(tmp_path: Path):
    (tmp_path / "AGENTS.md").write_text("Be brief. @a.md @gone.md", "utf-8")
    (tmp_path / "a.md").write_text("The tides. @AGENTS.md", "utf-8")
    loaded = load_project_memory(Root(tmp_path), ["AGENTS.md"], max_chars=1_000)
    assert [block.name for block in loaded.blocks] == ["AGENTS.md", "a.md"]
    assert {row.name: row.reason for row in loaded.decisions} == {"@AGENTS.md": "cycle", "@gone.md": "not_found"}
