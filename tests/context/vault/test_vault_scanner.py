"""Notes: sections and blocks that a link can name, passages for search, and incremental scans."""

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.sizes import IS_FULL_SIZE
from infra.vaults import write_vault
from quire.context.vault import Vault
from quire.context.vault.paths import ListedFile, Root, TextFile
from quire.context.vault.scanner import KnownFile, detect_changes, parse_note
from quire.context.vault.sections import (
    MAX_PASSAGE_CHARS,
    MIN_PASSAGE_CHARS,
    NotePassage,
    find_block,
    find_headings,
    find_section,
)
from quire.context.vault.wikilinks import BrokenLink, ResolvedLink

TEXT = """---
title: Mills
aliases: [Mill]
---
# Water mills

Before the first section. ^intro

## Wheels: a "list" of kinds

- undershot ^under
    - slow
- overshot
  more of it ^over

### Undershot

Slow water.

```
## not a heading

still code ^nocode
```

^code

## Wheels

Again. `# no`

Setext
======

Below.

| a | b |
|---|---|
| 1 | 2 |

^table

> quoted ^quote

## C# & C++ ##

Last one, see [[Ada#Life|her]] and `[[nobody]]`.
Second line ^last-one
"""


def section_text(*trail: str) -> str | None:
    span = find_section(TEXT, trail)
    return None if span is None else TEXT[span.start : span.end].strip()


def test_headings_are_found_with_their_trails():
    assert [(heading.level, heading.path) for heading in find_headings(TEXT, start=TEXT.index("# Water"))] == [
        (1, ("Water mills",)),
        (2, ("Water mills", 'Wheels: a "list" of kinds')),
        (3, ("Water mills", 'Wheels: a "list" of kinds', "Undershot")),
        (2, ("Water mills", "Wheels")),
        (1, ("Setext",)),
        (2, ("Setext", "C# & C++")),
    ]


@pytest.mark.parametrize(
    ("trail", "begins", "ends", "rule"),
    [
        (["Undershot"], "### Undershot", "^code", "a section goes to the next heading of its rank or a higher one"),
        (["Water mills"], "# Water mills", "`# no`", "with everything below it"),
        (["Wheels"], "## Wheels\n\nAgain", "`# no`", "a heading as written goes before one that is only alike"),
        (["wheels a list of kinds"], "## Wheels: a", "^code", "letter case and punctuation make no difference"),
        (["Water mills", "Undershot"], "### Undershot", "^code", "a heading path may skip levels"),
        (["Wheels a list of kinds", "Undershot"], "### Undershot", "^code", "and is as tolerant"),
        (["Setext"], "Setext\n===", "^last-one", "headings that are underlined"),
        (["C# & C++"], "## C#", "^last-one", "the marks behind a heading are not part of it"),
        (["C C"], "## C#", "^last-one", "a heading without the signs that a link cannot hold"),
    ],
)
def test_a_section_is_found_by_its_headings(trail: list[str], begins: str, ends: str, rule: str):
    found = section_text(*trail)
    assert found is not None, rule
    assert found.startswith(begins), rule
    assert found.endswith(ends), rule


@pytest.mark.parametrize(
    "trail", [["Nothing"], ["not a heading"], ["Wheels", "Undershot"], ["Undershot", "Wheels"], ["title: Mills"]]
)
def test_what_is_no_heading_or_not_below_it_is_not_found(trail: list[str]):
    assert section_text(*trail) is None


@pytest.mark.parametrize(
    ("text", "trail", "found", "rule"),
    [
        ("# A, b\n1\n# A b\n2\n", ["A b"], "# A b\n2\n", "as written goes before what is only alike"),
        ("# Y\n## X\n### Z\n", ["X", "Y"], None, "a chain goes downward"),
        ("# C#\n1\n", ["C#"], "# C#\n1\n", "a mark that is part of the last word stays"),
        ("# C ##\n1\n", ["C"], "# C ##\n1\n", "one behind a blank goes"),
        ("#hashtag\n", ["hashtag"], None, "a tag is no heading"),
        ("```\ncode\n```\n---\n", ["```\ncode\n```"], None, "code above a rule is none"),
        ("- item\n---\n", ["- item"], None, "nor is a list item"),
        ("two\nlines\n---\nx\n", ["lines"], "lines\n---\nx\n", "of an underlined paragraph the last line"),
    ],
)
def test_a_heading_is_what_markdown_takes_for_one(text: str, trail: list[str], found: str | None, rule: str):
    span = find_section(text, trail)
    assert (span and text[span.start : span.end]) == found, rule


def test_a_heading_has_its_text():
    assert [heading.text for heading in find_headings("# C#\n# C ##\n#\n## ##\n# `a` b #\n")] == [
        "C#",
        "C",
        "",
        "",
        "`a` b",
    ]


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("intro", "Before the first section. ^intro", "a paragraph"),
        ("INTRO", "Before the first section. ^intro", "in any letter case"),
        ("under", "- undershot ^under\n    - slow", "a list item with the items below it"),
        ("over", "- overshot\n  more of it ^over", "a list item of two lines"),
        ("code", "```\n## not a heading\n\nstill code ^nocode\n```\n\n^code", "code, by an id of its own line"),
        ("table", "| a | b |\n|---|---|\n| 1 | 2 |\n\n^table", "a table likewise"),
        ("quote", "> quoted ^quote", "a quote"),
        ("last-one", "Last one, see [[Ada#Life|her]] and `[[nobody]]`.\nSecond line ^last-one", "all its lines"),
    ],
)
def test_a_block_is_found_by_its_id(name: str, text: str, rule: str):
    span = find_block(TEXT, name)
    assert span is not None, rule
    assert TEXT[span.start : span.end] == text, rule


def test_an_id_in_code_or_within_a_word_is_none():
    assert find_block(TEXT, "nocode") is None
    assert find_block("x^2\n\n2 ^3 is eight", "2") is None
    assert find_block("x^2\n\n2 ^3 is eight", "3") is None


def make_file(text: str, path: str = "folder/Note.md") -> TextFile:
    return TextFile(path, text, "digest", len(text), 1)


def test_a_note_is_read_into_its_parts():
    note = parse_note(make_file(TEXT))
    assert (note.title, note.aliases) == ("Mills", ("Mill",))
    assert note.block_ids == ("intro", "under", "over", "code", "table", "quote", "last-one")
    assert [(link.target, link.headings) for link in note.links] == [("Ada", ("Life",))]
    assert all("aliases" not in passage.text for passage in note.passages)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\ntitle: Said\n---\n# Other", "Said"),
        ("# Heading\n\ntext", "Heading"),
        ("## Second rank\n\n# First", "Note"),
        ("text", "Note"),
        ("", "Note"),
        ("---\ntitle: [a]\n---\n", "Note"),
    ],
)
def test_a_title_is_said_or_is_the_first_heading_or_the_name(text: str, title: str):
    assert parse_note(make_file(text)).title == title


def paragraphs(word: str, length: int) -> str:
    return "\n\n".join([f"{word} {'x' * 90}"] * (length // 95))


def test_passages_follow_the_headings_and_carry_their_trail():
    long = "\n\n".join(
        f"{'#' * rank} {name}\n\n{paragraphs(name, 800)}" for rank, name in [(1, "A"), (2, "B"), (2, "C")]
    )
    assert [passage.title for passage in parse_note(make_file(long)).passages] == ["A", "A > B", "A > C"]
    other = parse_note(make_file(long.replace("# A\n", "# A\n", 1).replace("# A", "---\ntitle: T\n---\n# A", 1)))
    assert [passage.title for passage in other.passages] == ["T > A", "T > A > B", "T > A > C"]


def test_a_long_section_is_cut_at_paragraphs_and_short_ones_are_joined():
    cut = parse_note(make_file(f"# A\n\n{paragraphs('word', 5_000)}")).passages
    assert len(cut) == 3
    assert all(passage.text.endswith("x" * 90) for passage in cut)
    short = "# A\n\n" + "\n\n".join(f"## B{number}\n\nfew words" for number in range(5))
    assert [(passage.title, passage.text) for passage in parse_note(make_file(short)).passages] == [("A", short)]
    tail = f"# A\n\n## B\n\n{paragraphs('b', 900)}\n\n## C\n\nfew words"
    assert [passage.title for passage in parse_note(make_file(tail)).passages] == ["A"]


def test_code_is_not_cut_at_a_blank_line_in_it():
    code = "```\n" + "\n\n".join(["y" * 80] * 12) + "\n```"
    text = f"# A\n\n{paragraphs('word', 1_500)}\n\n{code}"
    assert parse_note(make_file(text)).passages[-1].text == code


def test_a_paragraph_without_end_is_cut_at_lines_then_at_blanks_then_anywhere():
    for piece, clean in (("z" * 70 + "\n", True), ("z" * 70 + " ", True), ("z", False)):
        found = parse_note(make_file(piece * (7_000 // len(piece)))).passages
        assert max(len(passage.text) for passage in found) <= MAX_PASSAGE_CHARS
        assert len(found) <= 5
        assert not clean or all(passage.text.strip().endswith("z" * 70) for passage in found)


MARKS = [
    "# a\n",
    "## b\n",
    "### a\n",
    "text ",
    "\n\n",
    "\n",
    "```\n",
    "---\n",
    "===\n",
    "- x\n",
    " ^id\n",
    "^id\n",
    "[[a]]",
    "> ",
    "\r\n",
    "    ",
    "aliases: [x]\n",
]
notes = st.lists(st.sampled_from(MARKS) | st.text(max_size=5) | st.just("word " * 150), max_size=30).map("".join)


@given(notes)
def test_any_text_is_a_note_whose_passages_hold_every_word_once(text: str):
    note = parse_note(make_file(text))
    start = 0
    for passage in note.passages:
        assert isinstance(passage, NotePassage)
        position = text.index(passage.text, passage.start)
        assert not text[start:position].strip() or (start == 0 and text.startswith("---"))
        assert 0 < len(passage.text) <= MAX_PASSAGE_CHARS
        start = position + len(passage.text)
    assert not text[start:].strip() or not note.passages
    starts = [*(passage.start for passage in note.passages), len(text)]
    lengths = [end - start for start, end in pairwise(starts)]
    assert all(one >= MIN_PASSAGE_CHARS or one + other > MAX_PASSAGE_CHARS for one, other in pairwise(lengths))
    for heading in note.headings:
        assert 0 <= heading.start < heading.body_start <= max(heading.end, heading.body_start) <= len(text)
        assert find_section(text, heading.path) is not None or text.startswith("---")
    for name in note.block_ids:
        assert find_block(text, name) is not None


@pytest.mark.parametrize(
    "piece",
    ["#", "# ", "# a\n", "=\n", "a\n-\n", "^a ", "^a\n", "\n", " \n", "- a ^b\n", "a\n---\n", "---\n", "| ", "> a\n"],
)
def test_a_hostile_note_is_read_in_time_that_grows_with_its_length(piece: str):
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        started = time.process_time()
        parse_note(make_file(text))
        find_block(text, "nothing")
        find_section(text, ["nothing"])
        return time.process_time() - started

    short = min(seconds(10_000) for _ in range(3))
    assert min(seconds(80_000) for _ in range(2)) < max(0.1, 30 * short)


def test_changes_are_detected_by_size_and_time():
    known = {
        "same": KnownFile("d", 1, 1),
        "size": KnownFile("d", 1, 1),
        "time": KnownFile("d", 1, 1),
        "gone": KnownFile("d", 1, 1),
    }
    found = [ListedFile("same", 1, 1), ListedFile("size", 2, 1), ListedFile("time", 1, 2), ListedFile("new", 1, 1)]
    changes = detect_changes(known, found)
    assert [file.path for file in changes.new] == ["new"]
    assert [file.path for file in changes.maybe_changed] == ["size", "time"]
    assert changes.deleted == ("gone",)


def test_a_scan_reports_progress_and_gives_batches(tmp_path: Path):
    paths = write_vault(tmp_path, notes=450)
    vault = Vault(tmp_path, name="v")
    steps = list(vault.scan())
    assert [(step.done, step.total) for step in steps] == [(done, 450) for done in range(451)]
    assert steps[0].path is None
    assert {step.path for step in steps[1:]} == set(paths)
    sizes = [len(step.batch.notes) for step in steps if step.batch]
    assert sizes == [200, 200, 50]
    assert set(vault.known_files) == set(paths)


def test_a_second_scan_reads_what_changed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = write_vault(tmp_path, notes=40)
    vault = Vault(tmp_path)
    list(vault.scan())
    (tmp_path / paths[3]).write_text("# Changed\n\nnew words")
    os.utime(tmp_path / paths[4], ns=(1, 1))
    (tmp_path / paths[5]).unlink()
    (tmp_path / "New.md").write_text("---\naliases: [Newest]\n---\nnew")
    (tmp_path / "binary.md").write_bytes(b"a\0")
    note: list[str] = []
    reading = Root.read

    def watched(self: Root, path: str, *, folder: str = "", max_bytes: int | None = None) -> TextFile:
        note.append(path)
        return reading(self, path, folder=folder, max_bytes=max_bytes)

    monkeypatch.setattr(Root, "read", watched)
    steps = list(vault.scan())
    (batch,) = [step.batch for step in steps if step.batch]
    assert sorted(note) == sorted([paths[3], paths[4], "New.md", "binary.md"])
    assert sorted(note.path for note in batch.notes) == sorted([paths[3], "New.md"])
    assert [file.path for file, _ in batch.touched] == [paths[4]]
    assert batch.deleted == (paths[5],)
    assert [path for path, _ in batch.skipped] == ["binary.md"]
    assert vault.resolve("[[Newest]]") == ResolvedLink("New.md")
    assert isinstance(vault.resolve(Path(paths[5]).stem), BrokenLink)
    note.clear()
    (tmp_path / "binary.md").unlink()
    assert [step.total for step in vault.scan()] == [0]
    assert note == []


def test_a_scan_continues_from_what_a_store_knows(tmp_path: Path):
    paths = write_vault(tmp_path, notes=30)
    first = Vault(tmp_path)
    list(first.scan())
    (tmp_path / paths[0]).unlink()
    again = Vault(tmp_path)
    steps = list(again.scan(first.known_files))
    assert [(step.total, step.batch and step.batch.deleted) for step in steps] == [(0, None), (0, (paths[0],))]
    assert again.resolve("[[alias 3]]") == ResolvedLink(paths[3])


def test_names_are_prepared_again_only_where_they_changed(tmp_path: Path):
    paths = write_vault(tmp_path, notes=10)
    vault = Vault(tmp_path)
    prepared = vault.link_index
    (tmp_path / paths[1]).write_text("# Other words")
    list(vault.scan())
    assert vault.link_index is prepared
    (tmp_path / paths[1]).write_text("---\naliases: [Other]\n---\n")
    list(vault.scan())
    assert vault.resolve("[[other]]") == ResolvedLink(paths[1])
    (tmp_path / "Fresh.md").write_text("x")
    (tmp_path / "fresh.png").write_bytes(b"")
    list(vault.scan())
    assert vault.resolve("fresh") == ResolvedLink("Fresh.md")
    assert vault.resolve("fresh.png") == ResolvedLink("fresh.png")
    assert vault.resolve("[[ ]]") == BrokenLink("the link is empty")


def test_a_file_that_goes_while_it_is_scanned_is_gone(tmp_path: Path):
    paths = write_vault(tmp_path, notes=4)
    vault = Vault(tmp_path)
    steps = vault.scan()
    next(steps)
    (tmp_path / paths[2]).unlink()
    rest = list(steps)
    assert {note.path for step in rest if step.batch for note in step.batch.notes} == set(paths) - {paths[2]}
    assert paths[2] not in vault.known_files


def test_the_same_numbers_give_the_same_vault(tmp_path: Path):
    for name in ("one", "two"):
        write_vault(tmp_path / name, notes=60, seed=7)
    one, two = Root(tmp_path / "one"), Root(tmp_path / "two")
    paths = [file.path for file in one.list_files() if file.path.endswith(".md")]
    assert len(paths) == 60
    assert [one.read(path).text for path in paths] == [two.read(path).text for path in paths]


@pytest.mark.slow
def test_many_notes_are_scanned_again_in_a_fraction_of_the_time(tmp_path: Path):
    """Relative to the first scan, since the machine may be busy; alone, 10,000 take about a third of a second."""
    count = 10_000 if IS_FULL_SIZE else 2_000
    paths = write_vault(tmp_path, notes=count)
    vault = Vault(tmp_path)
    started = time.process_time()
    assert sum(len(step.batch.notes) for step in vault.scan() if step.batch) == count
    first = time.process_time() - started
    (tmp_path / paths[77]).write_text("# Changed\n\nnew words")
    started = time.process_time()
    steps = list(vault.scan())
    assert time.process_time() - started < first / 4
    assert [step.path for step in steps] == [None, paths[77]]
    times: list[float] = []
    for number in range(count - 20, count):
        started = time.process_time()
        vault.resolve(f"[[{Path(paths[number]).stem}]]")
        times.append(time.process_time() - started)
    assert sorted(times)[10] < 0.001
