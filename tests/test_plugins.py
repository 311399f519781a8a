"""What other packages add: a source and a command, installed by pip, and what a broken one does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli.app import HELP_PANELS, MORE_COMMANDS
from quire.plugins import find_plugins

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"
LOG = "user: When is high water?\nassistant: At 06:12, with a spring tide.\nThe end.\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    package = shutil.copytree(EXAMPLE, folder / "package")
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(package)], check=True)
    return target


def run_quire(home: Path, *arguments: str, packages: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(paths),
        "QUIRE_DATABASE_URL": f"sqlite:///{home}/quire.db",
    }
    command = [sys.executable, "-m", "quire", *arguments]
    return subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, check=False)


def test_a_package_adds_a_source_and_a_command(installed: Path, tmp_path: Path):
    (tmp_path / "plain-logs").mkdir()
    (tmp_path / "plain-logs" / "tides.txt").write_text(LOG)
    assert "Print the longest messages of a conversation." in run_quire(tmp_path, "--help", packages=installed).stdout
    dry = run_quire(tmp_path, "import", "plain-logs", "--dry-run", packages=installed)
    assert "Found 2 new messages in 1 conversation" in dry.stdout
    scan = run_quire(tmp_path, "scan", packages=installed)
    assert "Plain logs: tides.txt:3" in scan.stderr, scan
    longest = run_quire(tmp_path, "longest", "tides", packages=installed)
    assert longest.stdout.startswith("#2 29 characters: At 06:12"), longest


def test_a_package_that_cannot_be_imported_is_left_out(tmp_path: Path):
    information = tmp_path / "site" / "broken-1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    points = (
        "[quire.sources]\nbroken = missing_module:Source\n[quire.commands]\nscan = other:scan\nbroken = other:run\n"
    )
    (information / "entry_points.txt").write_text(points)
    done = run_quire(tmp_path, "import", "broken", packages=tmp_path / "site")
    assert "quire.sources 'broken' of broken is left out: ModuleNotFoundError" in done.stderr
    assert "is no source of conversations" in done.stderr
    assert run_quire(tmp_path, "--help", packages=tmp_path / "site").returncode == 0


def test_ours_are_entry_points_too():
    named = " ".join([*HELP_PANELS.values(), MORE_COMMANDS])
    assert set(named.split()) == set(find_plugins("quire.commands"))
    for group in ("quire.sources", "quire.resume", "quire.commands", "quire.routes"):
        assert all(point.load() is not None for point in find_plugins(group).values())
