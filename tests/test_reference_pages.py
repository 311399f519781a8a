"""`tools/reference_pages.py`: the generated pages of the docs are those that their sources give."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

import reference_pages  # noqa: E402


@pytest.mark.parametrize(("name", "text"), reference_pages.render_pages().items())
def test_a_page_is_as_new_as_its_source(name: str, text: str):
    assert (ROOT / "docs" / name).read_text() == text, "run `python tools/reference_pages.py`"
