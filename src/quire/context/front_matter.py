"""The front matter of Markdown files: the YAML between two `---` lines at the very beginning.

Whatever stands there, the text after it can be used: what cannot be read is said in `faults`, and defaults take its
place. YAML's anchors are refused, because a few lines of them can stand for gigabytes.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from importlib import import_module
from typing import Any, NamedTuple, TypeVar, cast, get_args

from pydantic import Field, JsonValue

from quire.errors import MissingExtra
from quire.model.agents import Include
from quire.model.value import Foreign, Value

LIMIT_CHARACTERS = 64_000
DEEPEST = 20

T = TypeVar("T")

_BLOCK = re.compile(
    r"\A\ufeff?---[ \t]*\r?\n(.*?)(?:\r?\n)?^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_PERHAPS_ANCHORS = re.compile(r"(?:^|[\s\[{,:-])[&*][^\s,\]}]", re.MULTILINE)
_OWN = frozenset(["name", "description", "include", "priority", "enabled", "aliases", "alias", "tags", "tag"])


class Front(Value):
    name: str | None = None
    description: str | None = None
    include: Include = "manual"
    priority: int = 0
    enabled: bool = True
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    extra: Foreign = Field(default_factory=dict)
    """All other keys, as JSON has them: dates are written out."""
    faults: tuple[str, ...] = ()
    """What could not be read, a sentence each; empty if all is well."""


class Fronted(NamedTuple):
    front: Front
    body: str


def front_matter(text: str) -> Fronted:
    """What the front matter says, and the text without it. Between two rules that are no fields stands plain text."""
    block = _BLOCK.match(text)
    if block is None:
        return Fronted(Front(), text.removeprefix("\ufeff"))
    fields, fault = _fields(block[1])
    if fields is None:
        return Fronted(Front(faults=(fault,) if fault else ()), text.removeprefix("\ufeff"))
    body = text[block.end() :]
    return Fronted(Front(faults=(fault,)) if fault else _Reader(fields).front(), body)


def front_matter_end(text: str) -> int:
    """Where the text after the front matter begins; what stands in it is not read."""
    block = _BLOCK.match(text)
    return block.end() if block else 0


def _fields(text: str) -> tuple[dict[str, object] | None, str]:
    """The fields, and what is wrong with them; None for what is no front matter at all."""
    if len(text) > LIMIT_CHARACTERS:
        return {}, f"the front matter has {len(text):,} characters, and {LIMIT_CHARACTERS:,} are read at most"
    yaml = _yaml()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if _PERHAPS_ANCHORS.search(text) and any(map(_names_anchor, yaml.parse(text, Loader=loader))):
            return {}, "the front matter uses YAML's anchors (& and *), which are not read; write the value out"
        loaded: object = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        return {}, f"the front matter is not YAML: {_one_line(str(error))}"
    except (ValueError, TypeError, RecursionError, OverflowError, AttributeError) as error:
        # A date of the 31st of April, a number of 5,000 digits, brackets without end: PyYAML lets these through.
        return {}, f"the front matter holds a value that cannot be read: {_one_line(str(error))}"
    if isinstance(loaded, dict):
        fields = cast("dict[object, object]", loaded)
        return {_sound(str(key)): value for key, value in fields.items()}, ""
    return ({}, "") if loaded is None else (None, "what stands between the first two rules is text, not fields")


def _yaml() -> Any:
    try:
        return import_module("yaml")
    except ModuleNotFoundError as error:
        raise MissingExtra(extra="vault", needed_for="front matter") from error


def _names_anchor(event: Any) -> bool:
    return getattr(event, "anchor", None) is not None


class _Reader:
    """Reads field by field, and keeps what is wrong with each."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields
        self._faults: list[str] = []

    def front(self) -> Front:
        known = Front(
            name=self._read("name", _line, None),
            description=self._read("description", _line, None),
            include=self._read("include", _include, "manual"),
            priority=self._read("priority", _number, 0),
            enabled=self._read("enabled", _switch, True),
            aliases=(*self._read("aliases", _names, ()), *self._read("alias", _names, ())),
            tags=(*self._read("tags", _tags, ()), *self._read("tag", _tags, ())),
            extra={key: self._kept(key, value) for key, value in self._fields.items() if key not in _OWN},
        )
        return known.model_copy(update={"faults": tuple(self._faults)})

    def _read(self, key: str, reading: Callable[[object], T], default: T) -> T:
        value = self._fields.get(key)
        if value is None:
            return default
        try:
            return reading(value)
        except ValueError as error:
            self._faults.append(f"{key}: {error}; taken as {default!r}")
            return default

    def _kept(self, key: str, value: object) -> JsonValue:
        try:
            return _plain(value)
        except ValueError as error:
            self._faults.append(f"{key}: {error}; left out")
            return None


def _line(value: object) -> str:
    if isinstance(value, (str, int, float, date)):
        return _one_line(str(value))
    raise ValueError(f"a text is expected, and {_kind(value)} stands there")


def _include(value: object) -> Include:
    for mode in get_args(Include):
        if isinstance(value, str) and value.strip().lower() == mode:
            return mode
    raise ValueError(f"{_clipped(value)} is none of always, manual and agent")


def _number(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9:
        return value
    raise ValueError(f"{_clipped(value)} is not a whole number")


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    switched = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.strip().lower() in switched:
        return switched[value.strip().lower()]
    raise ValueError(f"{_clipped(value)} is neither true nor false")


def _names(value: object) -> tuple[str, ...]:
    """A list, or one line with commas, as older vaults have it."""
    items = cast("list[object]", value) if isinstance(value, list) else _line(value).split(",")
    return tuple(filter(None, (_line(item) for item in items if item is not None)))


def _tags(value: object) -> tuple[str, ...]:
    """As names; blanks part tags too, and a leading # says nothing."""
    return tuple(filter(None, (tag.lstrip("#") for name in _names(value) for tag in name.split())))


def _plain(value: object, depth: int = 0) -> JsonValue:
    """A value of YAML as JSON has it."""
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if isinstance(value, str):
        return _sound(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, dict):
        fields = cast("dict[object, object]", value)
        return {_sound(str(key)): _plain(item, depth + 1) for key, item in fields.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item, depth + 1) for item in cast("list[object]", value)]
    raise ValueError(f"{_kind(value)} cannot be kept")


def _kind(value: object) -> str:
    named: dict[str, str] = {"dict": "a table", "list": "a list", "bytes": "binary data", "set": "a set"}
    return named.get(type(value).__name__, type(value).__name__)


def _clipped(value: object) -> str:
    return repr(value)[:60]


def _one_line(text: str) -> str:
    return " ".join(_sound(text).split())


def _sound(text: str) -> str:
    """Without halves of letters, which YAML can write and no store can keep."""
    return text.encode("utf-8", "replace").decode()
