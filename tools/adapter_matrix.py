"""Tests the adapters with the oldest supported and the newest version of each framework, as published on PyPI.

Each combination has a virtual environment of its own, with the wheel of Quire. The oldest versions are those that the
extras of pyproject.toml name. `adapter_matrix.py openai-agents==0.21.0 …` tests other versions.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEST_FILES = {
    "langchain": "test_langchain_middleware.py",
    "openai-agents": "test_openai_agents_session.py",
    "pydantic-ai": "test_pydantic_ai_capability.py",
}
"""The tests of each extra."""
TEST_PACKAGES = ("hypothesis", "pytest", "pytest-asyncio")


@dataclass(frozen=True)
class Combination:
    extra: str
    label: str
    pins: tuple[str, ...] = ()


@dataclass(frozen=True)
class CombinationResult:
    combination: Combination
    versions: str
    outcome: str
    has_passed: bool


def list_combinations() -> list[Combination]:
    """The oldest and the newest version of each framework."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [
        combination
        for extra in TEST_FILES
        for combination in (
            Combination(extra, "oldest", tuple(each.replace(">=", "==") for each in extras[extra])),
            Combination(extra, "newest"),
        )
    ]


def parse_combination(text: str) -> Combination:
    """Parses `EXTRA==VERSION` or `EXTRA==VERSION,PACKAGE==VERSION…`; the first is a version of the framework itself."""
    first, *others = text.split(",")
    extra, _, version = first.partition("==")
    package = "pydantic-ai-slim" if extra == "pydantic-ai" else extra
    return Combination(extra, version, (f"{package}=={version}", *others))


def build_wheel(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        env=os.environ | {"QUIRE_WITHOUT_WEB": "1"},
        check=True,
    )
    [wheel] = folder.glob("*.whl")
    return wheel


def test_combination(combination: Combination, wheel: Path, folder: Path) -> CombinationResult:
    environment = folder / f"{combination.extra}-{combination.label}"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    # `--upgrade` takes the newest release of every dependency that no pin names.
    requirements = [f"{wheel}[{combination.extra},postgres]", *combination.pins, *TEST_PACKAGES]
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--upgrade", *requirements], text=True, stderr=subprocess.PIPE
    )
    if installed.returncode:
        return CombinationResult(combination, ", ".join(combination.pins), installed.stderr.strip()[-400:], False)
    tested = subprocess.run(
        # A deprecation in another version is no failure of the adapter.
        [python, "-m", "pytest", "-q", "-W", "default", "-k", "not postgres", "-p", "no:cacheprovider",
         str(ROOT / "tests" / "adapters" / TEST_FILES[combination.extra])],
        cwd=ROOT, env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if tested.returncode:
        print(tested.stdout[-6_000:], flush=True)
    outcome = tested.stdout.strip().splitlines()[-1]
    return CombinationResult(combination, list_versions(python, combination), outcome, tested.returncode == 0)


def list_versions(python: str, combination: Combination) -> str:
    """The versions that were installed of the packages of an extra."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = [each.partition(">=")[0] for each in extras[combination.extra]]
    code = f"from importlib.metadata import version; print(*(f'{{n}} {{version(n)}}' for n in {names!r}), sep=', ')"
    return subprocess.run([python, "-c", code], text=True, stdout=subprocess.PIPE, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("combinations", nargs="*", metavar="EXTRA==VERSION", help="default: oldest and newest of each")
    options = parser.parse_args()
    combinations = [parse_combination(each) for each in options.combinations] or list_combinations()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = build_wheel(folder)
        results: list[CombinationResult] = []
        for combination in combinations:
            result = test_combination(combination, wheel, folder)
            results.append(result)
            state = "passed" if result.has_passed else "FAILED"
            print(f"{combination.extra}, {combination.label}: {state}; {result.versions}; {result.outcome}", flush=True)
    sys.exit(0 if all(each.has_passed for each in results) else 1)


if __name__ == "__main__":
    main()
