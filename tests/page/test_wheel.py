"""The wheel carries the page: installed into an empty environment, without Node.js, it serves it."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest
from page_parts import need

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as anybody would build it, Node.js and all, but in a copy: other tests look at the page meanwhile."""
    need("npm")
    place = tmp_path_factory.mktemp("wheel")
    tree = copied(place / "tree")
    shutil.copytree(ROOT / "web", tree / "web", ignore=shutil.ignore_patterns("node_modules"))
    (tree / "web" / "node_modules").symlink_to(ROOT / "web" / "node_modules")
    (tree / "tests" / "server").mkdir(parents=True)
    shutil.copytree(ROOT / "tests" / "server" / "snapshots", tree / "tests" / "server" / "snapshots")
    done = build(tree, place, dict(os.environ))
    assert done.returncode == 0, done.stderr
    return next(place.glob("quire-*.whl"))


def copied(tree: Path) -> Path:
    """The package as it is in a fresh clone, without the page."""
    tree.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("static", "__pycache__"))
    return tree


def build(tree: Path, place: Path, environ: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(place), str(tree)]
    return subprocess.run(command, env=environ, capture_output=True, text=True)


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def without_node(place: Path) -> dict[str, str]:
    """An environment whose PATH has Python and nothing else."""
    place.mkdir()
    (place / "python3").symlink_to(sys.executable)
    return {**os.environ, "PATH": str(place)}


def test_the_wheel_has_the_page_and_no_sources_of_it(wheel: Path) -> None:
    found = names(wheel)
    assert "quire/server/static/index.html" in found
    assert any(name.startswith("quire/server/static/assets/") and name.endswith(".js") for name in found)
    assert not [name for name in found if "node_modules" in name or name.endswith(".svelte")]


def test_without_node_and_without_a_built_page_no_wheel_is_made_unless_asked_for(tmp_path: Path) -> None:
    tree, environ = copied(tmp_path / "tree"), without_node(tmp_path / "bin")
    failed = build(tree, tmp_path, environ)
    assert failed.returncode != 0
    assert "QUIRE_WITHOUT_PAGE=1" in failed.stdout + failed.stderr
    done = build(tree, tmp_path, {**environ, "QUIRE_WITHOUT_PAGE": "1"})
    assert done.returncode == 0, done.stderr
    found = names(next(tmp_path.glob("quire-*.whl")))
    assert "quire/server/page.py" in found
    assert "quire/server/static/index.html" not in found


def test_installed_into_an_empty_environment_without_node_it_serves_the_page(wheel: Path, tmp_path: Path) -> None:
    """The environment has the wheel and, by a path, what the wheel depends on; Quire's own tree is not on it."""
    place = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    site = next(place.glob("lib/python3*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    theirs = next(Path(each) for each in sys.path if each.endswith("site-packages"))
    shared = tmp_path / "shared"
    shared.mkdir()
    for each in theirs.iterdir():
        if "quire" not in each.name.lower():
            (shared / each.name).symlink_to(each)
    (site / "shared.pth").write_text(f"{shared}\n", encoding="utf-8")
    environ = {**without_node(tmp_path / "bin"), "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    environ.pop("PYTHONPATH", None)
    python = place / "bin" / "python"
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
            with httpx.Client(follow_redirects=True, timeout=30) as client:
                page = client.get(address)
                assert page.status_code == 200
                script = page.text.split('src="./')[1].split('"')[0]
                assert client.get(f"{page.url.copy_with(path='/', query=None)}{script}").status_code == 200
        finally:
            server.terminate()
