"""The budget in `weight.toml`: which part of the repository a file belongs to, and what fails."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a package of two wings, and a budget for it."""
    for name, lines in {
        "src/quire/engine/a.py": 40,
        "src/quire/importers/b.py": 10,
        "src/quire/_version.py": 99,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * lines)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/weight.py", tmp_path / "tools")
    # What a person meets is counted of the installed package, in another test.
    (tmp_path / "tools/code_metrics.py").write_text(
        "def measure_surface(root): return dict(commands=1, options=2, settings=3)\n"
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "weight.toml").write_text(
        "[lines]\ncore = 45\nsources = 10\n[product]\ncommands = 1\noptions = 2\nsettings = 3\npublic_names = 99\n"
        'dependencies = 99\n[paths]\ncore = ["src/quire"]\nsources = ["src/quire/importers"]\n'
    )
    for arguments in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def weigh(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/weight.py", *arguments]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


def test_what_grew_above_the_budget_is_named(checkout: Path):
    outcome = weigh(checkout)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert "core: 40 of 45" in outcome.stdout
    (checkout / "src/quire/view").mkdir()
    (checkout / "src/quire/view/c.py").write_text("x = 1\n" * 50)
    outcome = weigh(checkout)
    assert outcome.returncode == 1
    assert "core: 90, 45 too many. src/quire/view +50" in outcome.stderr
    assert "sources" not in outcome.stderr


def test_a_budget_is_lowered_and_never_raised(checkout: Path):
    (checkout / "src/quire/importers/b.py").write_text("x = 1\n" * 20)
    weigh(checkout, "--lower")
    text = (checkout / "weight.toml").read_text()
    assert "core = 40\n" in text
    assert "sources = 10\n" in text
