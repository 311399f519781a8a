"""When programs delete their own transcripts, by what they say themselves."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from quire.importers.readers import parse_json
from quire.model.json_values import get_object, is_object

DEFAULT_DAYS = 30
MAX_SETTINGS_BYTES = 1_000_000
_DAY_SECONDS = 86_400


class Deletion(NamedTuple):
    path: Path
    at: float
    """Seconds since 1970; in the past if the program deletes it at its next start."""
    reason: str


def find_deletions(source: str, root: Path, files: Sequence[Path]) -> Iterator[Deletion]:
    """The files of a source below `root` that its program will delete, with the time; none if it deletes nothing."""
    if (find := _PROGRAMS.get(source)) is not None:
        yield from find(root, files)


def _find_claude_code(root: Path, files: Sequence[Path]) -> Iterator[Deletion]:
    # `root` is `projects`, next to the settings.
    days = _read_settings(root.parent / "settings.json").get("cleanupPeriodDays", DEFAULT_DAYS)
    if isinstance(days, int) and days > 0:
        yield from _find_older(files, days, f"cleanupPeriodDays is {days}")


def _find_gemini(root: Path, files: Sequence[Path]) -> Iterator[Deletion]:
    folder = root if root.name == ".gemini" else root.parent
    retention = get_object(get_object(_read_settings(folder / "settings.json"), "general"), "sessionRetention")
    if retention.get("enabled") is False:
        return
    # Resuming a session makes a second, empty file with the same end of the name. The next start takes that for a
    # damaged one, and deletes every file of the session.
    by_ending: dict[str, list[Path]] = {}
    for file in files:
        by_ending.setdefault(file.stem.rpartition("-")[2], []).append(file)
    resumed = {file for same in by_ending.values() if len(same) > 1 for file in same}
    for file in resumed:
        yield Deletion(file, 0.0, "it was resumed; Gemini CLI deletes it at its next start")
    yield from _find_older([file for file in files if file not in resumed], DEFAULT_DAYS, "sessionRetention is 30 days")


def _find_older(files: Sequence[Path], days: int, reason: str) -> Iterator[Deletion]:
    for file in files:
        try:
            yield Deletion(file, file.stat().st_mtime + days * _DAY_SECONDS, reason)
        except OSError:
            continue


def _read_settings(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as stream:
            value = parse_json(stream.read(MAX_SETTINGS_BYTES))
    except (OSError, ValueError):
        return {}
    return value if is_object(value) else {}


_PROGRAMS: dict[str, Callable[[Path, Sequence[Path]], Iterator[Deletion]]] = {
    "claude-code": _find_claude_code,
    "gemini": _find_gemini,
}
