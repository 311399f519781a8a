"""Renders the settings as a TOML file with a description of each one; defaults are commented out."""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from quire.settings.schema import Settings

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = """\
# Quire's settings. Values behind a "#" are the defaults; remove the "#" to change one.
# Environment variables override this file (QUIRE_MODEL for `model`), and command-line options override both.
"""


def render_settings_template(values: Mapping[str, Any] | None = None) -> str:
    """Renders the file with these values set and the others at their defaults."""
    values = values or {}
    lines = [_HEADER]
    for name, field in Settings.model_fields.items():
        value = values.get(name, field.get_default(call_default_factory=True))
        assignment = f"{name} = {to_toml(value)}" if value is not None else f"{name} ="
        lines.append(f"# {field.description}\n{'' if name in values else '# '}{assignment}\n")
    return "\n".join(lines)


def _to_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else to_toml(name)


def to_toml(value: Any) -> str:
    """Formats a string, number, boolean, list or table as TOML; fields that are None are omitted."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int() | float():
            return repr(value)
        case dict():
            fields = {name: item for name, item in cast("dict[str, Any]", value).items() if item is not None}
            pairs = ", ".join(f"{_to_key(name)} = {to_toml(item)}" for name, item in fields.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case list() | tuple():
            return "[" + ", ".join(map(to_toml, cast("list[Any]", value))) + "]"
        case _:
            raise TypeError(f"no setting has a value like {value!r}")
