"""`quire agent`: the agents that there are, what each brings, a new one, and a setting for one of them."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli import places
from quire.cli.agents import AGENT_FILE, agent_file, agent_files
from quire.cli.completing import agent_names, setting_names
from quire.cli.config import Unset, shown_path
from quire.cli.opening import as_options, settings_from
from quire.cli.output import fields, give, one_line, table, text
from quire.cli.running import AsJson, Given, command, group
from quire.errors import InvalidConfiguration, InvalidRequest, QuireError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quire.model.agents import Agent

app = group("See and change the agents: who answers, with which rules, references and tools.")

AgentName = Annotated[
    str, typer.Argument(metavar="NAME", help="An agent by name, or its TOML file.", autocompletion=agent_names)
]


@command(app, "quire agent list", name="list")
def list_(*, as_json: AsJson = False, given: Given = None) -> None:
    """List the agents in your agents folder, and the one that the settings name."""
    used = settings_from(as_options(given or ())).settings.agent
    files = agent_files(os.environ)
    if used is not None and Path(used).resolve() not in [file.resolve() for file in files.values()]:
        files[Path(used).stem] = Path(used)
    listed = [_listed(name, file, used) for name, file in files.items()]

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield table(
            "agent", "in use", "model", "description", "file",
            rows=[(row["name"], row["used"], row["model"], _said(row), _file(row)) for row in listed],
            wide=("description", "file"),
        ) if listed else text("There is no agent yet; `quire agent new NAME` begins one.")  # fmt: skip

    give({"agents": listed}, draw, as_json=as_json)


def _said(row: dict[str, Any]) -> str:
    return row["problem"] or row["description"]


def _file(row: dict[str, Any]) -> str:
    return shown_path(Path(row["path"]))


def _listed(name: str, file: Path, used: str | None) -> dict[str, Any]:
    """One that cannot be read is listed with its problem, so that it can be mended."""
    from quire.context.agents import load_agent

    row: dict[str, Any] = {
        "name": name,
        "path": str(file),
        "used": used is not None and Path(used).resolve() == file.resolve(),
    }
    try:
        agent = load_agent(file)
    except QuireError as error:
        return row | {"description": "", "model": None, "problem": one_line(str(error))}
    return row | {"description": agent.description, "model": agent.model, "problem": None}


@command(app, "quire agent show sailor")
def show(name: AgentName, *, as_json: AsJson = False) -> None:
    """Show what an agent brings: instructions, settings, rules, references, servers, memory."""
    from quire.context.agents import load_agent

    file = agent_file(name, os.environ)
    agent = load_agent(file)

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield text(agent.name, style="bold")
        yield fields(
            [
                ("file", shown_path(file)),
                ("description", agent.description or None),
                ("model", agent.model or "the one in the settings"),
                ("settings", ", ".join(f"{key} = {value}" for key, value in agent.settings.items()) or None),
                ("memory", _memory(agent)),
                ("instructions", one_line(agent.instructions) or "none"),
            ]
        )
        rows = _items(agent)
        if rows:
            yield text("")
            yield table("type", "name", "include", "enabled", "description", rows=rows, wide=("description",))

    give(_document(agent, file), draw, as_json=as_json)


def _memory(agent: "Agent") -> str:
    if not agent.memory.enabled:
        return "off"
    return f"files {', '.join(agent.memory.files) or 'none'}; remembers under {agent.memory.shelf or agent.name}"


def _items(agent: "Agent") -> list[tuple[str, str, str, bool, str]]:
    rows = [("rule", each.name, str(each.include), each.enabled, one_line(each.description)) for each in agent.rules]
    rows += [
        ("reference", each.name, str(each.include), each.enabled, one_line(each.description))
        for each in agent.references
    ]
    rows += [
        ("server", each.name, str(each.include or "always"), each.enabled, each.command or each.url or "")
        for each in agent.servers
    ]
    return rows


def _document(agent: "Agent", file: Path) -> dict[str, Any]:
    """Servers without their environment and headers: keys stand there."""
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
    name: AgentName,
    key: Annotated[str, typer.Argument(help="A setting's name.", autocompletion=setting_names)],
    value: Annotated[
        str | None, typer.Argument(help="Its value; a table is written as JSON.", show_default=False)
    ] = None,
    *,
    unset: Unset = False,
    as_json: AsJson = False,
) -> None:
    """Set a setting that holds for one agent alone, in its file; comments and order stay."""
    from quire.context.agents import load_agent
    from quire.settings.sources import loaded, option_layer

    if (value is None) != unset:
        raise typer.BadParameter("give a value, or --unset.")
    file = agent_file(name, os.environ)
    before = load_agent(file)
    typed = None
    if value is not None:
        typed = loaded([option_layer([f"{key}={value}"])]).settings.model_dump(mode="json", exclude_none=True).get(key)
    _rewrite(file, key, typed, before)
    said = f"{key} is at its default" if typed is None else f"{key} = {typed}"
    document = {"agent": before.name, "path": str(file), "key": key, "value": typed}
    give(document, lambda _: [text(f"{said} for {before.name}, in {shown_path(file)}")], as_json=as_json)


def _rewrite(file: Path, key: str, value: Any, before: "Agent") -> None:
    """Writes the file if it then says what was meant and nothing else; else leaves it."""
    import tomllib

    from quire.cli import tomls

    present = file.read_text("utf-8-sig")
    new = (
        tomls.without(present, key, table="settings")
        if value is None
        else tomls.changed(present, key, value, table="settings")
    )
    expected = {name: each for name, each in before.settings.items() if name != key}
    if value is not None:
        expected[key] = value
    read, known = tomllib.loads(new), tomllib.loads(present)
    if read.pop("settings", {}) != expected or read != {
        name: each for name, each in known.items() if name != "settings"
    }:
        raise InvalidConfiguration(f"{file} is written in a way that cannot be changed safely; set {key} by hand.")
    tomls.write(file, new)


@command(app, "quire agent new pilot")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The agent's name.")],
    *,
    path: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it here, not into your agents folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Begin an agent: a commented TOML file in a folder of its own."""
    from quire.cli import tomls
    from quire.context.agents import starter

    if path is None and (not name.strip(". ") or "/" in name or "\\" in name or "\0" in name):
        raise InvalidRequest(f"{name!r} cannot be the name of a folder; choose another, or a file with --path.")
    file = path or places.agents_folder(os.environ) / name / AGENT_FILE
    if file.exists():
        raise InvalidRequest(f"{shown_path(file)} is there already; choose another name, or change the file.")
    tomls.write(file, starter(name))

    def draw(_: Any) -> "Iterable[RenderableType]":
        yield text(f"Wrote {shown_path(file)}; rules and references go into folders beside it.")
        yield text(f"Use it: quire config set agent {shown_path(file)}")

    give({"name": name, "path": str(file)}, draw, as_json=as_json)
