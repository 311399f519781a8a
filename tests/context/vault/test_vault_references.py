"""References: what a message names, resolved, broken, in part, once; with its text and a summary."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.context.vault import Referred, Root, Vault, summarized
from quire.context.vault.references import references
from quire.errors import DocumentNotFound, PathRefused
from quire.model.notes import Notes


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Vault:
    folder = tmp_path_factory.mktemp("vault")
    files = {
        "Mill.md": "---\naliases: [Wheelhouse]\n---\n# Mill\n\nAll.\n\n## Wheels\n\nThey turn. ^turn\n\n## End\n",
        "a/Index.md": "one",
        "b/Index.md": "two",
        "src/app.py": "1\n2\n3\n",
        "data.csv": "x,y\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    (folder / "big.md").write_text("y" * 3_000_000)
    (folder / "map.png").write_bytes(b"\x89PNG\0")
    return Vault(folder, name="notes")


def one(vault: Vault, text: str) -> Referred:
    (found,) = vault.references(text)
    return found


def test_a_link_brings_the_note_as_it_stands(vault: Vault):
    found = one(vault, "What does [[Wheelhouse|it]] say?")
    assert (found.reference.link, found.reference.path, found.reference.kind) == (
        "[[Wheelhouse|it]]",
        "Mill.md",
        "direct",
    )
    assert found.reference.snippet is found.reference.blob is None
    assert found.text == vault.read("Mill.md").text
    assert found.digest is not None


@pytest.mark.parametrize("link", ["[[Mill#Wheels]]", "[[mill#Mill#wheels]]", "![[Mill#Wheels]]"])
def test_a_heading_brings_its_section_only(vault: Vault, link: str):
    assert one(vault, link).text == "## Wheels\n\nThey turn. ^turn"


def test_a_block_brings_the_block_only(vault: Vault):
    assert one(vault, "[[Mill#^turn]]").text == "They turn. ^turn"


def test_a_part_that_is_not_there_is_said_and_the_whole_note_comes(vault: Vault):
    for link, said in (
        (
            "[[Mill#Nothing]]",
            "The note has no heading 'Nothing'; this is the whole note. Its headings: Mill, Wheels, End.",
        ),
        ("[[Mill#^nothing]]", "The note has no block ^nothing; this is the whole note."),
    ):
        found = one(vault, link)
        assert (found.reference.path, found.reference.snippet) == ("Mill.md", said)
        assert found.text is not None
        assert found.text.startswith("---\naliases")


def test_a_broken_link_is_kept_and_said(vault: Vault):
    found = one(vault, "See [[Nobody]].")
    assert (found.reference.path, found.text) == (None, None)
    assert found.reference.snippet == "Not found: no note, file or alias is called 'Nobody'."


def test_an_ambiguous_link_lists_its_options(vault: Vault):
    found = one(vault, "See [[Index]].")
    assert found.reference.path is None
    assert found.reference.snippet == "Several notes have this name: a/Index.md, b/Index.md. Write the path of one."
    first = one(Vault(vault.root, ambiguous="first"), "See [[Index]].")
    assert (first.reference.path, first.text) == ("a/Index.md", "one")
    assert first.reference.snippet == "Also called so: b/Index.md."


def test_of_many_options_some_are_shown(tmp_path: Path):
    for number in range(30):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "index.md").write_text("x")
    snippet = one(Vault(tmp_path), "[[index]]").reference.snippet
    assert snippet is not None
    assert "and 20 more" in snippet


def test_what_is_no_text_or_too_large_is_found_and_says_so(vault: Vault):
    for link, path, said in (("[[map.png]]", "map.png", "is not text"), ("[[big]]", "big.md", "3,000,000 bytes")):
        found = one(vault, link)
        assert (found.reference.path, found.text) == (path, None)
        assert said in (found.reference.snippet or "")


def test_paths_are_references_too(vault: Vault):
    found = vault.references("Compare @src/app.py:2-3 with @gone.py and @map.png and @someone.")
    assert [(each.reference.link, each.reference.path, each.text) for each in found] == [
        ("@src/app.py:2-3", "src/app.py", "2\n3"),
        ("@gone.py", None, None),
        ("@map.png", "map.png", None),
    ]
    assert all(each.reference.snippet for each in found[1:])


def test_each_document_is_referred_to_once(vault: Vault):
    text = "[[Mill]] [[mill]] [[Wheelhouse]] ![[Mill]] [[Mill#Wheels]] [[Nobody]] [[nobody|x]] @data.csv [[data.csv]]"
    assert [each.reference.link for each in vault.references(text)] == [
        "[[Mill]]", "[[Mill#Wheels]]", "[[Nobody]]", "[[data.csv]]"
    ]  # fmt: skip


def test_code_refers_to_nothing(vault: Vault):
    assert vault.references("`[[Mill]]`\n\n```\n@data.csv [[Mill]]\n```") == []


def test_without_names_only_paths_are_references(vault: Vault):
    found = references("[[Mill]] @data.csv", vault.root)
    assert [each.reference.path for each in found] == ["data.csv"]


def test_a_note_that_went_since_the_scan_is_broken(tmp_path: Path):
    (tmp_path / "a.md").write_text("a")
    vault = Vault(tmp_path)
    list(vault.scan())
    (tmp_path / "a.md").unlink()
    found = one(vault, "[[a]]")
    assert found.reference.path is None
    assert "has gone since" in (found.reference.snippet or "")


def test_a_note_that_became_a_link_to_the_outside_gives_nothing(tmp_path: Path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault" / "a.md").write_text("a")
    vault = Vault(tmp_path / "vault")
    list(vault.scan())
    (tmp_path / "vault" / "a.md").unlink()
    (tmp_path / "vault" / "a.md").symlink_to("../secret")
    found = one(vault, "[[a]]")
    assert found.text is None
    assert "leaves the root" in (found.reference.snippet or "")


async def test_summaries_are_made_once_for_each_text(vault: Vault):
    asked: list[str] = []

    async def summarize(text: str) -> str:
        asked.append(text)
        return f"about {len(text)} letters"

    kept: dict[str, str] = {}
    text = "[[Mill]] [[Nobody]] @data.csv"
    first = await summarized(vault.references(text), summarize, kept=kept)
    again = await summarized(vault.references(text), summarize, kept=kept)
    assert first == again
    assert len(asked) == len(kept) == 2
    assert [each.reference.summary is None for each in first] == [False, True, False]
    assert set(kept) == {each.digest for each in first if each.digest}


def test_a_vault_reads_only_inside(vault: Vault):
    assert vault.name == "notes"
    assert vault.read("data.csv").text == "x,y\n"
    with pytest.raises(PathRefused):
        vault.read("../x")
    with pytest.raises(DocumentNotFound):
        Vault("~/there is no such folder here")


def test_the_names_of_the_package_are_there():
    import quire.context.vault as package

    assert all(getattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError):
        _ = package.nothing


PIECES = [
    "[[",
    "]]",
    "![[",
    "@",
    "Mill",
    "#Wheels",
    "#^turn",
    "|",
    "Index",
    "data.csv",
    "big",
    " ",
    "\n",
    "`",
    "..",
    "/",
    ":",
    "1-2",
    "map.png",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=20).map("".join))
def test_no_message_raises_and_every_reference_can_be_stored(vault: Vault, text: str):
    found = vault.references(text)
    assert all(each.reference.link in text for each in found)
    assert all(each.reference.path or each.reference.snippet for each in found)
    stored = Notes(references=tuple(each.reference for each in found))
    assert Notes.parse(stored.canonical()) == stored
    assert isinstance(vault.root, Root)
