"""`quire worker`, called as cron and as an init system call it."""

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from cli_fixtures import CliHome, invoke_cli

KINDS = [
    "compact",
    "index_messages",
    "index_topics",
    "count_usage",
    "embed",
    "index_vault",
    "summarize_documents",
    "purge",
    "offload",
    "thin_manifests",
]


def test_once_on_sqlite_does_what_is_left_and_ends(home: CliHome):
    outcome = invoke_cli("worker", "--once", "--set", "retention_days=30", "--json")
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(outcome.stdout)
    assert [each["kind"] for each in document["jobs"]] == KINDS
    done = {each["kind"]: each["done"] for each in document["jobs"]}
    # The home's vault is indexed; nothing in it is old enough to be purged.
    assert (done["index_vault"], done["purge"]) == (1, 0)


def test_the_loggers_are_restored_at_the_end(home: CliHome):
    loggers = [logging.getLogger(), logging.getLogger("quire.jobs")]
    before = [(list(each.handlers), each.level, each.propagate) for each in loggers]
    assert "job_done" in invoke_cli("worker", "--once").stderr
    assert [(list(each.handlers), each.level, each.propagate) for each in loggers] == before


def test_once_prints_a_table(home: CliHome):
    outcome = invoke_cli("worker", "--once")
    assert outcome.exit_code == 0, outcome.output
    lines = outcome.stdout.splitlines()
    assert lines[0].split() == ["kind", "done", "failed"]
    assert [line.split()[0] for line in lines[2:]] == KINDS


def test_retention_by_the_command(home: CliHome):
    before = json.loads(invoke_cli("context", "show", "--messages", "--json").stdout)
    assert not any(entry["purged"] for entry in before["entries"])
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE quire_conversations SET updated_at = 1")
    assert invoke_cli("worker", "--once", "--set", "retention_days=1").exit_code == 0
    after = json.loads(invoke_cli("context", "show", "--messages", before["conversation"], "--json").stdout)
    assert all(entry["purged"] for entry in after["entries"] if entry["kind"] == "message")


@pytest.mark.every_postgres
def test_on_postgresql_the_queue_is_needed_and_made_by_an_upgrade(admin_url: str, database_url: str, home: CliHome):
    refused = invoke_cli("worker", "--once", "--set", f"database_url={database_url}")
    assert refused.exit_code == 1
    assert "`quire db upgrade`" in refused.output
    upgraded = invoke_cli("db", "upgrade", admin_url, "--role", "quire_app", "--json")
    assert json.loads(upgraded.stdout)["queue"].startswith("03.")
    outcome = invoke_cli("worker", "--once", "--set", f"database_url={database_url}", "--json")
    assert outcome.exit_code == 0, outcome.output
    assert [each["kind"] for each in json.loads(outcome.stdout)["jobs"]] == KINDS


def test_a_signal_ends_it_in_order(admin_url: str, database_url: str, tmp_path: Path):
    invoke_cli("db", "upgrade", admin_url, "--role", "quire_app")
    environment = os.environ | {"HOME": str(tmp_path), "QUIRE_DATABASE_URL": database_url}
    command = [sys.executable, "-c", "from quire.cli import main; main()", "worker"]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        first = json.loads(worker.stderr.readline())
        assert first["event"] == "worker_started"
        time.sleep(0.3)
        worker.send_signal(signal.SIGTERM)
        rest = worker.stderr.read().splitlines()
    assert worker.returncode == 0
    assert json.loads(rest[-1])["event"] == "worker_stopped"
