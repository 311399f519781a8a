"""Sources of settings: files, environment variables, command-line options. A later layer overrides an earlier one.

Callers pass everything in: only entry points know the files and read the environment.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, ValidationError

from quire.errors import InvalidConfiguration
from quire.settings.schema import ModelEntry, Settings, TenantQuota, Upstream

ENV_PREFIX = "QUIRE_"
MAX_FILE_BYTES = 1_000_000
TABLES: Mapping[str, type[BaseModel]] = {
    "models": ModelEntry,
    "upstreams": Upstream,
    "tenant_quotas": TenantQuota,
}
"""Settings that are tables of named entries. A later layer replaces the entries that it names, not the table."""
ALIAS_TABLE = "context"
SETTING_ALIASES: Mapping[str, str] = {
    f"{ALIAS_TABLE}.strategy": "strategy",
    f"{ALIAS_TABLE}.max_tokens": "context_limit",
    f"{ALIAS_TABLE}.memory_integration": "memory_integration",
    "maxPromptTokens": "context_limit",
    "reservedResponseTokens": "reserved_response_tokens",
    "recentMessagesToKeep": "recent_messages_to_keep",
    "minRecentMessagesToKeep": "min_recent_messages_to_keep",
}
"""Other names of settings. In a TOML file those with a dot are a key in the table `[context]`."""

REMOVED_SETTINGS: Mapping[str, str] = {
    **dict.fromkeys(
        ("tokenizer", "input_price", "output_price"), 'set it in a table [models."NAME"], for every model [models."*"]'
    ),
    "upstream_timeout": "set model_timeout, which is for upstreams, too",
    "embeddings_model": "write it after the address in embeddings: http://…/v1#MODEL",
    "object_storage_min_bytes": "blobs from 65,536 bytes move to the object storage",
    "mask_secrets": "known secrets are always masked in answers to agents and in hand-overs",
}
"""Settings of earlier versions, with what to do instead: remove the key, and if one is named, set another."""


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
        for name, value in resolve_aliases(source, layer).items():
            if name in REMOVED_SETTINGS:
                raise InvalidConfiguration(
                    f"{source} sets {name!r}, which is no setting any more; remove it: {REMOVED_SETTINGS[name]}."
                )
            if name not in Settings.model_fields:
                near = get_close_matches(name, Settings.model_fields, n=1)
                advice = f"did you mean {near[0]!r}?" if near else "run `quire config list` to see all settings"
                raise InvalidConfiguration(f"{source} sets {name!r}, which is not a setting; {advice}.")
            if name in TABLES and isinstance(value, dict):
                value = {**values.get(name, {}), **cast("dict[str, Any]", value)}
            values[name], origins[name] = value, source
    try:
        return LoadedSettings(Settings.model_validate(values), origins)
    except ValidationError as error:
        raise InvalidConfiguration(_explain_errors(error, origins)) from error


def resolve_setting_name(name: str) -> str:
    """The setting that an alias names; any other name is unchanged."""
    return SETTING_ALIASES.get(name, name)


def resolve_aliases(source: str, layer: Mapping[str, Any]) -> dict[str, Any]:
    named: list[tuple[str, Any]] = []
    for name, value in layer.items():
        if name == ALIAS_TABLE and isinstance(value, dict):
            named += ((f"{name}.{key}", each) for key, each in cast("dict[str, Any]", value).items())
        else:
            named.append((name, value))
    resolved: dict[str, Any] = {}
    for name, value in named:
        setting = resolve_setting_name(name)
        if setting in resolved:
            raise InvalidConfiguration(f"{source} sets {setting!r} twice, once as {name!r}; remove one of them.")
        resolved[setting] = value
    return resolved


def read_settings_file(path: Path) -> SettingsLayer:
    """Reads a settings file; returns an empty layer if it does not exist."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidConfiguration(f"{path} has more than {MAX_FILE_BYTES:,} bytes; settings files are small.")
        return SettingsLayer(str(path), tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return SettingsLayer(str(path), {})
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error}.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
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
        setting = resolve_setting_name(name.strip())
        values[setting] = _parse_value(setting, text)
    return SettingsLayer("the command line", values)


def _parse_value(name: str, text: str) -> Any:
    """Parses tables and lists as JSON; the schema converts any other text."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidConfiguration(f"The value of {name!r} is neither plain text nor valid JSON: {text}.") from None


def _explain_errors(error: ValidationError, origins: Mapping[str, str]) -> str:
    problems: list[str] = []
    for fault in error.errors(include_url=False):
        name, *path = map(str, fault["loc"] or ("the settings",))
        problem = fault["msg"].removeprefix("Value error, ").lower()
        if fault["type"] == "extra_forbidden":
            problem = "unknown field"
            if name in TABLES and path:
                fields = list(TABLES[name].model_fields)
                near = get_close_matches(path[-1], fields, n=1)
                problem += f"; did you mean {near[0]!r}?" if near else f"; the fields are {', '.join(fields)}"
        problems.append(f"{'.'.join([name, *path])} ({origins.get(name, 'unset')}): {problem}")
    return f"Invalid settings: {'; '.join(problems)}."
