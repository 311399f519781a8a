"""Hatch build hook: builds the web interface into the wheel. An editable install and the source distribution need none.

Building needs Node.js, serving does not. Without Node.js the hook uses what was built before; without that the
build fails with a message, unless QUIRE_WITHOUT_WEB=1 requests a wheel that has only the API under /api.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STATIC_FOLDER = Path("src/quire/server/static")


class PageBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        built = Path(self.root) / STATIC_FOLDER
        if os.environ.get("QUIRE_WITHOUT_WEB") == "1":
            self.app.display_warning("The wheel has no web interface: QUIRE_WITHOUT_WEB is 1.")
            return
        npm = shutil.which("npm")
        if npm is not None:
            build_page(npm, Path(self.root) / "web")
        elif not (built / "index.html").is_file():
            raise SystemExit(
                "The web interface cannot be built: npm was not found. Install Node.js 20 or later, "
                "or set QUIRE_WITHOUT_WEB=1 for a wheel without it."
            )
        build_data["artifacts"].append(f"/{STATIC_FOLDER}/**")


def build_page(npm: str, web: Path) -> None:
    """Builds like `just web`, without the tests."""
    if not (web / "node_modules").is_dir():
        subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=web, check=True)  # noqa: S603
    subprocess.run([npm, "run", "build"], cwd=web, check=True)  # noqa: S603
