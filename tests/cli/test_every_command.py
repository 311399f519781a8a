"""Every command has help, an example that runs, a JSON document that its schema describes, and a picture of its table.

`UPDATE_SNAPSHOTS=1 pytest tests/cli/test_every_command.py` draws the pictures anew; look at what changed.
"""

import json
import os
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator
from schemas import SCHEMAS
from world import Home, run

from quire.cli import reference
from quire.cli.app import GROUPS, SINGLE

SNAPSHOTS = Path(__file__).parent / "snapshots"
PAGE = Path(__file__).parents[2] / "docs/commands.md"


def grouped() -> dict[str, Any]:
    """The commands of all groups by their names, read from the program."""
    found: dict[str, Any] = {}
    for name in GROUPS:
        group: Any = typer.main.get_command(import_module(f"quire.cli.{name}").app)
        found |= {f"{name} {part}": command for part, command in group.commands.items()}
    return found


COMMANDS = grouped()


def words(name: str) -> list[str]:
    """The command's example, as a shell would pass it on."""
    program, *rest = shlex.split(reference.example(COMMANDS[name]))
    assert program == "quire"
    return rest


def snapshot(name: str) -> Path:
    return SNAPSHOTS / f"{name.replace(' ', '_')}.txt"


def test_the_commands_are_those_that_were_asked_for():
    asked = {
        "context": "show summary memory stats compact undo edit clear export import replay diff why items",
        "memory": "import search relevance list retire",
        "config": "get set list path",
        "agent": "list show config new",
        "conversation": "list show search fork rename verify purge",
        "key": "create list revoke",
        "db": "upgrade status",
    }
    assert set(COMMANDS) == {f"{group} {part}" for group, parts in asked.items() for part in parts.split()}


def test_none_lacks_help_an_example_a_schema_or_a_snapshot():
    page = PAGE.read_text()
    lacking = {
        name: [
            what
            for what, there in {
                "help": bool(command.help),
                "help of every parameter": all(each.help for each in command.params if each.name != "help"),
                "example of itself": words(name)[:2] == name.split(),
                "example in the docs": f"$ {reference.example(command)}\n" in page,
                "--json": any("--json" in each.opts for each in command.params),
                "schema": name in SCHEMAS,
                "snapshot": snapshot(name).is_file(),
            }.items()
            if not there
        ]
        for name, command in COMMANDS.items()
    }
    assert {name: what for name, what in lacking.items() if what} == {}


def test_what_is_kept_for_commands_is_for_commands_that_there_are():
    assert set(SCHEMAS) == set(COMMANDS)
    assert {each.stem for each in SNAPSHOTS.glob("*.txt")} == {snapshot(name).stem for name in COMMANDS}


@pytest.mark.parametrize("name", SINGLE)
def test_commands_without_a_group_have_help_and_stand_in_the_docs(name: str):
    command = import_module(f"quire.cli.{name}").command
    assert command.__doc__
    assert f"$ {SINGLE[name]}\n" in PAGE.read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_prints_what_its_snapshot_shows(name: str, home: Home):
    outcome = run(*words(name))
    assert outcome.exit_code == 0, outcome.output
    if os.environ.get("UPDATE_SNAPSHOTS"):
        snapshot(name).write_text(outcome.stdout)
    assert outcome.stdout == snapshot(name).read_text()
    assert max(map(len, outcome.stdout.splitlines())) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_its_json_is_one_document_that_its_schema_describes(name: str, home: Home):
    Draft202012Validator.check_schema(SCHEMAS[name])
    outcome = run(*words(name), "--json")
    assert outcome.exit_code == 0, outcome.output
    Draft202012Validator(SCHEMAS[name]).validate(json.loads(outcome.stdout))


@pytest.mark.parametrize("name", COMMANDS)
def test_its_help_shows_its_example(name: str, home: Home):
    outcome = run(*name.split(), "--help")
    assert outcome.exit_code == 0
    shown = " ".join(outcome.stdout.split())
    assert f"Example: {' '.join(reference.example(COMMANDS[name]).split())}"[:60] in shown


def test_the_page_of_commands_is_what_the_program_prints():
    assert PAGE.read_text() == reference.page(), "run `python -m quire.cli.reference > docs/commands.md`"
