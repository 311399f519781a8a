"""Wikilinks: detection, parsing and resolution. The rules are Obsidian's, where it has one."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.context.vault.markdown_mask import MASK_CHAR, mask_non_prose
from quire.context.vault.wikilinks import (
    AmbiguousLink,
    BrokenLink,
    LinkIndex,
    LinkResolution,
    ResolvedLink,
    Wikilink,
    find_wikilinks,
    fold_name,
    parse_wikilink,
)

FILES = (
    "Mill.md",
    "places/Water mill.md",
    "places/Index.md",
    "people/Index.md",
    "people/Ada.md",
    "deep/a/b/Plan.md",
    "deep/Plan2.md",
    "zz/Twice.md",
    "a/b/Twice.md",
    "places/Mill.md",
    "x/Café.md",
    "x/Cafe\u0301 noir.md",
    "v1.2.md",
    "assets/image.png",
    "assets/data.csv",
    "more/image.png",
    "Log.md",
    "LOG2.md",
    "notes/C# basics.md",
    "assets/board.canvas",
    "Straße.md",
    "a/b/Two words.md",
)
ALIASES = {"people/Ada.md": ("Countess", "A. Lovelace"), "deep/Plan2.md": ("Ada",), "v1.2.md": ("Countess of v1",)}
LINK_INDEX = LinkIndex(FILES, aliases=ALIASES)


def resolve_path(link: str, source: str | None = None) -> str | tuple[str, ...] | None:
    """Resolution of a link: one path, several, or None."""
    (parsed,) = find_wikilinks(link)
    resolution = LINK_INDEX.resolve(parsed, source=source)
    match resolution:
        case ResolvedLink(path):
            return path
        case AmbiguousLink(options):
            return options
        case BrokenLink():
            return None


@pytest.mark.parametrize(
    ("link", "resolution", "rule"),
    [
        ("[[Water mill]]", "places/Water mill.md", "a name that one note has is enough, whatever its folder"),
        ("[[water MILL]]", "places/Water mill.md", "letter case makes no difference"),
        ("[[Water mill|the mill]]", "places/Water mill.md", "the text after a bar is for display only"),
        ("[[Water mill\\|the mill]]", "places/Water mill.md", "in a table the bar is escaped"),
        ("[[places/Water mill]]", "places/Water mill.md", "a path from the root"),
        ("[[PLACES/water mill]]", "places/Water mill.md", "letter case makes no difference in folders either"),
        ("[[/places/Water mill]]", "places/Water mill.md", "a leading slash is the root"),
        ("[[/Water mill]]", None, "a leading slash allows no other folder"),
        ("[[b/Plan]]", "deep/a/b/Plan.md", "the end of a path is enough"),
        ("[[a/Plan]]", None, "but it must be the end, without gaps"),
        ("[[eep/Plan2]]", None, "and it begins at a whole name"),
        ("[[Water mill.md]]", "places/Water mill.md", "the suffix may be written"),
        ("[[Water mill.MD]]", "places/Water mill.md", "in capitals too"),
        ("[[Water mill.txt]]", None, "another suffix is another file"),
        ("[[v1.2]]", "v1.2.md", "a dot in a name is no suffix"),
        ("[[ Water mill ]]", "places/Water mill.md", "blanks around a name are trimmed"),
        ("[[Water mill | x]]", "places/Water mill.md", "blanks before the bar too"),
        ("[[Water  mill]]", "places/Water mill.md", "several blanks are one"),
        ("[[Water\u00a0mill]]", "places/Water mill.md", "whatever their width"),
        ("[[Water mill#Wheels]]", "places/Water mill.md", "a heading leads to its note"),
        ("[[Water mill#Wheels#Undershot]]", "places/Water mill.md", "a chain of headings too"),
        ("[[Water mill#^b1]]", "places/Water mill.md", "a block too"),
        ("[[Water mill#]]", "places/Water mill.md", "an empty heading is none"),
        ("[[Water mill#Wheels|wheels]]", "places/Water mill.md", "the bar comes after the heading"),
        ("[[#Wheels]]", None, "a heading of the same note: a message is no note"),
        ("[[#^b1]]", None, "a block of the same note likewise"),
        ("![[Water mill]]", "places/Water mill.md", "an embed leads where the link would"),
        ("![[data.csv]]", "assets/data.csv", "a file that is no note is named with its suffix"),
        ("[[data]]", None, "and not without it"),
        ("![[data.csv|100x145]]", "assets/data.csv", "the size of an embed is after the bar"),
        ("[[board.canvas]]", "assets/board.canvas", "any suffix will do"),
        ("[[Mill]]", "Mill.md", "the full path of a note in the root is its name, though others are called so"),
        ("[[places/Mill]]", "places/Mill.md", "the other is reached by its path"),
        ("[[Index]]", ("people/Index.md", "places/Index.md"), "a name of several notes is ambiguous"),
        ("[[people/Index]]", "people/Index.md", "a path distinguishes them"),
        ("[[image.png]]", ("more/image.png", "assets/image.png"), "files are ambiguous as notes are"),
        ("[[Twice]]", ("zz/Twice.md", "a/b/Twice.md"), "the shortest path is first"),
        ("[[Countess]]", "people/Ada.md", "an alias, where no file is called so"),
        ("[[COUNTESS]]", "people/Ada.md", "in any letter case"),
        ("[[A. Lovelace]]", "people/Ada.md", "with dots in it"),
        ("[[Ada]]", "people/Ada.md", "a file's name goes before an alias"),
        ("[[Cafe\u0301]]", "x/Café.md", "composed and decomposed letters are the same"),
        ("[[CAFÉ noir]]", "x/Cafe\u0301 noir.md", "in both directions, in any letter case"),
        ("[[STRASSE]]", "Straße.md", "letter case is that of the language"),
        ("[[log]]", "Log.md", "a name in small letters"),
        ("[[C# basics]]", None, "a # begins a heading: such names cannot be linked, as Obsidian warns"),
        ("[[../Water mill]]", None, "a path cannot climb over the root"),
        ("[[./Mill]]", "Mill.md", "from a message, here is the root"),
        ("[[places/../Mill]]", "Mill.md", "what climbs inside the root may"),
        ("[[places\\Water mill]]", None, "folders are parted by slashes, also on Windows"),
        ("[[places%2FWater mill]]", None, "nothing is decoded"),
        ("[[https://example.org]]", None, "an address is no note"),
        ("[[Nobody]]", None, "a note that is not there"),
        ("[[Water mill.md#Wheels]]", "places/Water mill.md", "the suffix before a heading"),
        ("[[Two\twords]]", "a/b/Two words.md", "a tab is a blank"),
    ],
)
def test_a_link_leads_where_obsidian_would(link: str, resolution: str | tuple[str, ...] | None, rule: str):
    assert resolve_path(link) == resolution, rule


@pytest.mark.parametrize(
    ("link", "source", "resolution", "rule"),
    [
        ("[[Index]]", "people/Ada.md", "people/Index.md", "of several, the one in the folder of the linking note"),
        (
            "[[Index]]",
            "people/sub/Note.md",
            ("people/Index.md", "places/Index.md"),
            "a folder above counts for nothing",
        ),
        ("[[Mill]]", "places/Water mill.md", "Mill.md", "a full path goes before the neighbour"),
        ("[[./Index]]", "places/Water mill.md", "places/Index.md", "here is the note's own folder"),
        ("[[../Mill]]", "places/Water mill.md", "Mill.md", "and above it the next"),
        ("[[./Water mill]]", "people/Ada.md", None, "a relative path is looked for there only"),
        ("[[#Wheels]]", "places/Water mill.md", "places/Water mill.md", "a heading of the same note"),
    ],
)
def test_a_link_in_a_note_starts_from_that_note(
    link: str, source: str, resolution: str | tuple[str, ...] | None, rule: str
):
    assert resolve_path(link, source) == resolution, rule


def test_of_an_ambiguous_name_the_first_can_be_taken():
    (link,) = find_wikilinks("[[Twice]]")
    assert LINK_INDEX.resolve(link, on_ambiguous="first") == ResolvedLink("zz/Twice.md", ("a/b/Twice.md",))


def test_of_names_that_differ_in_case_only_the_exact_one_matches():
    names = LinkIndex(["note.md", "Note.md"])
    assert [names.resolve(link) for link in find_wikilinks("[[Note]] [[note]]")] == [
        ResolvedLink("Note.md"),
        ResolvedLink("note.md"),
    ]
    assert names.resolve(find_wikilinks("[[NOTE]]")[0]) == AmbiguousLink(("Note.md", "note.md"))


def test_a_broken_link_says_why():
    assert LINK_INDEX.resolve(find_wikilinks("[[Nobody]]")[0]) == BrokenLink(
        "no note, file or alias is called 'Nobody'"
    )
    own = LINK_INDEX.resolve(find_wikilinks("[[#Wheels]]")[0])
    assert isinstance(own, BrokenLink)
    assert "a message is not a note" in own.reason


@pytest.mark.parametrize(
    ("text", "targets", "rule"),
    [
        ("a [[A]] b [[B]]", ["A", "B"], "several in a line"),
        ("`[[A]]` [[B]]", ["B"], "not in code"),
        ("``a ` [[A]]`` [[B]]", ["B"], "not in code with a backtick in it"),
        ("` [[A]] [[B]]", ["A", "B"], "a backtick alone is no code"),
        ("`a\n\n[[A]]`", ["A"], "code ends with its paragraph"),
        ("`a\n[[A]]` [[B]]", ["B"], "but not with its line"),
        ("\\`[[A]]\\`", ["A"], "an escaped backtick is no code"),
        ("```\n[[A]]\n```\n[[B]]", ["B"], "not in a fence"),
        ("```py\n[[A]]\n``` \n[[B]]", ["B"], "with a language"),
        ("~~~\n[[A]]\n```\n[[A]]\n~~~\n[[B]]", ["B"], "a fence ends with its own sign"),
        ("````\n```\n[[A]]\n````\n[[B]]", ["B"], "and with as many of them"),
        ("```\n[[A]]\n`````\n[[B]]", ["B"], "or more"),
        ("```\n[[A]]", [], "a fence that nothing closes goes to the end"),
        ("``` a`b\n[[A]]", ["A"], "a line with another backtick is no fence"),
        ("> ```\n> [[A]]\n> ```\n> [[B]]", ["B"], "a fence in a quote"),
        ("> ```\n> [[A]]\n\n[[B]]", ["B"], "ends with the quote"),
        ("- ```\n  [[A]]\n  ```\n- [[B]]", ["B"], "a fence in a list"),
        ("1. x\n\n   ```\n   [[A]]\n   ```\n\n   [[B]]", ["B"], "and below an item"),
        ("```\r\n[[A]]\r\n```\r\n[[B]]", ["B"], "with Windows's line ends"),
        ("text\n\n    [[A]]\n\n[[B]]", ["B"], "not in indented code"),
        ("\t[[A]]\n\n[[B]]", ["B"], "nor behind a tab"),
        ("text\n    [[A]]", ["A"], "an indented continuation of a paragraph is not code"),
        ("- item\n\n    [[A]]", ["A"], "nor is a paragraph of a list item"),
        ("- item\n\n      [[A]]\n\n[[B]]", ["B"], "but code in an item is"),
        ("- item\n\ntext\n\n    [[A]]\n\n[[B]]", ["B"], "and below a list that has ended"),
        ("# Title\n    [[A]]\n\n[[B]]", ["B"], "right below a heading there can be code"),
        ("<!-- [[A]] --> [[B]]", ["B"], "not in a comment"),
        ("<!--\n```\n--> [[B]]", ["B"], "a fence in a comment opens nothing"),
        ("```\n<!--\n```\n[[B]]", ["B"], "a comment in a fence neither"),
        ("<!-- [[A]]\n\n[[A]]", [], "a comment that nothing closes goes to the end"),
        ("a <!-- [[A]]", ["A"], "unless it is within a line"),
        ("%%[[A]]%% [[B]]", ["B"], "not in Obsidian's comments"),
        ("%%\n\n[[A]]\n\n%%\n[[B]]", ["B"], "which can be long"),
        ("100%% of [[A]]", ["A"], "two per cent signs alone are none"),
        ("$[[A]]$ [[B]]", ["B"], "not in math"),
        ("$$\n[[A]]\n$$\n[[B]]", ["B"], "nor in a block of it"),
        ("it costs $5, [[A]] costs $6", ["A"], "two prices are no math"),
        ("between $5-[[A]]-$6", ["A"], "with a sign before the second one either"),
        ("[[A$B]] and [[C$D]]", ["A$B", "C$D"], "a dollar in a link is none either"),
        ("<pre>[[A]]</pre> <code>[[A]]</code> [[B]]", ["B"], "not in HTML's code"),
        ("\\[[A]] [[B]]", ["B"], "an escaped bracket begins nothing"),
        ("[[a [[B]] c]]", ["B"], "of two that overlap, the inner one"),
        ("[[Sq]uare]]", ["Sq]uare"], "a single bracket does not end a link"),
        ("[[A\nB]]", [], "a link is on one line"),
        ("[[]] [[ ]] [[|x]] [[#]]", [], "what says nothing is no link"),
        ("| a | [[A\\|x]] |\n|---|---|\n| b | ![[B\\|100]] |", ["A", "B"], "in tables"),
        ("> [!note] See [[A]]", ["A"], "in callouts"),
        ("- [ ] [[A]] [x](y) [^1]", ["A"], "next to other brackets"),
    ],
)
def test_links_are_found_in_prose_only(text: str, targets: list[str], rule: str):
    assert [link.target for link in find_wikilinks(text)] == targets, rule


def test_a_link_is_parsed_into_its_parts():
    (link,) = find_wikilinks("See ![[folder/Note#Outer#Inner#^b-1|shown]].")
    assert link == Wikilink(
        "![[folder/Note#Outer#Inner#^b-1|shown]]", "folder/Note", ("Outer", "Inner"), "b-1", "shown", True, 4
    )
    assert link.end == 4 + len(link.text)
    assert parse_wikilink("Note#Outer") == Wikilink("Note#Outer", "Note", ("Outer",))
    assert parse_wikilink("  ") is None


MARKS = ["[[", "]]", "![[", "#", "^", "|", "\\|", "`", "```", "~~~", "\n", "\n\n", "    ", "\t", "$", "$$", "%%"]
MARKS += ["<!--", "-->", "<pre>", "</pre>", ">", "- ", "1. ", "a", "Ä", "é", "/", "..", ".md", "\\", "\r\n", " ", "@"]
jumbled = st.lists(st.sampled_from(MARKS) | st.text(max_size=3), max_size=40).map("".join)


@given(jumbled | st.text())
def test_no_text_raises_and_every_position_is_preserved(text: str):
    hidden = mask_non_prose(text)
    assert len(hidden) == len(text)
    assert all(mine in (theirs, MASK_CHAR) for mine, theirs in zip(hidden, text, strict=True))
    for link in find_wikilinks(text):
        assert text[link.start : link.end] == link.text
        resolution: LinkResolution = LINK_INDEX.resolve(link)
        assert isinstance(resolution, ResolvedLink | AmbiguousLink | BrokenLink)
        assert isinstance(
            LINK_INDEX.resolve(link, source="people/Ada.md", on_ambiguous="first"), ResolvedLink | BrokenLink
        )


@given(st.text())
def test_no_link_text_raises(written: str):
    link = parse_wikilink(f"[[{written}]]")
    if link is not None:
        LINK_INDEX.resolve(link)
    assert fold_name(fold_name(written)) == fold_name(written)


@pytest.mark.parametrize(
    "piece",
    [
        "`",
        "``` ",
        "$a ",
        "%% ",
        "<!-- x",
        "[[",
        "[[a",
        "> ```\n",
        "- ",
        "<pre ",
        "<pre>",
        "\\",
        "~~~\n> ",
        "\t\n",
        "$$ ",
        "``a`",
        " " * 9,
    ],
)
def test_a_hostile_text_is_read_in_time_that_grows_with_its_length(piece: str):
    def seconds(length: int) -> float:
        text = "x " + piece * (length // len(piece))
        started = time.process_time()
        find_wikilinks(f"{text}[[a]]")
        return time.process_time() - started

    short = min(seconds(20_000) for _ in range(3))
    # A text of eight times the length may be slow on a busy machine, but not 64 times slower, as with backtracking.
    assert min(seconds(160_000) for _ in range(2)) < max(0.05, 30 * short)


def test_a_link_resolves_in_less_than_a_millisecond_among_ten_thousand_notes():
    paths = [f"folder {number % 40}/sub/Note {number}.md" for number in range(9_000)]
    paths += [f"folder {number}/index.md" for number in range(1_000)]
    names = LinkIndex(paths, aliases={path: (f"alias of {path}",) for path in paths[:3_000]})
    links = [
        parse_wikilink(f"[[{name}]]") for name in ("Note 77", "folder 3/sub/note 43", "alias of x", "index", "nobody")
    ]
    for link in links:
        assert link is not None
        times: list[float] = []
        for _ in range(20):
            started = time.process_time()
            names.resolve(link)
            times.append(time.process_time() - started)
        assert sorted(times)[10] < 0.001, link
