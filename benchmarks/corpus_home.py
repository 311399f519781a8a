"""Real sessions laid out as the home of the programs that wrote them, and imported into a database.

The corpus is a folder of stored sessions with an `index.jsonl` that names program, version and session of each file:
the public ones that are measured are in `sessions/` (with the files in `sessions/sessions`) and `compactions/full`. The
data is not part of the project.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

SOURCES = {"claude-code": "claude-code", "codex": "codex", "gemini-cli": "gemini", "opencode": "opencode", "pi": "pi"}
"""The name of each program's source by its name in the corpus."""


class StoredSession(NamedTuple):
    program: str
    session: str
    path: Path


def list_sessions(corpus: Path) -> Iterator[StoredSession]:
    for index, folder in (
        (corpus / "sessions" / "index.jsonl", corpus / "sessions" / "sessions"),
        (corpus / "compactions" / "full" / "index.jsonl", corpus / "compactions" / "full"),
    ):
        for line in index.read_text("utf-8").splitlines():
            row = json.loads(line)
            yield StoredSession(row["program"], row["session"], folder / row["file"])


def write_home(corpus: Path, home: Path) -> None:
    """Copies every session to where its program stores it."""
    for session in list_sessions(corpus):
        target = home / _find_place(session)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(session.path, target)


def _find_place(session: StoredSession) -> Path:
    first = _read_first(session.path)
    match session.program:
        case "claude-code":
            folder = str(first.get("cwd") or "unknown").replace("/", "-")
            return Path(".claude", "projects", folder, f"{session.session}.jsonl")
        case "codex":
            day, _, clock = first["payload"]["timestamp"][:19].partition("T")
            name = f"rollout-{day}T{clock.replace(':', '-')}-{session.session}.jsonl"
            return Path(".codex", "sessions", *day.split("-"), name)
        case "gemini-cli":
            return Path(".gemini", "tmp", first["projectHash"], "chats", f"session-{session.session}.json")
        case "pi":
            folder = f"-{first.get('cwd', '').replace('/', '-')}--"
            return Path(".pi", "agent", "sessions", folder, f"{session.session}.jsonl")
        case _:
            return Path("exports", session.program, f"{session.session}.json")


def _read_first(path: Path) -> Mapping[str, Any]:
    """The document, or the first line with a working directory, or the first line."""
    if path.suffix == ".json":
        return json.loads(path.read_text("utf-8"))
    first: Mapping[str, Any] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            first = first or row
            if "cwd" in row or "payload" in row:
                return row
    return first


def make_environment(home: Path) -> dict[str, str]:
    """The environment of a command of Quire in that home."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "XDG_"))}
    return environ | {"HOME": str(home), "QUIRE_DATABASE_URL": f"sqlite:///{home / 'quire.db'}"}


def import_home(home: Path) -> None:
    """Imports each program's sessions by `quire import`."""
    for program, source in SOURCES.items():
        exports = home / "exports" / program
        command = [sys.executable, "-m", "quire", "import", source, *([str(exports)] if exports.exists() else [])]
        result = subprocess.run(command, env=make_environment(home), cwd=home, capture_output=True, text=True)
        print(f"{source}: exit {result.returncode}: {(result.stdout or result.stderr).strip().splitlines()[:2]}")
