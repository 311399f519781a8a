"""`tools/affected_tests.py`: which tests belong to which changed files."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

import affected_tests  # noqa: E402


def test_a_package_has_its_folder_and_a_module_the_tests_of_its_name():
    files = ["src/quire/log/reads.py", "src/quire/usage/report.py", "src/quire/sync.py", "docs/api.md"]
    found = affected_tests.find_affected_tests(files)
    assert "tests/log" in found
    assert affected_tests.TESTS_OF_DOCS in found
    assert all((ROOT / each).exists() for each in found)


def test_a_changed_test_runs_unless_its_folder_does():
    find = affected_tests.find_affected_tests
    assert find(["tests/log/test_purge.py"]) == ["tests/log/test_purge.py"]
    assert find(["tests/log/test_purge.py", "src/quire/log/purge.py"]) == ["tests/contract", "tests/log"]
    assert find(["tests/log/conftest.py"]) == ["tests/log"]
    assert find(["tests/log/test_deleted.py", "justfile", "web/src/App.svelte"]) == ["tests/log"]


def test_every_package_has_tests():
    packages = [each.parent.name for each in (ROOT / "src" / "quire").glob("*/__init__.py")]
    folders = {each: affected_tests.find_affected_tests([f"src/quire/{each}/__init__.py"])[0] for each in packages}
    assert {each: folder for each, folder in folders.items() if not (ROOT / folder).is_dir()} == {}
