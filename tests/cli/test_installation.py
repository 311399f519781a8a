"""Distributions built from a clean clone, installed into empty environments: each extra alone, and the whole program.

`just installed` runs all of it, and the commands of the docs from what it installed; CI builds the small distribution
`quire` and compares it with the source.
"""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from scripted_server import scripted_server

ROOT = Path(__file__).parents[2]
TESTS = Path(__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

FIRST_CONVERSATION = """
import quire.sync
with quire.sync.open("sqlite:///smoke.db", model="gpt-4o") as engine:
    conversation = engine.conversation("first")
    conversation.prepare("Hello?")
    conversation.record("Hello.")
    assert len(conversation.messages()) == 2
"""
RUN_HELP = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'quire', '--help'], check=True)"
SMOKE_PROGRAMS = {
    "claude-agent-sdk": "from quire.adapters.claude_agent_sdk import QuireSessionStore",
    "cli": RUN_HELP,
    "embeddings": "from quire.llm.embeddings import load_local_embedder; load_local_embedder()",
    "encoder": "import onnxruntime, tokenizers; import quire.llm.onnx_encoder",
    "encryption": "from quire.db.column_types import TenantCipher; TenantCipher(bytes(96))",
    "import": "from quire.importers import codex",
    "langchain": "from quire.adapters.langchain import QuireMiddleware",
    "llm": "from quire.llm import get_model; get_model('gpt-4o', base_url='http://127.0.0.1:9/v1', api_key='none')",
    "mcp": "import quire.agent.mcp.servers, quire.mcp_server.server",
    "models": "from genai_prices.data_snapshot import get_snapshot; get_snapshot()",
    "object-storage": "from quire.objects import ObjectStorage; ObjectStorage('memory:///')",
    "openai-agents": "from quire.adapters.openai_agents import QuireSession",
    "postgres": "import psycopg, quire.db.postgres",
    "pydantic-ai": "from quire.adapters.pydantic_ai import QuireCapability",
    "server": "import quire.server.app",
    "sso": "import quire.team.sign_in",
    "vault": "from quire.context import front_matter; front_matter.parse_front_matter('---\\ntags: [a]\\n---\\nb')",
    "worker": "import quire.jobs.worker",
    "standard": RUN_HELP,
    "all": RUN_HELP,
}
"""What each extra alone is enough for."""

pytestmark = pytest.mark.slow


class Distributions(NamedTuple):
    core_wheel: Path
    core_sdist: Path
    program_wheel: Path

    @classmethod
    def find(cls, folder: Path) -> Self:
        patterns = ("quire_core-*.whl", "quire_core-*.tar.gz", "quire-*.whl")
        return cls(*(next(folder.glob(pattern)) for pattern in patterns))


def run(*command: str | Path, folder: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def build_program_wheel(tree: Path, folder: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, tree / "packages" / "quire")
    return next(folder.glob("quire-*.whl"))


def test_every_extra_has_a_program_that_needs_no_other():
    assert set(SMOKE_PROGRAMS) == set(EXTRAS)


def test_the_program_is_the_library_of_the_same_version_with_the_standard_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("QUIRE_REPOSITORY_URL", "https://example.org/quire/")
    wheel = build_program_wheel(ROOT, tmp_path)
    metadata = read_metadata(wheel)
    core = f"quire-core[{{}}]=={metadata['version']}"
    assert metadata["name"] == "quire"
    required = metadata.get_all("requires-dist") or []
    assert required[0] == core.format("standard")
    assert set(required[1:]) == {f"{core.format(extra)}; extra == '{extra}'" for extra in EXTRAS}
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if ".dist-info/" not in name] == []
        [entry_points] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert b"quire = quire.cli:main" in archive.read(entry_points)
    # A release has addresses, and a README without relative links.
    addresses = dict(line.split(", ") for line in metadata.get_all("project-url") or [])
    assert addresses["Source"] == "https://example.org/quire"
    targets = re.findall(r"\]\(([^)\s]+)", str(metadata.get_payload()))
    assert len(targets) > 30
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    tag = f"v{metadata['version']}"
    assert f"https://example.org/quire/raw/{tag}/docs/picture/page-timeline.png" in targets
    assert f"https://example.org/quire/blob/{tag}/docs/limits.md" in targets


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Builds as the release does: the source distribution from a clean clone, and the wheel from that.

    QUIRE_TEST_DISTRIBUTIONS names a folder with the files of a release, to test these.
    """
    if built := os.environ.get("QUIRE_TEST_DISTRIBUTIONS"):
        return Distributions.find(Path(built))
    folder = tmp_path_factory.mktemp("installation")
    clone, dist = folder / "clone", folder / "dist"
    run("git", "clone", "--quiet", ROOT, clone)
    builder = make_environment(folder / "builder", "build")
    run(builder, "-m", "build", "--outdir", dist, clone)
    build_program_wheel(clone, dist)
    return Distributions.find(dist)


def make_environment(folder: Path, *requirements: str, find_links: Path | None = None) -> Path:
    """Installs into an empty environment, with the pinned versions; returns its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    options = ["--quiet", "--no-compile", "--constraint", str(ROOT / "constraints.txt")]
    links = ["--find-links", str(find_links)] if find_links is not None else []
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, *links, *requirements)
    run(sys.executable, "-m", "pip", "--python", python, "check")
    return python


@pytest.mark.nightly
def test_a_clean_clone_gives_complete_distributions(distributions: Distributions):
    with zipfile.ZipFile(distributions.core_wheel) as archive:
        names = set(archive.namelist())
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert modules <= names
    assert {"quire/server/static/index.html", "quire/py.typed", "quire/_version.py"} <= names
    with tarfile.open(distributions.core_sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{module}" for module in modules} <= sources
    assert {"README.md", "LICENSE", "CHANGELOG.md", "web/package-lock.json", "packages/quire/pyproject.toml"} <= sources
    assert not [name for name in sources if "node_modules" in name or "__pycache__" in name]


@pytest.mark.nightly
@pytest.mark.parametrize("extra", [None, *SMOKE_PROGRAMS], ids=lambda extra: extra or "none")
def test_each_extra_alone_is_enough_for_what_it_adds(extra: str | None, distributions: Distributions, tmp_path: Path):
    name = f"quire-core[{extra}]" if extra else "quire-core"
    python = make_environment(tmp_path / "environment", f"{name} @ {distributions.core_wheel.as_uri()}")
    run(python, "-W", "error", "-c", FIRST_CONVERSATION, folder=tmp_path)
    run(python, "-c", SMOKE_PROGRAMS.get(extra or "", ""), folder=tmp_path)
    assert run(tmp_path / "environment" / "bin" / "quire", "--version").startswith("quire 0.")


@pytest.mark.nightly
def test_the_program_leads_from_an_empty_home_to_the_first_answer(
    distributions: Distributions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    wheel = distributions.program_wheel
    python = make_environment(tmp_path / "environment", str(wheel), find_links=wheel.parent)
    quire = python.with_name("quire")
    for name in [name for name in os.environ if name.startswith(("QUIRE_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert "quire init" in run(quire, folder=tmp_path)
    with scripted_server("A context engine.") as model:
        run(quire, "init", "--base-url", model.url, folder=tmp_path)
        assert "A context engine." in run(quire, "ask", "What are you?", folder=tmp_path)
        program = "import os; print(os.environ['OPENAI_BASE_URL'])"
        assert "http://127.0.0.1" in run(quire, "run", "--", python, "-c", program, folder=tmp_path)
    assert "ok" in run(quire, "doctor", "--offline", folder=tmp_path)


@pytest.mark.nightly
def test_the_documented_commands_run_from_the_installed_package(distributions: Distributions, tmp_path: Path):
    wheel = distributions.program_wheel
    python = make_environment(tmp_path / "environment", f"quire[all] @ {wheel.as_uri()}", find_links=wheel.parent)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    pages = [TESTS / "test_documented_commands.py", TESTS / "test_chat_tutorial.py"]
    environment = os.environ | {"QUIRE_TEST_PROGRAMS": str(python.parent)}
    done = subprocess.run([*command, *pages], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
