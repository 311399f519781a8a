"""What a project and an agent remember, as a request carries it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.context.memory import check_new, lasting, project_memory, recalled
from quire.context.vault.paths import Root
from quire.errors import InvalidRequest
from quire.log.found import Citation, Hit, Memory


def remembered(id: str, text: str, at: int = 1, seq: int | None = 3, source: str | None = None) -> Memory:
    cites = None if seq is None else Citation("c", 0, seq)
    return Memory(id, "a", text, cites, source, at, None, None)


def test_the_projects_files_come_whole_with_what_they_import(tmp_path: Path):
    (tmp_path / "AGENTS.md").write_text("Use tabs. See @style.md and @missing.md.")
    (tmp_path / "style.md").write_text("Short lines. Also @deep/more.md.")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "more.md").write_text("Back to @../AGENTS.md")
    found = project_memory(Root(tmp_path), ["AGENTS.md", "NOTES.md"], longest=1_000)
    assert [(block.name, block.reason, block.required) for block in found.blocks] == [
        ("AGENTS.md", "memory", True),
        ("style.md", "imported", False),
        ("deep/more.md", "imported", False),
    ]
    assert {row.name for row in found.decided} == {"@missing.md", "@../AGENTS.md"}
    assert not any(row.included for row in found.decided)


def test_a_file_that_leaves_the_project_is_refused_and_a_huge_one_is_cut(tmp_path: Path):
    (tmp_path / "AGENTS.md").write_text("x" * 500)
    found = project_memory(Root(tmp_path), ["../secret.md", "AGENTS.md"], longest=100)
    assert [row.name for row in found.decided] == ["../secret.md"]
    [block] = found.blocks
    assert block.text == "x" * 100 + "\n[… 400 of 500 characters left out; read AGENTS.md …]"


def test_entries_stand_in_one_block_the_oldest_first_each_on_a_line_with_its_source():
    known = [
        remembered("2", "Likes\ntea.", seq=7),
        remembered("1", "Lives in Rome.", seq=None, source="notes.md"),
    ]
    [block] = lasting(known)
    assert block.text == "- Lives in Rome. [notes.md]\n- Likes tea. [#7]"
    assert lasting([]) == ()


def test_what_is_shown_already_is_not_recalled():
    hits = [Hit("memory:a", key, 0, "", f"text {key}", 0.5, None) for key in "123"]
    assert [block.name for block in recalled(hits, shown=["2"])] == ["1", "3"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  ", "nothing in the text"),
        ("Likes tea!", "remembered already"),
        ("they moved to rome in may", "recalled text is not remembered anew"),
    ],
)
def test_what_is_empty_known_or_recalled_is_not_remembered(text: str, said: str):
    with pytest.raises(InvalidRequest, match=said):
        check_new(text, known=["likes tea"], recalled=["#3 user: They moved to Rome, in May.\n#4 user: ok"])


@given(st.lists(st.text(), max_size=4))
def test_no_entry_can_pass_for_two(texts: list[str]):
    known = [remembered(str(number), text) for number, text in enumerate(texts)]
    assert sum(len(block.text.split("\n")) for block in lasting(known)) == len(texts)
