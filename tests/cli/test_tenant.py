"""`quire tenant`: a whole tenant as one file, and as a tenant of another database."""

import gzip
import json
from pathlib import Path

from cli_fixtures import CliHome, invoke_cli


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


def test_a_file_is_not_overwritten_and_a_broken_one_not_imported(home: CliHome, tmp_path: Path):
    file = tmp_path / "tenant.jsonl.gz"
    for content, reason in ((b"{}", "no complete archive"), (gzip.compress(b"{}\n"), "no archive")):
        file.write_bytes(content)
        assert "already exists" in invoke_cli("tenant", "export", str(file)).stderr
        assert reason in invoke_cli("tenant", "import", str(file), "--tenant", "new").stderr
    assert invoke_cli("tenant", "export", str(file), "--force").exit_code == 0
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == ["tenant.jsonl.gz"]
