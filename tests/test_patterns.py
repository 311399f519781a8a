"""Regular expressions of the package take linear time on adversarial text, or meet only a bounded piece of it.

Every pattern at module or class level, and every literal pattern in a call such as `re.sub`, is run on repetitions of
text made from the pattern itself. Four times the text must take about four times as long; eight times is too long.
"""

import ast
import importlib
import inspect
import pkgutil
import random
import re
import time
from collections.abc import Callable, Iterator
from fnmatch import translate
from functools import cache, partial
from pathlib import Path
from re import _constants as sre_constants  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import quire
from infra.sizes import IS_FULL_SIZE
from quire.context.vault.markdown_mask import _closing_fence  # type: ignore[attr-defined]
from quire.model.secret_patterns import compile_secret_pattern
from quire.wire.media import _HIGH_RES_CLAUDE_MODELS, _PATCH_FACTORS  # type: ignore[attr-defined]
from quire.wire.tokens import _run_pattern  # type: ignore[attr-defined]

SOURCE = Path(inspect.getfile(quire)).parent
TEXT_CHARS = 100_000 if IS_FULL_SIZE else 10_000
SCREENING_CHARS = 5_000
SLOWEST_ATTACKS = 5 if IS_FULL_SIZE else 3
PARTS = 4
GROWTH = 4
MAX_RATIO = 8.0
"""Time for `GROWTH` times the text divided by the time for the text: 4 if linear, 16 if quadratic, so that the noise of
a busy machine decides nothing."""
EXAMPLES_PER_PATTERN = 2
COMMON_TEXTS = (
    " ", "\n", "\t", "a", "a ", "a.", "A", "0", "1 ", "0,", "may ", "# a\n", "\n ", " \n", "\r\n", "a\n", "{", "<", "[",
    "[[", "](", "`", "-", "_", "*", "=", ".", '"', "'", "@", "/", "\\", "$", "é", "漢", "\u200b", "\u0301",
    "API_TOKEN=", "sk-ant-", "#1 user: a\n", "[#1]", "a\n\n```\n", "eyJ", "://", "--password ",
)  # fmt: skip

BUILT_PATTERNS: dict[str, list[str | re.Pattern[str]]] = {
    "quire.cli.config:replace_value": [r"#\s*max_spend\s*="],
    "quire.context.vault.markdown_mask:_closing_fence": [
        _closing_fence(char, length) for char in "`~" for length in (3, 40)
    ],
    "quire.context.file_imports:compile_glob": [translate(name) for name in ("*.md", "*a*a*a*a*b", "[!a-z]?*")],
    "quire.model.secret_patterns:compile_secret_pattern": [
        compile_secret_pattern("own", text).body for text in ("abc[a-z]{100,200}[a-z]{20,40}X", r"abc\w{60}\d{4}")
    ],
    "quire.wire.media:count_openai_image": [pattern for pattern, _ in _PATCH_FACTORS],
    "quire.wire.media:count_claude_image": [_HIGH_RES_CLAUDE_MODELS],
    "quire.wire.tokens:_run_pattern": [_run_pattern()],
}
"""Patterns that a function builds or compiles, by function: examples of each."""

USED_AS = {
    "quire.cli.config:_replace_comment": "match",
    "quire.context.file_imports:compile_glob": "match",
    "quire.importers.librechat:LibreChatSource.pattern": "fullmatch",
    "quire.importers.open_webui:OpenWebUiSource.pattern": "fullmatch",
    "quire.wire.tokens:_MODEL_PATTERNS": "match",
}
"""How patterns in containers are used, where the source does not name them in the call."""


@cache
def parse_source(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def find_patterns() -> dict[str, re.Pattern[Any]]:
    """Finds patterns by name: `module:attribute`, or `module:line` for a literal in a call.

    Called by the tests alone: it imports the whole package, which no collection of tests should wait for.
    """
    found: dict[str, re.Pattern[Any]] = {}
    for info in pkgutil.walk_packages([str(SOURCE)], "quire."):
        if "migrations" in info.name or info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for name, value in list(vars(module).items()):
            if isinstance(value, type):
                if value.__module__ == info.name:
                    for attribute, member in list(vars(value).items()):
                        found |= {f"{info.name}:{name}.{key}": each for key, each in walk_value(attribute, member)}
            else:
                found |= {f"{info.name}:{key}": each for key, each in walk_value(name, value)}
        found |= find_literal_patterns(info.name, Path(inspect.getfile(module)))
    for function, sources in BUILT_PATTERNS.items():
        found |= {
            f"{function}[{index}]": re.compile(source, re.M) if isinstance(source, str) else source
            for index, source in enumerate(sources)
        }
    # An imported pattern is tested where it is defined.
    unique: dict[re.Pattern[Any], str] = {}
    for name, pattern in found.items():
        unique.setdefault(pattern, name)
    return {name: pattern for pattern, name in unique.items()}


def walk_value(name: str, value: object) -> Iterator[tuple[str, re.Pattern[Any]]]:
    if isinstance(value, re.Pattern):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from walk_value(f"{name}[{key!r}]", each)
    elif isinstance(value, list | tuple | set | frozenset):
        for index, each in enumerate(value):
            yield from walk_value(f"{name}[{index}]", each)


def find_literal_patterns(module: str, path: Path) -> dict[str, re.Pattern[Any]]:
    found: dict[str, re.Pattern[Any]] = {}
    for node in ast.walk(parse_source(path)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=function), args=[ast.Constant(value=str() as text), *_]
            ) if function not in ("compile", "escape"):
                found[f"{module}:{function} in line {node.lineno}"] = re.compile(text)
            case _:
                pass
    return found


def find_building_functions(module: str, path: Path) -> Iterator[str]:
    """Names of the functions that compile a pattern, or use one that is no literal."""
    for function in ast.walk(parse_source(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[pattern, *_]) if (
                        name == "compile" or (name != "escape" and not isinstance(pattern, ast.Constant))
                    ):
                        yield f"{module}:{function.name}"
                    case _:
                        pass


@cache
def read_sources() -> list[str]:
    return [path.read_text() for path in SOURCE.rglob("*.py")]


def find_usage(name: str) -> str:
    """How a pattern is used: `match` or `fullmatch` if its module uses it in no other way, else `search`."""
    module, _, attribute = name.partition(":")
    if attribute.startswith(("match in", "fullmatch in")):
        return attribute.partition(" ")[0]
    bare = re.split(r"[\[.]", attribute)[0]
    for key in (name, f"{module}:{bare}"):
        if key in USED_AS:
            return USED_AS[key]
    own_path = Path(inspect.getfile(importlib.import_module(module)))
    texts = [own_path.read_text()] if bare.startswith("_") else read_sources()
    calls = [call for text in texts for call in re.findall(rf"\b{re.escape(bare)}\.(\w+)\(", text)]
    return calls[0] if calls and set(calls) in ({"match"}, {"fullmatch"}) else "search"


def run_pattern(pattern: re.Pattern[Any], usage: str, text: str) -> float:
    """CPU seconds for one use of the pattern on a text; other processes do not count."""
    subject: Any = text.encode() if isinstance(pattern.pattern, bytes) else text
    started = time.thread_time()
    match usage:
        case "match":
            pattern.match(subject)
        case "fullmatch":
            pattern.fullmatch(subject)
        case _:
            for _ in pattern.finditer(subject):
                pass
    return time.thread_time() - started


class ExampleWriter:
    """Writes texts that a pattern matches, in pieces, by walking its parse tree."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def write(self, pattern: re.Pattern[Any]) -> list[str]:
        source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
        return self._write(sre_parser.parse(source, pattern.flags & ~re.LOCALE & ~re.UNICODE & ~re.DEBUG))

    def _write(self, tree: Any) -> list[str]:
        return [piece for operator, argument in tree for piece in self._write_item(str(operator), argument)]

    def _write_item(self, operator: str, argument: Any) -> list[str]:
        match operator:
            case "LITERAL":
                return [chr(argument)]
            case "NOT_LITERAL":
                return ["a" if argument != ord("a") else "b"]
            case "ANY":
                return ["a"]
            case "IN":
                return [self._choose_char(argument)]
            case "BRANCH":
                return self._write(self._random.choice(argument[1]))
            case "SUBPATTERN":
                return self._write(argument[3])
            case "ATOMIC_GROUP":
                return self._write(argument)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return ["".join(self._write(argument[2])) * max(1, min(argument[0], 50))]
            case _:
                return []

    def _choose_char(self, items: Any) -> str:
        negated = any(str(operator) == "NEGATE" for operator, _ in items)
        regex = re.compile("".join(["[", *("^" if negated else ""), *map(describe_class_item, items), "]"]))
        candidates = [chr(code) for code in range(1, 0x250)] + list("\u3042漢あ한กက\u2014’…")
        allowed = [char for char in candidates if regex.match(char)]
        preferred = [char for char in allowed if char in " a0-.\n"]
        return self._random.choice(preferred or allowed or ["a"])


def describe_class_item(item: Any) -> str:
    operator, argument = str(item[0]), item[1]
    match operator:
        case "LITERAL":
            return f"\\U{argument:08x}"
        case "RANGE":
            return f"\\U{argument[0]:08x}-\\U{argument[1]:08x}"
        case "CATEGORY":
            kind = str(argument).removeprefix("CATEGORY_")
            letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[kind.removeprefix("NOT_")]
            return f"\\{letter.upper() if kind.startswith('NOT_') else letter}"
        case _:
            return ""


def write_attacks(pattern: re.Pattern[Any]) -> set[tuple[str, str, str]]:
    """Adversarial texts as (prefix, repeated text, end)."""
    attacks = {("", text, end) for text in COMMON_TEXTS for end in ("", "\x01")}
    for seed in range(EXAMPLES_PER_PATTERN):
        pieces = ExampleWriter(seed).write(pattern)
        joined = "".join(pieces)
        lengths = range(1, len(pieces) + 1)
        if len(pieces) > 12:
            lengths = sorted({1, 2, 3, len(pieces) // 2, len(pieces) - 2, len(pieces) - 1, len(pieces)})
        attacks |= {("", "".join(pieces[:length]), "\x01") for length in lengths}
        attacks |= {("".join(pieces[: length - 1]), pieces[length - 1], "\x01") for length in lengths}
        attacks |= {(joined, text, "\x01") for text in (" ", "a", "\n", "0")}
    return {attack for attack in attacks if attack[1]}


def make_text(attack: tuple[str, str, str], chars: int) -> str:
    prefix, repeated, end = attack
    return prefix + repeated * (chars // len(repeated)) + end


def measure_attack(pattern: re.Pattern[Any], usage: str, attack: tuple[str, str, str], chars: int) -> float:
    return run_pattern(pattern, usage, make_text(attack, chars))


LINEAR_REFERENCE = re.compile(r"(?:[^\W\d_]|[\d\s]|.)*", re.DOTALL)


NOISE_FACTOR = 10
"""A text that takes less than this many times the linear reference is not compared with longer ones: the pattern is
linear, because quadratic work on as many characters takes hundreds of times the reference."""


def is_linear(measure: Callable[[int], float], chars: int) -> bool:
    """Whether `GROWTH` times the text takes less than `MAX_RATIO` times as long, in the best of several runs."""
    if measure(chars) < NOISE_FACTOR * measure_reference(chars):
        return True
    ratios = (
        min(measure(GROWTH * chars) for _ in range(runs)) / min(measure(chars) for _ in range(runs))
        for runs in (1, 2, 4)
    )
    return any(ratio < MAX_RATIO for ratio in ratios)


@cache
def measure_reference(chars: int) -> float:
    return min(run_pattern(LINEAR_REFERENCE, "match", "a" * chars) for _ in range(5))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_pattern_takes_linear_time(part: int):
    for name, pattern in sorted(find_patterns().items())[part::PARTS]:
        check_linear_time(pattern, find_usage(name))


def check_linear_time(pattern: re.Pattern[Any], usage: str) -> None:
    """Runs all attacks on shorter texts, so that failures are quick, and the slowest of them at full length."""
    attacks = {attack: partial(measure_attack, pattern, usage, attack) for attack in sorted(write_attacks(pattern))}
    seconds = {attack: measure(SCREENING_CHARS) for attack, measure in attacks.items()}
    slowest = sorted(attacks, key=seconds.__getitem__)[-SLOWEST_ATTACKS:]
    for attack in reversed(slowest):
        assert is_linear(attacks[attack], SCREENING_CHARS), (pattern.pattern, usage, attack)
        assert is_linear(attacks[attack], TEXT_CHARS), (pattern.pattern, usage, attack)


@pytest.mark.parametrize(
    ("source", "usage", "chars"),
    [
        (r"\s+$", "search", 2_000),
        # A literal is searched for so fast that only a long text takes more time than the noise.
        (r"what is .*rate", "search", 10_000),
        (r"(?:[a-z]+\.)*(?:.*b)", "match", 5_000),
    ],
)
def test_the_measure_finds_quadratic_patterns(source: str, usage: str, chars: int):
    pattern = re.compile(source)
    attacks = sorted(write_attacks(pattern) | {("", "a.", "\x01")})
    slowest = max(attacks, key=lambda attack: measure_attack(pattern, usage, attack, chars))
    assert not is_linear(partial(measure_attack, pattern, usage, slowest), chars), slowest


def test_every_function_that_builds_a_pattern_has_examples():
    building = {
        function
        for path in SOURCE.rglob("*.py")
        for function in find_building_functions(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts), path)
    }
    assert building == BUILT_PATTERNS.keys()


def test_every_pattern_that_a_module_compiles_is_walked():
    """Also one in a container that `walk_value` does not know."""
    walked = {pattern.pattern for pattern in find_patterns().values()}
    compiled = {
        argument.value
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(parse_source(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile"
        for argument in node.args[:1]
        if isinstance(argument, ast.Constant)
    }
    assert len(compiled) > 100
    assert compiled - walked == set()


SINGLE_CHARACTERS = (sre_constants.LITERAL, sre_constants.NOT_LITERAL, sre_constants.ANY, sre_constants.IN)


def find_misread_repeats(parsed: Any) -> Iterator[Any]:
    """Possessive repeats of a group, which Python before 3.11.5 matches wrongly (gh-106052)."""
    for code, arguments in parsed:
        if code is sre_constants.POSSESSIVE_REPEAT:
            [*repeated] = arguments[2]
            if len(repeated) > 1 or repeated[0][0] not in SINGLE_CHARACTERS:
                yield arguments
        for each in walk_subpatterns(arguments):
            yield from find_misread_repeats(each)


def walk_subpatterns(arguments: Any) -> Iterator[Any]:
    if isinstance(arguments, sre_parser.SubPattern):
        yield arguments
    elif isinstance(arguments, tuple | list):
        for each in arguments:
            yield from walk_subpatterns(each)


def test_debians_python_reads_every_pattern_as_this_one():
    for pattern in find_patterns().values():
        assert [*find_misread_repeats(sre_parser.parse(pattern.pattern, pattern.flags))] == [], pattern


def test_a_misread_repeat_is_found():
    assert [*find_misread_repeats(sre_parser.parse(r"x(?:ab)*+"))] != []
    assert [*find_misread_repeats(sre_parser.parse(r"x[ab]*+(?:c++d)*"))] == []


def test_patterns_are_used_through_re_alone():
    """The tests above find patterns by the name of the module `re`."""
    imports = re.compile(r"^\s*(?:from (?:re|regex) import|import (?:re as|regex))", re.M)
    assert [path for path in SOURCE.rglob("*.py") if imports.search(path.read_text())] == []
