"""Programs in the docs: the Python blocks of a page, run as one program, and what the page says that they print.

Token counts depend a little on the date in the prompt, so numbers are compared with a tolerance of 3 %.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n^```text\n(?P<printed>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
SEPARATOR = "\x1f"


def run_blocks(blocks: list[str], folder: Path, *, typed: str = "", **variables: str) -> list[str]:
    """Runs the blocks as one program, and returns what each prints."""
    program = f"\nprint({SEPARATOR!r}, end='', flush=True)\n".join(blocks)
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env={**os.environ, "OPENAI_API_KEY": "none", **variables},
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split(SEPARATOR)


def assert_printed(actual: str, expected: str) -> None:
    assert NUMBER.sub("0", " ".join(actual.split())) == NUMBER.sub("0", " ".join(expected.split())), actual
    numbers = [[float(each.replace(",", "")) for each in NUMBER.findall(text)] for text in (actual, expected)]
    assert numbers[0] == [pytest.approx(each, rel=0.03) for each in numbers[1]], actual
