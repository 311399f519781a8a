"""`quire config`: the settings that hold here, where each comes from, and changes to the files that set them."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import places
from quire.cli.completing import setting_names
from quire.cli.opening import as_options, database_url, settings_from
from quire.cli.output import fields, give, note, table, text
from quire.cli.running import AsJson, Given, command, group
from quire.errors import InvalidConfiguration, NotFound
from quire.settings import Settings
from quire.settings.sources import Layer, environment_layers, file_layer, loaded, option_layer

if TYPE_CHECKING:
    from rich.console import RenderableType

app = group("See the settings and where they come from, and change them.")

SettingName = Annotated[str, typer.Argument(help="The setting's name.", autocompletion=setting_names)]
Unset = Annotated[bool, typer.Option("--unset", help="Take it out of the file, so that the default holds again.")]


def shown_path(path: Path) -> str:
    """A path for people: from home, where it lies there."""
    home = os.environ.get("HOME")
    return f"~/{path.relative_to(home)}" if home and path.is_relative_to(home) else str(path)


def without_password(url: str) -> str:
    return re.sub(r"(://[^:/@]*:)[^@]*@", r"\1***@", url)


@command(app, "quire config get strategy")
def get(name: SettingName, *, as_json: AsJson = False, given: Given = None) -> None:
    """Print the value of one setting."""
    _check_name(name)
    found = settings_from(as_options(given or ()))
    value = found.settings.model_dump(mode="json")[name]
    document = {"name": name, "value": value, "origin": found.origins.get(name, "default")}
    give(document, lambda _: [text(_said(value))], as_json=as_json)


def _check_name(name: str) -> None:
    if name not in Settings.model_fields:
        raise NotFound(f"There is no setting {name!r}; `quire config list` shows those that there are.")


def _said(value: Any) -> str:
    from quire.settings.written import toml_value

    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return toml_value(value)


@command(app, "quire config set strategy discard", name="set")
def set_(
    name: SettingName,
    value: Annotated[
        str | None, typer.Argument(help="Its value; a table is written as JSON.", show_default=False)
    ] = None,
    *,
    project: Annotated[bool, typer.Option("--project", help="In the project's file, not in your own.")] = False,
    unset: Unset = False,
    as_json: AsJson = False,
) -> None:
    """Set one setting in your settings file, or in the project's; the rest of the file stays as it is."""
    _check_name(name)
    if (value is None) != unset:
        raise typer.BadParameter("give a value, or --unset.")
    path = _file(project=project)
    typed = None if value is None else _typed(path, name, value)
    rewrite(path, name, typed)
    _warn_of_environment(name)
    document = {"name": name, "value": typed, "path": str(path)}
    said = f"{name} is at its default in" if unset else f"{name} = {_said(typed)} in"
    give(document, lambda _: [text(f"{said} {shown_path(path)}")], as_json=as_json)


def _file(*, project: bool) -> Path:
    if not project:
        return places.user_settings(os.environ)
    return places.project_settings(Path.cwd()) or Path.cwd() / places.SETTINGS_FILE


def _typed(path: Path, name: str, value: str) -> Any:
    """The value as the file will hold it, checked together with what the file says besides."""
    given = option_layer([f"{name}={value}"]).values
    settings = loaded([file_layer(path), Layer(str(path), given)]).settings
    if name == "strategy":
        _check_strategy(settings.strategy)
    return settings.model_dump(mode="json", exclude_none=True).get(name)


def _check_strategy(name: str) -> None:
    """Only a program can register others; here there are those that Quire has."""
    from quire.view.strategies import strategy_named

    strategy_named(name)


def rewrite(path: Path, name: str, value: Any) -> None:
    """Sets one value in a settings file, or takes it out with None; the rest of the file stays as it is."""
    from quire.cli import tomls

    present = path.read_text("utf-8") if path.is_file() else ""
    file_layer(path)  # Refuses what is no TOML with the name of the file.
    new = tomls.without(present, name) if value is None else tomls.changed(present, name, value)
    _check_written(path, new, name, value)
    tomls.write(path, new)


def _check_written(path: Path, new: str, name: str, value: Any) -> None:
    """What is about to be written says what was meant, and nothing else has changed."""
    import tomllib

    before = dict(file_layer(path).values)
    before.pop(name, None)
    after = tomllib.loads(new)
    if after.pop(name, None) != value or after != before:
        raise InvalidConfiguration(f"{path} is written in a way that cannot be changed safely; set {name} by hand.")


def _warn_of_environment(name: str) -> None:
    for layer in environment_layers(os.environ):
        if name in layer.values:
            note(f"{layer.where} is set in the environment, which goes before the file.")


@command(app, "quire config list --changed", name="list")
def list_(
    *,
    changed: Annotated[bool, typer.Option("--changed", help="Only those that something sets.")] = False,
    as_json: AsJson = False,
    given: Given = None,
) -> None:
    """List all settings with their values and where these come from."""
    found = settings_from(as_options(given or ()))
    values = found.settings.model_dump(mode="json")
    listed = [
        {
            "name": name,
            "value": _masked(values[name]),
            "origin": found.origins.get(name, "default"),
            "description": field.description,
        }
        for name, field in Settings.model_fields.items()
        if name in found.origins or not changed
    ]

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield table(
            "setting", "value", "from",
            rows=[(each["name"], _said(each["value"]), _origin(each)) for each in listed],
            wide=("value", "from"),
        ) if listed else text("Every setting is at its default.")  # fmt: skip

    give({"settings": listed}, draw, as_json=as_json)


def _masked(value: Any) -> Any:
    return without_password(value) if isinstance(value, str) else value


def _origin(row: Mapping[str, Any]) -> str:
    origin = str(row["origin"])
    return shown_path(Path(origin)) if origin.startswith("/") else origin


@command(app, "quire config path")
def path(*, as_json: AsJson = False, given: Given = None) -> None:
    """Print where the settings, the log and the agents are."""
    project = places.project_settings(Path.cwd())
    url = without_password(database_url(settings_from(as_options(given or ())).settings))
    user, agents = places.user_settings(os.environ), places.agents_folder(os.environ)
    found = {
        "user": {"path": str(user), "exists": user.is_file()},
        "project": None if project is None else {"path": str(project), "exists": True},
        "database": url,
        "agents": {"path": str(agents), "exists": agents.is_dir()},
    }

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield fields(
            [
                ("your settings", _place(user, exists=user.is_file())),
                ("the project's", shown_path(project) if project is not None else "none from here upwards"),
                ("the log", url.replace(f"sqlite:///{os.environ.get('HOME')}/", "~/")),
                ("agents", _place(agents, exists=agents.is_dir())),
            ]
        )

    give(found, draw, as_json=as_json)


def _place(where: Path, *, exists: bool) -> str:
    return shown_path(where) if exists else f"{shown_path(where)} (not there yet)"
