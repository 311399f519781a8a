"""The wheel contains the page: installed into an empty environment, without Node.js, it serves it."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx2
import pytest
from browser_setup import require_browser

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel with Node.js in a copy of the tree, because other tests use the page meanwhile."""
    require_browser("npm")
    folder = tmp_path_factory.mktemp("wheel")
    tree = copy_source(folder / "tree")
    shutil.copytree(ROOT / "web", tree / "web", ignore=shutil.ignore_patterns("node_modules"))
    (tree / "web" / "node_modules").symlink_to(ROOT / "web" / "node_modules")
    (tree / "tests" / "server").mkdir(parents=True)
    shutil.copytree(ROOT / "tests" / "server" / "snapshots", tree / "tests" / "server" / "snapshots")
    done = build_wheel(tree, folder, dict(os.environ))
    assert done.returncode == 0, done.stderr
    return next(folder.glob("quire_core-*.whl"))


def copy_source(tree: Path) -> Path:
    """Copies the package as in a new clone, without the page."""
    tree.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("static", "__pycache__"))
    return tree


def build_wheel(tree: Path, folder: Path, environ: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), str(tree)]
    return subprocess.run(command, env=environ, capture_output=True, text=True)


def list_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def environment_without_node(folder: Path) -> dict[str, str]:
    """Environment whose PATH contains only Python."""
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    return {**os.environ, "PATH": str(folder)}


def test_the_wheel_has_the_page_and_no_sources_of_it(wheel: Path) -> None:
    names = list_names(wheel)
    assert "quire/server/static/index.html" in names
    assert any(name.startswith("quire/server/static/assets/") and name.endswith(".js") for name in names)
    with zipfile.ZipFile(wheel) as archive:
        notices = archive.read("quire/server/static/third-party-licenses.md").decode()
    assert [
        name for name in ("dompurify", "highlight.js", "marked", "svelte", "temml") if f"## {name} - " not in notices
    ] == []
    assert not [name for name in names if "node_modules" in name or name.endswith(".svelte")]


def test_without_node_and_without_a_built_page_no_wheel_is_made_unless_requested(tmp_path: Path) -> None:
    tree, environ = copy_source(tmp_path / "tree"), environment_without_node(tmp_path / "bin")
    failed = build_wheel(tree, tmp_path, environ)
    assert failed.returncode != 0
    assert "QUIRE_WITHOUT_WEB=1" in failed.stdout + failed.stderr
    done = build_wheel(tree, tmp_path, {**environ, "QUIRE_WITHOUT_WEB": "1"})
    assert done.returncode == 0, done.stderr
    names = list_names(next(tmp_path.glob("quire_core-*.whl")))
    assert "quire/server/page.py" in names
    assert "quire/server/static/index.html" not in names


def test_installed_into_an_empty_environment_without_node_it_serves_the_page(wheel: Path, tmp_path: Path) -> None:
    """The environment has the wheel and links to its dependencies, but not Quire's own tree."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    theirs = next(Path(each) for each in sys.path if each.endswith("site-packages"))
    shared = tmp_path / "shared"
    shared.mkdir()
    for each in theirs.iterdir():
        if "quire" not in each.name.lower():
            (shared / each.name).symlink_to(each)
    (site / "shared.pth").write_text(f"{shared}\n", encoding="utf-8")
    environ = {
        **environment_without_node(tmp_path / "bin"),
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    environ.pop("PYTHONPATH", None)
    python = folder / "bin" / "python"
    where = subprocess.run(
        [python, "-c", "import quire; print(quire.__file__)"], env=environ, capture_output=True, text=True
    )
    assert where.stdout.strip().startswith(str(site)), where.stderr
    command = [str(python), "-c", "from quire.cli import main; main()", "serve", "--port", "0"]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    ) as server:
        try:
            assert server.stdout is not None
            address = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
            with httpx2.Client(follow_redirects=True, timeout=30) as client:
                page = client.get(address)
                assert page.status_code == 200
                script = page.text.split('src="./')[1].split('"')[0]
                assert client.get(f"{page.url.copy_with(path='/', query=None)}{script}").status_code == 200
        finally:
            server.terminate()
