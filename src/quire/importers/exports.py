"""Reads the conversations of an export: a JSON file, a zip archive with such files, or a directory of them.

Members of an archive are found by their names alone and read into memory or as a stream. Nothing is unpacked to disk,
so a path in a name has no effect. Archives are untrusted: the directory of the archive, the bytes that it unpacks to
and its compression ratio are bounded.
"""

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, cast
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from quire.importers.readers import read_json_values
from quire.importers.source_fields import MAX_ATTACHMENT_BYTES, parse_time
from quire.sources.base import NotStored, SourceConversation, SourceError, is_before

MAX_DIRECTORY_BYTES = 10_000_000
"""Maximum size of an archive's own directory, which is loaded whole: about 100,000 files."""
MAX_DIRECTORY_FILES = 100_000
"""Maximum files of an unpacked export that are searched for attachments."""
MAX_UNPACKED_BYTES = 16_000_000_000
"""Maximum bytes that one archive unpacks to, over all members that are read."""
MAX_COMPRESSION_RATIO = 200
"""Maximum ratio of unpacked to packed bytes of one member. Text is at about 10, and deflate ends at 1,032."""
MIN_RATIO_BYTES = 10_000_000
"""Members that unpack to less may have any ratio."""
MAX_CONVERSATION_BYTES = 100_000_000
"""Maximum bytes of all attachments of one conversation, which are in memory together. The others are dropped."""
_ASSET_ID = re.compile(r"(file[-_][0-9A-Za-z]+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")
_READ_ERRORS = (OSError, BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError)
"""Errors of an archive that is damaged, encrypted or too large."""


class ExportSource(ABC):
    """A source whose conversations people export by hand: each is an object of a JSON file, at no known path."""

    name: str
    title: str
    is_experimental: bool = False
    reads: int = 1
    not_stored: tuple[NotStored, ...] = ()
    pattern: re.Pattern[str]
    """Names of the files with conversations, in a directory or in an archive."""

    @abstractmethod
    def read_conversation(self, raw: dict[str, Any], files: "ExportFiles") -> SourceConversation:
        """Makes a conversation of one object. Raises `ValueError` if it is none."""

    def find_updated_at(self, raw: dict[str, Any]) -> int | None:
        """Time of a conversation's last change, if the export has it."""
        return parse_time(raw.get("updated_at"))

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        return []

    def find_files(self, path: Path) -> Iterator[Path]:
        """The file itself, or the archives and matching files of a directory, in the order of their names."""
        if not path.is_dir():
            yield path
            return
        for each in sorted(path.iterdir()):
            if each.is_file() and (self.pattern.fullmatch(each.name) or each.suffix.lower() == ".zip"):
                yield each

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        """Conversations of all matching members, read one at a time."""
        try:
            with ExportFiles(path) as files:
                found = False
                for member in files.iter_members(self.pattern):
                    found = True
                    for item in read_json_values(member.stream, name=member.name):
                        if isinstance(item, SourceError):
                            yield item
                            continue
                        if since is not None and is_before(self.find_updated_at(item.value), since):
                            continue
                        try:
                            conversation = self.read_conversation(item.value, files)
                        except ValueError as error:
                            reason = f"The conversation cannot be read: {error}."
                            yield SourceError.of(f"{member.name}:{item.number}", reason)
                        else:
                            yield conversation
                if not found:
                    yield SourceError.of(path.name, "The archive has no conversations of this program.")
        except _READ_ERRORS as error:
            yield SourceError.of(path.name, f"The file cannot be read: {error}.")


class ArchiveRefused(ValueError):
    """The archive exceeds a limit."""


class AttachmentReader:
    """Reads the attachments of one conversation, up to `MAX_CONVERSATION_BYTES` in all."""

    def __init__(self, files: "ExportFiles") -> None:
        self._files = files
        self._bytes = 0

    def read(self, asset_id: str) -> bytes | None:
        """The bytes of an attachment, or None if they are not in the export, or if they exceed a limit."""
        data = self._files.read_asset(asset_id) if self._bytes < MAX_CONVERSATION_BYTES else None
        self._bytes += len(data or b"")
        return data


class ExportMember(NamedTuple):
    name: str
    stream: IO[bytes]


class ExportFiles:
    """The files of one export; a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: _ArchiveFile | None = None
        self._archive: ZipFile | None = None
        self._unpacked = 0
        self._assets: dict[str, ZipInfo | Path] | None = None

    def __enter__(self) -> "ExportFiles":
        with self._path.open("rb") as stream:
            is_zip = stream.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
        if is_zip:
            self._file = _ArchiveFile(self._path)
            try:
                self._archive = ZipFile(self._file)
            except BaseException:
                self._file.close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._archive is not None:
            self._archive.close()
        if self._file is not None:
            self._file.close()

    def iter_members(self, pattern: re.Pattern[str]) -> Iterator[ExportMember]:
        """Members whose file name matches the whole pattern. The file itself if it is no archive."""
        if self._archive is None:
            with self._path.open("rb") as stream:
                yield ExportMember(self._path.name, stream)
            return
        for info in self._archive.infolist():
            name = PurePosixPath(info.filename).name
            if not info.is_dir() and pattern.fullmatch(name):
                with self._open(info) as stream:
                    yield ExportMember(name, stream)

    def read_asset(self, asset_id: str) -> bytes | None:
        """The bytes of the file whose name begins with this id, or None if there is none, or if it is too large."""
        if self._assets is None:
            entries: list[tuple[str, ZipInfo | Path]]
            if self._archive is not None:
                entries = [(PurePosixPath(info.filename).name, info) for info in self._archive.infolist()]
            else:
                files = islice(self._path.parent.rglob("*"), MAX_DIRECTORY_FILES)
                entries = [(path.name, path) for path in sorted(files) if path.is_file() and not path.is_symlink()]
            # Reversed, so that the first file with an id wins.
            self._assets = {
                match[1]: entry for name, entry in reversed(entries) if (match := _ASSET_ID.match(name)) is not None
            }
        match self._assets.get(asset_id):
            case ZipInfo() as info if info.file_size <= MAX_ATTACHMENT_BYTES:
                with self._open(info) as stream:
                    return stream.read()
            case Path() as path if path.stat().st_size <= MAX_ATTACHMENT_BYTES:
                return path.read_bytes()
            case _:
                return None

    @contextmanager
    def _open(self, info: ZipInfo) -> Generator[IO[bytes]]:
        """Opens a member. `zipfile` reads no more bytes than the size that is checked here."""
        archive = cast(ZipFile, self._archive)
        if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise ArchiveRefused(f"{info.filename!r} is compressed with a method that is not supported")
        if info.file_size > max(MIN_RATIO_BYTES, info.compress_size * MAX_COMPRESSION_RATIO):
            raise ArchiveRefused(f"{info.filename!r} unpacks to more than {MAX_COMPRESSION_RATIO} times its size")
        self._unpacked += info.file_size
        if self._unpacked > MAX_UNPACKED_BYTES:
            raise ArchiveRefused(f"the archive unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
        with archive.open(info) as stream:
            yield stream


class _ArchiveFile(FileIO):
    """The file of an archive. `zipfile` loads the directory by one read, and nothing else by reads of that size."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_DIRECTORY_BYTES:
            raise ArchiveRefused(f"the directory of the archive has more than {MAX_DIRECTORY_BYTES:,} bytes")
        return super().read(MAX_DIRECTORY_BYTES if size is None or size < 0 else size) or b""
