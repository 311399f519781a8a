"""Reads files below a root folder by relative path, safe against path traversal. All file access goes through `Root`.

A path is names separated by `/`, relative to the root. Nothing in it is expanded or decoded: `~`, `%2e` and characters
that only look like a separator are ordinary names. Names that begin with a dot are not listed.
"""

import os
import re
import unicodedata
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from quire.context.vault.safe_open import HAS_DIR_FD, ListedFile, open_within_root, walk_files
from quire.errors import DocumentNotFound, PathRefused

MAX_FILE_BYTES = 2_000_000
"""Default size limit of a file, in bytes: no model reads half a million tokens of one note."""
BLOCKED_FOLDERS = frozenset([".git", ".hg", ".svn", ".obsidian", ".trash"])
"""Folders of other programs, which are never read: some hold keys and tokens, and the trash holds deleted notes."""
UNLISTED_FOLDERS = frozenset(["node_modules", "__pycache__"])
MAX_PATH_CHARS = 4_096
_BOM = "\ufeff"
_ABSOLUTE_PREFIX = re.compile(r"~(?:/|\Z)|[A-Za-z]:(?:/|\Z)")
"""Prefixes of absolute paths for a shell or Windows, which are rejected as outside the root."""
_INVALID_PATH_CHARS = re.compile(r"[\x00-\x1f\x7f\\]")


class TextFile(NamedTuple):
    """A file's text, without its byte order mark; `size` is in bytes."""

    path: str
    text: str
    digest: str
    size: int
    modified: int


class Root:
    """A folder, below which files may be read.

    `allow_hidden` allows names that begin with a dot (`.github/workflows/ci.yml`), except `BLOCKED_FOLDERS`. With
    `must_exist=False` the folder may be missing: it then has no files.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        allow_hidden: bool = False,
        max_file_bytes: int = MAX_FILE_BYTES,
        must_exist: bool = True,
    ) -> None:
        self.path = Path(path).resolve()
        self.max_file_bytes = max_file_bytes
        self._allow_hidden = allow_hidden
        self._use_dir_fd = HAS_DIR_FD
        if must_exist and self.is_missing:
            raise DocumentNotFound(f"There is no folder {str(path)!r}; give the folder of the vault or the project.")

    @property
    def is_missing(self) -> bool:
        return not self.path.is_dir()

    def read(self, path: str, *, folder: str = "", max_bytes: int | None = None) -> TextFile:
        """Reads the text file at a path relative to the root, or to a folder below it."""
        parts = split_path(path, folder=folder)
        full_path = "/".join(parts)
        limit = self.max_file_bytes if max_bytes is None else max_bytes
        descriptor = open_within_root(self.path, parts, check=self._check_name, use_dir_fd=self._use_dir_fd)
        with os.fdopen(descriptor, "rb") as file:
            info = os.fstat(file.fileno())
            if info.st_size > limit:
                raise _too_large_error(full_path, info.st_size, limit)
            try:
                data = file.read(limit + 1)  # It may have grown, or not report its size.
            except OSError as error:
                message = f"{full_path!r} cannot be read ({error.strerror}); check its permissions."
                raise PathRefused(message, reason="unreadable", path=full_path) from error
        if len(data) > limit:
            raise _too_large_error(full_path, len(data), limit)
        text = _decode_text(data, full_path)
        return TextFile(full_path, text, sha256(text.encode()).hexdigest(), len(data), info.st_mtime_ns)

    def list_files(self, folder: str = "", *, limit: int | None = None) -> list[ListedFile]:
        """Lists the files below a folder, sorted by path; the walk stops after `limit` files."""
        parts = split_path(folder) if folder else ()
        for name in parts:
            self._check_name(name)
        files: list[ListedFile] = []
        for file in walk_files(self.path, parts, is_listed=self._is_listed, use_dir_fd=self._use_dir_fd):
            files.append(file)
            if len(files) == limit:
                break
        return sorted(files)

    def _is_listed(self, name: str) -> bool:
        return not name.startswith(".") and name not in UNLISTED_FOLDERS and _is_storable(name)

    def _check_name(self, name: str) -> None:
        # Some file systems ignore letter case and invisible characters, so the check ignores them too.
        folded = name.lower() if name.isascii() else _strip_invisible(name)
        if folded in BLOCKED_FOLDERS or (folded.startswith(".") and not self._allow_hidden):
            raise PathRefused(f"{name!r} is hidden, and hidden files are not read; give another file.", reason="hidden")


def _strip_invisible(name: str) -> str:
    return "".join(char for char in name if unicodedata.category(char) != "Cf").casefold()


def split_path(path: str, *, folder: str = "") -> tuple[str, ...]:
    """Splits a path into its names from the root; resolves `..`, which must not escape the root."""
    _validate_path(path)
    names: list[str] = []
    for name in (*folder.split("/"), *path.split("/")):
        if name == "..":
            if not names:
                raise _outside_root_error(path)
            names.pop()
        elif name not in ("", "."):
            names.append(name)
    if not names:
        raise PathRefused(f"{_shorten(path)} is the root itself; give a file in it.", reason="folder")
    return tuple(names)


def _validate_path(path: str) -> None:
    if not path:
        raise DocumentNotFound("The path is empty; write a path relative to the root.")
    if len(path) > MAX_PATH_CHARS:
        raise DocumentNotFound(f"{_shorten(path)} has {len(path):,} characters; a path has {MAX_PATH_CHARS:,} at most.")
    if path.startswith("/") or _ABSOLUTE_PREFIX.match(path):
        raise _outside_root_error(path)
    if not _is_storable(path):
        raise PathRefused(f"{_shorten(path)} has invalid characters; write the path with `/` between the names.")


def _is_storable(name: str) -> bool:
    """Whether a name is valid text: file systems allow arbitrary bytes."""
    if _INVALID_PATH_CHARS.search(name):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _decode_text(data: bytes, path: str) -> str:
    if b"\0" not in data:
        try:
            return data.decode().removeprefix(_BOM)
        except UnicodeDecodeError:
            pass
    message = f"{path!r} is not UTF-8 text ({len(data):,} bytes); convert it, or remove the reference."
    raise PathRefused(message, reason="binary", path=path)


def _outside_root_error(path: str) -> PathRefused:
    return PathRefused(
        f"{_shorten(path)} is outside the root; write a path relative to the root, with `/` between the names."
    )


def _too_large_error(path: str, size: int, limit: int) -> PathRefused:
    message = f"{path!r} has {size:,} bytes, and {limit:,} are allowed; give a part of it, or raise the limit."
    return PathRefused(message, reason="too_large", path=path)


def _shorten(path: str) -> str:
    return repr(path if len(path) <= 80 else f"{path[:79]}…")
