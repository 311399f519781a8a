"""What the settings file of a folder decides before and after the user trusts it."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cli_fixtures import CliHome, invoke_cli, run_json

from quire.cli.paths import find_project_settings_path
from quire.cli.workspace_trust import HARMLESS_SETTINGS
from quire.settings import Settings

ELSEWHERE = "http://127.0.0.1:9/v1"
AGENT = '[servers.x]\ncommand = "touch"\nargs = ["stolen"]\n'


def write(folder: Path, text: str) -> Path:
    (folder / "quire.toml").write_text(text)
    return folder / "quire.toml"


def read_setting(name: str) -> object:
    return run_json("config", "list", name)["value"]


def run_in_terminal(home: CliHome, answer: str, *words: str) -> str:
    """Runs a command whose standard streams are a terminal, and returns what it prints."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-P", "-m", "quire", *words]
    environment = {**os.environ, "HOME": str(home.path), "TERM": "dumb"}
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=home.project, env=environment
    ) as process:
        os.close(terminal)
        os.write(controller, f"{answer}\n".encode())
        printed = b""
        try:
            while data := os.read(controller, 65_536):
                printed += data
        except OSError:  # Linux reports the end of the other side as an error.
            pass
        process.wait(60)
    os.close(controller)
    return printed.decode()


def test_harmless_settings_need_no_trust(home: CliHome):
    write(home.project, 'strategy = "discard"\nrecall_tokens = 0\n')
    assert (read_setting("strategy"), read_setting("recall_tokens")) == ("discard", 0)
    assert invoke_cli("conversation", "list").exit_code == 0


def test_every_setting_that_names_a_place_a_program_or_money_needs_trust():
    named = {"database_url", "base_url", "agent", "vault", "upstreams", "embeddings", "model", "models"}
    costs = {"max_spend", "tenant_quotas", "retention_days", "trusted_tenants", "mcp_hosts"}
    costs |= {"requests_per_minute"}
    assert not (named | costs) & HARMLESS_SETTINGS
    assert set(Settings.model_fields) > HARMLESS_SETTINGS


def test_without_a_terminal_an_untrusted_file_is_refused(home: CliHome):
    path = write(home.project, f'base_url = "{ELSEWHERE}"\nstrategy = "discard"\n')
    outcome = invoke_cli("conversation", "list")
    assert outcome.exit_code == 1
    assert f"{path} is not trusted, and sets base_url" in outcome.stderr
    assert "quire trust" in outcome.stderr


def test_commands_that_explain_settings_show_what_applies(home: CliHome):
    write(home.project, f'base_url = "{ELSEWHERE}"\nstrategy = "discard"\n')
    outcome = invoke_cli("config", "list", "base_url")
    assert outcome.exit_code == 0
    assert outcome.stdout.strip() == ""
    assert "1 setting ignored (base_url)" in " ".join(outcome.stderr.split())
    assert read_setting("strategy") == "discard"


def test_trust_is_given_listed_lost_by_a_change_and_revoked(home: CliHome):
    path = write(home.project, f'base_url = "{ELSEWHERE}"\n')
    assert "base_url" in invoke_cli("trust").stdout
    assert read_setting("base_url") == ELSEWHERE
    assert run_json("trust", "list") == {"files": [{"path": str(path), "decision": "trusted"}]}
    write(home.project, 'base_url = "http://127.0.0.1:10/v1"\n')
    assert read_setting("base_url") is None
    assert run_json("trust", "list")["files"][0]["decision"] == "changed"
    write(home.project, f'base_url = "{ELSEWHERE}"\n')
    assert run_json("trust", "revoke")["files"][0]["decision"] == "revoked"
    assert read_setting("base_url") is None
    assert invoke_cli("trust", "revoke").exit_code == 3


@pytest.mark.parametrize("changed", ["agent.toml", "servers.json"])
def test_a_change_of_the_agents_programs_loses_trust(home: CliHome, changed: str):
    write(home.project, 'agent = "agent.toml"\n')
    (home.project / "agent.toml").write_text(f'servers_file = "servers.json"\n{AGENT}')
    (home.project / "servers.json").write_text('{"mcpServers": {}}')
    assert "the agent runs: touch stolen" in invoke_cli("trust").stdout
    assert read_setting("agent") == str(home.project / "agent.toml")
    with (home.project / changed).open("a") as file:
        file.write(" ")
    assert read_setting("agent") != str(home.project / "agent.toml")


def test_a_users_own_agent_may_change(home: CliHome):
    write(home.project, f'agent = "{home.agent}"\n')
    invoke_cli("trust")
    home.agent.write_text(home.agent.read_text() + "\n# A note.\n")
    assert read_setting("agent") == str(home.agent)


@pytest.mark.parametrize(("answer", "value"), [("y", ELSEWHERE), ("n", None)])
def test_a_terminal_is_asked_once(home: CliHome, answer: str, value: str | None):
    write(home.project, f'base_url = "{ELSEWHERE}"\nagent = "agent.toml"\n')
    (home.project / "agent.toml").write_text(AGENT)
    printed = run_in_terminal(home, answer, "conversation", "list")
    assert "the agent runs: touch stolen" in printed
    assert "Do you trust it?" in printed
    assert "Do you trust it?" not in run_in_terminal(home, "", "conversation", "list")
    assert read_setting("base_url") == value
    assert invoke_cli("conversation", "list").exit_code == 0


def test_what_the_user_writes_is_trusted(home: CliHome):
    run_json("config", "set", "base_url", ELSEWHERE, "--project")
    assert read_setting("base_url") == ELSEWHERE
    assert invoke_cli("conversation", "list").exit_code == 0


def test_one_setting_of_the_user_does_not_trust_the_rest(home: CliHome):
    write(home.project, f'base_url = "{ELSEWHERE}"\n')
    run_json("config", "set", "model", "gpt-4o", "--project")
    assert read_setting("base_url") is None


def test_init_here_is_trusted(home: CliHome):
    assert invoke_cli("init", "--here", "--model", "gpt-4.1").exit_code == 0
    assert read_setting("model") == "gpt-4.1"


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="only root gives a file to another user")
def test_another_users_file_is_never_asked_about(home: CliHome):
    path = write(home.project, 'strategy = "discard"\n')
    os.chown(path, 12_345, 12_345)
    outcome = invoke_cli("conversation", "list")
    assert outcome.exit_code == 1
    assert "belongs to another user" in outcome.stderr
    assert "Do you trust it?" not in run_in_terminal(home, "y", "conversation", "list")
    assert read_setting("strategy") == "summarize"
    invoke_cli("trust")
    assert read_setting("strategy") == "discard"


def test_the_search_ends_at_the_repository_or_at_home(home: CliHome, tmp_path_factory: pytest.TempPathFactory):
    write(home.path, "")
    inner = home.project / "src" / "deep"
    inner.mkdir(parents=True)
    assert find_project_settings_path(inner) == home.path / "quire.toml"
    (home.project / ".git").mkdir()
    assert find_project_settings_path(inner) is None
    write(home.project, "")
    assert find_project_settings_path(inner) == home.project / "quire.toml"
    shared = tmp_path_factory.mktemp("shared")
    write(shared, "")
    (shared / "own").mkdir()
    assert find_project_settings_path(shared / "own") is None
    assert find_project_settings_path(shared) == shared / "quire.toml"


def test_paths_start_at_the_folder_of_the_file(home: CliHome, monkeypatch: pytest.MonkeyPatch):
    write(home.project, 'vault = "notes"\n')
    invoke_cli("trust")
    (home.project / "src").mkdir()
    monkeypatch.chdir(home.project / "src")
    assert read_setting("vault") == str(home.project / "notes")


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "#" * 1_000_001], ids=["nested", "large"])
def test_a_file_that_cannot_be_read_names_itself(home: CliHome, text: str):
    path = write(home.project, text)
    outcome = invoke_cli("conversation", "list")
    assert outcome.exit_code == 1
    assert str(path) in outcome.stderr


def test_a_damaged_list_of_decisions_trusts_nothing(home: CliHome):
    write(home.project, f'base_url = "{ELSEWHERE}"\n')
    invoke_cli("trust")
    decisions = home.path / ".local/share/quire/trust.json"
    assert json.loads(decisions.read_text())
    decisions.write_text("{")
    assert read_setting("base_url") is None
