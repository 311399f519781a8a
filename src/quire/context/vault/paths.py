"""Reads files below a root folder by relative path, safe against path traversal. All file access goes through `Root`.

A path is names separated by `/`, relative to the root. Nothing in it is expanded or decoded: `~`, `%2e` and characters
that only look like a separator are ordinary names. Names that begin with a dot are not listed.

Opening is safe against symlink races (an `openat` walk). Every step goes from one open folder descriptor to the next
without following symlinks. A symlink is read and its target walked from the root again. So the file that was checked is
the one that is opened, even if the folder changes.
"""

import errno
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

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


MAX_SYMLINKS = 40
"""Symlinks that are followed before a path counts as a cycle; the same limit as in Linux."""

_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_MISSING_ERRNOS = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}
_WINDOWS_RESERVED_NAMES = (
    "con",
    "prn",
    "aux",
    "nul",
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)),
)

HAS_DIR_FD = {os.open, os.stat, os.readlink} <= os.supports_dir_fd and os.scandir in os.supports_fd
"""Whether this system supports `dir_fd`. Windows does not, so there the path is checked before and after opening."""

NameCheck = Callable[[str], None]
"""Raises if a file or folder of this name must not be opened."""


class ListedFile(NamedTuple):
    """A file of a listing, from its metadata alone."""

    path: str
    size: int
    modified: int
    """Nanoseconds since 1970."""


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
        try:
            text = data.decode().removeprefix(_BOM)
        except UnicodeDecodeError:
            text = None
        if text is None or "\0" in text:
            message = f"{full_path!r} is not UTF-8 text ({len(data):,} bytes); convert it, or remove the reference."
            raise PathRefused(message, reason="binary", path=full_path)
        return TextFile(full_path, text, sha256(text.encode()).hexdigest(), len(data), info.st_mtime_ns)

    def list_files(self, folder: str = "", *, limit: int | None = None) -> list[ListedFile]:
        """Lists the files below a folder, sorted by path; the walk stops after `limit` files."""
        parts = split_path(folder) if folder else ()
        for name in parts:
            self._check_name(name)

        def is_listed(name: str) -> bool:
            return not name.startswith(".") and name not in UNLISTED_FOLDERS and _is_storable(name)

        files: list[ListedFile] = []
        for file in walk_files(self.path, parts, is_listed=is_listed, use_dir_fd=self._use_dir_fd):
            files.append(file)
            if len(files) == limit:
                break
        return sorted(files)

    def _check_name(self, name: str) -> None:
        # Some file systems ignore letter case and invisible characters, so the check ignores them too.
        folded = name.lower()
        if not name.isascii():
            folded = "".join(char for char in name if unicodedata.category(char) != "Cf").casefold()
        if folded in BLOCKED_FOLDERS or (folded.startswith(".") and not self._allow_hidden):
            raise PathRefused(f"{name!r} is hidden, and hidden files are not read; give another file.", reason="hidden")


def split_path(path: str, *, folder: str = "") -> tuple[str, ...]:
    """Splits a path into its names from the root; resolves `..`, which must not escape the root."""
    if not path:
        raise DocumentNotFound("The path is empty; write a path relative to the root.")
    if len(path) > MAX_PATH_CHARS:
        raise DocumentNotFound(f"{_shorten(path)} has {len(path):,} characters; a path has {MAX_PATH_CHARS:,} at most.")
    if path.startswith("/") or _ABSOLUTE_PREFIX.match(path):
        raise _outside_path_error(path)
    if not _is_storable(path):
        raise PathRefused(f"{_shorten(path)} has invalid characters; write the path with `/` between the names.")
    names: list[str] = []
    for name in (*folder.split("/"), *path.split("/")):
        if name == "..":
            if not names:
                raise _outside_path_error(path)
            names.pop()
        elif name not in ("", "."):
            names.append(name)
    if not names:
        raise PathRefused(f"{_shorten(path)} is the root itself; give a file in it.", reason="folder")
    return tuple(names)


def _is_storable(name: str) -> bool:
    """Whether a name is valid text: file systems allow arbitrary bytes."""
    if _INVALID_PATH_CHARS.search(name):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _outside_path_error(path: str) -> PathRefused:
    return PathRefused(
        f"{_shorten(path)} is outside the root; write a path relative to the root, with `/` between the names."
    )


def _too_large_error(path: str, size: int, limit: int) -> PathRefused:
    message = f"{path!r} has {size:,} bytes, and {limit:,} are allowed; give a part of it, or raise the limit."
    return PathRefused(message, reason="too_large", path=path)


def _shorten(path: str) -> str:
    return repr(path if len(path) <= 80 else f"{path[:79]}…")


def open_within_root(root: Path, parts: Sequence[str], *, check: NameCheck, use_dir_fd: bool = HAS_DIR_FD) -> int:
    """Opens the regular file at this path below the root. Returns its descriptor."""
    try:
        if not use_dir_fd:
            return _open_with_checks(root, parts, check)
        target = parts
        for _ in range(MAX_SYMLINKS):
            reached = _walk_path(root, target, check)
            if isinstance(reached, int):
                return reached
            target = reached
        raise PathRefused(f"{'/'.join(target)!r} is a cycle of symlinks; give a file.", reason="special")
    except OSError as error:
        path = "/".join(parts)
        if isinstance(error, IsADirectoryError):
            raise PathRefused(f"{path or '.'!r} is a folder; give a file in it.", reason="folder") from error
        if error.errno in _MISSING_ERRNOS:
            raise DocumentNotFound(
                f"There is no file {path!r}; paths are relative to the root of the vault or the project."
            ) from error
        if error.errno == errno.ELOOP:
            raise PathRefused(f"{path!r} changed while it was opened; try again.", reason="special") from error
        message = f"{path!r} cannot be read ({error.strerror}); check its permissions."
        raise PathRefused(message, reason="unreadable") from error


def walk_files(
    root: Path, folder: Sequence[str], *, is_listed: Callable[[str], bool], use_dir_fd: bool = HAS_DIR_FD
) -> Iterator[ListedFile]:
    """All regular files below a folder, in no order. Symlinks are skipped: their targets are listed where they are."""
    pending = ["/".join(folder)]
    while pending:
        path = pending.pop()
        prefix = f"{path}/" if path else ""
        parts = path.split("/") if path else ()
        files: list[ListedFile] = []
        try:
            with _open_folder(root, parts, use_dir_fd=use_dir_fd) as opened, os.scandir(opened) as scan:
                entries = [entry for entry in scan if is_listed(entry.name)]
                pending += [prefix + entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
                for entry in entries:
                    if entry.is_file(follow_symlinks=False):
                        with suppress(OSError):
                            info = entry.stat(follow_symlinks=False)
                            files.append(ListedFile(prefix + entry.name, info.st_size, info.st_mtime_ns))
        except OSError:
            continue  # The folder was deleted, became a symlink, or cannot be read.
        yield from files


@contextmanager
def _open_folder(root: Path, parts: Sequence[str], *, use_dir_fd: bool) -> Generator[int | str]:
    if not use_dir_fd:
        path = root.joinpath(*parts)
        if _resolve_strict(path) != path:
            raise NotADirectoryError(errno.ENOTDIR, "a symlink")
        yield str(path)
        return
    folder = os.open(root, _FOLDER_FLAGS)
    try:
        for name in parts:
            folder = _enter_folder(folder, name)
        yield folder
    finally:
        os.close(folder)


def _enter_folder(folder: int, name: str) -> int:
    """Opens a subfolder of an open folder, and closes the latter."""
    subfolder = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
    os.close(folder)
    return subfolder


def _walk_path(root: Path, parts: Sequence[str], check: NameCheck) -> int | list[str]:
    """The open file, or the path with the first symlink replaced by its target."""
    folder = os.open(root, _FOLDER_FLAGS)
    try:
        for at, name in enumerate(parts):
            check(name)
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                return _resolve_symlink(root, parts, at, os.readlink(name, dir_fd=folder))
            if at == len(parts) - 1:
                return _open_file(name, mode, dir_fd=folder)
            folder = _enter_folder(folder, name)
    finally:
        os.close(folder)
    raise IsADirectoryError(errno.EISDIR, "the root itself")


def _resolve_symlink(root: Path, parts: Sequence[str], at: int, target: str) -> list[str]:
    """Only real folders precede the symlink, so `..` in its target can be resolved by name."""
    if target.startswith("/"):
        if not Path(target).is_relative_to(root):
            raise _outside_link_error("/".join(parts))
        resolved: list[str] = []
        steps = target[len(str(root)) :].split("/")
    else:
        resolved, steps = list(parts[:at]), target.split("/")
    for step in (*steps, *parts[at + 1 :]):
        if step == "..":
            if not resolved:
                raise _outside_link_error("/".join(parts))
            resolved.pop()
        elif step not in ("", "."):
            resolved.append(step)
    return resolved


def _open_file(name: str, mode: int, *, dir_fd: int | None) -> int:
    """Checks the file type before opening, since opening a device can have side effects, and again once it is open."""
    _require_regular(mode, name)
    descriptor = os.open(name, _FILE_FLAGS, dir_fd=dir_fd)
    try:
        _require_regular(os.fstat(descriptor).st_mode, name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(mode: int, name: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, name)
    if not stat.S_ISREG(mode):
        raise PathRefused(f"{name!r} is a device, a pipe or a socket; give a text file.", reason="special")


def _open_with_checks(root: Path, parts: Sequence[str], check: NameCheck) -> int:
    """Without `dir_fd`: checks the real path before the file is opened, and again after."""
    for name in parts:
        if ":" in name or name.split(".")[0].rstrip().lower() in _WINDOWS_RESERVED_NAMES or name != name.rstrip(". "):
            raise PathRefused(f"{name!r} is a reserved name; give a text file.", reason="special")
    path = root.joinpath(*parts)
    real = _resolve_strict(path)
    if not real.is_relative_to(root):
        raise _outside_link_error("/".join(parts))
    for name in real.relative_to(root).parts:
        check(name)
    descriptor = _open_file(str(real), real.lstat().st_mode, dir_fd=None)
    try:
        if not os.path.samestat(os.fstat(descriptor), real.lstat()) or real != _resolve_strict(path):
            raise _outside_link_error("/".join(parts))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _resolve_strict(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except RuntimeError as error:  # Python before 3.13 raises it for a cycle of symlinks.
        raise OSError(errno.ELOOP, "a cycle of symlinks") from error


def _outside_link_error(path: str) -> PathRefused:
    return PathRefused(f"{path!r} is a symlink to a file outside the root; give a file inside.", reason="outside")
