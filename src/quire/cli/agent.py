"""`quire agent`: lists and shows agents, creates one, and changes an agent's settings."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import paths
from quire.cli.common import AsJson, SetOptions, command, complete_agent_names, complete_setting_names, create_group
from quire.cli.config import UnsetOption, format_path
from quire.cli.engine_setup import load_cli_settings, to_overrides
from quire.cli.output import make_field_table, make_table, make_text, print_result, to_one_line
from quire.cli.paths import AGENT_FILENAME, find_agent_file, find_agent_files
from quire.errors import InvalidConfiguration, InvalidRequest, QuireError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.model.agents import Agent

app = create_group("List, show and change agents: instructions, rules, references and tools.")

AgentArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The agent's name or TOML file.", autocompletion=complete_agent_names)
]


@command(app, "quire agent list", name="list")
def list_(*, as_json: AsJson = False, overrides: SetOptions = None) -> None:
    """List the agents in your agents folder, and the one in the settings."""
    active = load_cli_settings(to_overrides(overrides or ())).settings.agent
    files = find_agent_files()
    if active is not None and Path(active).resolve() not in [file.resolve() for file in files.values()]:
        files[Path(active).stem] = Path(active)
    rows = [_build_row(name, file, active) for name, file in files.items()]

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_table(
            "agent", "active", "model", "description", "file",
            rows=[
                (row["name"], row["active"], row["model"], _format_description(row), _format_file(row)) for row in rows
            ],
            wrapped=("description", "file"),
        ) if rows else make_text("There is no agent yet; `quire agent new NAME` creates one.")  # fmt: skip

    print_result({"agents": rows}, draw, as_json=as_json)


def _format_description(row: dict[str, Any]) -> str:
    return row["problem"] or row["description"]


def _format_file(row: dict[str, Any]) -> str:
    return format_path(Path(row["path"]))


def _build_row(name: str, file: Path, active_path: str | None) -> dict[str, Any]:
    """Builds a row of the list; an agent that cannot be loaded is listed with its problem, so that it can be fixed."""
    from quire.context.agent_loader import load_agent

    row: dict[str, Any] = {
        "name": name,
        "path": str(file),
        "active": active_path is not None and Path(active_path).resolve() == file.resolve(),
    }
    try:
        agent = load_agent(file)
    except QuireError as error:
        return row | {"description": "", "model": None, "problem": to_one_line(str(error))}
    return row | {"description": agent.description, "model": agent.model, "problem": None}


@command(app, "quire agent show sailor")
def show(name: AgentArgument, *, as_json: AsJson = False) -> None:
    """Show an agent: instructions, settings, rules, references, servers, memory."""
    from quire.context.agent_loader import load_agent

    file = find_agent_file(name)
    agent = load_agent(file)

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_text(agent.name, style="bold")
        yield make_field_table(
            [
                ("file", format_path(file)),
                ("description", agent.description or None),
                ("model", agent.model or "the one in the settings"),
                ("settings", ", ".join(f"{key} = {value}" for key, value in agent.settings.items()) or None),
                ("memory", _format_memory(agent)),
                ("instructions", to_one_line(agent.instructions) or "none"),
            ]
        )
        rows = _list_items(agent)
        if rows:
            yield make_text("")
            yield make_table("type", "name", "include", "enabled", "description", rows=rows, wrapped=("description",))

    print_result(_build_document(agent, file), draw, as_json=as_json)


def _format_memory(agent: "Agent") -> str:
    if not agent.memory.enabled:
        return "off"
    return f"files {', '.join(agent.memory.files) or 'none'}; namespace {agent.memory.namespace or agent.name}"


def _list_items(agent: "Agent") -> list[tuple[str, str, str, bool, str]]:
    rows = [("rule", each.name, str(each.include), each.enabled, to_one_line(each.description)) for each in agent.rules]
    rows += [
        ("reference", each.name, str(each.include), each.enabled, to_one_line(each.description))
        for each in agent.references
    ]
    rows += [
        ("server", each.name, str(each.include or "always"), each.enabled, each.command or each.url or "")
        for each in agent.servers
    ]
    return rows


def _build_document(agent: "Agent", file: Path) -> dict[str, Any]:
    """Builds the JSON document, without the servers' environment and headers, which hold secrets."""
    names = ("name", "description", "include", "priority", "enabled")
    return {
        "name": agent.name,
        "path": str(file),
        "description": agent.description,
        "model": agent.model,
        "instructions": agent.instructions,
        "settings": agent.settings,
        "rules": [each.model_dump(include=set(names)) for each in agent.rules],
        "references": [each.model_dump(include={*names, "path"}) for each in agent.references],
        "servers": [
            each.model_dump(include={"name", "command", "url", "transport", "include", "enabled"})
            for each in agent.servers
        ],
        "memory": agent.memory.model_dump(mode="json"),
    }


@command(app, "quire agent config sailor strategy hybrid")
def config(
    name: AgentArgument,
    key: Annotated[str, typer.Argument(help="The setting's name.", autocompletion=complete_setting_names)],
    value: Annotated[str | None, typer.Argument(help="The new value; a table as JSON.", show_default=False)] = None,
    *,
    unset: UnsetOption = False,
    as_json: AsJson = False,
) -> None:
    """Change a setting of one agent, in its file; comments and order are preserved."""
    from quire.context.agent_loader import load_agent
    from quire.settings.sources import load_settings, parse_options, resolve_setting_name

    key = resolve_setting_name(key)
    if (value is None) != unset:
        raise typer.BadParameter("pass either a value or --unset.")
    file = find_agent_file(name)
    agent = load_agent(file)
    parsed = None
    if value is not None:
        settings = load_settings([parse_options([f"{key}={value}"])]).settings
        parsed = settings.model_dump(mode="json", exclude_none=True).get(key)
    _write_agent_setting(file, key, parsed, agent)
    change = f"{key} is at its default" if parsed is None else f"{key} = {parsed}"
    document = {"agent": agent.name, "path": str(file), "key": key, "value": parsed}
    print_result(document, lambda _: [make_text(f"{change} for {agent.name}, in {format_path(file)}")], as_json=as_json)


def _write_agent_setting(file: Path, key: str, value: Any, before: "Agent") -> None:
    """Writes the file, unless the edit would change anything but this setting."""
    import tomllib

    from quire.cli import toml_edit

    old_text = file.read_text("utf-8-sig")
    new_text = (
        toml_edit.remove_value(old_text, key, table="settings")
        if value is None
        else toml_edit.set_value(old_text, key, value, table="settings")
    )
    expected = {name: each for name, each in before.settings.items() if name != key}
    if value is not None:
        expected[key] = value
    new, old = tomllib.loads(new_text), tomllib.loads(old_text)
    if new.pop("settings", {}) != expected or new != {name: each for name, each in old.items() if name != "settings"}:
        raise InvalidConfiguration(f"Cannot edit {file} without changing more than {key}; set {key} by hand.")
    toml_edit.write_atomically(file, new_text)


@command(app, "quire agent new pilot")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The agent's name.")],
    *,
    path: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write this file instead of one in your agents folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create an agent: a commented TOML file in its own folder."""
    from quire.cli import toml_edit
    from quire.context.agent_loader import render_agent_template

    if path is None and (not name.strip(". ") or "/" in name or "\\" in name or "\0" in name):
        raise InvalidRequest(f"{name!r} cannot be a folder name; choose another name, or a file with --path.")
    file = path or paths.get_agents_folder() / name / AGENT_FILENAME
    if file.exists():
        raise InvalidRequest(f"{format_path(file)} already exists; choose another name, or edit the file.")
    toml_edit.write_atomically(file, render_agent_template(name))

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield make_text(f"Wrote {format_path(file)}; put rules and references into folders next to it.")
        yield make_text(f"Use it: quire config set agent {format_path(file)}")

    print_result({"name": name, "path": str(file)}, draw, as_json=as_json)
