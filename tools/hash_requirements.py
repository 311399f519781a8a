"""Prints the requirements of the release image with the SHA-256 of every wheel, for `pip install --require-hashes`.

    python tools/hash_requirements.py > deploy/requirements.txt

Versions come from constraints.txt, hashes from the package index that pip is configured with; its address is not
written. The image installs wheels only, so that no package runs code of its own at installation.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PYTHON_VERSION = "3.13"
"""Python of the image; see deploy/Containerfile."""
PLATFORMS = ("x86_64",)
GLIBC_VERSIONS = ("2_34", "2_28", "2_17")
"""Versions in the names of the wheels that run in the image."""


def read_requirements() -> list[str]:
    """The dependencies of quire-core with all that its extra `all` names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted({*project["dependencies"], *expand_extra("all", project["optional-dependencies"])})


def expand_extra(name: str, extras: Mapping[str, list[str]]) -> Iterator[str]:
    """The requirements of an extra and of the extras that it names."""
    for requirement in extras[name]:
        if named := re.fullmatch(r"quire-core\[(.+)\]", requirement):
            for each in named[1].split(","):
                yield from expand_extra(each, extras)
        else:
            yield requirement


def resolve_wheels(platform: str) -> list[dict[str, Any]]:
    """The wheels that pip would install in the image on this platform."""
    tags = [f"--platform=manylinux_{glibc}_{platform}" for glibc in GLIBC_VERSIONS]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--quiet", "--dry-run", "--ignore-installed", "--only-binary=:all:", f"--target={folder}"]
        constraints = ["--constraint", str(ROOT / "constraints.txt"), "--report", str(report)]
        command = [sys.executable, "-m", "pip", "install", *options, f"--python-version={PYTHON_VERSION}", *tags]
        subprocess.run([*command, *constraints, *read_requirements()], check=True, stdout=sys.stderr)
        return json.loads(report.read_text())["install"]


def main() -> None:
    hashes: defaultdict[str, set[str]] = defaultdict(set)
    for platform in PLATFORMS:
        for wheel in resolve_wheels(platform):
            pin = f"{wheel['metadata']['name'].lower().replace('_', '-')}=={wheel['metadata']['version']}"
            hashes[pin].add(wheel["download_info"]["archive_info"]["hashes"]["sha256"])
    print("# Made by tools/hash_requirements.py; the image installs exactly these files.")
    for pin in sorted(hashes):
        print(" \\\n    ".join([pin, *(f"--hash=sha256:{each}" for each in sorted(hashes[pin]))]))


if __name__ == "__main__":
    main()
