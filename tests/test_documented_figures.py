"""Every figure with a unit in prose names its source in a comment, and is what the source says.

- `5.7<!-- gateway: 16 gateway --> ms`: a line of a benchmark in benchmarks/results.json, found by words in it.
- `15<!-- code: quire.turns.leases.LEASE_SECONDS --> seconds`: an expression on a constant of the code.
- `600<!-- setting: model_timeout --> s`: the default of a setting.
- `95<!-- note: by definition --> %`: no source that a test could read, with the reason.
- `<!-- figures: reason -->`: the same for all figures up to the next heading.
"""

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from quire.settings import Settings

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import results  # noqa: E402

COMPARED_WHOLE = {"benchmarks.md", "commands.md", "feature-table.md", "http.md", "settings.md"}
"""Pages that other tests compare with what they are from."""
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in COMPARED_WHOLE),
]
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
NOTED_SECTION = re.compile(r"<!-- figures: .+? -->.*?(?=^#|\Z)", re.MULTILINE | re.DOTALL)
UNITS: dict[str, tuple[float, ...]] = {
    "µs": (1e-6,), "ms": (1e-3,), "s": (1,), "second": (1,), "seconds": (1,), "minute": (60,), "minutes": (60,),
    "hour": (3_600,), "hours": (3_600,), "bytes": (1,), "kB": (1e3, 2**10), "MB": (1e6, 2**20), "GB": (1e9, 2**30),
    "TB": (1e12,), "%": (0.01, 1), "times": (1,), "turns/s": (1,), "turns a second": (1,), "round trips": (1,),
    "transactions": (1,),
}  # fmt: skip
"""What a number of the unit can be in the code."""
FIGURE = re.compile(
    r"(?<![\w.#:/-])(?P<number>\d[\d,]*(?:\.(?P<decimals>\d+))?)(?:<!-- (?P<kind>\w+): (?P<source>.+?) -->)?"
    rf"(?:\s+|(?=%))(?P<unit>{'|'.join(UNITS)})(?![\w/])"
)
MARKED_NUMBER = re.compile(r"(?P<number>\d[\d,]*(?:\.(?P<decimals>\d+))?)<!-- (?P<kind>\w+): (?P<source>.+?) -->")


def read_prose(page: Path) -> str:
    """The text of a page without code; what has a comment is kept, wherever it is."""
    return NOTED_SECTION.sub("", CODE.sub(" ", page.read_text(encoding="utf-8")))


def find_unsourced(text: str) -> list[str]:
    return [each.group() for each in FIGURE.finditer(text) if each["kind"] is None]


def is_right(figure: re.Match[str], unit: str | None) -> bool:
    kind, source, number = figure["kind"], figure["source"], float(figure["number"].replace(",", ""))
    match kind:
        case "note":
            return True
        case "setting":
            return matches(number, unit, getattr(Settings(), source))
        case "code":
            return matches(number, unit, evaluate(source))
        case _:
            return is_stored(number, len(figure["decimals"] or ""), kind, source)


def matches(number: float, unit: str | None, value: Any) -> bool:
    # Binary sizes are rounded: 33,554,432 bytes are 32 MB.
    return any(abs(number * factor - value) <= 1e-9 * abs(value) for factor in UNITS.get(unit or "", (1,)))


def evaluate(expression: str) -> Any:
    """The value of an expression that begins with the path of a constant, such as `quire.a.b.SECONDS / 3`."""
    [path] = re.findall(r"^quire(?:\.[a-z_]+)+(?=\.)", expression)
    return eval(expression.replace(path, "module", 1), {"module": import_module(path)})


def is_stored(number: float, decimals: int, name: str, words: str) -> bool:
    lines = [
        line
        for line in results.load_results()[name].output.splitlines()
        if all(word in line.split() or (not word.isdigit() and word in line) for word in words.split())
    ]
    numbers = [float(each.replace(",", "")) for line in lines for each in re.findall(r"\d[\d,]*(?:\.\d+)?", line)]
    return number in {round(each, decimals) for each in numbers}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_figure_in_prose_names_its_source(page: Path):
    assert find_unsourced(read_prose(page)) == [], "add where it is from, as tests/test_documented_figures.py says"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_are_what_their_sources_say(page: Path):
    text = CODE.sub(" ", page.read_text(encoding="utf-8"))
    units = {each.start(): each["unit"] for each in FIGURE.finditer(text)}
    wrong = [each.group() for each in MARKED_NUMBER.finditer(text) if not is_right(each, units.get(each.start()))]
    assert wrong == []


def test_many_figures_are_compared():
    kinds = [each["kind"] for page in PAGES for each in MARKED_NUMBER.finditer(page.read_text(encoding="utf-8"))]
    assert len([kind for kind in kinds if kind not in ("note", "code", "setting")]) >= 25
    assert len([kind for kind in kinds if kind in ("code", "setting")]) >= 50


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("5.7<!-- gateway: 16 gateway --> ms", True),
        ("5.6<!-- gateway: 16 gateway --> ms", False),
        ("15<!-- code: quire.turns.leases.LEASE_SECONDS --> seconds", True),
        ("16<!-- code: quire.turns.leases.LEASE_SECONDS --> seconds", False),
        ("600<!-- setting: model_timeout --> s", True),
        ("10<!-- setting: model_timeout --> minutes", True),
        ("30<!-- setting: model_timeout --> s", False),
        ("32<!-- code: quire.server.gateway.relay.MAX_RESPONSE_BYTES --> MB", True),
    ],
)
def test_a_stale_figure_is_found(monkeypatch: pytest.MonkeyPatch, text: str, *, right: bool):
    output = "clients server turns/s cpu\n     16  gateway  170.260  5.684\n     64  gateway  157.157  5.638"
    stored = results.make_result("gateway", "just bench gateway", output, seconds=1, exit_code=0)
    monkeypatch.setattr(results, "load_results", lambda: {"gateway": stored})
    figure = FIGURE.match(text)
    assert figure is not None
    assert is_right(figure, figure["unit"]) == right


def test_a_figure_without_source_is_found():
    assert find_unsourced("It takes 12 ms, not 3<!-- note: an example --> s.") == ["12 ms"]
