"""Sources of settings: files, environment variables, command-line options. A later layer overrides an earlier one.

Callers pass everything in: only entry points know the files and read the environment.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from quire.errors import InvalidConfiguration
from quire.settings.schema import Settings

ENV_PREFIX = "QUIRE_"


class SettingsLayer(NamedTuple):
    """Values from one source; `source` is its name in messages."""

    source: str
    values: Mapping[str, Any]


class LoadedSettings(NamedTuple):
    settings: Settings
    origins: Mapping[str, str]
    """Source of each setting that is set."""


def load_settings(layers: Iterable[SettingsLayer]) -> LoadedSettings:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source, layer in layers:
        for name, value in layer.items():
            if name not in Settings.model_fields:
                raise InvalidConfiguration(f"{source} sets {name!r}, which is not a setting{_suggest_name(name)}.")
            values[name], origins[name] = value, source
    try:
        return LoadedSettings(Settings.model_validate(values), origins)
    except ValidationError as error:
        raise InvalidConfiguration(_explain_errors(error, origins)) from error


def read_settings_file(path: Path) -> SettingsLayer:
    """Reads a settings file; returns an empty layer if it does not exist."""
    try:
        return SettingsLayer(str(path), tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return SettingsLayer(str(path), {})
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfiguration(f"{path} is not valid TOML: {error}.") from error


def read_environment(environ: Mapping[str, str]) -> list[SettingsLayer]:
    """Reads variables such as `QUIRE_MODEL`; ignores empty ones, and those that match no setting."""
    return [
        SettingsLayer(variable, {name: _parse_value(name, text)})
        for name in Settings.model_fields
        if (text := environ.get(variable := f"{ENV_PREFIX}{name.upper()}"))
    ]


def parse_options(pairs: Sequence[str]) -> SettingsLayer:
    """Parses `name=value` options of a command line."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise InvalidConfiguration(f"{pair!r} has no value; write it as name=value.")
        values[name.strip()] = _parse_value(name.strip(), text)
    return SettingsLayer("the command line", values)


def _parse_value(name: str, text: str) -> Any:
    """Parses tables and lists as JSON; the schema converts any other text."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidConfiguration(f"The value of {name!r} is neither plain text nor valid JSON: {text}.") from None


def _suggest_name(name: str) -> str:
    near = get_close_matches(name, Settings.model_fields, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; run `quire config list` to see all settings"


def _explain_errors(error: ValidationError, origins: Mapping[str, str]) -> str:
    problems: list[str] = []
    for fault in error.errors(include_url=False):
        name = str(fault["loc"][0]) if fault["loc"] else "the settings"
        problems.append(f"{name} ({origins.get(name, 'unset')}): {fault['msg'].lower()}")
    return f"Invalid settings: {'; '.join(problems)}."
