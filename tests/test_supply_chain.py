"""What a build installs is pinned: the page's packages by lock file, the image's by hash, base images by exact tag."""

import json
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

from hash_requirements import read_requirements  # noqa: E402

WEB, DEPLOY = ROOT / "web", ROOT / "deploy"


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_the_lock_file_pins_every_package_of_the_page():
    lock, package = read_json(WEB / "package-lock.json"), read_json(WEB / "package.json")
    root = lock["packages"][""]
    assert {name: root[name] for name in ("dependencies", "devDependencies")} == {
        name: package[name] for name in ("dependencies", "devDependencies")
    }
    installed = {name: entry for name, entry in lock["packages"].items() if name}
    # Bindings for other platforms are not installed here, so that their hashes are unknown.
    assert [name for name, entry in installed.items() if "integrity" not in entry and not entry.get("optional")] == []


def test_the_lock_file_names_no_registry():
    text = (WEB / "package-lock.json").read_text()
    assert '"resolved"' not in text
    assert "omit-lockfile-registry-resolved=true" in (WEB / ".npmrc").read_text()
    assert "npm install" not in (ROOT / "justfile").read_text()


def test_the_lock_file_of_the_agents_pins_them_and_names_no_registry():
    folder = ROOT / "tests" / "infra" / "codex"
    packages = read_json(folder / "package-lock.json")["packages"]
    assert packages[""]["dependencies"] == read_json(folder / "package.json")["dependencies"]
    assert [name for name, entry in packages.items() if name and "integrity" not in entry] == []
    assert '"resolved"' not in (folder / "package-lock.json").read_text()


def test_the_image_installs_only_wheels_with_known_hashes():
    lines = (DEPLOY / "requirements.txt").read_text().replace("\\\n", "").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9.-]+==\S+(?:\s+--hash=sha256:[0-9a-f]{64})+", pin)] == []
    assert "--require-hashes" in (DEPLOY / "Containerfile").read_text()
    assert "://" not in "".join(lines)


def test_the_hashed_versions_are_those_of_the_constraints():
    constraints = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    pinned = dict(re.findall(r"^([a-z0-9.-]+)==([^\s\\]+)", (DEPLOY / "requirements.txt").read_text(), re.MULTILINE))
    assert {name: version for name, version in pinned.items() if constraints.get(name, version) != version} == {}
    # The image serves people who sign in, with agents and every transport: it has all extras.
    needed = {re.split(r"[\[<>=;~ ]", each)[0].lower().replace("_", "-") for each in read_requirements()}
    assert needed - pinned.keys() == set()


def test_base_images_have_an_exact_tag():
    files = [DEPLOY / "Containerfile", DEPLOY / "Containerfile.pgbouncer", DEPLOY / "compose.yaml"]
    text = "\n".join(file.read_text() for file in files)
    images = re.findall(r"^(?:FROM|\s+image:)\s+(docker\.io/\S+)", text, re.MULTILINE)
    assert len(images) == 4
    assert [
        image for image in images if not re.search(r":[^:@]*\d+(?:\.\d+)+[^:@]*(?:@sha256:[0-9a-f]{64})?$", image)
    ] == []


def test_the_formula_names_the_files_of_the_release_by_their_digests(tmp_path: Path):
    wheel = tmp_path / "quire_core-1.2.3-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    command = [sys.executable, str(ROOT / "tools" / "homebrew_formula.py"), "someone", "1.2.3", str(wheel)]
    formula = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    release = "https://github.com/someone/quire/releases/download/v1.2.3"
    assert re.findall(r'url "(.+?)"', formula) == [f"{release}/{wheel.name}", f"{release}/constraints.txt"]
    files = (wheel, ROOT / "constraints.txt")
    assert re.findall(r'sha256 "(.+?)"', formula) == [sha256(each.read_bytes()).hexdigest() for each in files]
    assert f"./{wheel.name}[standard]" in formula
    if ruby := shutil.which("ruby"):
        subprocess.run([ruby, "-c"], input=formula, check=True, text=True)
