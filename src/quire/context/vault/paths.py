"""From a string to a file: the only way in, and it never leaves the root.

A path is names with `/` between them, counted from the root. Nothing in it is expanded or decoded: `~`, `%2e` and
letters that only look like a separator are names like any other. Names that begin with a dot are not listed.
"""

import os
import re
import unicodedata
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from quire.context.vault.beneath import BY_DESCRIPTOR, Found, files_beneath, open_beneath
from quire.errors import DocumentNotFound, PathRefused

LIMIT_BYTES = 2_000_000
"""A larger file is not read, unless the caller says otherwise: no model reads half a million tokens of one note."""
NEVER_OPENED = frozenset([".git", ".hg", ".svn", ".obsidian", ".trash"])
"""Folders of other programs: keys and tokens stand in some of them, and what is in the trash was thrown away."""
NOT_LISTED = frozenset(["node_modules", "__pycache__"])
LONGEST_PATH = 4_096
_BOM = "\ufeff"
_ELSEWHERE = re.compile(r"~(?:/|\Z)|[A-Za-z]:(?:/|\Z)")
"""Where a shell or Windows would look outside of the root; nothing is expanded here, so it can only be meant so."""
_UNSAYABLE = re.compile(r"[\x00-\x1f\x7f\\]")


class File(NamedTuple):
    """A file's text, without its byte order mark; `size` is in bytes."""

    path: str
    text: str
    digest: str
    size: int
    modified: int


class Root:
    """A folder, and all that may be read.

    `hidden` lets names be opened that begin with a dot (`.github/workflows/ci.yml`); a few folders never are.
    """

    def __init__(self, path: Path | str, *, hidden: bool = False, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = Path(path).resolve()
        self.limit_bytes = limit_bytes
        self._hidden = hidden
        self._by_descriptor = BY_DESCRIPTOR
        if not self.path.is_dir():
            raise DocumentNotFound(f"There is no folder {str(path)!r}; name the vault's or the project's folder.")

    def read(self, path: str, *, folder: str = "", limit_bytes: int | None = None) -> File:
        """The text at a path from the root, or from a folder under it."""
        parts = place(path, folder=folder)
        shown = "/".join(parts)
        limit = self.limit_bytes if limit_bytes is None else limit_bytes
        descriptor = open_beneath(self.path, parts, check=self._check, by_descriptor=self._by_descriptor)
        with os.fdopen(descriptor, "rb") as file:
            info = os.fstat(file.fileno())
            if info.st_size > limit:
                raise _too_large(shown, info.st_size, limit)
            try:
                data = file.read(limit + 1)  # It may have grown since, or be one that does not tell its size.
            except OSError as error:
                said = f"{shown!r} cannot be read ({error.strerror}); check its permissions."
                raise PathRefused(said, reason="unreadable", path=shown) from error
        if len(data) > limit:
            raise _too_large(shown, len(data), limit)
        text = _text(data, shown)
        return File(shown, text, sha256(text.encode()).hexdigest(), len(data), info.st_mtime_ns)

    def files(self, folder: str = "", *, most: int | None = None) -> list[Found]:
        """What is listed under a folder, in order of path; `most` stops the search after so many files."""
        inside = place(folder) if folder else ()
        for name in inside:
            self._check(name)
        found: list[Found] = []
        for file in files_beneath(self.path, inside, listed=self._listed, by_descriptor=self._by_descriptor):
            found.append(file)
            if len(found) == most:
                break
        return sorted(found)

    def _listed(self, name: str) -> bool:
        return not name.startswith(".") and name not in NOT_LISTED and _sayable(name)

    def _check(self, name: str) -> None:
        # Some file systems pass over letter case and invisible letters, so the name is looked at as they would.
        bare = name.lower() if name.isascii() else _bare(name)
        if bare in NEVER_OPENED or (bare.startswith(".") and not self._hidden):
            raise PathRefused(f"{name!r} is hidden, and hidden files are not read here.", reason="hidden")


def _bare(name: str) -> str:
    return "".join(letter for letter in name if unicodedata.category(letter) != "Cf").casefold()


def place(path: str, *, folder: str = "") -> tuple[str, ...]:
    """The names on the way from the root to a path; `..` is folded away, and may not climb over the root."""
    _require_plain(path)
    names: list[str] = []
    for name in (*folder.split("/"), *path.split("/")):
        if name == "..":
            if not names:
                raise _leaves(path)
            names.pop()
        elif name not in ("", "."):
            names.append(name)
    if not names:
        raise PathRefused(f"{_shown(path)} is the root itself; name a file in it.", reason="folder")
    return tuple(names)


def _require_plain(path: str) -> None:
    if not path:
        raise DocumentNotFound("An empty path names no file; write the path from the root.")
    if len(path) > LONGEST_PATH:
        raise DocumentNotFound(f"{_shown(path)} is longer than any path ({len(path):,} characters).")
    if path.startswith("/") or _ELSEWHERE.match(path):
        raise _leaves(path)
    if not _sayable(path):
        raise PathRefused(
            f"{_shown(path)} holds signs that no path has here; write it anew, with `/` between the names."
        )


def _sayable(name: str) -> bool:
    """Whether a name is text that can be stored and read back: the names of files may be any bytes."""
    if _UNSAYABLE.search(name):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(data: bytes, shown: str) -> str:
    if b"\0" not in data:
        try:
            return data.decode().removeprefix(_BOM)
        except UnicodeDecodeError:
            pass
    said = f"{shown!r} is not text in UTF-8 ({len(data):,} bytes); convert it, or leave it out."
    raise PathRefused(said, reason="binary", path=shown)


def _leaves(path: str) -> PathRefused:
    return PathRefused(f"{_shown(path)} leaves the root; write a path from the root, with `/` between the names.")


def _too_large(shown: str, size: int, limit: int) -> PathRefused:
    said = f"{shown!r} has {size:,} bytes, and {limit:,} are allowed; name a part of it, or raise the limit."
    return PathRefused(said, reason="too_large", path=shown)


def _shown(path: str) -> str:
    return repr(path if len(path) <= 80 else f"{path[:79]}…")
