"""A session in the format of an agent, and the function that writes it to disk."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from quire.errors import InvalidRequest
from quire.model import Message


class TimedMessage(NamedTuple):
    """A message for a session, with its time in microseconds since 1970 and, for a reply, its model."""

    at: int
    message: Message
    model: str | None = None


class SessionPlace(NamedTuple):
    """Where a session belongs: the folder that the agent works in, and the environment that it runs in."""

    folder: Path
    """Absolute and without symbolic links, as agents resolve it."""
    environ: Mapping[str, str]
    files_folder: Path
    """Folder of Quire for sessions that the agent imports by itself."""
    title: str = ""

    @property
    def home(self) -> Path:
        return Path(self.environ.get("HOME") or Path.home())

    def find_folder(self, variable: str, default: str) -> Path:
        """A folder of the agent: the value of a variable, else `default` in the user's home."""
        return Path(self.environ.get(variable) or self.home / default)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSession:
    """A session to be written: one new file, and the arguments with which the agent continues it."""

    id: str
    path: Path
    text: str
    arguments: Sequence[str]
    import_arguments: Sequence[str] = ()
    """Arguments with which the agent first imports the file, if it stores sessions in a database."""
    markers: Mapping[Path, str] = field(default_factory=dict[Path, str])
    """Small files that the agent finds the session by. They are created where they do not exist."""


def format_time(micros: int) -> str:
    """A time of the log as the agents write it: ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_session(session: NativeSession) -> None:
    """Creates the files of a session, which only the user can read. An existing file is never changed."""
    for path, text in ((session.path, session.text), *session.markers.items()):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            if path == session.path:
                raise InvalidRequest(f"{path} already exists; run the command again for a new session.") from None
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be written: {error.strerror}.") from error
