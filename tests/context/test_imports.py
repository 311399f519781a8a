"""Imports: `@path` gives a file or the reason why not; no input of a user raises."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.context.file_imports import (
    ImportLimits,
    ImportResult,
    compile_glob,
    find_glob_base,
    find_mentions,
    resolve_imports,
    resolve_nested_imports,
)
from quire.context.vault.paths import Root

SECRET = "the canary sings outside"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.md").write_text(SECRET)
    folder = outside / "project"
    files = {
        "README.md": "# Read me\n",
        "Makefile": "all:\n",
        "src/app.py": "".join(f"line {number}\n" for number in range(1, 31)),
        "src/app/(group)/[id].tsx": "page\n",
        "docs/a.md": "alpha\n",
        "docs/b.md": "beta\n",
        "docs/deep/c.md": "gamma\n",
        "docs/deep/d.txt": "delta\n",
        "a name with blanks.md": "blanks\n",
        "große Datei.md": "groß\n",
        "large.md": "x" * 3_000,
        "docs/copy(1)": "copy\n",
        "many/0.txt": "0",
    }
    for number in range(1, 12):
        files[f"many/{number}.txt"] = str(number)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "picture.png").write_bytes(b"\x89PNG\0")
    (folder / "out.md").symlink_to("../secret.md")
    return Root(folder)


LIMITS = ImportLimits(max_file_bytes=2_000, max_total_bytes=5_000, max_files=5)


def outcome_of(result: ImportResult) -> tuple[list[str], list[tuple[str, str]]]:
    return [one.path for one in result.imported], [(one.link, one.reason) for one in result.skipped]


@pytest.mark.parametrize(
    ("text", "paths", "rule"),
    [
        ("see @README.md", ["README.md"], "a file"),
        ("@README.md", ["README.md"], "at the beginning"),
        ("see @README.md.", ["README.md"], "a full stop is not part of it"),
        ("see @README.md, or @docs/a.md!", ["README.md", "docs/a.md"], "nor is any other sign of the sentence"),
        ("(see @README.md)", ["README.md"], "nor the bracket around it"),
        ('"@README.md"', ["README.md"], "nor quotation marks"),
        ("**@README.md**", ["README.md"], "nor the stars of bold type"),
        ("@README.md's text", ["README.md"], "nor an s behind an apostrophe"),
        ("@README.md…", ["README.md"], "nor dots"),
        ("看@README.md。", ["README.md"], "also where no blanks are written"),
        ("@docs/a.md", ["docs/a.md"], "a path"),
        ("@./docs/a.md", ["docs/a.md"], "from here"),
        ("@docs/../README.md", ["README.md"], "up and down inside the root"),
        ("@Makefile", ["Makefile"], "a bare word, if there is such a file"),
        ('@"a name with blanks.md"', ["a name with blanks.md"], "in quotation marks, with blanks"),
        ("@a\\ name\\ with\\ blanks.md", ["a name with blanks.md"], "or with the blanks escaped"),
        ("@src/app/(group)/[id].tsx", ["src/app/(group)/[id].tsx"], "brackets that belong to the name"),
        ("(@src/app/(group)/[id].tsx)", ["src/app/(group)/[id].tsx"], "and one that does not"),
        ("@docs/copy(1)", ["docs/copy(1)"], "at its end too"),
        ("(@docs/copy(1))", ["docs/copy(1)"], "in brackets"),
        ("@README.md and @README.md", ["README.md"], "twice is once"),
        ("@docs/*.md", ["docs/a.md", "docs/b.md"], "a pattern within a folder"),
        ("@docs/**/*.md", ["docs/a.md", "docs/b.md", "docs/deep/c.md"], "and below it"),
        ("@**/c.md", ["docs/deep/c.md"], "from anywhere"),
        ("@docs/deep/**", ["docs/deep/c.md", "docs/deep/d.txt"], "all below"),
        ("@docs/[ab].md @docs/a.md", ["docs/a.md", "docs/b.md"], "a file and a pattern that holds it"),
        ("@many/?.txt", [f"many/{number}.txt" for number in range(5)], "no more files than allowed"),
    ],
)
def test_a_file_is_brought(root: Root, text: str, paths: list[str], rule: str):
    assert outcome_of(resolve_imports(text, root, limits=LIMITS))[0] == paths, rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("\\@README.md", "escaped"),
        ("`@README.md`", "in code"),
        ("```\n@README.md\n```", "in a fence"),
        ("    @README.md", "in indented code"),
        ("<!-- @README.md -->", "in a comment"),
        ("me@README.md", "an e-mail address"),
        ("git@github.com:x/README.md", "an address of git"),
        ("https://example.org/@user/README.md", "a web address"),
        ("[[@README.md]]", "in a wikilink"),
        ("@someone, hello", "a person"),
        ("@docs", "a folder is no file, and this may be a person"),
        ("@", "nothing"),
        ("@ README.md", "a blank behind it"),
        ("@@README.md", "twice"),
        ("@v1.2", "a number behind a dot"),
        ('@""', "empty quotation marks"),
        ("@...", "dots"),
        ("@**", "a pattern that says nothing"),
    ],
)
def test_what_is_no_import_is_left_alone(root: Root, text: str, rule: str):
    assert outcome_of(resolve_imports(text, root, limits=LIMITS)) == ([], []), rule


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("@missing.md", "missing"),
        ("@docs/missing", "missing"),
        ("@../secret.md", "outside"),
        ("@/etc/passwd", "outside"),
        ("@~/secret.md", "outside"),
        ("@out.md", "outside"),
        ("@C:/secret.md", "outside"),
        ("@src\\app.py", "outside"),
        ("@.git/config", "hidden"),
        ("@docs/", "folder"),
        ("@picture.png", "binary"),
        ("@large.md", "too_large"),
        ("@large.md:1", "too_large"),
        ("@src/app.py:31", "no_such_lines"),
        ("@src/app.py:0", "no_such_lines"),
        ("@docs/*.rst", "missing"),
        ("@../**/*.md", "outside"),
        ("@nowhere/**/*.md", "missing"),
        ("@many/*.txt", "too_many"),
    ],
)
def test_what_cannot_be_brought_is_said(root: Root, text: str, reason: str):
    result = resolve_imports(text, root, limits=LIMITS)
    (failed,) = result.skipped
    assert (failed.link, failed.reason) == (text, reason)
    assert failed.message
    assert SECRET not in str(result)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("@src/app.py:10-20", 10, 20),
        ("@src/app.py:10", 10, 10),
        ("@src/app.py:10.", 10, 10),
        ("@src/app.py:20-10", 10, 20),
        ("@src/app.py:1-3, please", 1, 3),
        ("@src/app.py:29-99", 29, 30),
        ("@src/app.py:0-2", 1, 2),
        ("@src/app.py:7:12", 7, 7),
        ("@src/app.py#L5-L6", 5, 6),
        ("@src/app.py#L5", 5, 5),
        ('@"src/app.py":4-5', 4, 5),
    ],
)
def test_lines_are_counted_from_one(root: Root, text: str, first: int, last: int):
    (result,) = resolve_imports(text, root).imported
    assert result.text == "\n".join(f"line {number}" for number in range(first, last + 1))
    assert result.line_range is not None
    assert result.size == len(result.text)


def test_parts_of_a_file_are_imports_of_their_own(root: Root):
    result = resolve_imports("@src/app.py:1-2 @src/app.py:3 @src/app.py @src/app.py:1-2", root).imported
    assert [one.line_range for one in result] == [(1, 2), (3, 3), None]


def test_the_limits_are_said_with_sizes(root: Root):
    (large,) = resolve_imports("@large.md", root, limits=LIMITS).skipped
    assert "3,000 bytes, and 2,000 are allowed" in large.message
    assert large.path == "large.md"
    result = resolve_imports("@docs/a.md @src/app.py @docs/b.md", root, limits=ImportLimits(max_total_bytes=20))
    assert outcome_of(result) == (["docs/a.md", "docs/b.md"], [("@src/app.py", "too_large")])
    assert "all imports would exceed 20 bytes" in result.skipped[0].message
    (many,) = resolve_imports("@many/*.txt", root, limits=LIMITS).skipped
    assert many.message == "12 files match 'many/*.txt'; the first 5 were imported."
    (unseen,) = resolve_imports("@**/*.nothing", root, limits=ImportLimits(max_scanned_files=3)).skipped
    assert unseen.reason == "too_many"
    assert unseen.message.startswith("Only 3 files were searched")


def test_a_large_file_can_be_brought_in_parts(tmp_path: Path):
    (tmp_path / "log.txt").write_text("".join(f"line {number}\n" for number in range(1_000)))
    root = Root(tmp_path)
    assert resolve_imports("@log.txt", root, limits=LIMITS).skipped[0].reason == "too_large"
    assert resolve_imports("@log.txt:1000", root, limits=LIMITS).imported[0].text == "line 999"


def write_files(folder: Path, files: dict[str, str]) -> Root:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return Root(folder)


def test_imports_of_imports_follow_the_file_that_names_them(tmp_path: Path):
    root = write_files(
        tmp_path,
        {
            "docs/rules.md": "@style.md and @../README.md and @src/x.py",
            "docs/style.md": "style",
            "README.md": "read me, @docs/style.md",
            "src/x.py": "@app.route('/x.md')\ndef x(): ...",
        },
    )
    result = resolve_nested_imports("Keep to @docs/rules.md, then @README.md.", root, path="AGENTS.md")
    assert [(one.path, one.imported_by) for one in result.imported] == [
        ("docs/rules.md", "AGENTS.md"),
        ("docs/style.md", "docs/rules.md"),
        ("README.md", "docs/rules.md"),
        ("src/x.py", "docs/rules.md"),
    ]
    assert result.skipped == ()


def test_a_path_starts_at_the_folder_of_its_file_else_at_the_root(tmp_path: Path):
    files = {"docs/a.md": "here", "a.md": "above", "docs/sub/c.md": "c", "src/x.py": "x", "src/large.py": "x" * 300}
    root = write_files(tmp_path, files)
    for text, paths in (
        ("@a.md", ["docs/a.md"]),
        ("@../a.md", ["a.md"]),
        ("@src/x.py", ["src/x.py"]),
        ("@sub/*.md", ["docs/sub/c.md"]),
        ("@../*.md", ["a.md"]),
        ("@src/x.*", ["src/x.py"]),
        ("@../../*.md", []),
        ("@../missing.md", []),
        ("@../missing*.md", []),
        ("@src/large.py", []),
    ):
        result = resolve_nested_imports(text, root, path="docs/AGENTS.md", limits=ImportLimits(max_file_bytes=200))
        assert [one.path for one in result.imported] == paths, text
        assert len(result.skipped) == (not paths), text
    result = resolve_nested_imports(
        "@../missing.md @src/large.py", root, path="docs/AGENTS.md", limits=ImportLimits(max_file_bytes=200)
    )
    assert [one.reason for one in result.skipped] == ["missing", "too_large"]


def test_a_pattern_says_of_each_file_why_it_did_not_come(tmp_path: Path):
    root = write_files(tmp_path, {"a.txt": "a", "b.txt": "b" * 300})
    (tmp_path / "c.txt").write_bytes(b"\0")
    result = resolve_imports("@*.txt", root, limits=ImportLimits(max_file_bytes=200))
    assert [one.path for one in result.imported] == ["a.txt"]
    assert [(one.path, one.reason) for one in result.skipped] == [("b.txt", "too_large"), ("c.txt", "binary")]


def test_a_bare_word_that_names_a_file_is_not_left_out_in_silence(tmp_path: Path):
    root = write_files(tmp_path, {"Makefile": "x" * 300})
    (failed,) = resolve_imports("@Makefile", root, limits=ImportLimits(max_file_bytes=200)).skipped
    assert (failed.path, failed.reason) == ("Makefile", "too_large")


def test_a_circle_is_said_and_ends(tmp_path: Path):
    root = write_files(tmp_path, {"AGENTS.md": "@a.md", "a.md": "@b.md @a.md", "b.md": "@a.md @AGENTS.md"})
    result = resolve_nested_imports("@a.md", root, path="AGENTS.md")
    assert [one.path for one in result.imported] == ["a.md", "b.md"]
    assert [(one.link, one.reason) for one in result.skipped] == [
        ("@a.md", "cycle"),
        ("@AGENTS.md", "cycle"),
        ("@a.md", "cycle"),
    ]


@pytest.mark.parametrize("path", ["", "AGENTS.md"])
def test_imports_are_followed_five_deep(tmp_path: Path, path: str):
    root = write_files(tmp_path, {f"{number}.md": f"@{number + 1}.md" for number in range(1, 9)})
    result = resolve_nested_imports("@1.md", root, path=path)
    assert [one.path for one in result.imported] == [f"{number}.md" for number in range(1, 6)]
    assert [(one.path, one.reason) for one in result.skipped] == [("6.md", "too_deep")]


def test_the_total_counts_at_every_depth(tmp_path: Path):
    root = write_files(tmp_path, {"a.md": "@b.md", "b.md": "b" * 60, "c.md": "c" * 60})
    result = resolve_nested_imports("@a.md @c.md", root, limits=ImportLimits(max_total_bytes=100))
    assert [one.path for one in result.imported] == ["a.md", "b.md"]
    assert [(one.link, one.reason) for one in result.skipped] == [("@c.md", "too_large")]


def test_mentions_keep_what_was_written():
    text = 'x (@a/b.md:3-4), "@c.md" @"d e.md":5'
    assert [
        (one.text, one.path, one.line_range, text[one.start : one.start + len(one.text)]) for one in find_mentions(text)
    ] == [
        ("@a/b.md:3-4", "a/b.md", (3, 4), "@a/b.md:3-4"),
        ("@c.md", "c.md", None, "@c.md"),
        ('@"d e.md":5', "d e.md", (5, 5), '@"d e.md":5'),
    ]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.md", "a.md", True),
        ("*.md", "x/a.md", False),
        ("**/*.md", "a.md", True),
        ("**/*.md", "x/y/a.md", True),
        ("x/**/y/*.md", "x/y/a.md", True),
        ("x/**/y/*.md", "x/1/2/y/a.md", True),
        ("x/**/y/*.md", "x/1/2/a.md", False),
        ("x/**", "x/1/2/a.md", True),
        ("x/**/**/a", "x/a", True),
        ("[!a].md", "b.md", True),
        ("[!a].md", "a.md", False),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[z-a].md", "m.md", False),
        ("[.md", "[.md", True),
        ("A.md", "a.md", False),
    ],
)
def test_a_pattern_matches_paths(pattern: str, path: str, matches: bool):
    assert compile_glob(pattern)(path) is matches


def test_a_hostile_pattern_takes_no_longer():
    started = time.process_time()
    assert not compile_glob("/".join(["**", "*a*a*a*a*a*b"] * 20))("/".join(["a" * 200] * 30))
    assert time.process_time() - started < 1
    assert find_glob_base("a/b/*.md") == "a/b"
    assert find_glob_base("*/b/c.md") == find_glob_base("c.md") == ""


PIECES = [
    "@",
    "\\@",
    '"',
    "README.md",
    "docs/",
    "**",
    "*",
    "[",
    "]",
    ":",
    "10",
    "-20",
    "#L3",
    "..",
    "/",
    "~",
    " ",
    "\n",
    "`",
    "\\",
    "\\ ",
    ".",
    "secret.md",
    "out.md",
    "[[",
    "]]",
    "(",
    ")",
    "\0",
    "😀",
    "。",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=25).map("".join) | st.text().map("@".__add__))
def test_nothing_that_a_person_types_raises_or_leaves_the_root(root: Root, text: str):
    result = resolve_nested_imports(text, root, limits=LIMITS)
    assert SECRET not in str(result)
    assert all(one.link in text for one in (*result.imported, *result.skipped))
    assert sum(one.size for one in result.imported) <= LIMITS.max_total_bytes


@pytest.mark.parametrize("piece", ["@", "@(", "@a)", '@"', "@a:1", "@\\ ", "@a\\ b", "(@", "@**/", "@[", "[[@a]]"])
def test_a_hostile_text_is_read_in_time_that_grows_with_its_length(piece: str):
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        started = time.process_time()
        find_mentions(text)
        return time.process_time() - started

    short = min(seconds(20_000) for _ in range(3))
    assert min(seconds(160_000) for _ in range(2)) < max(0.1, 30 * short)
