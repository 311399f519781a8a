"""Prints the tests of what changed since the main branch, for `just test`; nothing if nothing with tests changed.

The tests of a package are in the folder of its name. A module outside of packages has its tests in the modules that are
named after it.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAIN_BRANCHES = ("origin/main", "main")
TESTS_OF_DOCS = "tests/engine/test_docs_examples.py"
FOLDERS = {
    "access": ["log", "contract"],
    "concurrency": ["log"],
    "db": ["log", "contract"],
    "index": ["log", "contract"],
    "lab": ["backtest"],
    "ledger": ["engine"],
    "log": ["log", "contract"],
    "model": ["view"],
    "proxy": ["server", "adapters"],
    "rows": ["cli", "log"],
    "schemas": ["server"],
    "sources": ["importers"],
    "team": ["server", "log"],
    "store": ["log", "contract"],
    "turns": ["log"],
    "usage": ["log"],
    "wire": ["view", "server"],
}
"""Folders of the tests of a package, where they are not the one of its name."""


def list_changed_files() -> list[str]:
    """Files that differ from the main branch: committed, uncommitted, and new ones."""
    base = next((each for each in map(_find_merge_base, MAIN_BRANCHES) if each), "HEAD")
    return [*_run_git("diff", "--name-only", base), *_run_git("ls-files", "--others", "--exclude-standard")]


def _find_merge_base(branch: str) -> str:
    return "".join(_run_git("merge-base", "HEAD", branch))


def _run_git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def find_affected_tests(files: Iterable[str]) -> list[str]:
    """Folders and modules of the tests of these files, each once, without those in a folder that is named too."""
    found = {test for file in files for test in _find_tests(Path(file))}
    return sorted(each for each in found if not any(str(parent) in found for parent in Path(each).parents))


def _find_tests(file: Path) -> list[str]:
    match file.parts:
        case ("src", "quire", name):
            tests = ROOT.glob(f"tests/**/test_{Path(name).stem}*.py")
            return [str(each.relative_to(ROOT)) for each in tests]
        case ("src", "quire", package, *_):
            return [f"tests/{folder}" for folder in FOLDERS.get(package, [package])]
        case ("tests", *_, name) if name.startswith("test_") and (ROOT / file).exists():
            return [str(file)]
        case ("tests", folder, _, *_) if folder != "infra":
            return [f"tests/{folder}"]
        case ("docs", *_) | ("README.md",):
            return [TESTS_OF_DOCS]
        case _:
            return []


if __name__ == "__main__":
    print(*find_affected_tests(list_changed_files()))
