"""Names and imports of the source: rules that `tools/code_metrics.py` measures and no linter enforces."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from code_metrics import measure  # noqa: E402

MAX_VAGUE_WORDS = 40
"""Data such as stop words and irregular verbs may contain them."""


@pytest.fixture(scope="module")
def metrics() -> dict[str, object]:
    return measure(ROOT / "src/quire")


@pytest.mark.parametrize(
    "rule",
    [
        "class names that exist twice",
        "import cycles, types included",
        "modules named by a gerund or participle",
    ],
)
def test_no_module_breaks_the_rule(metrics: dict[str, object], rule: str):
    assert metrics[rule] == []


def test_prose_uses_the_technical_term(metrics: dict[str, object]):
    vague = metrics["vague words"]
    assert isinstance(vague, list)
    assert len(vague) <= MAX_VAGUE_WORDS
