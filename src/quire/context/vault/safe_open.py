"""Opens and lists files strictly below a root folder, safe against symlink races (an `openat` walk).

Every step goes from one open folder descriptor to the next without following symlinks; a symlink is read and its target
walked from the root again. So the file that was checked is the one that is opened, even if the folder changes.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from quire.errors import DocumentNotFound, PathRefused

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
"""Whether this system supports `dir_fd`; Windows does not, so there the path is checked before and after opening."""

NameCheck = Callable[[str], None]
"""Raises if a file or folder of this name must not be opened."""


class ListedFile(NamedTuple):
    """A file of a listing, from its metadata alone."""

    path: str
    size: int
    modified: int
    """Nanoseconds since 1970."""


def open_within_root(root: Path, parts: Sequence[str], *, check: NameCheck, use_dir_fd: bool = HAS_DIR_FD) -> int:
    """Opens the regular file at this path below the root; returns its descriptor."""
    try:
        return _open_with_dir_fd(root, parts, check) if use_dir_fd else _open_with_checks(root, parts, check)
    except OSError as error:
        raise _map_error(error, "/".join(parts)) from error


def walk_files(
    root: Path, folder: Sequence[str], *, is_listed: Callable[[str], bool], use_dir_fd: bool = HAS_DIR_FD
) -> Iterator[ListedFile]:
    """All regular files below a folder, in no order. Symlinks are skipped: their targets are listed where they are."""
    pending = ["/".join(folder)]
    while pending:
        path = pending.pop()
        prefix = f"{path}/" if path else ""
        parts = path.split("/") if path else ()
        try:
            with _open_folder(root, parts, use_dir_fd=use_dir_fd) as opened, os.scandir(opened) as scan:
                entries = [entry for entry in scan if is_listed(entry.name)]
                pending += [prefix + entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
                files = [_to_listed_file(entry, prefix) for entry in entries if entry.is_file(follow_symlinks=False)]
        except OSError:
            continue  # The folder was deleted, became a symlink, or cannot be read.
        yield from (file for file in files if file is not None)


def _to_listed_file(entry: os.DirEntry[str], prefix: str) -> ListedFile | None:
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return ListedFile(prefix + entry.name, info.st_size, info.st_mtime_ns)


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


def _open_with_dir_fd(root: Path, parts: Sequence[str], check: NameCheck) -> int:
    for _ in range(MAX_SYMLINKS):
        reached = _walk_path(root, parts, check)
        if isinstance(reached, int):
            return reached
        parts = reached
    raise PathRefused(f"{'/'.join(parts)!r} is a cycle of symlinks; give a file.", reason="special")


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
            raise _outside_root_error("/".join(parts))
        resolved: list[str] = []
        steps = target[len(str(root)) :].split("/")
    else:
        resolved, steps = list(parts[:at]), target.split("/")
    for step in (*steps, *parts[at + 1 :]):
        if step == "..":
            if not resolved:
                raise _outside_root_error("/".join(parts))
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
        raise _outside_root_error("/".join(parts))
    for name in real.relative_to(root).parts:
        check(name)
    descriptor = _open_file(str(real), real.lstat().st_mode, dir_fd=None)
    try:
        if not os.path.samestat(os.fstat(descriptor), real.lstat()) or real != _resolve_strict(path):
            raise _outside_root_error("/".join(parts))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _resolve_strict(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except RuntimeError as error:  # Python before 3.13 raises it for a cycle of symlinks.
        raise OSError(errno.ELOOP, "a cycle of symlinks") from error


def _outside_root_error(path: str) -> PathRefused:
    return PathRefused(f"{path!r} is a symlink to a file outside the root; give a file inside.", reason="outside")


def _map_error(error: OSError, path: str) -> DocumentNotFound | PathRefused:
    if isinstance(error, IsADirectoryError):
        return PathRefused(f"{path or '.'!r} is a folder; give a file in it.", reason="folder")
    if error.errno in _MISSING_ERRNOS:
        return DocumentNotFound(
            f"There is no file {path!r}; paths are relative to the root of the vault or the project."
        )
    if error.errno == errno.ELOOP:
        return PathRefused(f"{path!r} changed while it was opened; try again.", reason="special")
    return PathRefused(f"{path!r} cannot be read ({error.strerror}); check its permissions.", reason="unreadable")
