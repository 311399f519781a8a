"""`quire tenant`: a whole tenant as one file, and as a tenant of another database."""

import base64
import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from cli_fixtures import CliHome, invoke_cli, run_json

from infra.database_dump import contains_text, dump_database


def test_a_laptop_moves_to_another_database_and_search_finds_it_there(home: CliHome, tmp_path: Path):
    file, other = tmp_path / "laptop.jsonl.gz", f"database_url=sqlite:///{tmp_path}/team.db"
    exported = invoke_cli("tenant", "export", str(file), "--json")
    assert exported.exit_code == 0, exported.output
    assert json.loads(exported.stdout)["conversations"] > 0
    imported = invoke_cli("tenant", "import", str(file), "--set", other)
    assert "and verified them" in imported.stdout
    listed = [invoke_cli("conversation", "list", "--json", *place).stdout for place in ((), ("--set", other))]
    assert listed[0] == listed[1]
    query = ("search", "spring tide", "--limit", "2", "--json")
    found = [json.loads(invoke_cli(*query, *place).stdout)["messages"] for place in ((), ("--set", other))]
    assert found[0] == found[1] != []
    again = invoke_cli("tenant", "import", str(file), "--set", other)
    assert again.exit_code != 0
    assert "another tenant" in again.stderr
    named = invoke_cli("tenant", "import", str(file), "--tenant", "observatory", "--set", other)
    assert named.exit_code == 0, named.output
    tenants = json.loads(invoke_cli("tenant", "list", "--json", "--set", other).stdout)["tenants"]
    assert [each["name"] for each in tenants] == ["default", "observatory"]
    verified = invoke_cli("conversation", "verify", "--all", "--tenant", "observatory", "--set", other)
    assert verified.exit_code == 0


def test_commands_read_and_write_the_tenant_of_the_settings(
    home: CliHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "laptop.jsonl.gz"
    invoke_cli("tenant", "export", str(file))
    reads = (("conversation", "list"), ("search", "spring tide"), ("stats",), ("context", "show"), ("key", "list"))
    assert run_json(*reads[0])["conversations"]
    monkeypatch.setenv("QUIRE_TENANT", "observatory")
    assert run_json(*reads[0])["conversations"] == []
    assert run_json(*reads[1])["messages"] == []
    assert run_json("key", "list")["tenant"] == "observatory"
    assert "as observatory" in invoke_cli("tenant", "import", str(file)).stdout
    for words in reads:
        own = invoke_cli(*words, "--json")
        assert own.exit_code == 0, own.output
    assert run_json(*reads[1])["messages"]
    assert invoke_cli("conversation", "tag", "tidal").exit_code == 0
    monkeypatch.delenv("QUIRE_TENANT")
    assert "tidal" not in invoke_cli("conversation", "list", "--json").stdout
    assert "tidal" in invoke_cli("conversation", "list", "--json", "--set", "tenant=observatory").stdout


def test_a_tenant_is_verified_and_a_changed_row_named(home: CliHome):
    verified = run_json("tenant", "verify")
    assert verified["conversations"] > 0
    assert verified["faults"] == []
    with closing(sqlite3.connect(home.database)) as connection, connection:
        connection.execute("UPDATE quire_entries SET body = replace(body, 'tide', 'wave')")
    changed = invoke_cli("tenant", "verify", "--json")
    assert changed.exit_code == 1
    assert {each["branch"] for each in json.loads(changed.stdout)["faults"]} != set()
    assert "digest" in invoke_cli("tenant", "verify").stdout


def test_a_file_is_not_overwritten_and_a_broken_one_not_imported(home: CliHome, tmp_path: Path):
    file = tmp_path / "tenant.jsonl.gz"
    for content, reason in ((b"{}", "no complete archive"), (gzip.compress(b"{}\n"), "no archive")):
        file.write_bytes(content)
        assert "already exists" in invoke_cli("tenant", "export", str(file)).stderr
        assert reason in invoke_cli("tenant", "import", str(file), "--tenant", "new").stderr
    assert invoke_cli("tenant", "export", str(file), "--force").exit_code == 0
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == ["tenant.jsonl.gz"]


def test_a_tenant_is_encrypted_its_key_rotated_and_destroyed(
    home: CliHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file, key_file, database = tmp_path / "tenant.jsonl.gz", tmp_path / "key", tmp_path / "team.db"
    assert invoke_cli("tenant", "export", str(file)).exit_code == 0
    monkeypatch.setenv("QUIRE_DATABASE_URL", f"sqlite:///{database}")
    monkeypatch.setenv("QUIRE_ENCRYPTION", json.dumps({"key_file": str(key_file)}))
    old, new = (base64.b64encode(bytes([byte] * 32)).decode() for byte in (1, 2))
    key_file.write_text(old)
    assert "and verified them" in invoke_cli("tenant", "import", str(file)).stdout
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
