"""Start-up: what each of the shortest commands imports, and the CPU time of `quire --version` against bare Python."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from quire.engine import open_engine

IMPORTED_BY_CONTEXT_SHOW = {
    "backports",
    "genai_prices",
    "httpx2",
    "annotated_doc",
    "annotated_types",
    "cachetools",
    "idna",
    "imagesize",
    "platformdirs",
    "pydantic",
    "pydantic_core",
    "rich",
    "shellingham",
    "splintr",
    "sqlalchemy",
    "typer",
    "typing_extensions",
    "typing_inspection",
}
NOT_IMPORTED_BY_CONTEXT_SHOW = {
    "quire.agent.turn",
    "quire.importers",
    "quire.model.events",
    "quire.search.index",
    "quire.wire.messages.render",
    "quire.wire.responses.render",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.orm",
}
"""Modules of packages that it does import, but of which it uses other parts."""
MAX_MODULES_OF_CONTEXT_SHOW = 690
QUICK_COMMANDS = {
    ("statusline",): set[str](),
    ("hook", "claude-code"): set[str](),
}
"""Packages that short commands import, besides the standard library."""
MAX_VERSION_CPU_RATIO = 2.0
"""About 1.1 on a machine with nothing else to do."""

LIST_IMPORTS = """
import atexit, json, sys
before = set(sys.modules)
def report():
    names = set(sys.modules) - before
    print(json.dumps(sorted(names)), file=sys.stderr)
atexit.register(report)
"""
RUN_COMMAND = "from quire.cli import main\nmain()"


def list_imports(code: str, *arguments: str) -> set[str]:
    """Runs code in a fresh interpreter and returns the modules that it imported."""
    command = [sys.executable, "-c", f"{LIST_IMPORTS}\n{code}", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_"))}
    outcome = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return set(json.loads(outcome.stderr.splitlines()[-1]))


def to_third_party(modules: set[str]) -> set[str]:
    roots = {name.partition(".")[0] for name in modules if getattr(sys.modules.get(name), "__spec__", "") is not None}
    return {each for each in roots - {"quire", "org"} - sys.stdlib_module_names if not each.startswith("_")}


def test_the_version_imports_the_package_alone():
    modules = list_imports(RUN_COMMAND, "--version")
    assert to_third_party(modules) == set()
    assert {each for each in modules if each.startswith("quire")} == {"quire", "quire._version", "quire.cli"}


def test_importing_the_package_imports_nothing_else():
    modules = list_imports("import quire")
    assert to_third_party(modules) == set()
    assert {each for each in modules if each.startswith("quire")} == {"quire", "quire._version"}


async def test_context_show_imports_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"sqlite:///{tmp_path}/quire.db"
    async with open_engine(url, model="gpt-4o", context_limit=2_000) as engine:
        conversation = await engine.conversation("tides")
        await conversation.append(*(f"Message {number} about the tides. " * 20 for number in range(20)))
        await conversation.compact()
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("QUIRE_DATABASE_URL", url)
    monkeypatch.chdir(tmp_path)
    modules = list_imports(RUN_COMMAND, "context", "show")
    unexpected = to_third_party(modules) - IMPORTED_BY_CONTEXT_SHOW
    assert not unexpected
    assert not modules & NOT_IMPORTED_BY_CONTEXT_SHOW
    assert len(modules) <= MAX_MODULES_OF_CONTEXT_SHOW


@pytest.mark.parametrize("words", QUICK_COMMANDS)
async def test_a_quick_command_imports_no_other_package(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in [each for each in os.environ if each.startswith(("QUIRE_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    database = tmp_path / ".local/share/quire/quire.db"
    database.parent.mkdir(parents=True)
    async with open_engine(f"sqlite:///{database}", model="gpt-4o") as engine:
        conversation = await engine.conversation("tides")
        await conversation.record("At noon.", request=await conversation.prepare("When?"))
    modules = list_imports(RUN_COMMAND, *words)
    assert to_third_party(modules) <= QUICK_COMMANDS[words]
    assert not modules & {"quire.model", "quire.settings", "quire.engine", "quire.store"}
    if "rich" not in QUICK_COMMANDS[words]:
        assert not modules & {"asyncio", "sqlite3", "quire.rows"}


@pytest.mark.parametrize("words", [("--help",), ("search", "--help"), ("context", "--help")])
def test_help_imports_no_database_and_no_engine(words: tuple[str, ...]):
    modules = list_imports(RUN_COMMAND, *words)
    assert not modules & {"sqlalchemy", "numpy", "httpx2", "quire.engine", "quire.store"}


def measure_cpu_seconds(command: Sequence[str]) -> float:
    process = os.posix_spawn(command[0], list(command), {**os.environ, "PYTHONDONTWRITEBYTECODE": ""})
    _, status, usage = os.wait4(process, 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="CPU times of one process are measured with wait4")
def test_the_version_costs_little_more_than_bare_python():
    bare = [sys.executable, "-c", "pass"]
    version = [sys.executable, "-c", RUN_COMMAND, "--version"]
    measure_cpu_seconds(version)  # Compiles the bytecode.
    pairs = [(measure_cpu_seconds(version), measure_cpu_seconds(bare)) for _ in range(7)]
    assert min(ours for ours, _ in pairs) <= MAX_VERSION_CPU_RATIO * min(theirs for _, theirs in pairs)
