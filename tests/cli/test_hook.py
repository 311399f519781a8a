"""`quire hook`: installation restores files byte for byte, and a hook never fails or delays its agent."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import invoke_cli

from quire.cli import hook_client
from quire.cli.hook import HOOK_EVENTS

FOREIGN = {"hooks": [{"type": "command", "command": "notify-send done"}]}
SETTINGS = {
    "missing": None,
    "empty object": "{}",
    "compact": '{"model":"opus","hooks":{"Stop":[{"hooks":[{"type":"command","command":"say é"}]}]}}',
    "tabs": '{\n\t"permissions": {"allow": ["Bash(ls:*)"]},\n\t"hooks": {}\n}',
    "two spaces": json.dumps({"hooks": {"Stop": [FOREIGN], "PreToolUse": [FOREIGN]}, "b": 1}, indent=2) + "\n",
    "odd spaces": '{ "a" :1 ,\n\n     "b":[ 1,2 ]  }\n\n',
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "QUIRE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def list_files(folder: Path) -> dict[str, bytes]:
    """The files below a folder, and the folders of agents, which have no content."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return files | {path.name: b"" for path in folder.glob(".c*")}


@pytest.mark.parametrize("agent", ["claude-code", "codex"])
@pytest.mark.parametrize("content", SETTINGS.values(), ids=SETTINGS)
def test_uninstall_restores_every_byte_and_leaves_no_trace(home: Path, agent: str, content: str | None):
    path = home / (".claude/settings.json" if agent == "claude-code" else ".codex/hooks.json")
    if content is not None:
        path.parent.mkdir()
        path.write_text(content)
        path.chmod(0o640)
    before = list_files(home)
    outcome = invoke_cli("hook", "install", agent, "--yes")
    assert outcome.exit_code == 0, outcome.output
    assert f"hook {agent}" in outcome.stdout
    assert "+++" in outcome.stdout
    installed = json.loads(path.read_text())
    assert set(HOOK_EVENTS) <= installed["hooks"].keys()
    original: dict[str, Any] = json.loads(content or "{}")
    for event, groups in original.get("hooks", {}).items():
        assert installed["hooks"][event][: len(groups)] == groups
    assert {name: value for name, value in installed.items() if name != "hooks"} == {
        name: value for name, value in original.items() if name != "hooks"
    }
    again = invoke_cli("hook", "install", agent, "--yes")
    assert "installed already" in again.output
    assert json.loads(path.read_text()) == installed
    if content is not None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert invoke_cli("hook", "uninstall", agent, "--yes").exit_code == 0
    assert list_files(home) == before
    assert "not installed" in invoke_cli("hook", "uninstall", agent, "--yes").output


def test_uninstall_leaves_what_was_changed_since(home: Path):
    path = home / ".claude/settings.json"
    invoke_cli("hook", "install", "claude-code", "--yes")
    changed = json.loads(path.read_text())
    changed["hooks"]["Stop"].append(FOREIGN)
    changed["model"] = "opus"
    path.write_text(json.dumps(changed))
    assert invoke_cli("hook", "uninstall", "claude-code", "--yes").exit_code == 0
    assert json.loads(path.read_text()) == {"hooks": {"Stop": [FOREIGN]}, "model": "opus"}
    assert list_files(home).keys() == {".claude/settings.json", ".claude"}


def test_a_second_installation_replaces_the_hooks_of_the_first(home: Path):
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text("{ }")
    invoke_cli("hook", "install", "claude-code", "--yes")
    path.write_text(path.read_text().replace('"timeout": 10', '"timeout": 5'))
    assert '"timeout": 5' in invoke_cli("hook", "install", "claude-code", "--yes").stdout
    assert path.read_text().count("hook claude-code") == len(HOOK_EVENTS)
    assert '"timeout": 5' not in path.read_text()


def test_a_link_to_the_settings_stays_a_link(home: Path):
    real = home / "dotfiles.json"
    real.write_text("{}")
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.symlink_to(real)
    invoke_cli("hook", "install", "claude-code", "--yes")
    assert path.is_symlink()
    assert "hook claude-code" in real.read_text()


@pytest.mark.parametrize("content", ["{", "[]", '{"hooks": []}', '{"hooks": {"Stop": {}}}', "// comment\n{}"])
def test_settings_that_cannot_be_read_are_not_changed(home: Path, content: str):
    path = home / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text(content)
    outcome = invoke_cli("hook", "install", "claude-code", "--yes")
    assert outcome.exit_code == 1
    assert "Nothing was changed" in outcome.output
    assert path.read_text() == content


def test_nothing_is_written_without_a_confirmation(home: Path):
    outcome = invoke_cli("hook", "install", "claude-code")
    assert outcome.exit_code == 2
    assert list_files(home) == {}
    assert invoke_cli("hook", "install").exit_code == 2


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path, because the path of a socket has at most 108 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="q"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run_hook(data: bytes, agent: str = "claude-code") -> subprocess.CompletedProcess[bytes]:
    quire = Path(sys.executable).with_name("quire")
    return subprocess.run([str(quire), "hook", agent], input=data, capture_output=True, check=False, timeout=60)


BROKEN_EVENTS = (
    b"", b"{", b"[]", b"null", b'{"hook_event_name": 5}', b'{"hook_event_name": "Other", "cwd": "/missing"}', b"\xff",
)  # fmt: skip


def test_a_broken_event_never_fails_the_agent(home: Path, runtime: Path):
    for data in BROKEN_EVENTS:
        outcome = run_hook(data)
        assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, b"", b""), data
    stop_services(runtime)


def stop_services(runtime: Path) -> None:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "quire.cli.hook_service" in words and any(word.startswith(str(runtime)) for word in words):
            os.kill(int(process.name), 15)


def test_a_service_that_does_not_answer_costs_only_the_time_limit(
    home: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hook_client, "RECALL_SECONDS", {"UserPromptSubmit": 0.2})
    path = hook_client.get_socket_path(str(home))
    assert path is not None
    event = {"hook_event_name": "UserPromptSubmit", "cwd": str(home), "prompt": "x", "session_id": "s"}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        started = time.monotonic()
        assert hook_client.send_event("claude-code", event) == ""
        assert time.monotonic() - started < 5


def test_an_event_that_is_too_large_is_only_logged(home: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hook_client, "MAX_EVENT_BYTES", 10)
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b'{"a": "0123456789"}')
    os.close(write_fd)
    with os.fdopen(read_fd) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        hook_client.run_hook("codex")
    assert "more than 10 bytes" in hook_client.get_log_path().read_text()


def test_the_log_is_bounded(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hook_client, "MAX_LOG_BYTES", 1_000)
    for number in range(100):
        hook_client.write_log(f"{number} {'x' * 100}")
    assert sum(path.stat().st_size for path in hook_client.get_log_path().parent.iterdir()) < 3_000


def test_a_folder_that_others_can_open_is_refused(home: Path, runtime: Path):
    (runtime / "quire").mkdir(mode=0o755)
    (runtime / "quire").chmod(0o755)
    with pytest.raises(PermissionError):
        hook_client.get_socket_path(str(home))


def test_other_settings_have_another_service(home: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch):
    project = home / "project"
    project.mkdir()
    first = hook_client.get_socket_path(str(project))
    (project / "quire.toml").write_text('strategy = "discard"\n')
    second = hook_client.get_socket_path(str(project))
    monkeypatch.setenv("QUIRE_MODEL", "gpt-4o")
    third = hook_client.get_socket_path(str(project))
    assert len({first, second, third}) == 3
    (project / "sub").mkdir()
    assert hook_client.get_socket_path(str(project / "sub")) == third


def test_a_hook_imports_only_the_standard_library():
    code = (
        "import sys; import quire.cli.hook_client; "
        "print([name for name in sys.modules if name.split('.')[0] in ('pydantic', 'sqlalchemy', 'typer', 'rich')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
