"""Hatch metadata hook of the distribution `quire`: takes its metadata from quire-core, in the same source tree."""

import runpy
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

CORE_NAME = "quire-core"
DEFAULT_EXTRA = "standard"


class CoreDependencyHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root).parents[1]
        core = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        metadata |= {name: core[name] for name in ("description", "keywords", "classifiers")}
        metadata |= runpy.run_path(str(root / "hatch_metadata.py"))["make_release_metadata"](root, metadata["version"])
        metadata["dependencies"] = [require_core(DEFAULT_EXTRA, metadata["version"])]
        metadata["optional-dependencies"] = {
            extra: [require_core(extra, metadata["version"])] for extra in core["optional-dependencies"]
        }


def require_core(extra: str, version: str) -> str:
    return f"{CORE_NAME}[{extra}]=={version}"
