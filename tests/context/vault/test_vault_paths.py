"""Path safety: a root reads files inside, refuses all others, and raises only Quire's own errors."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.context.vault.paths import Root, open_within_root, split_path
from quire.errors import DocumentNotFound, PathRefused, QuireError

SECRET = "the canary sings outside"
HIDDEN = "the canary sings in hiding"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root with traps inside and canary files outside."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.md").write_text(SECRET)
    (outside / "root2").mkdir()
    (outside / "root2" / "secret.md").write_text(SECRET)
    root = outside / "root"
    for inner in ("docs/deep", ".git", ".obsidian", ".trash", ".GIT2", ".github", "node_modules/x", "~", "C:"):
        (root / inner).mkdir(parents=True)
    for hidden in (".git/config", ".obsidian/workspace.json", ".trash/old.md", ".env"):
        (root / hidden).write_text(HIDDEN)
    (root / "README.md").write_text("# Read me\n")
    (root / "docs" / "a.md").write_text("alpha\n")
    (root / "docs" / "deep" / "b.md").write_bytes(b"\xef\xbb\xbfbeta\r\n")
    (root / ".github" / "ci.yml").write_text("on: push\n")
    (root / "node_modules" / "x" / "README.md").write_text("not mine\n")
    (root / "docs" / "a／b.md").write_text("a name with a wide slash\n")
    (root / "100%.md").write_text("per cent\n")
    (root / "binary.dat").write_bytes(b"a\0b")
    (root / "latin.txt").write_bytes("Straße".encode("latin-1"))
    (root / "large.md").write_text("x" * 5_000)
    links = {
        "out.md": "../secret.md",
        "out-absolute.md": str(outside / "secret.md"),
        "out-folder": "..",
        "out-twice.md": "out-folder/secret.md",
        "sibling.md": "../root2/secret.md",
        "in.md": "docs/a.md",
        "in-folder": "docs/deep",
        "in-absolute.md": str(root / "docs" / "a.md"),
        "in-and-back.md": "docs/deep/../a.md",
        "docs/up.md": "../README.md",
        "to-git.md": ".git/config",
        "loop.md": "loop.md",
        "loop-a": "loop-b",
        "loop-b": "loop-a",
        "dangling.md": "nowhere.md",
        "proc-root": "/proc/self/root",
        "proc-cwd": "/proc/self/cwd",
        "proc-environ": "/proc/self/environ",
        "null": "/dev/null",
        "etc": "/etc",
        "prefix.md": f"{root}2/secret.md",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe.md")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "s.md"))
        yield root


@pytest.fixture(params=[True, False], ids=["by descriptor", "between checks"])
def root(folder: Path, request: pytest.FixtureRequest) -> Root:
    """Both ways of opening: systems without `dir_fd` use the second."""
    opened = Root(folder, max_file_bytes=4_000)
    opened._use_dir_fd = request.param
    return opened


HOSTILE = [
    ("..", "folder above"),
    ("../secret.md", "file above"),
    ("../../../../../../etc/passwd", "far above"),
    ("docs/../../secret.md", "up in the middle"),
    ("docs/deep/../../../secret.md", "up, counted"),
    ("./../secret.md", "behind a dot"),
    ("docs//..//..//secret.md", "with empty names"),
    ("/etc/passwd", "absolute"),
    ("//etc/passwd", "two slashes"),
    ("//server/share/secret.md", "network share"),
    ("~", "home"),
    ("~/secret.md", "file in home"),
    ("~root/.ssh/id_rsa", "the home of another user"),
    ("C:/Windows/win.ini", "drive"),
    ("C:\\Windows\\win.ini", "drive with backslashes"),
    ("c:", "drive alone"),
    ("\\\\server\\share", "share with backslashes"),
    ("..\\secret.md", "backslash up"),
    ("docs\\..\\..\\secret.md", "backslashes"),
    ("README.md\0.png", "NUL"),
    ("\0", "NUL alone"),
    ("../secret.md\n", "line break"),
    ("%2e%2e/secret.md", "encoded dots"),
    ("..%2fsecret.md", "encoded slash"),
    ("%252e%252e%252fsecret.md", "encoded twice"),
    ("..%c0%afsecret.md", "overlong encoding"),
    ("．．/secret.md", "wide dots"),
    ("..／secret.md", "wide slash"),
    ("..∕secret.md", "division slash"),
    ("..⁄secret.md", "fraction slash"),
    ("‥/secret.md", "two-dot leader"),
    ("\u202e../secret.md", "text turned around"),
    ("..\u200b/secret.md", "invisible letter"),
    ("\ud800/secret.md", "half a letter"),
    ("out.md", "link to a file outside"),
    ("out-absolute.md", "absolute link"),
    ("out-folder/secret.md", "link to a folder outside"),
    ("out-twice.md", "link over a link"),
    ("sibling.md", "link to a folder whose name begins alike"),
    ("prefix.md", "absolute link to one whose name begins alike"),
    ("in-folder/../../../secret.md", "up behind a link"),
    ("to-git.md", "link to a hidden file"),
    (".git/config", "hidden"),
    (".GIT/config", "hidden in capitals"),
    (".g\u200cit/config", "hidden with an invisible letter"),
    (".obsidian/workspace.json", "Obsidian's own"),
    (".trash/old.md", "thrown away"),
    (".env", "keys"),
    ("docs/../.env", "keys, on the way back"),
    ("loop.md", "circle"),
    ("loop-a/x.md", "circle of two"),
    ("dangling.md", "link to nothing"),
    ("proc-root/etc/passwd", "the system's root in /proc"),
    ("proc-cwd/secret.md", "the working folder in /proc"),
    ("proc-environ", "the environment in /proc"),
    ("null", "device behind a link"),
    ("etc/passwd", "link to /etc"),
    ("pipe.md", "pipe, which would wait for ever"),
    ("s.md", "socket"),
    ("docs", "folder"),
    ("docs/", "folder with a slash"),
    (".", "root"),
    ("", "nothing"),
    ("   ", "blanks"),
    ("README.md/secret.md", "file taken for a folder"),
    ("a" * 300, "name too long"),
    ("a/" * 3_000 + "b", "path too long"),
    ("docs/" * 600 + "a.md", "path too deep"),
    ("binary.dat", "no text"),
    ("latin.txt", "not UTF-8"),
    ("large.md", "too large"),
    ("CON", "Windows's device"),
    ("README.md:stream", "Windows's stream"),
]


@pytest.mark.parametrize(("path", "trick"), HOSTILE, ids=[trick for _, trick in HOSTILE])
def test_nothing_leaves_the_root(root: Root, path: str, trick: str):
    with pytest.raises((PathRefused, DocumentNotFound)) as caught:
        root.read(path)
    assert str(caught.value), trick
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../secret.md", "outside"),
        ("out.md", "outside"),
        ("prefix.md", "outside"),
        ("out-folder/secret.md", "outside"),
        ("proc-environ", "outside"),
        (".git/config", "hidden"),
        ("to-git.md", "hidden"),
        ("pipe.md", "special"),
        ("s.md", "special"),
        ("docs", "folder"),
        ("binary.dat", "binary"),
        ("latin.txt", "binary"),
        ("large.md", "too_large"),
    ],
)
def test_a_refusal_says_why(root: Root, path: str, reason: str):
    with pytest.raises(PathRefused) as caught:
        root.read(path)
    assert caught.value.reason == reason


def test_what_is_too_large_shows_its_size(root: Root):
    with pytest.raises(PathRefused, match=r"'large.md' has 5,000 bytes, and 4,000 are allowed") as caught:
        root.read("large.md")
    assert caught.value.path == "large.md"
    assert root.read("large.md", max_bytes=5_000).size == 5_000


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("README.md", "# Read me\n"),
        ("./docs//a.md", "alpha\n"),
        ("docs/../README.md", "# Read me\n"),
        ("docs/deep/b.md", "beta\r\n"),
        ("in.md", "alpha\n"),
        ("in-folder/b.md", "beta\r\n"),
        ("in-absolute.md", "alpha\n"),
        ("in-and-back.md", "alpha\n"),
        ("docs/up.md", "# Read me\n"),
        ("docs/a／b.md", "a name with a wide slash\n"),
        ("100%.md", "per cent\n"),
    ],
)
def test_what_is_inside_is_read(root: Root, path: str, text: str):
    assert root.read(path).text == text


def test_a_file_comes_with_size_time_and_digest(root: Root, folder: Path):
    file = root.read("deep/b.md", folder="docs")
    info = (folder / "docs" / "deep" / "b.md").stat()
    assert (file.path, file.size, file.modified) == ("docs/deep/b.md", info.st_size, info.st_mtime_ns)
    assert file.digest == Root(folder).read("docs/deep/b.md").digest != root.read("docs/a.md").digest


def test_hidden_files_can_be_allowed_but_not_those_of_other_programs(folder: Path):
    root = Root(folder, allow_hidden=True)
    assert root.read(".github/ci.yml").text == "on: push\n"
    for path in (".git/config", ".Trash/old.md", ".g\u200cit/config", "to-git.md"):
        with pytest.raises(PathRefused) as caught:
            root.read(path)
        assert caught.value.reason == "hidden"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_file_that_does_not_report_its_size_is_limited_all_the_same():
    root = Root("/proc/self")
    assert root.read("status").text
    with pytest.raises(PathRefused) as caught:
        root.read("status", max_bytes=20)
    assert caught.value.reason == "too_large"


def test_a_listing_shows_files_inside_and_no_links_or_hidden_ones(root: Root, folder: Path):
    listed = [file.path for file in root.list_files()]
    assert listed == sorted(listed)
    assert set(listed) == {
        "100%.md", "README.md", "binary.dat", "docs/a.md", "docs/a／b.md", "docs/deep/b.md", "large.md", "latin.txt"
    }  # fmt: skip
    (large,) = [file for file in root.list_files() if file.path == "large.md"]
    assert (large.size, large.modified) == (5_000, (folder / "large.md").stat().st_mtime_ns)
    assert [file.path for file in root.list_files("docs/deep")] == ["docs/deep/b.md"]
    assert root.list_files("out-folder") == root.list_files("nowhere") == []
    assert len(root.list_files(limit=3)) == 3


def test_a_root_that_is_no_folder_is_said_at_once(tmp_path: Path):
    with pytest.raises(DocumentNotFound, match="no folder"):
        Root(tmp_path / "nowhere")


def test_a_name_of_bytes_that_are_no_text_is_passed_over(tmp_path: Path):
    (tmp_path / "a.md").write_text("a")
    (tmp_path / os.fsdecode(b"b\xff.md")).write_text("b")
    (tmp_path / "c\n.md").write_text("c")
    assert [file.path for file in Root(tmp_path).list_files()] == ["a.md"]


def test_what_is_listed_can_be_read(folder: Path):
    root = Root(folder, max_file_bytes=10_000)
    no_text = {"binary.dat", "latin.txt"}
    listed = {file.path for file in root.list_files()}
    assert listed > no_text
    assert {root.read(path).path for path in listed - no_text} == listed - no_text


def test_a_file_without_permission_is_refused_politely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.md").write_text("a")

    def forbidden(*_args: object, **_named: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("quire.context.vault.paths._open_file", forbidden)
    with pytest.raises(PathRefused, match="Permission denied") as caught:
        Root(tmp_path).read("a.md")
    assert caught.value.reason == "unreadable"


def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(tmp_path: Path):
    """Race: a thread swaps a folder for a symlink to the outside as fast as it can; no file outside is ever read."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for place_ in (root / "real", outside):
        place_.mkdir(parents=True)
        (place_ / "note.md").write_text(SECRET if place_ == outside else "mine")
    (root / "link").symlink_to(outside)
    (root / "folder").symlink_to("real")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for target in (outside, Path("real")):
                (root / "new").symlink_to(target)
                (root / "new").replace(root / "folder")

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        reading, outcomes = Root(root), set[str]()
        until = time.monotonic() + 10
        for tried in count():
            if time.monotonic() > until or (tried > 1_000 and outcomes >= {"mine", "outside"}):
                break
            try:
                outcomes.add(reading.read("folder/note.md").text)
            except PathRefused as refusal:
                outcomes.add(refusal.reason)
    finally:
        done.set()
        swapping.join()
    assert outcomes >= {"mine", "outside"}
    assert SECRET not in outcomes


def test_a_real_folder_swapped_between_look_and_step_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root, outside = tmp_path / "root", tmp_path / "outside"
    for place_ in (root / "folder", outside):
        place_.mkdir(parents=True)
        (place_ / "note.md").write_text(SECRET if place_ == outside else "mine")
    looked = os.stat

    def swapped(path: str, **named: object) -> os.stat_result:
        result = looked(path, **named)  # type: ignore[arg-type]
        if path == "folder":
            (root / "folder").rename(root / "gone")
            (root / "folder").symlink_to(outside)
        return result

    monkeypatch.setattr(os, "stat", swapped)
    with pytest.raises((PathRefused, DocumentNotFound)):
        open_within_root(root, ["folder", "note.md"], check=lambda _name: None, use_dir_fd=True)


PIECES = ["..", ".", "/", "//", "~", "\\", "\0", "C:", "%2e", "secret.md", "README.md", "docs", "a.md", "out-folder"]
PIECES += ["out.md", "in-folder", "to-git.md", ".git", "proc-root", "etc", "root", "root2", "．．", "∕", "\u202e", " "]


@given(path=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12).map("".join) | st.text())
def test_no_path_raises_anything_else_or_reads_a_canary(root: Root, path: str):
    try:
        text = root.read(path).text
    except (PathRefused, DocumentNotFound):
        return
    assert SECRET not in text
    assert HIDDEN not in text


@given(
    path=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=8).map("/".join),
    folder=st.sampled_from(["", "a", "a/b"]),
)
def test_a_place_is_plain_names(path: str, folder: str):
    try:
        names = split_path(path, folder=folder)
    except QuireError:
        return
    assert names
    assert not {"", ".", ".."} & set(names)
    assert not any("/" in name or "\0" in name or "\\" in name for name in names)
    assert split_path(f"./{'/'.join(names)}") == names
