"""What a source of conversations yields: conversations, their messages as a tree, and errors of single items.

A source reads files of another program and writes nothing. It yields the items in a stable order and under stable ids,
so that a second import recognizes every message. A new source is one module and its line among the entry points
`quire.sources`, in the package that has it.
"""

import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from quire.log.types import ConversationOrigin
from quire.model import Message, Usage

MAX_ERROR_ITEM_CHARS = 200
MAX_ERROR_REASON_CHARS = 500
"""Maximum lengths of the texts of a `SourceError`, which may quote a file."""
HOLD_BACK_SECONDS = 10
"""A reply at the end of a file that changed since then may lack parts that the agent has yet to write."""
ABANDONED_SECONDS = 600
"""A reply without an end in a session that was not changed for that long will not be finished."""


NotStored = Literal[
    "sub-agents",
    "summaries of the provider",
    "tool calls",
    "tool results",
    "times",
    "models",
    "tokens",
    "tokens of a message",
    "cached tokens",
    "cost",
    "cost of a message",
]
"""What a program may leave out of its files, so that no import can carry it over."""


BEGINNING = "beginning"
"""What is dropped of a conversation whose file begins in the middle of it."""


class SourceCompaction(NamedTuple):
    """A compaction that the source made: its summary replaces every message before it, except `preserved` ones."""

    summary: str | None
    """None for a summary that only the provider can read."""
    trigger: Literal["threshold", "manual", "provider"] = "threshold"
    tokens_before: int = 0
    tokens_after: int = 0
    preserved: tuple[str, ...] = ()
    """Ids of earlier messages that remain in the context of the source verbatim."""


class SourceMessage(NamedTuple):
    """One message of a source. A message comes after its parent."""

    id: str
    """Id in the source, stable over imports and unique in the conversation: a UUID, a digest, or `line:N`."""
    parent: str | None
    """Id of the message before it, or None for the first one. A second child of one parent begins a branch."""
    message: Message
    """Thinking is a `ThinkingPart`. Binary data is a data URL, which the writer stores as a blob."""
    at: int | None = None
    """Microseconds since 1970, UTC."""
    usage: Usage | None = None
    cost_usd: float | None = None
    compaction: SourceCompaction | None = None
    """Set if the message is a summary. It then becomes a compaction instead of a message."""
    dropped: tuple[str, ...] = ()
    """Names of what could not be carried over, such as `toolUseResult`."""


class SourceConversation(NamedTuple):
    """One conversation of a source.

    `messages` is read once, in order. Of the children of a message, the first one read continues its branch, so a
    reader of a tree yields the path to the current leaf first (`order_tree`).
    """

    id: str
    """Id in the source, unique among all conversations of that source."""
    messages: Iterable["SourceMessage | SourceError"]
    title: str = ""
    origin: ConversationOrigin = ConversationOrigin()
    """`client` is the source's name; `session`, `project`, `agent`, `parent_agent` and `purpose` if known."""
    created_at: int | None = None
    """Microseconds since 1970, UTC; without it, the time of the first message."""
    dropped: tuple[str, ...] = ()
    """Names of what could not be carried over for the whole conversation. `BEGINNING` says that its file begins in the
    middle, so that its first request is not the first of the conversation."""
    unfinished_replies: int = 0
    """Replies at the end of a growing file that wait until they are complete."""


def make_origin(
    client: str, session: str | None, project: str | None, *, agent: str | None, parent: str | None
) -> ConversationOrigin:
    """Where a conversation is from. With an `agent`, it is that sub-agent's."""
    origin = ConversationOrigin(client=client, session=session, project=project, agent=agent, parent_agent=parent)
    return origin if agent is None else origin.model_copy(update={"purpose": "subagent"})


class SourceError(NamedTuple):
    """An item that was not read; the import continues with the next one."""

    item: str
    """Where it is: `file:line`, `file` or an id."""
    reason: str
    """A sentence that states what is wrong with it."""

    @classmethod
    def of(cls, item: object, reason: object) -> "SourceError":
        """An error with both texts cut to their maximum lengths."""
        return cls(str(item)[-MAX_ERROR_ITEM_CHARS:], str(reason)[:MAX_ERROR_REASON_CHARS])


class Deletion(NamedTuple):
    """A file that its program will delete."""

    path: Path
    session: str
    """Id of the session in the program, or the beginning of it."""
    at: float
    """Seconds since 1970; in the past if the program deletes it at its next start."""
    reason: str


class Source(Protocol):
    """A program whose conversations can be imported."""

    @property
    def name(self) -> str:
        """Name on the command line and in the origin of its conversations, such as `claude-code`."""
        ...

    @property
    def title(self) -> str:
        """Name for people, such as `Claude Code`."""
        ...

    @property
    def reads(self) -> int:
        """Version of the reader. It is raised when the reader understands files otherwise than before: what an earlier
        version imported is then read again."""
        ...

    @property
    def is_experimental(self) -> bool:
        """Whether the format is known from descriptions only, not from files that the program wrote."""
        ...

    @property
    def not_stored(self) -> tuple[NotStored, ...]:
        """What the program does not store. `quire import` prints it, and the table in docs/import.md lists it."""
        ...

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        """Existing files or directories where the program stores its conversations; `env` is the environment."""
        ...

    def find_files(self, path: Path) -> Iterator[Path]:
        """The files to read at `path`, in a stable order; `path` itself if it is a file."""
        ...

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        """Conversations of one file from `find_files`.

        With `since` (microseconds since 1970), conversations whose last change is earlier may be skipped.
        """
        ...


@runtime_checkable
class DeletesFiles(Protocol):
    """What a source has besides if its program deletes its own files."""

    def find_deletions(self, root: Path, files: Mapping[Path, float]) -> Iterator[Deletion]:
        """The files below one of its default paths that the program will delete, with the time.

        `files` has the time of each one's last change.
        """
        ...


class StoredSource(ABC):
    """A program that stores its conversations at known places. A subclass names them and reads one file."""

    name: str
    title: str
    patterns: tuple[str, ...]
    """Glob patterns of the files to read, relative to one of its places."""
    reads: int = 1
    is_experimental: bool = False
    not_stored: tuple[NotStored, ...] = ()

    @abstractmethod
    def list_places(self, env: Mapping[str, str]) -> Iterable[Path]:
        """Every file or folder where the program may store conversations, on any platform. It need not exist."""

    @abstractmethod
    def read_file(self, path: Path, since: int | None) -> Iterator[SourceConversation | SourceError]:
        """Conversations of a file. With `since`, a database's conversations that last changed before may be skipped."""

    def find_default_paths(self, env: Mapping[str, str]) -> list[Path]:
        return [path for path in dict.fromkeys(self.list_places(env)) if path.exists()]

    def find_files(self, path: Path) -> Iterator[Path]:
        if path.is_file():
            return iter([path])
        return iter(sorted({file for pattern in self.patterns for file in path.glob(pattern) if file.is_file()}))

    def read(self, path: Path, *, since: int | None = None) -> Iterator[SourceConversation | SourceError]:
        try:
            if not is_older(path, since):
                yield from self.read_file(path, since)
        except (OSError, sqlite3.Error, ValueError) as error:
            # A file that the program is just rewriting is read again when it has settled.
            if not path.exists() or not is_growing(path):
                yield SourceError.of(path.name, f"The file cannot be read: {error}.")


def list_files(folder: Path, *suffixes: str) -> Iterator[Path]:
    """The files below a folder whose names have one of these endings, sorted."""
    # A watcher lists thousands of files again and again: `rglob` takes many times as long.
    names, folders = list[str](), [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.endswith(suffixes) and entry.is_file():
                    names.append(entry.path)
    return map(Path, sorted(names))


def is_growing(path: Path, seconds: int = HOLD_BACK_SECONDS) -> bool:
    """Whether the file was written to within this time."""
    return time.time() - path.stat().st_mtime < seconds


def is_older(path: Path, since: int | None) -> bool:
    """Whether the file was last changed before `since` (microseconds since 1970)."""
    return since is not None and get_fingerprint(path)[1] // 1_000 < since


def get_fingerprint(path: Path) -> tuple[int, int]:
    """Size and time of the last change. What was last written to a SQLite database may be in its write-ahead log."""
    status = path.stat()
    try:
        log = os.stat(f"{path}-wal")  # noqa: PTH116 (a watcher does it for thousands of files)
    except OSError:
        return status.st_size, status.st_mtime_ns
    return status.st_size + log.st_size, max(status.st_mtime_ns, log.st_mtime_ns)


def is_before(changed_at: int | None, since: int | None) -> bool:
    """Whether a conversation was last changed before `since`, or False if one of the times is unknown."""
    return since is not None and changed_at is not None and changed_at < since


class FileWatcher:
    """Finds the files of a source below some paths that changed since the last look, by size and time."""

    def __init__(self, source: Source, paths: Iterable[Path]) -> None:
        self._source, self._paths = source, tuple(paths)
        self._fingerprints: dict[Path, tuple[int, int, bool, bool]] = {}

    def find_changed(self) -> list[Path]:
        """Files that are new or changed, or have ceased to grow: a reader holds back the end of a growing one."""
        changed: list[Path] = []
        for path in self._paths:
            for file in self._source.find_files(path):
                try:
                    size, modified_ns = get_fingerprint(file)
                    age = time.time() - modified_ns / 1e9
                    fingerprint = (size, modified_ns, age < HOLD_BACK_SECONDS, age < ABANDONED_SECONDS)
                except OSError:
                    continue
                if self._fingerprints.get(file) != fingerprint:
                    self._fingerprints[file] = fingerprint
                    changed.append(file)
        return changed
