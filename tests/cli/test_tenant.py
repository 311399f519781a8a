"""`quire tenant`: verify, encrypt and purge a whole tenant."""

import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from cli_fixtures import CliHome, invoke_cli, run_json

from infra.database_dump import contains_text, dump_database


def test_commands_read_and_write_the_tenant_of_the_settings(
    home: CliHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "harbour.jsonl"
    [conversation, *_] = run_json("conversation", "list")["conversations"]
    assert invoke_cli("export", conversation["id"], "--output", str(file)).exit_code == 0
    reads = (
        ("conversation", "list"),
        ("search", "spring tide"),
        (
            "scan",
            "--usage",
        ),
        ("context", "show"),
        ("key", "list"),
    )
    assert run_json(*reads[0])["conversations"]
    monkeypatch.setenv("QUIRE_TENANT", "observatory")
    assert run_json(*reads[0])["conversations"] == []
    assert run_json(*reads[1])["messages"] == []
    assert run_json("key", "list")["tenant"] == "observatory"
    assert invoke_cli("import", str(file)).exit_code == 0
    for words in reads:
        own = invoke_cli(*words, "--json")
        assert own.exit_code == 0, own.output
    assert run_json(*reads[1])["messages"]
    assert invoke_cli("conversation", "edit", "--tags", "tidal").exit_code == 0
    monkeypatch.delenv("QUIRE_TENANT")
    assert "tidal" not in invoke_cli("conversation", "list", "--json").stdout
    assert "tidal" in invoke_cli("conversation", "list", "--json", "--set", "tenant=observatory").stdout
    found = invoke_cli("search", "spring tide", "--json", "--set", "tenant=observatory")
    assert json.loads(found.stdout)["messages"]


def test_a_tenant_is_verified_and_a_changed_row_named(home: CliHome):
    verified = run_json("conversation", "verify", "--all")
    assert verified["conversations"]
    assert verified["faults"] == []
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE quire_entries SET body = replace(body, 'tide', 'wave')")
    changed = invoke_cli("conversation", "verify", "--all", "--json")
    assert changed.exit_code == 1
    assert {each["branch"] for each in json.loads(changed.stdout)["faults"]} != set()
    assert "digest" in invoke_cli("conversation", "verify", "--all").stdout


def test_a_tenant_is_encrypted_its_key_rotated_and_destroyed(
    home: CliHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file, key_file, database = tmp_path / "harbour.jsonl", tmp_path / "key", tmp_path / "team.db"
    [hit, *_] = run_json("search", "spring tide")["messages"]
    assert invoke_cli("export", hit["conversation"]["id"], "--output", str(file)).exit_code == 0
    monkeypatch.setenv("QUIRE_DATABASE_URL", f"sqlite:///{database}")
    monkeypatch.setenv("QUIRE_ENCRYPTION", json.dumps({"key_file": str(key_file)}))
    old, new = (base64.b64encode(bytes([byte] * 32)).decode() for byte in (1, 2))
    key_file.write_text(old)
    assert invoke_cli("import", str(file)).exit_code == 0
    assert not contains_text(dump_database(f"sqlite:///{database}"), "spring tide")
    assert json.loads(invoke_cli("search", "spring tide", "--json").stdout)["messages"]
    key_file.write_text(f"{new}\n{old}\n")
    assert run_json("tenant", "rewrap") == {"tenants": ["default"]}
    key_file.write_text(new)
    assert invoke_cli("conversation", "verify", "--all").exit_code == 0
    key_file.write_text(old)
    assert "No key of" in invoke_cli("conversation", "list").stderr
    # Destroying a tenant needs no key.
    monkeypatch.delenv("QUIRE_ENCRYPTION")
    assert "is encrypted" in invoke_cli("conversation", "list").stderr
    purged = invoke_cli("tenant", "purge", "default", "--yes")
    assert purged.exit_code == 0, purged.output
    assert invoke_cli("conversation", "list").exit_code == 0
