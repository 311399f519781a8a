"""The site's Markdown is not GitHub's: in a list, a paragraph after a table must be indented by four spaces."""

import re
from pathlib import Path

import pytest

markdown = pytest.importorskip("markdown")

ROOT = Path(__file__).parents[1]
PARAGRAPH = re.compile(r"<p>(?P<text>.*?)</p>", re.DOTALL)
LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ", re.MULTILINE)


def find_broken_lists(text: str) -> list[str]:
    """Lines that begin like a list item, but are in the middle of a paragraph."""
    page = markdown.markdown(text, extensions=["admonition", "tables", "pymdownx.superfences"])
    return [
        line
        for paragraph in PARAGRAPH.finditer(page)
        for line in paragraph["text"].splitlines()[1:]
        if LIST_ITEM.match(line)
    ]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_every_list_is_a_list_on_the_site(page: Path):
    assert find_broken_lists(page.read_text(encoding="utf-8")) == []


def test_a_broken_list_is_found():
    assert find_broken_lists("- one\n\n    | a |\n    |---|\n    | b |\n\n  more of one\n- two\n") == ["- two"]
