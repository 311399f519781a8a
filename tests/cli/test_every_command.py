"""Every command has help, an example that runs, a JSON document with known fields, and a snapshot of its table.

`UPDATE_SNAPSHOTS=1 pytest tests/cli/test_every_command.py` rewrites the snapshots; look at the diff.
"""

import ast
import asyncio
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_fixtures import CliHome, invoke_cli

from quire.cli import command_reference, output
from quire.cli.app import SINGLE_COMMANDS
from quire.cli.command_groups import COMMAND_GROUPS
from quire.model import Message
from quire.plugins import find_plugins
from quire.store import SqlStore
from quire.team.store import TeamStore

SNAPSHOTS = Path(__file__).parent / "snapshots"
JSON_FIELDS = SNAPSHOTS / "json_fields.json"
CLI_FOLDER = Path(output.__file__).parent
COMMANDS_PAGE = Path(__file__).parents[2] / "docs/commands.md"


def load_group_commands() -> dict[str, Any]:
    """Loads the commands of all groups by name from the program."""
    found: dict[str, Any] = {}
    for name in COMMAND_GROUPS:
        group: Any = typer.main.get_command(find_plugins("quire.commands")[name].load())
        found |= {f"{name} {part}": command for part, command in group.commands.items()}
    return found


COMMANDS = load_group_commands()


def get_example_words(name: str) -> list[str]:
    """Splits the command's example as a shell would."""
    program, *rest = shlex.split(command_reference.get_example(COMMANDS[name]))
    assert program == "quire"
    return rest


def get_snapshot_path(name: str) -> Path:
    return SNAPSHOTS / f"{name.replace(' ', '_')}.txt"


def test_the_commands_are_those_expected():
    expected = {
        "context": "show compact undo edit diff why items pin drop restore",
        "memory": "import search relevance retire",
        "config": "set list",
        "agent": "show config",
        "conversation": "list fork edit verify purge secrets",
        "key": "create list revoke",
        "tenant": "list purge rewrap audit",
        "db": "upgrade",
    }
    assert set(COMMANDS) == {f"{group} {part}" for group, parts in expected.items() for part in parts.split()}


def test_none_lacks_help_an_example_or_a_snapshot():
    page = COMMANDS_PAGE.read_text()
    lacking = {
        name: [
            what
            for what, there in {
                "help": bool(command.help),
                "help of every parameter": all(each.help for each in command.params if each.name != "help"),
                "example of itself": get_example_words(name)[:2] == name.split(),
                "example in the docs": f"$ {command_reference.get_example(command)}\n" in page,
                "--json": any("--json" in each.opts for each in command.params),
                "snapshot": get_snapshot_path(name).is_file(),
            }.items()
            if not there
        ]
        for name, command in COMMANDS.items()
    }
    assert {name: what for name, what in lacking.items() if what} == {}


def test_snapshots_belong_to_existing_commands():
    assert {each.stem for each in SNAPSHOTS.glob("*.txt")} == {get_snapshot_path(name).stem for name in COMMANDS}


@pytest.mark.parametrize("name", SINGLE_COMMANDS)
def test_commands_without_a_group_have_help_and_stand_in_the_docs(name: str):
    assert find_plugins("quire.commands")[name].load().__doc__
    assert f"$ {SINGLE_COMMANDS[name]}\n" in COMMANDS_PAGE.read_text()


def make_example_possible(name: str, home: CliHome) -> None:
    if name == "tenant purge":
        asyncio.run(create_tenant(home))
    if name == "tenant audit":
        asyncio.run(append_audit(home))


async def create_tenant(home: CliHome) -> None:
    async with SqlStore.open(home.url, tenant="observatory") as store:
        await store.create_conversation("stars")
        await store.append("stars", Message.user("Which are out?"))


async def append_audit(home: CliHome) -> None:
    async with SqlStore.open(home.url, tenant="harbour") as store:
        await TeamStore(store).audit.append(
            "sign_in", actor="ann", target={"route": "GET /auth/callback"}, address="10.0.0.1"
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_prints_what_its_snapshot_shows(name: str, home: CliHome):
    make_example_possible(name, home)
    outcome = invoke_cli(*get_example_words(name))
    assert outcome.exit_code == 0, outcome.output
    if os.environ.get("UPDATE_SNAPSHOTS"):
        get_snapshot_path(name).write_text(outcome.stdout)
    assert outcome.stdout == get_snapshot_path(name).read_text()
    # JSON Lines are for programs.
    assert name == "tenant audit" or max(map(len, outcome.stdout.splitlines())) <= 100


def list_fields(value: Any, path: str = "") -> set[str]:
    """Paths of all fields of a JSON document; `[]` stands for the items of a list."""
    if isinstance(value, list):
        return set[str]().union(*(list_fields(each, f"{path}[]") for each in value))
    fields = set[str]()
    for name, each in value.items() if isinstance(value, dict) else ():
        fields |= {f"{path}.{name}".lstrip(".")} | list_fields(each, f"{path}.{name}")
    return fields


@pytest.mark.parametrize("name", COMMANDS)
def test_its_json_is_one_document_with_the_fields_that_its_snapshot_lists(name: str, home: CliHome):
    make_example_possible(name, home)
    outcome = invoke_cli(*get_example_words(name), "--json")
    assert outcome.exit_code == 0, outcome.output
    fields = " ".join(sorted(list_fields(json.loads(outcome.stdout))))
    known = json.loads(JSON_FIELDS.read_text())
    if os.environ.get("UPDATE_SNAPSHOTS"):
        known[name] = fields
        JSON_FIELDS.write_text(f"{json.dumps(known, indent=1, sort_keys=True)}\n")
    assert fields == known[name]


def iterate_calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    """Calls of a function or method of this name in the command line's modules."""
    for file in sorted(CLI_FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name:
                yield file.name, node


def test_one_function_writes_the_json_of_all_commands():
    writes = [*iterate_calls("write"), *iterate_calls("echo"), *iterate_calls("print"), *iterate_calls("Verbatim")]
    assert {file for file, call in writes if "dumps" in ast.unparse(call)} <= {"hook_client.py", "hook_service.py"}


@pytest.mark.parametrize("name", COMMANDS)
def test_its_help_shows_its_example(name: str, home: CliHome):
    outcome = invoke_cli(*name.split(), "--help")
    assert outcome.exit_code == 0
    output = " ".join(outcome.stdout.split())
    assert not re.search(r"<(bool|str|int|float|path|file|list)\b", output)
    assert f"Example: {' '.join(command_reference.get_example(COMMANDS[name]).split())}"[:60] in output


def test_the_page_of_commands_is_what_the_program_prints():
    assert COMMANDS_PAGE.read_text() == command_reference.render_page(), (
        "run `python -m quire.cli.command_reference > docs/commands.md`"
    )
