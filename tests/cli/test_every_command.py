"""Every command has help, an example that runs, a JSON document that matches its schema, and a snapshot of its table.

`UPDATE_SNAPSHOTS=1 pytest tests/cli/test_every_command.py` rewrites the snapshots; look at the diff.
"""

import json
import keyword
import os
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_fixtures import CliHome, invoke_cli
from json_schemas import SCHEMAS
from jsonschema import Draft202012Validator

from quire.cli import command_reference
from quire.cli.app import COMMAND_GROUPS, SINGLE_COMMANDS

SNAPSHOTS = Path(__file__).parent / "snapshots"
COMMANDS_PAGE = Path(__file__).parents[2] / "docs/commands.md"


def load_group_commands() -> dict[str, Any]:
    """Loads the commands of all groups by name from the program."""
    found: dict[str, Any] = {}
    for name in COMMAND_GROUPS:
        group: Any = typer.main.get_command(import_module(f"quire.cli.{name}").app)
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
        "context": "show summary memory stats compact undo edit clear export import replay diff why items priority",
        "memory": "import search relevance list retire",
        "config": "get set list path",
        "agent": "list show config new",
        "conversation": "list show fork rename verify purge purge-value secrets share",
        "key": "create list revoke",
        "db": "upgrade status",
    }
    assert set(COMMANDS) == {f"{group} {part}" for group, parts in expected.items() for part in parts.split()}


def test_none_lacks_help_an_example_a_schema_or_a_snapshot():
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
                "schema": name in SCHEMAS,
                "snapshot": get_snapshot_path(name).is_file(),
            }.items()
            if not there
        ]
        for name, command in COMMANDS.items()
    }
    assert {name: what for name, what in lacking.items() if what} == {}


def test_schemas_and_snapshots_belong_to_existing_commands():
    assert set(SCHEMAS) == set(COMMANDS)
    assert {each.stem for each in SNAPSHOTS.glob("*.txt")} == {get_snapshot_path(name).stem for name in COMMANDS}


@pytest.mark.parametrize("name", SINGLE_COMMANDS)
def test_commands_without_a_group_have_help_and_stand_in_the_docs(name: str):
    # A module cannot have the name of a keyword.
    command = import_module(f"quire.cli.{name}{'_' if keyword.iskeyword(name) else ''}").command
    assert command.__doc__
    assert f"$ {SINGLE_COMMANDS[name]}\n" in COMMANDS_PAGE.read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_prints_what_its_snapshot_shows(name: str, home: CliHome):
    outcome = invoke_cli(*get_example_words(name))
    assert outcome.exit_code == 0, outcome.output
    if os.environ.get("UPDATE_SNAPSHOTS"):
        get_snapshot_path(name).write_text(outcome.stdout)
    assert outcome.stdout == get_snapshot_path(name).read_text()
    assert max(map(len, outcome.stdout.splitlines())) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_its_json_is_one_document_that_its_schema_describes(name: str, home: CliHome):
    Draft202012Validator.check_schema(SCHEMAS[name])
    outcome = invoke_cli(*get_example_words(name), "--json")
    assert outcome.exit_code == 0, outcome.output
    Draft202012Validator(SCHEMAS[name]).validate(json.loads(outcome.stdout))


@pytest.mark.parametrize("name", COMMANDS)
def test_its_help_shows_its_example(name: str, home: CliHome):
    outcome = invoke_cli(*name.split(), "--help")
    assert outcome.exit_code == 0
    output = " ".join(outcome.stdout.split())
    assert f"Example: {' '.join(command_reference.get_example(COMMANDS[name]).split())}"[:60] in output


def test_the_page_of_commands_is_what_the_program_prints():
    assert COMMANDS_PAGE.read_text() == command_reference.render_page(), (
        "run `python -m quire.cli.command_reference > docs/commands.md`"
    )
