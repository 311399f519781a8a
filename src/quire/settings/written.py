"""Settings as a file that explains itself: every one with its purpose, at its default and commented out."""

import json
from collections.abc import Mapping
from typing import Any, cast

from quire.settings.table import Settings

_HEAD = """\
# Quire's settings. What stands behind a "#" is the default; take the sign away to change it.
# The environment goes before this file (QUIRE_MODEL for `model`), and options of a command before both.
"""


def commented(chosen: Mapping[str, Any] | None = None) -> str:
    """The file with these values set and the rest at their defaults."""
    given = chosen or {}
    lines = [_HEAD]
    for name, field in Settings.model_fields.items():
        value = given.get(name, field.get_default(call_default_factory=True))
        said = f"{name} = {toml_value(value)}" if value is not None else f"{name} ="
        lines.append(f"# {field.description}\n{'' if name in given else '# '}{said}\n")
    return "\n".join(lines)


def toml_value(value: Any) -> str:
    """Text, numbers, truth values, lists and flat tables, as TOML writes them."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int() | float():
            return repr(value)
        case dict():
            fields = cast("dict[str, Any]", value)
            written = ", ".join(f"{name} = {toml_value(each)}" for name, each in fields.items())
            return f"{{ {written} }}" if written else "{}"
        case list() | tuple():
            return "[" + ", ".join(map(toml_value, cast("list[Any]", value))) + "]"
        case _:
            raise TypeError(f"no setting holds {value!r}")
