"""Opening and listing files beneath a folder, and nowhere else.

Every step goes from one open folder to the next without following links; a link is read and its target walked from the
root again. So what was checked is what is opened, whoever changes the folder meanwhile.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from quire.errors import DocumentNotFound, PathRefused

MOST_LINKS = 40
"""Links behind links that are followed before a path counts as a circle; the same as Linux's own bound."""

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ}

BY_DESCRIPTOR = {os.open, os.stat, os.readlink} <= os.supports_dir_fd and os.scandir in os.supports_fd
"""Whether this system opens files relative to an open folder; Windows does not, and checks before and after instead."""

Checked = Callable[[str], None]
"""Raises if a file or a folder of this name may not be opened."""


class Found(NamedTuple):
    """A file as a listing shows it: nothing of it was read."""

    path: str
    size: int
    modified: int
    """Nanoseconds since 1970."""


def open_beneath(root: Path, parts: Sequence[str], *, check: Checked, by_descriptor: bool = BY_DESCRIPTOR) -> int:
    """A descriptor of the regular file at that place under the root."""
    shown = "/".join(parts)
    try:
        return _open_by_steps(root, parts, check) if by_descriptor else _open_between_checks(root, parts, check)
    except OSError as error:
        raise _refusal(error, shown) from error


def files_beneath(
    root: Path, folder: Sequence[str], *, listed: Callable[[str], bool], by_descriptor: bool = BY_DESCRIPTOR
) -> Iterator[Found]:
    """All regular files under a folder, in no order. Links are passed over: their targets have places of their own."""
    pending = ["/".join(folder)]
    while pending:
        inside = pending.pop()
        prefix = f"{inside}/" if inside else ""
        parts = inside.split("/") if inside else ()
        try:
            with _opened_folder(root, parts, by_descriptor=by_descriptor) as place, os.scandir(place) as within:
                entries = [entry for entry in within if listed(entry.name)]
                pending += [prefix + entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
                found = [_found(entry, prefix) for entry in entries if entry.is_file(follow_symlinks=False)]
        except OSError:
            continue  # The folder went, became a link or cannot be read: it has nothing to show.
        yield from (file for file in found if file is not None)


def _found(entry: os.DirEntry[str], prefix: str) -> Found | None:
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return Found(prefix + entry.name, info.st_size, info.st_mtime_ns)


@contextmanager
def _opened_folder(root: Path, parts: Sequence[str], *, by_descriptor: bool) -> Generator[int | str]:
    if not by_descriptor:
        named = root.joinpath(*parts)
        if _real(named) != named:
            raise NotADirectoryError(errno.ENOTDIR, "a link")
        yield str(named)
        return
    place = os.open(root, _FOLDER)
    try:
        for name in parts:
            place = _stepped(place, name)
        yield place
    finally:
        os.close(place)


def _stepped(place: int, name: str) -> int:
    """The folder of that name in an open one, which is closed."""
    below = os.open(name, _FOLDER, dir_fd=place)
    os.close(place)
    return below


def _open_by_steps(root: Path, parts: Sequence[str], check: Checked) -> int:
    for _ in range(MOST_LINKS):
        reached = _walk(root, parts, check)
        if isinstance(reached, int):
            return reached
        parts = reached
    raise PathRefused(f"{'/'.join(parts)!r} is a circle of links; name a file.", reason="special")


def _walk(root: Path, parts: Sequence[str], check: Checked) -> int | list[str]:
    """The open file; or, where a link stands in the way, the parts that lead past it."""
    place = os.open(root, _FOLDER)
    try:
        for at, name in enumerate(parts):
            check(name)
            mode = os.stat(name, dir_fd=place, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                return _past_link(root, parts, at, os.readlink(name, dir_fd=place))
            if at == len(parts) - 1:
                return _open_file(name, mode, dir_fd=place)
            place = _stepped(place, name)
    finally:
        os.close(place)
    raise IsADirectoryError(errno.EISDIR, "the root itself")


def _past_link(root: Path, parts: Sequence[str], at: int, target: str) -> list[str]:
    """What precedes the link is real folders, so that `..` in its target can be folded by name."""
    if target.startswith("/"):
        if not Path(target).is_relative_to(root):
            raise _outside("/".join(parts))
        folded: list[str] = []
        steps = target[len(str(root)) :].split("/")
    else:
        folded, steps = list(parts[:at]), target.split("/")
    for step in (*steps, *parts[at + 1 :]):
        if step == "..":
            if not folded:
                raise _outside("/".join(parts))
            folded.pop()
        elif step not in ("", "."):
            folded.append(step)
    return folded


def _open_file(name: str, mode: int, *, dir_fd: int | None) -> int:
    """Looked at before it is opened, since opening a device can already do something; and again when it is open."""
    _require_regular(mode, name)
    descriptor = os.open(name, _FILE, dir_fd=dir_fd)
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
        raise PathRefused(f"{name!r} is a device, a pipe or a socket; name a text file.", reason="special")


_WINDOWS_NAME = ("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)))


def _open_between_checks(root: Path, parts: Sequence[str], check: Checked) -> int:
    """Where folders have no descriptors: the real path is looked at before the file is opened, and again after."""
    for name in parts:
        if ":" in name or name.split(".")[0].rstrip().lower() in _WINDOWS_NAME or name != name.rstrip(". "):
            raise PathRefused(f"{name!r} is a reserved name; name a text file.", reason="special")
    named = root.joinpath(*parts)
    real = _real(named)
    if not real.is_relative_to(root):
        raise _outside("/".join(parts))
    for name in real.relative_to(root).parts:
        check(name)
    descriptor = _open_file(str(real), real.lstat().st_mode, dir_fd=None)
    try:
        if not os.path.samestat(os.fstat(descriptor), real.lstat()) or real != _real(named):
            raise _outside("/".join(parts))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _real(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except RuntimeError as error:  # What Python raises for a circle of links, before 3.13.
        raise OSError(errno.ELOOP, "a circle of links") from error


def _outside(shown: str) -> PathRefused:
    return PathRefused(f"{shown!r} is a link that leaves the root; name a file inside.", reason="outside")


def _refusal(error: OSError, shown: str) -> DocumentNotFound | PathRefused:
    if isinstance(error, IsADirectoryError):
        return PathRefused(f"{shown or '.'!r} is a folder; name a file in it.", reason="folder")
    if error.errno in _MISSING:
        return DocumentNotFound(f"There is no file {shown!r}; paths start at the root of the vault or the project.")
    if error.errno == errno.ELOOP:
        return PathRefused(f"{shown!r} changed while it was opened; try again.", reason="special")
    return PathRefused(f"{shown!r} cannot be read ({error.strerror}); check its permissions.", reason="unreadable")
