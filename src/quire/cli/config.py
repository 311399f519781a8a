"""`quire config`: prints the effective settings and their origins, and edits settings files."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import paths
from quire.cli.common import AsJson, SetOptions, command, complete_setting_names, create_group
from quire.cli.engine_setup import load_cli_settings, resolve_database_url, to_overrides
from quire.cli.output import make_field_table, make_table, make_text, print_note, print_result
from quire.errors import InvalidConfiguration, NotFound
from quire.settings import Settings
from quire.settings.sources import (
    SettingsLayer,
    load_settings,
    parse_options,
    read_environment,
    read_settings_file,
    resolve_setting_name,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

app = create_group("Show the settings and where they come from, and change them.")

SettingName = Annotated[str, typer.Argument(help="The setting's name.", autocompletion=complete_setting_names)]
UnsetOption = Annotated[bool, typer.Option("--unset", help="Remove it from the file, so that the default applies.")]


def format_path(path: Path) -> str:
    """Formats a path for people, with `~` for the home folder."""
    home = os.environ.get("HOME")
    return f"~/{path.relative_to(home)}" if home and path.is_relative_to(home) else str(path)


def mask_password(url: str) -> str:
    return re.sub(r"\A([^:/@]*://[^:/@]*:)[^@]*@", r"\1***@", url)


@command(app, "quire config get strategy")
def get(name: SettingName, *, as_json: AsJson = False, overrides: SetOptions = None) -> None:
    """Print the value of one setting."""
    name = _resolve_name(name)
    loaded = load_cli_settings(to_overrides(overrides or ()))
    value = loaded.settings.model_dump(mode="json")[name]
    document = {"name": name, "value": value, "origin": loaded.origins.get(name, "default")}
    print_result(document, lambda _: [make_text(_format_value(value))], as_json=as_json)


def _resolve_name(name: str) -> str:
    """The setting of this name or alias."""
    setting = resolve_setting_name(name)
    if setting not in Settings.model_fields:
        raise NotFound(f"There is no setting {name!r}; run `quire config list` to see all settings.")
    return setting


def _format_value(value: Any) -> str:
    from quire.settings.toml_template import to_toml

    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return to_toml(value)


@command(app, "quire config set strategy discard", name="set")
def set_(
    name: SettingName,
    value: Annotated[str | None, typer.Argument(help="The new value; a table as JSON.", show_default=False)] = None,
    *,
    project: Annotated[bool, typer.Option("--project", help="Write the project's file instead of your own.")] = False,
    unset: UnsetOption = False,
    as_json: AsJson = False,
) -> None:
    """Set one setting in your settings file, or in the project's; the rest of the file is preserved."""
    name = _resolve_name(name)
    if (value is None) != unset:
        raise typer.BadParameter("pass either a value or --unset.")
    path = _find_settings_file(project=project)
    parsed = None if value is None else _parse_value(path, name, value)
    write_setting(path, name, parsed)
    _warn_if_overridden(name)
    document = {"name": name, "value": parsed, "path": str(path)}
    change = f"{name} is at its default in" if unset else f"{name} = {_format_value(parsed)} in"
    print_result(document, lambda _: [make_text(f"{change} {format_path(path)}")], as_json=as_json)


def _find_settings_file(*, project: bool) -> Path:
    if not project:
        return paths.get_user_settings_path(os.environ)
    return paths.find_project_settings_path(Path.cwd()) or Path.cwd() / paths.SETTINGS_FILENAME


def _parse_value(path: Path, name: str, value: str) -> Any:
    """Parses the value as the file will hold it, and validates it with the other settings of the file."""
    change = parse_options([f"{name}={value}"]).values
    settings = load_settings([read_settings_file(path), SettingsLayer(str(path), change)]).settings
    if name == "strategy":
        _check_strategy(settings.strategy)
    return settings.model_dump(mode="json", exclude_none=True).get(name)


def _check_strategy(name: str) -> None:
    """Accepts built-in strategies only: the command line cannot register others."""
    from quire.view.strategies import get_strategy

    get_strategy(name)


def write_setting(path: Path, name: str, value: Any) -> None:
    """Sets one value in a settings file, or removes it with None; the rest of the file is preserved."""
    from quire.cli import toml_edit

    old_text = path.read_text("utf-8") if path.is_file() else ""
    read_settings_file(path)  # Rejects invalid TOML with an error that names the file.
    new_text = toml_edit.remove_value(old_text, name) if value is None else toml_edit.set_value(old_text, name, value)
    _verify_rewrite(path, new_text, name, value)
    toml_edit.write_atomically(path, new_text)


def _verify_rewrite(path: Path, new_text: str, name: str, value: Any) -> None:
    """Checks before writing that the new text changes this setting and nothing else."""
    import tomllib

    before = dict(read_settings_file(path).values)
    before.pop(name, None)
    after = tomllib.loads(new_text)
    if after.pop(name, None) != value or after != before:
        raise InvalidConfiguration(f"Cannot edit {path} without changing more than {name}; set {name} by hand.")


def _warn_if_overridden(name: str) -> None:
    for layer in read_environment(os.environ):
        if name in layer.values:
            print_note(f"{layer.source} is set in the environment and overrides the file.")


@command(app, "quire config list --changed", name="list")
def list_(
    *,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are set somewhere.")] = False,
    as_json: AsJson = False,
    overrides: SetOptions = None,
) -> None:
    """List all settings with their values and origins."""
    loaded = load_cli_settings(to_overrides(overrides or ()))
    values = loaded.settings.model_dump(mode="json")
    rows = [
        {
            "name": name,
            "value": _mask_value(values[name]),
            "origin": loaded.origins.get(name, "default"),
            "description": field.description,
        }
        for name, field in Settings.model_fields.items()
        if name in loaded.origins or not changed
    ]

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_table(
            "setting", "value", "from",
            rows=[(each["name"], _format_value(each["value"]), _format_origin(each)) for each in rows],
            wrapped=("value", "from"),
        ) if rows else make_text("Every setting is at its default.")  # fmt: skip

    print_result({"settings": rows}, draw, as_json=as_json)


def _mask_value(value: Any) -> Any:
    return mask_password(value) if isinstance(value, str) else value


def _format_origin(row: Mapping[str, Any]) -> str:
    origin = str(row["origin"])
    return format_path(Path(origin)) if origin.startswith("/") else origin


@command(app, "quire config path")
def path(*, as_json: AsJson = False, overrides: SetOptions = None) -> None:
    """Print the paths of the settings, the log and the agents."""
    project = paths.find_project_settings_path(Path.cwd())
    url = mask_password(resolve_database_url(load_cli_settings(to_overrides(overrides or ())).settings))
    user, agents = paths.get_user_settings_path(os.environ), paths.get_agents_folder()
    document = {
        "user": {"path": str(user), "exists": user.is_file()},
        "project": None if project is None else {"path": str(project), "exists": True},
        "database": url,
        "agents": {"path": str(agents), "exists": agents.is_dir()},
    }

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_field_table(
            [
                ("your settings", _format_location(user, exists=user.is_file())),
                ("the project's", format_path(project) if project is not None else "none in this folder or above"),
                ("the log", url.replace(f"sqlite:///{os.environ.get('HOME')}/", "~/")),
                ("agents", _format_location(agents, exists=agents.is_dir())),
            ]
        )

    print_result(document, draw, as_json=as_json)


def _format_location(path: Path, *, exists: bool) -> str:
    return format_path(path) if exists else f"{format_path(path)} (does not exist)"
