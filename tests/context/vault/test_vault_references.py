"""References of a message: resolved, broken, to a section, deduplicated; with text and summary."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.context.vault import ReferencedDocument, Root, Vault, add_summaries
from quire.context.vault.references import resolve_references
from quire.errors import DocumentNotFound, PathRefused
from quire.model.entry_metadata import EntryMetadata


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


def find_one(vault: Vault, text: str) -> ReferencedDocument:
    (document,) = vault.find_references(text)
    return document


def test_a_link_brings_the_text_of_the_note(vault: Vault):
    document = find_one(vault, "What does [[Wheelhouse|it]] say?")
    assert (document.reference.link, document.reference.path, document.reference.kind) == (
        "[[Wheelhouse|it]]",
        "Mill.md",
        "direct",
    )
    assert document.reference.snippet is document.reference.blob is None
    assert document.text == vault.read("Mill.md").text
    assert document.digest is not None


@pytest.mark.parametrize("link", ["[[Mill#Wheels]]", "[[mill#Mill#wheels]]", "![[Mill#Wheels]]"])
def test_a_heading_brings_its_section_only(vault: Vault, link: str):
    assert find_one(vault, link).text == "## Wheels\n\nThey turn. ^turn"


def test_a_block_brings_the_block_only(vault: Vault):
    assert find_one(vault, "[[Mill#^turn]]").text == "They turn. ^turn"


def test_a_part_that_is_not_there_is_said_and_the_whole_note_comes(vault: Vault):
    for link, said in (
        (
            "[[Mill#Nothing]]",
            "The note has no heading 'Nothing'; this is the whole note. Its headings: Mill, Wheels, End.",
        ),
        ("[[Mill#^nothing]]", "The note has no block ^nothing; this is the whole note."),
    ):
        document = find_one(vault, link)
        assert (document.reference.path, document.reference.snippet) == ("Mill.md", said)
        assert document.text is not None
        assert document.text.startswith("---\naliases")


def test_a_broken_link_is_reported(vault: Vault):
    document = find_one(vault, "See [[Nobody]].")
    assert (document.reference.path, document.text) == (None, None)
    assert document.reference.snippet == "Not found: no note, file or alias is called 'Nobody'."


def test_an_ambiguous_link_lists_its_options(vault: Vault):
    document = find_one(vault, "See [[Index]].")
    assert document.reference.path is None
    assert document.reference.snippet == "Several notes have this name: a/Index.md, b/Index.md. Write the path of one."
    first = find_one(Vault(vault.root, on_ambiguous="first"), "See [[Index]].")
    assert (first.reference.path, first.text) == ("a/Index.md", "one")
    assert first.reference.snippet == "Other notes with this name: b/Index.md."


def test_of_many_options_some_are_listed(tmp_path: Path):
    for number in range(30):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "index.md").write_text("x")
    snippet = find_one(Vault(tmp_path), "[[index]]").reference.snippet
    assert snippet is not None
    assert "and 20 more" in snippet


def test_what_is_no_text_or_too_large_is_found_and_says_so(vault: Vault):
    for link, path, said in (("[[map.png]]", "map.png", "is not UTF-8 text"), ("[[big]]", "big.md", "3,000,000 bytes")):
        document = find_one(vault, link)
        assert (document.reference.path, document.text) == (path, None)
        assert said in (document.reference.snippet or "")


def test_paths_are_references_too(vault: Vault):
    document = vault.find_references("Compare @src/app.py:2-3 with @gone.py and @map.png and @someone.")
    assert [(each.reference.link, each.reference.path, each.text) for each in document] == [
        ("@src/app.py:2-3", "src/app.py", "2\n3"),
        ("@gone.py", None, None),
        ("@map.png", "map.png", None),
    ]
    assert all(each.reference.snippet for each in document[1:])


def test_each_document_is_referred_to_once(vault: Vault):
    text = "[[Mill]] [[mill]] [[Wheelhouse]] ![[Mill]] [[Mill#Wheels]] [[Nobody]] [[nobody|x]] @data.csv [[data.csv]]"
    assert [each.reference.link for each in vault.find_references(text)] == [
        "[[Mill]]", "[[Mill#Wheels]]", "[[Nobody]]", "[[data.csv]]"
    ]  # fmt: skip


def test_code_refers_to_nothing(vault: Vault):
    assert vault.find_references("`[[Mill]]`\n\n```\n@data.csv [[Mill]]\n```") == []


def test_without_names_only_paths_are_references(vault: Vault):
    document = resolve_references("[[Mill]] @data.csv", vault.root)
    assert [each.reference.path for each in document] == ["data.csv"]


def test_a_note_that_went_since_the_scan_is_broken(tmp_path: Path):
    (tmp_path / "a.md").write_text("a")
    vault = Vault(tmp_path)
    list(vault.scan())
    (tmp_path / "a.md").unlink()
    document = find_one(vault, "[[a]]")
    assert document.reference.path is None
    assert "was removed after" in (document.reference.snippet or "")


def test_a_note_that_became_a_link_to_the_outside_gives_nothing(tmp_path: Path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault" / "a.md").write_text("a")
    vault = Vault(tmp_path / "vault")
    list(vault.scan())
    (tmp_path / "vault" / "a.md").unlink()
    (tmp_path / "vault" / "a.md").symlink_to("../secret")
    document = find_one(vault, "[[a]]")
    assert document.text is None
    assert "outside the root" in (document.reference.snippet or "")


async def test_summaries_are_made_once_for_each_text(vault: Vault):
    summarized: list[str] = []

    async def summarize(text: str) -> str:
        summarized.append(text)
        return f"about {len(text)} letters"

    cache: dict[str, str] = {}
    text = "[[Mill]] [[Nobody]] @data.csv"
    first = await add_summaries(vault.find_references(text), summarize, cache=cache, stored={})
    again = await add_summaries(vault.find_references(text), summarize, cache=cache, stored={})
    assert first == again
    assert len(summarized) == len(cache) == 2
    assert [each.reference.summary is None for each in first] == [False, True, False]
    assert set(cache) == {each.digest for each in first if each.digest}


def test_a_vault_reads_only_inside(vault: Vault):
    assert vault.name == "notes"
    assert vault.read("data.csv").text == "x,y\n"
    with pytest.raises(PathRefused):
        vault.read("../x")
    with pytest.raises(DocumentNotFound):
        vault.read("there is no such file")


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
    document = vault.find_references(text)
    assert all(each.reference.link in text for each in document)
    assert all(each.reference.path or each.reference.snippet for each in document)
    stored = EntryMetadata(references=tuple(each.reference for each in document))
    assert EntryMetadata.parse(stored.canonical_json()) == stored
    assert isinstance(vault.root, Root)
