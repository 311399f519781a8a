"""`quire config`: prints the effective settings and their origins, and edits settings files."""

import os
import re
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from quire.cli import paths
from quire.cli.common import SetOptions, command, complete_setting_names, create_group
from quire.cli.engine_setup import load_cli_settings
from quire.cli.output import Result, make_table, make_text, print_note
from quire.cli.workspace_trust import (
    ignore_untrusted,
    is_trusted,
    read_project_file,
    remember,
)
from quire.errors import InvalidConfiguration, MissingExtra, NotFound
from quire.settings import Settings
from quire.settings.sources import (
    SettingsLayer,
    load_settings,
    parse_options,
    read_environment,
    read_settings_file,
    resolve_setting_name,
)
from quire.settings.toml_template import to_toml

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

app = create_group("Show the settings and where they come from, and change them.")

SettingName = Annotated[str, typer.Argument(help="The setting's name.", autocompletion=complete_setting_names)]
SettingText = Annotated[str | None, typer.Argument(help="The new value, a table as JSON.", show_default=False)]
UnsetOption = Annotated[bool, typer.Option("--unset", help="Remove it from the file, so that the default applies.")]


def format_path(path: Path) -> str:
    """Formats a path for people, with `~` for the home folder."""
    home = os.environ.get("HOME")
    return f"~/{path.relative_to(home)}" if home and path.is_relative_to(home) else str(path)


def mask_password(url: str) -> str:
    return re.sub(r"\A([^:/@]*://[^:/@]*:)[^@]*@", r"\1***@", url)


def _resolve_name(name: str) -> str:
    """The setting of this name or alias."""
    setting = resolve_setting_name(name)
    if setting not in Settings.model_fields:
        raise NotFound(f"There is no setting {name!r}; run `quire config list` to see all settings.")
    return setting


def _format_value(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else to_toml(value)


@command(app, "quire config set strategy discard", name="set")
def set_(
    name: SettingName,
    value: SettingText = None,
    *,
    project: Annotated[bool, typer.Option("--project", help="Write the project's file instead of your own.")] = False,
    unset: UnsetOption = False,
) -> Result:
    """Set one setting in your settings file, or in the project's. The rest of the file is preserved."""
    from quire.view.strategies import get_strategy

    name = _resolve_name(name)
    if (value is None) != unset:
        raise typer.BadParameter("pass either a value or --unset.")
    path = paths.get_user_settings_path(os.environ)
    was_trusted = False
    if project:
        path = paths.find_project_settings_path(Path.cwd()) or Path.cwd() / paths.SETTINGS_FILENAME
        before = read_project_file(path.parent)
        was_trusted = before is None or not before.restricted or is_trusted(before, ignore_untrusted)
    parsed = None
    if value is not None:
        # As the file will hold it, and validated with the other settings of the file.
        change = parse_options([f"{name}={value}"]).values
        settings = load_settings([read_settings_file(path), SettingsLayer(str(path), change)]).settings
        if name == "strategy":
            get_strategy(settings.strategy)  # Built-in ones only: the command line cannot register others.
        parsed = settings.model_dump(mode="json", exclude_none=True).get(name)
    write_setting(path, name, parsed)
    # What the user has just written is trusted, unless the rest of the file is not.
    if was_trusted and (written := read_project_file(path.parent)) is not None:
        remember(written, "trusted")
    for layer in read_environment(os.environ):
        if name in layer.values:
            print_note(f"{layer.source} is set in the environment and overrides the file.")
    change = f"{name} is at its default in" if unset else f"{name} = {_format_value(parsed)} in"
    document = {"name": name, "value": parsed, "path": str(path)}
    return Result(document, f"{change} {format_path(path)}")


@command(app, "quire config list --changed", name="list")
def list_(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Print only the value of this setting.", show_default=False, autocompletion=complete_setting_names
        ),
    ] = None,
    *,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are set somewhere.")] = False,
    overrides: SetOptions = None,
) -> Result:
    """List all settings with their values and origins, or print the value of one."""
    loaded = load_cli_settings(overrides, decide=ignore_untrusted)
    values = loaded.settings.model_dump(mode="json")
    if name is not None:
        name = _resolve_name(name)
        document = {"name": name, "value": values[name], "origin": loaded.origins.get(name, "default")}
        return Result(document, _format_value(values[name]))
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "value": mask_password(values[name]) if isinstance(values[name], str) else values[name],
            "origin": loaded.origins.get(name, "default"),
            "description": field.description or "",
        }
        for name, field in Settings.model_fields.items()
        if name in loaded.origins or not changed
    ]

    def draw(_: "Console") -> "Iterable[RenderableType]":
        yield make_table(
            "setting", "value", "from",
            rows=[
                (each["name"], _format_value(each["value"]),
                 format_path(Path(each["origin"])) if each["origin"].startswith("/") else each["origin"])
                for each in rows
            ],
            wrapped=("value", "from"),
        ) if rows else make_text("Every setting is at its default.")  # fmt: skip

    return Result({"settings": rows}, draw)


def write_setting(path: Path, name: str, value: Any, *, table: str | None = None) -> None:
    """Sets one value in a TOML file, or removes it with None; the rest of the file is preserved.

    Nothing is written if the new text would change more than this value.
    """
    import tomllib

    old_text = path.read_text("utf-8-sig") if path.is_file() else ""
    read_settings_file(path)  # Rejects invalid TOML with an error that names the file.
    new_text = replace_value(old_text, name, value, table=table)
    expected = tomllib.loads(old_text)
    container = expected if table is None else expected.setdefault(table, {})
    container.pop(name, None)
    if value is not None:
        container[name] = value
    if tomllib.loads(new_text) != expected:
        raise InvalidConfiguration(f"Cannot edit {path} without changing more than {name}; set {name} by hand.")
    paths.write_atomically(path, new_text)


def replace_value(text: str, name: str, value: Any, *, table: str | None = None) -> str:
    """Sets `name` in the text, or removes it with None; a commented-out default of that name becomes the value."""
    try:
        import tomlkit
    except ModuleNotFoundError as missing:
        raise MissingExtra(extra="cli", feature="Changing a settings file") from missing
    document = cast("MutableMapping[str, Any]", tomlkit.parse(text))
    is_set = name in (document.get(table, {}) if table is not None else document)
    if value is not None and not is_set:
        commented = re.compile(rf"#\s*{re.escape(name)}\s*=")
        lines, current_table = text.split("\n"), None
        for index, line in enumerate(lines):
            if header := re.match(r"\s*+\[++([^\]]+)\]", line):
                current_table = header[1].strip()
            elif current_table == table and commented.match(line):
                return "\n".join([*lines[:index], f"{name} = {to_toml(value)}", *lines[index + 1 :]])
    container: Any = document if table is None else document.setdefault(table, tomlkit.table())
    if value is None:
        container.pop(name, None)
    elif isinstance(value, dict):
        inline: Any = tomlkit.inline_table()
        inline.update(cast("dict[str, Any]", value))
        container[name] = inline
    else:
        container[name] = value
    return tomlkit.dumps(document)
