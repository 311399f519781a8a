"""Where the values of settings come from: files, the environment, options. Of two, the later one holds.

Everything is handed in: only entry points know which files there are and what the environment says.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from quire.errors import InvalidConfiguration
from quire.settings.table import Settings

PREFIX = "QUIRE_"


class Layer(NamedTuple):
    """Values from one place; `where` names it to people."""

    where: str
    values: Mapping[str, Any]


class Loaded(NamedTuple):
    settings: Settings
    origins: Mapping[str, str]
    """For each setting that something sets, where its value comes from."""


def loaded(layers: Iterable[Layer]) -> Loaded:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for where, given in layers:
        for name, value in given.items():
            if name not in Settings.model_fields:
                raise InvalidConfiguration(f"{where} sets {name!r}, which is no setting{_nearest(name)}.")
            values[name], origins[name] = value, where
    try:
        return Loaded(Settings.model_validate(values), origins)
    except ValidationError as error:
        raise InvalidConfiguration(_explained(error, origins)) from error


def file_layer(path: Path) -> Layer:
    """A settings file; an empty layer if there is none."""
    try:
        return Layer(str(path), tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return Layer(str(path), {})
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfiguration(f"{path} is no valid TOML: {error}.") from error


def environment_layers(environ: Mapping[str, str]) -> list[Layer]:
    """`QUIRE_MODEL` and the like; an empty one sets nothing, and variables that name no setting are someone else's."""
    return [
        Layer(variable, {name: _read(name, text)})
        for name in Settings.model_fields
        if (text := environ.get(variable := f"{PREFIX}{name.upper()}"))
    ]


def option_layer(pairs: Sequence[str]) -> Layer:
    """`name=value` from a command line."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise InvalidConfiguration(f"{pair!r} sets nothing; write it as name=value.")
        values[name.strip()] = _read(name.strip(), text)
    return Layer("the command line", values)


def _read(name: str, text: str) -> Any:
    """Tables are written as JSON; for everything else the table of settings knows how to read a text."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidConfiguration(f"The value of {name!r} is neither plain text nor valid JSON: {text}.") from None


def _nearest(name: str) -> str:
    near = get_close_matches(name, Settings.model_fields, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; `quire config list` shows those that there are"


def _explained(error: ValidationError, origins: Mapping[str, str]) -> str:
    problems: list[str] = []
    for fault in error.errors(include_url=False):
        name = str(fault["loc"][0]) if fault["loc"] else "the settings"
        problems.append(f"{name} ({origins.get(name, 'unset')}): {fault['msg'].lower()}")
    return f"Settings cannot be used: {'; '.join(problems)}."
