"""`quire agent`: lists and shows agents, and changes an agent's settings."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.common import SetOptions, command, complete_agent_names, complete_setting_names, create_group
from quire.cli.config import SettingText, UnsetOption, format_path, write_setting
from quire.cli.engine_setup import load_cli_settings
from quire.cli.output import Result, make_field_table, make_table, make_text, to_one_line
from quire.cli.paths import find_agent_file, find_agent_files, get_agents_folder
from quire.errors import QuireError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.model.agents import Agent

app = create_group("List, show and change agents: instructions, rules, references and tools.")

AgentArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The agent's name or TOML file.", autocompletion=complete_agent_names)
]


@command(app, "quire agent show sailor")
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The agent's name or TOML file. Default: a list of all.",
            show_default=False,
            autocompletion=complete_agent_names,
        ),
    ] = None,
    *,
    overrides: SetOptions = None,
) -> Result:
    """Show an agent: instructions, settings, rules, references, servers, memory; or list all agents."""
    from quire.context.agent_loader import load_agent
    from quire.schemas.setup import AgentFileSchema

    if name is None:
        return _list_agents(overrides)
    file = find_agent_file(name)
    agent = load_agent(file)
    return Result(AgentFileSchema.from_agent(agent, str(file)), lambda _: _draw_agent(agent, file))


def _list_agents(overrides: Sequence[str] | None) -> Result:
    """The agents in the agents folder, and the one in the settings."""
    from quire.context.agent_loader import load_agent

    setting = load_cli_settings(overrides).settings.agent
    active = Path(setting).resolve() if setting is not None else None
    files = find_agent_files()
    if setting is not None and active not in [file.resolve() for file in files.values()]:
        files[Path(setting).stem] = Path(setting)
    rows: list[dict[str, Any]] = []
    for name, file in files.items():
        agent, problem = None, None
        try:
            agent = load_agent(file)
        except QuireError as error:  # Listed with its problem, so that it can be fixed.
            problem = to_one_line(str(error))
        rows.append(
            {
                "name": name,
                "path": str(file),
                "active": file.resolve() == active,
                "description": agent.description if agent is not None else "",
                "model": agent.model if agent is not None else None,
                "problem": problem,
            }
        )

    def draw(_: "Console") -> "Iterable[RenderableType]":
        yield make_table(
            "agent", "active", "model", "description", "file",
            rows=[
                (row["name"], row["active"], row["model"], row["problem"] or row["description"],
                 format_path(Path(row["path"])))
                for row in rows
            ],
            wrapped=("description", "file"),
        ) if rows else make_text(f"There is no agent yet. Write {get_agents_folder()}/NAME.toml.")  # fmt: skip

    return Result({"agents": rows}, draw)


def _draw_agent(agent: "Agent", file: Path) -> "Iterable[RenderableType]":
    memory = f"files {', '.join(agent.memory.files) or 'none'}; namespace {agent.memory.namespace or agent.name}"
    yield make_text(agent.name, style="bold")
    yield make_field_table(
        [
            ("file", format_path(file)),
            ("description", agent.description or None),
            ("model", agent.model or "the one in the settings"),
            ("settings", ", ".join(f"{key} = {value}" for key, value in agent.settings.items()) or None),
            ("memory", memory if agent.memory.enabled else "off"),
            ("instructions", to_one_line(agent.instructions) or "none"),
        ]
    )
    items = [("rule", each) for each in agent.rules] + [("reference", each) for each in agent.references]
    rows = [(kind, each.name, str(each.include), each.enabled, to_one_line(each.description)) for kind, each in items]
    rows += [
        ("server", each.name, str(each.include or "always"), each.enabled, each.command or each.url or "")
        for each in agent.servers
    ]
    if rows:
        yield make_text("")
        yield make_table("type", "name", "include", "enabled", "description", rows=rows, wrapped=("description",))


@command(app, "quire agent config sailor strategy hybrid")
def config(
    name: AgentArgument,
    key: Annotated[str, typer.Argument(help="The setting's name.", autocompletion=complete_setting_names)],
    value: SettingText = None,
    *,
    unset: UnsetOption = False,
) -> Result:
    """Change a setting in an agent's file. Comments and order are preserved."""
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
    write_setting(file, key, parsed, table="settings")
    change = f"{key} is at its default" if parsed is None else f"{key} = {parsed}"
    document = {"agent": agent.name, "path": str(file), "key": key, "value": parsed}
    return Result(document, f"{change} for {agent.name}, in {format_path(file)}")
