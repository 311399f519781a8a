"""`quire db`, called as a person calls it."""

import subprocess
import sys
from pathlib import Path

import pytest
from cli_fixtures import invoke_cli

from quire.db.migrate import SCHEMA_VERSION


def invoke_db(*words: str) -> tuple[int, str]:
    outcome = invoke_cli(*words)
    return outcome.exit_code, outcome.output


def test_a_database_is_upgraded_once(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/quire.db"
    assert invoke_db("db", "upgrade", "--check", url)[0] == 1
    assert invoke_db("db", "upgrade", url) == (0, f"Upgraded the schema from nothing to {SCHEMA_VERSION}.\n")
    assert invoke_db("db", "upgrade", url) == (0, f"The schema is at {SCHEMA_VERSION} already.\n")
    assert invoke_db("db", "upgrade", "--check", url)[0] == 0


@pytest.mark.every_postgres
def test_a_role_that_does_not_exist_is_named_with_the_command_that_creates_it(admin_url: str):
    code, output = invoke_db("db", "upgrade", admin_url, "--role", "nobody")
    assert code == 1
    assert "PostgreSQL has no role 'nobody'; create it with `createuser nobody`." in " ".join(output.split())


def test_sqlite_has_no_roles(tmp_path: Path):
    code, output = invoke_db("db", "upgrade", f"sqlite:///{tmp_path}/quire.db", "--role", "quire_app")
    assert code == 1
    assert "SQLite has no roles" in output


@pytest.mark.every_postgres
def test_a_role_is_let_in(admin_url: str):
    code, output = invoke_db("db", "upgrade", admin_url, "--role", "quire_app")
    assert (code, output.splitlines()[-1]) == (0, "Granted the role quire_app access to the log.")


def test_the_version_is_printed():
    assert invoke_db("--version")[1].startswith("quire 0.")


def test_an_error_is_one_line_that_says_what_to_do():
    command = [
        sys.executable,
        "-c",
        "from quire.cli import main; main()",
        "db",
        "upgrade",
        "--check",
        "postgresql://127.0.0.1:1/x",
    ]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("quire: The database cannot be reached")
    assert "Traceback" not in outcome.stderr


def test_without_typer_the_extra_is_named():
    code = "import sys; sys.modules['typer'] = None; from quire.cli import main; main()"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert outcome.returncode == 1
    assert "quire[cli]" in outcome.stderr
