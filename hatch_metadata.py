"""Hatch metadata hook: the README and the project's addresses in a release.

A package index shows the README outside the repository, so its relative links and pictures need an address. The release
workflow sets QUIRE_REPOSITORY_URL. Other builds leave the README as it is, and name no address.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_TARGET = re.compile(r"(?P<start>(?P<image>!?)\[[^\]]*\]\()(?![\w+.-]+:|#)(?P<target>[^)\s]+)")


class ReleaseMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        metadata |= make_release_metadata(Path(self.root), metadata["version"])


def make_release_metadata(root: Path, version: str) -> dict[str, Any]:
    text = (root / "README.md").read_text(encoding="utf-8")
    repository = os.environ.get("QUIRE_REPOSITORY_URL", "").rstrip("/")
    urls: dict[str, str] = {}
    if repository:
        text = make_links_absolute(text, repository, f"v{version}")
        text = text.replace("git clone <this repository> quire", f"git clone {repository} quire")
        urls = {
            "Source": repository,
            "Documentation": f"{repository}/blob/v{version}/docs/index.md",
            "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
    return {"readme": {"content-type": "text/markdown", "text": text}, "urls": urls}


def make_links_absolute(text: str, repository: str, tag: str) -> str:
    def replace(found: re.Match[str]) -> str:
        kind = "raw" if found["image"] else "blob"
        return f"{found['start']}{repository}/{kind}/{tag}/{found['target']}"

    return RELATIVE_TARGET.sub(replace, text)
