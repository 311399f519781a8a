"""Holds the product to its budget in `weight.toml`: `python tools/weight.py` fails above it, and names what grew.

`--lower` lowers every maximum to what was measured and half a percent. It raises none: whoever needs more edits the
file in the commit that needs it, and says in its message which user asked.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from code_metrics import measure_surface

ROOT = Path(__file__).parents[1]
FILE = ROOT / "weight.toml"
SUFFIXES = (".py", ".ts", ".svelte", ".css", ".md")
SPARE = 1.005
MAX_NAMED_ROOMS = 5


def find_owner(name: str, paths: dict[str, str]) -> str | None:
    """The longest of the paths that a file is below; None if its lines are not counted."""
    if not name.endswith(SUFFIXES) or "/static/" in name or name.endswith(("/_version.py", "/schema.d.ts")):
        return None
    return max((each for each in paths if f"{name}/".startswith(f"{each}/")), key=len, default=None)


def count_lines(paths: dict[str, str]) -> Counter[str]:
    """Lines by wing. `paths` has the wing of each path."""
    lines: Counter[str] = Counter()
    for path, wing in paths.items():
        for file in [ROOT / path] if (ROOT / path).is_file() else (ROOT / path).rglob("*"):
            if find_owner(file.relative_to(ROOT).as_posix(), paths) == path:
                lines[wing] += file.read_text(encoding="utf-8").count("\n")
    return lines


def list_grown(wing: str, paths: dict[str, str]) -> list[str]:
    """The rooms of a wing that grew since the budget was changed last: files and folders below its paths."""

    def run_git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout

    changed = run_git("log", "-1", "--format=%H", "--", FILE.name).strip()
    grown: Counter[str] = Counter()
    new = [
        f"{len((ROOT / name).read_bytes().splitlines())}\t0\t{name}"
        for name in run_git("ls-files", "-o", "--exclude-standard").split()
    ]
    for row in [*run_git("diff", "--numstat", changed or "HEAD").splitlines(), *new]:
        added, removed, name = row.split("\t")
        owner = find_owner(name, paths)
        if owner is not None and paths[owner] == wing:
            grown["/".join(name.split("/")[: owner.count("/") + 2])] += int(added) - int(removed)
    return [f"{room} +{count:,}" for room, count in grown.most_common(MAX_NAMED_ROOMS) if count > 0]


def measure_product() -> dict[str, int]:
    import quire

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    named = re.search(r"\[(.*)\]", extras["standard"][0])
    parts = named[1].split(",") if named is not None else []
    needed = [*project["dependencies"], *(each for name in parts for each in extras[name])]
    names = {re.split(r"[^\w-]", each, maxsplit=1)[0] for each in needed} - {project["name"]}
    surface: dict[str, Any] = measure_surface(ROOT / "src/quire")
    counted = {name: surface[name] for name in ("commands", "options", "settings")}
    return {**counted, "public_names": len(quire.__all__), "dependencies": len(names)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lower", action="store_true", help="lower the budget to what was measured")
    lower = parser.parse_args().lower
    text = FILE.read_text("utf-8")
    budget = tomllib.loads(text)
    paths = {path: wing for wing, each in budget["paths"].items() for path in each}
    maxima: dict[str, int] = {**budget["lines"], **budget["product"]}
    lines, product = count_lines(paths), measure_product()
    if lower:
        for name, count in {**{wing: int(total * SPARE) for wing, total in lines.items()}, **product}.items():
            text = re.sub(rf"(?m)^{name} = \d+", f"{name} = {min(maxima[name], count)}", text)
        FILE.write_text(text, "utf-8")
        return
    failures: list[str] = []
    for name, count in {**lines, **product}.items():
        print(f"{name}: {count:,} of {maxima[name]:,}")
        if count > maxima[name]:
            grown = ", ".join(list_grown(name, paths)) if name in lines else ""
            failures.append(f"{name}: {count:,}, {count - maxima[name]:,} too many. {grown}")
    if failures:
        sys.exit("\n".join(["Above the budget of weight.toml:", *failures]))


if __name__ == "__main__":
    main()
