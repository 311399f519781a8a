"""Names and imports of the source: rules that `tools/code_metrics.py` measures and no linter enforces."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from code_metrics import VAGUE_WORDS, Module, class_names, cycles, import_graph  # noqa: E402

MAX_VAGUE_WORDS = 40
"""Data such as stop words and irregular verbs may contain them."""


def test_no_module_breaks_a_rule():
    source = ROOT / "src/quire"
    modules = {each.name: each for each in (Module(path, source) for path in source.rglob("*.py"))}
    assert [name for name, places in class_names(modules).items() if len(places) > 1] == []
    assert cycles(import_graph(modules)) == []
    assert [name for name, each in modules.items() if each.has_participle_name()] == []
    words = re.compile(r"\b(" + "|".join(VAGUE_WORDS) + r")\b", re.IGNORECASE)
    assert sum(len(words.findall(each.text)) for each in modules.values()) <= MAX_VAGUE_WORDS
