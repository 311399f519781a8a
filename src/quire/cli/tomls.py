"""Changes one value in a TOML file and leaves everything else as it stands, comments and order included."""

import os
import re
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, cast

from quire.errors import InvalidConfiguration, MissingExtra
from quire.settings.written import toml_value


def changed(text: str, name: str, value: Any, *, table: str | None = None) -> str:
    """The file's text with `name` set; where a comment shows it at its default, the value takes the comment's place."""
    document = _parsed(text)
    there = name in (document.get(table, {}) if table is not None else document)
    if not there and (placed := _in_place_of_comment(text, name, value, table)) is not None:
        return placed
    _table(document, table)[name] = _item(value)
    return _dumped(document)


def without(text: str, name: str, *, table: str | None = None) -> str:
    document = _parsed(text)
    _table(document, table).pop(name, None)
    return _dumped(document)


def _table(document: MutableMapping[str, Any], table: str | None) -> MutableMapping[str, Any]:
    return document if table is None else document.setdefault(table, _tomlkit().table())


def _in_place_of_comment(text: str, name: str, value: Any, table: str | None) -> str | None:
    commented = re.compile(rf"#\s*{re.escape(name)}\s*=")
    lines, within = text.split("\n"), None
    for place, line in enumerate(lines):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            within = header[1]
        elif within == table and commented.match(line):
            return "\n".join([*lines[:place], f"{name} = {toml_value(value)}", *lines[place + 1 :]])
    return None


def write(path: Path, text: str) -> None:
    """All of it or nothing: under another name first."""
    home = path.resolve()
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=home.parent, delete=False) as file:
            file.write(text)
        part = Path(file.name)
        part.chmod(home.stat().st_mode if home.exists() else 0o666 & ~_umask())
        part.replace(home)
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be written: {error.strerror}.") from error


def _umask() -> int:
    present = os.umask(0o022)
    os.umask(present)
    return present


def _parsed(text: str) -> MutableMapping[str, Any]:
    return cast(MutableMapping[str, Any], _tomlkit().parse(text))


def _dumped(document: MutableMapping[str, Any]) -> str:
    return cast(str, _tomlkit().dumps(document))


def _item(value: Any) -> Any:
    if isinstance(value, dict):
        made = _tomlkit().inline_table()
        made.update(cast("dict[str, Any]", value))
        return made
    return value


def _tomlkit() -> Any:
    try:
        import tomlkit
    except ModuleNotFoundError as missing:
        raise MissingExtra(extra="cli", needed_for="Changing a settings file") from missing
    return tomlkit
