"""Edits one value in a TOML file and preserves the rest, including comments and order."""

import os
import re
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, cast

from quire.errors import InvalidConfiguration, MissingExtra
from quire.settings.toml_template import to_toml


def set_value(text: str, name: str, value: Any, *, table: str | None = None) -> str:
    """Sets `name` in the text; a commented-out default of that name is replaced by the value."""
    document = _parse(text)
    is_set = name in (document.get(table, {}) if table is not None else document)
    if not is_set and (replaced := _replace_comment(text, name, value, table)) is not None:
        return replaced
    _get_table(document, table)[name] = _to_toml_item(value)
    return _dump(document)


def remove_value(text: str, name: str, *, table: str | None = None) -> str:
    document = _parse(text)
    _get_table(document, table).pop(name, None)
    return _dump(document)


def _get_table(document: MutableMapping[str, Any], table: str | None) -> MutableMapping[str, Any]:
    return document if table is None else document.setdefault(table, _import_tomlkit().table())


def _replace_comment(text: str, name: str, value: Any, table: str | None) -> str | None:
    commented = re.compile(rf"#\s*{re.escape(name)}\s*=")
    lines, current_table = text.split("\n"), None
    for index, line in enumerate(lines):
        if header := re.match(r"\s*+\[++([^\]]+)\]", line):
            current_table = header[1].strip()
        elif current_table == table and commented.match(line):
            return "\n".join([*lines[:index], f"{name} = {to_toml(value)}", *lines[index + 1 :]])
    return None


def write_atomically(path: Path, text: str) -> None:
    """Writes a temporary file and renames it, so that the file is replaced as a whole or not at all."""
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            file.write(text)
        part = Path(file.name)
        part.chmod(target.stat().st_mode if target.exists() else 0o666 & ~_get_umask())
        part.replace(target)
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be written: {error.strerror}.") from error


def _get_umask() -> int:
    umask = os.umask(0o022)
    os.umask(umask)
    return umask


def _parse(text: str) -> MutableMapping[str, Any]:
    return cast(MutableMapping[str, Any], _import_tomlkit().parse(text))


def _dump(document: MutableMapping[str, Any]) -> str:
    return cast(str, _import_tomlkit().dumps(document))


def _to_toml_item(value: Any) -> Any:
    if isinstance(value, dict):
        table = _import_tomlkit().inline_table()
        table.update(cast("dict[str, Any]", value))
        return table
    return value


def _import_tomlkit() -> Any:
    try:
        import tomlkit
    except ModuleNotFoundError as missing:
        raise MissingExtra(extra="cli", feature="Changing a settings file") from missing
    return tomlkit
