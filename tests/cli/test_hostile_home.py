"""`quire scan` of a home that someone filled to stop it: it ends, reads what can be read, and names what it skipped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.agent_homes import write_clean_session
from infra.hostile_databases import KINDS, write_database
from infra.sizes import IS_FULL_SIZE

SCAN_SECONDS = 120
"""CPU time that the scan may take. On an idle machine it is done in a quarter of that."""
SPARSE_BYTES = 2_000_000_000
COPIES = 3 if IS_FULL_SIZE else 1
"""Of each hostile file."""


def write_hostile_home(home: Path) -> int:
    """Writes `COPIES` of 13 files, and one more; returns their number."""
    data, projects = home / ".local" / "share", home / ".claude" / "projects"
    for number in range(COPIES):
        for kind in KINDS:
            write_database(data / "opencode" / f"opencode-{number}-{kind.replace(' ', '-')}.db", kind)
    for folder, name in ((projects / "-p", "s{}.jsonl"), (home / ".continue" / "sessions", "{}.json")):
        folder.mkdir(parents=True)
        for number in range(COPIES):
            (folder / name.format(f"deep{number}")).write_bytes(b'{"type": "user", "message": ' + b"[" * 2_000_000)
            with (folder / name.format(f"sparse{number}")).open("wb") as stream:
                stream.truncate(SPARSE_BYTES)
    sessions = home / ".codex" / "sessions" / "2026"
    sessions.mkdir(parents=True)
    for number in range(COPIES):
        (sessions / f"rollout-{number}.jsonl").symlink_to(sessions / f"rollout-{(number + 1) % COPIES}.jsonl")
        (sessions / f"circle-{number}").symlink_to(home)
        (projects / f"circle-{number}").symlink_to(projects)
        (data / "opencode" / f"opencode-circle-{number}.db").symlink_to(data / "opencode")
    with (data / "opencode" / "opencode-sparse.db").open("wb") as stream:
        stream.write((data / "opencode" / "opencode-0-trigger.db").read_bytes())
        stream.truncate(SPARSE_BYTES)
    return sum(1 for each in home.rglob("*") if each.is_symlink() or each.is_file())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows needs a privilege for symbolic links")
def test_a_scan_of_a_hostile_home_ends_and_names_what_it_skipped(tmp_path: Path):
    home = tmp_path / "home"
    assert write_hostile_home(home) == 13 * COPIES + 1
    # Older than what a reader holds back as growing.
    for path in home.rglob("*"):
        os.utime(path, (1_760_000_000, 1_760_000_000), follow_symlinks=False)
    write_clean_session(home / ".claude" / "projects", 1, messages=20)
    resource = pytest.importorskip("resource")

    def measure_children() -> float:
        """CPU seconds of processes that this one has started and that have ended: also of other tests."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = measure_children()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "XDG_", "CLAUDE_"))}
    outcome = subprocess.run(
        [sys.executable, "-m", "quire", "scan", "--json"],
        env=env | {"HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=5 * SCAN_SECONDS,
        check=True,
    )
    assert measure_children() - before < SCAN_SECONDS
    assert json.loads(outcome.stdout)["conversations"] >= 1
    for number in range(COPIES):
        for kind in ("virtual column", "stored column", "pages in a cycle"):
            assert f"opencode-{number}-{kind.replace(' ', '-')}.db: The file cannot be read" in outcome.stderr
        assert f"sparse{number}.json" in outcome.stderr
        assert f"deep{number}.json" in outcome.stderr
