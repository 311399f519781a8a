"""Parses the front matter of Markdown files: the YAML between two `---` lines at the very beginning.

The text after it is always usable: invalid fields are listed in `errors` and get their defaults. YAML anchors are
rejected, because a few lines of them can expand to gigabytes.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from importlib import import_module
from typing import Any, NamedTuple, TypeVar, cast, get_args

from pydantic import Field, JsonValue

from quire.errors import MissingExtra
from quire.model.agents import IncludeMode
from quire.model.base import FrozenModel, JsonObject, replace_lone_surrogates

MAX_FRONT_MATTER_CHARS = 64_000
MAX_NESTING_DEPTH = 20
"""Levels of nesting that an extra field may have."""

T = TypeVar("T")

_FRONT_MATTER = re.compile(
    r"\A\ufeff?---[ \t]*\r?\n(.*?)(?:\r?\n)?^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_POSSIBLE_ANCHOR = re.compile(r"(?:^|[\s\[{,:-])[&*][^\s,\]}]", re.MULTILINE)
_TEXT_KEYS = ("name", "description", "aliases", "alias", "tags", "tag")
_KNOWN_KEYS = frozenset([*_TEXT_KEYS, "include", "priority", "enabled"])


class FrontMatter(FrozenModel):
    name: str | None = None
    description: str | None = None
    include: IncludeMode = "manual"
    priority: int = 0
    enabled: bool = True
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    extra: JsonObject = Field(default_factory=dict)
    """All other keys as JSON. Dates are ISO strings."""
    errors: tuple[str, ...] = ()
    """One sentence for each field that could not be read."""


class ParsedMarkdown(NamedTuple):
    front_matter: FrontMatter
    body: str


def parse_front_matter(text: str) -> ParsedMarkdown:
    """Splits a text into its front matter and body. A block between two `---` lines that is no mapping is body text."""
    block = _FRONT_MATTER.match(text)
    if block is None:
        return ParsedMarkdown(FrontMatter(), text.removeprefix("\ufeff"))
    fields, error = _parse_fields(block[1])
    if fields is None:
        return ParsedMarkdown(FrontMatter(errors=(error,) if error else ()), text.removeprefix("\ufeff"))
    body = text[block.end() :]
    return ParsedMarkdown(FrontMatter(errors=(error,)) if error else _FieldReader(fields).read(), body)


def find_front_matter_end(text: str) -> int:
    """Position at which the body begins. Does not parse the YAML."""
    block = _FRONT_MATTER.match(text)
    return block.end() if block else 0


def _parse_fields(text: str) -> tuple[dict[str, object] | None, str]:
    """The fields and an error, or "". None as fields if the block is not front matter."""
    if len(text) > MAX_FRONT_MATTER_CHARS:
        return {}, f"the front matter has {len(text):,} characters; the maximum is {MAX_FRONT_MATTER_CHARS:,}"
    try:
        yaml: Any = import_module("yaml")
    except ModuleNotFoundError as error:
        raise MissingExtra(extra="vault", feature="front matter") from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        events = yaml.parse(text, Loader=loader) if _POSSIBLE_ANCHOR.search(text) else ()
        if any(getattr(event, "anchor", None) is not None for event in events):
            return {}, "the front matter uses YAML anchors (& and *), which are not supported; write the value out"
        loaded: object = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        return {}, f"the front matter is not YAML: {_to_single_line(str(error))}"
    except (ValueError, TypeError, RecursionError, OverflowError, AttributeError) as error:
        # PyYAML does not catch these: a date of 31 April, a number of 5,000 digits, endless brackets.
        return {}, f"the front matter has a value that cannot be parsed: {_to_single_line(str(error))}"
    if isinstance(loaded, dict):
        fields = {
            replace_lone_surrogates(str(key)): value for key, value in cast("dict[object, object]", loaded).items()
        }
        values = [fields[key] for key in _TEXT_KEYS if key in fields]
        if any(isinstance(value, (*_READ_TYPES, list)) for value in values):
            # YAML 1.1 reads the name `Off` as false and `1:30` as ninety.
            written = yaml.load(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
            fields |= {key: _take_written(fields[key], written[key]) for key in _TEXT_KEYS if key in fields}
        return fields, ""
    return ({}, "") if loaded is None else (None, "the block between the first two `---` lines is text, not fields")


_READ_TYPES = (bool, int, float, date)


def _take_written(value: object, written: Any) -> object:
    """The text of a value that is no text to YAML, as the file has it."""
    if isinstance(value, list):
        return [_take_written(*pair) for pair in zip(cast("list[object]", value), written, strict=True)]
    return written if isinstance(value, _READ_TYPES) else value


class _FieldReader:
    """Converts field by field and collects the errors."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields
        self._errors: list[str] = []

    def read(self) -> FrontMatter:
        extra: JsonObject = {}
        for key, value in self._fields.items():
            if key not in _KNOWN_KEYS:
                try:
                    extra[key] = _to_json(value)
                except ValueError as error:
                    self._errors.append(f"{key}: {error}; ignored")
                    extra[key] = None
        front_matter = FrontMatter(
            name=self._read_field("name", _to_line, None),
            description=self._read_field("description", _to_line, None),
            include=self._read_field("include", _to_include, "manual"),
            priority=self._read_field("priority", _to_int, 0),
            enabled=self._read_field("enabled", _to_bool, True),
            aliases=(*self._read_field("aliases", _to_names, ()), *self._read_field("alias", _to_names, ())),
            tags=(*self._read_field("tags", _to_tags, ()), *self._read_field("tag", _to_tags, ())),
            extra=extra,
        )
        return front_matter.model_copy(update={"errors": tuple(self._errors)})

    def _read_field(self, key: str, convert: Callable[[object], T], default: T) -> T:
        value = self._fields.get(key)
        if value is None:
            return default
        try:
            return convert(value)
        except ValueError as error:
            self._errors.append(f"{key}: {error}; {default!r} is used")
            return default


def _to_line(value: object) -> str:
    if isinstance(value, str):
        return _to_single_line(value)
    raise ValueError(f"expected text, not {_type_name(value)}")


def _to_include(value: object) -> IncludeMode:
    for mode in get_args(IncludeMode):
        if isinstance(value, str) and value.strip().lower() == mode:
            return mode
    raise ValueError(f"{_short_repr(value)} is not one of always, manual and agent")


def _to_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9:
        return value
    raise ValueError(f"{_short_repr(value)} is not a whole number")


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    values = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.strip().lower() in values:
        return values[value.strip().lower()]
    raise ValueError(f"{_short_repr(value)} is neither true nor false")


def _to_names(value: object) -> tuple[str, ...]:
    """A list, or one comma-separated line, as in older vaults."""
    items = cast("list[object]", value) if isinstance(value, list) else _to_line(value).split(",")
    return tuple(filter(None, (_to_line(item) for item in items if item is not None)))


def _to_tags(value: object) -> tuple[str, ...]:
    """As `_to_names`. Whitespace separates tags too, and a leading # is dropped."""
    return tuple(filter(None, (tag.lstrip("#") for name in _to_names(value) for tag in name.split())))


def _to_json(value: object, depth: int = 0) -> JsonValue:
    """Converts a YAML value to JSON."""
    if depth > MAX_NESTING_DEPTH:
        raise ValueError(f"it is nested more than {MAX_NESTING_DEPTH} levels deep")
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, dict):
        fields = cast("dict[object, object]", value)
        return {replace_lone_surrogates(str(key)): _to_json(item, depth + 1) for key, item in fields.items()}
    if isinstance(value, (list, tuple, set)):
        return [_to_json(item, depth + 1) for item in cast("list[object]", value)]
    raise ValueError(f"{_type_name(value)} is not supported")


def _type_name(value: object) -> str:
    names: dict[str, str] = {"dict": "a table", "list": "a list", "bytes": "binary data", "set": "a set"}
    return names.get(type(value).__name__, type(value).__name__)


def _short_repr(value: object) -> str:
    return repr(value)[:60]


def _to_single_line(text: str) -> str:
    return " ".join(replace_lone_surrogates(text).split())
