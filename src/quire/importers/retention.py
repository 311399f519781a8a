"""When programs delete their own transcripts, by what they say themselves."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from quire.importers.readers import parse_json
from quire.model.json_values import get_object, is_object
from quire.sources.base import Deletion

DEFAULT_DAYS = 30
MAX_SETTINGS_BYTES = 1_000_000
_DAY_SECONDS = 86_400
_ENDING_CHARS = 8
"""Characters of a session's id at the end of the names of its files."""


def find_claude_code_deletions(root: Path, files: Mapping[Path, float]) -> Iterator[Deletion]:
    # `root` is `projects`, next to the settings.
    days = _read_settings(root.parent / "settings.json").get("cleanupPeriodDays", DEFAULT_DAYS)
    if isinstance(days, int) and days > 0:
        # A sub-agent's file is two folders below that of its session.
        for file, changed_at in files.items():
            session = file.parents[1].name if file.parent.name == "subagents" else file.stem
            yield Deletion(file, session, changed_at + days * _DAY_SECONDS, f"cleanupPeriodDays is {days}")


def find_gemini_deletions(root: Path, files: Mapping[Path, float]) -> Iterator[Deletion]:
    folder = root if root.name == ".gemini" else root.parent
    retention = get_object(get_object(_read_settings(folder / "settings.json"), "general"), "sessionRetention")
    if retention.get("enabled") is False:
        return
    # Resuming a session makes a second, empty file with the same end of the name. The next start takes that for a
    # damaged one, and deletes every file of the session.
    endings = {file: file.stem.rpartition("-")[2] for file in files if file.name.startswith("session-")}
    counts = Counter(endings.values())
    for file, changed_at in files.items():
        # The files of its sub-agents are in a folder that has the id of the session.
        session = endings.get(file) or file.parent.name
        if counts[session[:_ENDING_CHARS]] > 1:
            yield Deletion(file, session, 0.0, "the session was resumed")
        else:
            yield Deletion(file, session, changed_at + DEFAULT_DAYS * _DAY_SECONDS, "sessionRetention is 30 days")


def _read_settings(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as stream:
            value = parse_json(stream.read(MAX_SETTINGS_BYTES))
    except (OSError, ValueError):
        return {}
    return value if is_object(value) else {}
