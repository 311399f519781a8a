"""Relative links in Markdown files lead to a file that exists, and to a heading that it has."""

import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (".github", "deploy", "docs", "examples", "packages", "plugins")
PAGES = (*sorted(ROOT.glob("*.md")), *sorted(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")))
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\(\s*(?P<path>[^)\s#]*)(?:#(?P<anchor>[^)\s]+))?[^)]*\)")
HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)
OBJECT_ANCHOR = "quire."
"""Anchors of the library reference, which mkdocstrings writes; `mkdocs build --strict` checks them."""


@cache
def list_anchors(page: Path) -> frozenset[str]:
    """Anchors of the headings, by the rules of GitHub and of Python-Markdown, which differ in repeated hyphens."""
    found: set[str] = set()
    for heading in HEADING.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading["text"]).replace("`", "").replace("*", "")
        words = re.sub(r"[^\w\s-]", "", unicodedata.normalize("NFKC", text)).strip().lower()
        found |= {re.sub(r"\s", "-", words), re.sub(r"[-\s]+", "-", words)}
    return frozenset(found)


def find_broken_links(page: Path, text: str) -> list[str]:
    broken: list[str] = []
    for link in LINK.finditer(INLINE_CODE.sub("", FENCE.sub("", text))):
        path, anchor = link["path"], link["anchor"]
        if re.match(r"\w+:", path) or (not path and not anchor):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor
            and target.suffix == ".md"
            and not anchor.startswith(OBJECT_ANCHOR)
            and anchor not in list_anchors(target)
        ):
            broken.append(link.group())
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path):
    assert find_broken_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("link", ["[a](docs/nowhere.md)", "[a](docs/limits.md#nowhere)", "[a](#nowhere)"])
def test_a_broken_link_is_found(link: str):
    assert find_broken_links(ROOT / "README.md", f"[b](docs/limits.md#recall) {link}") == [link.removeprefix("[a")]


def test_pages_of_the_site_stay_in_the_docs():
    """The site has only what is in docs/; a link to another file of the repository would end nowhere."""
    outside = {
        f"{page.name}: {link['path']}"
        for page in (ROOT / "docs").glob("*.md")
        for link in LINK.finditer(INLINE_CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8"))))
        if link["path"].startswith("../")
    }
    assert outside == set()
