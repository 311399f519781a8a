"""`quire doctor` on broken set-ups with real parts: each names its cause and a remedy, and a report has no content."""

import asyncio
import json
import os
import resource
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cli_fixtures import CliHome, invoke_cli

from quire.cli import doctor_checks
from quire.cli.doctor_checks import DoctorSetup, check_mcp
from quire.cli.hook import HOOK_EVENTS
from quire.cli.init import PROVIDER_KEYS
from quire.log import ConversationOrigin
from quire.settings import Settings
from quire.store import SqlStore
from secret_samples import SecretGenerator

VALID_KEY = "valid-key"


class _ModelHandler(BaseHTTPRequestHandler):
    """Lists one model to callers with the key, and answers with a fixed usage."""

    models: Sequence[dict[str, Any]] = ({"id": "miller-1", "max_model_len": 4_096},)
    input_tokens = 12

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.headers.get("authorization") != f"Bearer {VALID_KEY}":
            self._send(401, {"error": "invalid key"})
        elif self.path == "/v1/models":
            self._send(200, {"object": "list", "data": list(self.models)})
        else:
            self._send(404, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        usage = {"prompt_tokens": self.input_tokens, "completion_tokens": 1, "total_tokens": self.input_tokens + 1}
        message = {"role": "assistant", "content": "OK"}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "miller-1"}
        events = [
            {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": "stop"}]},
            {**chunk, "choices": [], "usage": usage},
        ]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join(f"data: {json.dumps(each)}\n\n" for each in events).encode() + b"data: [DONE]\n\n")

    def _send(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def run_model_server(**fields: Any) -> Iterator[str]:
    handler = type("Handler", (_ModelHandler,), fields)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = CliHome(tmp_path / "home")
    (home.path / ".config" / "quire").mkdir(parents=True)
    home.project.mkdir(parents=True, exist_ok=True)
    home.activate(monkeypatch)
    for each in PROVIDER_KEYS:
        monkeypatch.delenv(each.variable, raising=False)
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return home.path


def write_settings(home: Path, text: str) -> None:
    (home / ".config" / "quire" / "quire.toml").write_text(text)


def use_server(home: Path, url: str, more: str = "") -> None:
    write_settings(
        home,
        f'model = "miller-1"\n{more}\n[models.miller-1]\nwindow = 4096\ntokenizer = "o200k_base"\n'
        f'[upstreams."*"]\nbase_url = "{url}"\napi_key_env = "MILLER_KEY"\n',
    )


def run_doctor(*words: str) -> tuple[int, list[dict[str, str]]]:
    outcome = invoke_cli("doctor", "--json", *words)
    return outcome.exit_code, json.loads(outcome.stdout)["findings"]


def find_problem(check: str, *words: str) -> dict[str, str]:
    """The only problem of this check; the doctor has found it, and says what to do."""
    exit_code, findings = run_doctor(*words)
    (problem,) = [each for each in findings if each["status"] == "problem" and each["check"] == check]
    assert exit_code == 1
    assert problem["remedy"]
    return problem


def test_a_home_in_which_no_model_was_chosen_has_no_problem(empty_home: Path):
    exit_code, findings = run_doctor()
    (note,) = [each for each in findings if each["check"] == "model"]
    assert (exit_code, note["status"]) == (0, "note")
    assert "quire init" in note["remedy"]


def test_a_model_without_its_key(empty_home: Path):
    problem = find_problem("model", "--set", "model=gpt-4o")
    assert problem["detail"] == "No key for the model gpt-4o: OPENAI_API_KEY is not set."
    assert "quire init" in problem["remedy"]


def test_a_wrong_key(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILLER_KEY", "wrong-key")
    with run_model_server() as url:
        use_server(empty_home, url)
        problem = find_problem("model")
    assert "refuses the API key in MILLER_KEY: HTTP 401" in problem["detail"]
    assert "wrong-key" not in json.dumps(problem)


def test_a_missing_key_of_an_upstream(empty_home: Path):
    with run_model_server() as url:
        use_server(empty_home, url)
        assert "MILLER_KEY is not set" in find_problem("model")["detail"]


def test_a_server_that_does_not_answer(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILLER_KEY", VALID_KEY)
    with closing(socket.create_server(("127.0.0.1", 0))) as unused:
        port = unused.getsockname()[1]
    use_server(empty_home, f"http://127.0.0.1:{port}/v1")
    assert f"127.0.0.1:{port} does not answer" in find_problem("model")["detail"]


def test_a_model_that_the_server_does_not_list(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILLER_KEY", VALID_KEY)
    with run_model_server(models=[{"id": "weaver-2"}]) as url:
        use_server(empty_home, url)
        problem = find_problem("model")
    assert "does not list the model miller-1" in problem["detail"]
    assert "weaver-2" in problem["remedy"]


def test_a_wrong_window(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILLER_KEY", VALID_KEY)
    with run_model_server(models=[{"id": "miller-1", "max_model_len": 2_048}]) as url:
        use_server(empty_home, url)
        problem = find_problem("window")
    assert problem["detail"] == "Requests are fitted to 4,096 tokens, but the server's window is 2,048."
    assert "window = 2048" in problem["remedy"]


@pytest.mark.parametrize(("version", "remedy"), [("0000", "quire db upgrade"), ("9999", "Install the newer version")])
def test_another_schema(empty_home: Path, version: str, remedy: str):
    database = create_database(empty_home)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE quire_version SET version_num = ?", (version,))
        connection.commit()
    problem = find_problem("database")
    assert f"has schema {version}" in problem["detail"]
    assert remedy in problem["remedy"]


def create_database(home: Path) -> Path:
    database = home / ".local" / "share" / "quire" / "quire.db"
    assert invoke_cli("db", "upgrade", f"sqlite:///{database}").exit_code == 0
    return database


def test_a_damaged_database(empty_home: Path):
    database = create_database(empty_home)
    database.write_bytes(b"This is not a database. " * 100)
    assert "cannot be opened" in find_problem("database")["detail"]


def damage_index(database: Path) -> None:
    """Empties an index: its rows are in the table only."""
    content = bytearray(database.read_bytes())
    with closing(sqlite3.connect(database)) as connection:
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_quire_version_1'"
        start = (connection.execute(query).fetchone()[0] - 1) * page_bytes
    content[start + 3 : start + 5] = b"\0\0"
    database.write_bytes(content)


def test_a_file_with_a_damaged_index(empty_home: Path):
    damage_index(create_database(empty_home))
    assert "quire.db is damaged: " in find_problem("database file")["detail"]


def test_a_row_that_refers_to_none(empty_home: Path):
    database = create_database(empty_home)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE child (parent REFERENCES quire_branches (absent))")
    assert "is damaged" in find_problem("database file")["detail"]


def test_the_check_of_a_large_file_ends(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    with closing(sqlite3.connect(create_database(empty_home))) as connection, connection:
        connection.execute("CREATE TABLE big AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
                           "LIMIT 1000000) SELECT i, hex(i) AS h FROM n")  # fmt: skip
        connection.execute("CREATE INDEX big_h ON big (h)")
    monkeypatch.setattr(doctor_checks, "MAX_FILE_CHECK_SECONDS", 0.01)
    [found] = [each for each in run_doctor()[1] if each["check"] == "database file"]
    assert found["status"] == "note"
    assert "0.01 s of checking found no damage" in found["detail"]


def test_an_unreachable_database(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("QUIRE_DATABASE_URL", "postgresql://quire:pa55-Word@127.0.0.1:1/quire")
    problem = find_problem("database")
    assert "postgresql://quire:***@127.0.0.1:1/quire cannot be opened" in problem["detail"]
    assert "pa55-Word" not in json.dumps(problem)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("model = ", "is not valid TOML"),
        ("stratgey = 'hybrid'", "did you mean 'strategy'?"),
        ("context_limit = 'many'", "context_limit"),
    ],
)
def test_an_invalid_settings_file(empty_home: Path, text: str, cause: str):
    write_settings(empty_home, text)
    detail = find_problem("settings")["detail"]
    assert cause in detail
    assert "quire.toml" in detail


@pytest.mark.parametrize("make", [Path.touch, lambda path: None])
def test_an_unreadable_vault(empty_home: Path, make: Callable[[Path], None]):
    vault = empty_home / "notes"
    make(vault)
    write_settings(empty_home, f'vault = "{vault}"')
    assert f"The vault {vault} cannot be read" in find_problem("vault")["detail"]


def test_a_missing_extra(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    write_settings(empty_home, f'vault = "{empty_home}"')
    assert 'pip install "quire[vault]"' in find_problem("extras")["remedy"]


def test_a_stale_hook(empty_home: Path):
    program = empty_home / "old-venv" / "bin" / "quire"
    hook = {"hooks": [{"type": "command", "command": f"{program} hook claude-code"}]}
    settings = empty_home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"hooks": {event: [hook] for event in HOOK_EVENTS}}))
    problem = find_problem("hooks")
    assert str(program) in problem["detail"]
    assert "quire hook install claude-code" in problem["remedy"]
    program.parent.mkdir(parents=True)
    program.touch()
    assert not [each for each in run_doctor()[1] if each["check"] == "hooks" and each["status"] == "problem"]


def test_a_folder_that_cannot_be_written(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    (empty_home / "file").write_text("")
    monkeypatch.setenv("QUIRE_DATABASE_URL", f"sqlite:///{empty_home}/file/quire.db")
    assert "cannot be written" in find_problem("data folder")["detail"]


def test_a_full_disk(empty_home: Path):
    outcome = subprocess.run(
        [sys.executable, "-m", "quire", "doctor", "--offline", "--json"],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000)),
    )
    findings = json.loads(outcome.stdout)["findings"]
    (problem,) = [each for each in findings if each["check"] == "data folder"]
    assert problem["status"] == "problem"
    assert "is full, or a limit on its files is reached" in problem["detail"]


def test_a_healthy_setup(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILLER_KEY", VALID_KEY)
    create_database(empty_home)
    notes = empty_home / "notes"
    notes.mkdir()
    with run_model_server() as url:
        use_server(empty_home, url, more=f'vault = "{notes}"')
        exit_code, findings = run_doctor("--send")
    assert exit_code == 0
    assert {each["check"] for each in findings if each["status"] == "ok"} >= {
        "versions", "settings", "extras", "data folder", "database", "search index", "API keys", "model", "window",
        "counts", "vault",
    }  # fmt: skip


def test_counts_that_differ_from_the_providers(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MILLER_KEY", VALID_KEY)
    with run_model_server(input_tokens=500) as url:
        use_server(empty_home, url)
        problem = find_problem("counts", "--send")
    assert "500 by the provider's" in problem["detail"]
    assert "tokenizer" in problem["remedy"]


def test_nothing_is_changed(empty_home: Path):
    before = sorted(empty_home.rglob("*"))
    run_doctor("--offline")
    assert sorted(each for each in empty_home.rglob("*")) == before


def test_a_report_has_neither_content_nor_secrets(empty_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    samples = [each.value for each in SecretGenerator(7).write_samples()]
    key, password, instruction, model_key = samples[0], samples[1], "Never mention the harbour", samples[2]
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setenv("QUIRE_DATABASE_URL", f"postgresql://ada:{password}@127.0.0.1:1/quire")
    write_settings(
        empty_home,
        f'summary_prompt = "{instruction}"\nvault = "{empty_home}/diary"\n'
        f'[upstreams."x"]\nbase_url = "http://127.0.0.1:1/{model_key}/v1"\n',
    )
    report = tmp_path / "report.json"
    invoke_cli("doctor", "--offline", "--bundle", str(report))
    text = report.read_text()
    for planted in (*samples, instruction, "diary", "ada", str(empty_home)):
        assert planted not in text
    assert json.loads(text)["settings"]["vault"] == {"value": "(set)", "source": "file"}


def test_the_page_fits_a_terminal(empty_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = invoke_cli("doctor", "--offline", "--set", "model=gpt-4o").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "1 problem found."


def test_the_mcp_server_of_one_project_is_found(tmp_path: Path):
    """`claude mcp add` registers a server for the folder that it runs in."""
    servers = {"quire": {"command": "quire", "args": ["mcp"]}}
    (tmp_path / ".claude.json").write_text(json.dumps({"projects": {str(tmp_path): {"mcpServers": servers}}}))
    settings = Settings()
    for folder, status in ((tmp_path, "ok"), (tmp_path / "other", "note")):
        setup = DoctorSetup(
            settings=settings, origins={}, settings_error=None, environ={"HOME": str(tmp_path)}, folder=folder,
            offline=True, sends_request=False,
        )  # fmt: skip
        assert [finding.status for finding in check_mcp(setup)] == [status]


def test_a_session_that_was_imported_and_recorded_is_named(empty_home: Path):
    async def record(database: Path) -> None:
        async with SqlStore.open(f"sqlite:///{database}") as store:
            for name in ("claude-code-copy", "live"):
                await store.create_conversation(name, origin=ConversationOrigin(client="claude-code", session="s"))

    asyncio.run(record(create_database(empty_home)))
    findings = json.loads(invoke_cli("doctor", "--offline", "--json").stdout)["findings"]
    [found] = [each for each in findings if each["check"] == "sessions"]
    assert found["status"] == "note"
    assert "claude-code-copy and live" in found["detail"]
    assert "`quire import claude-code --dry-run`" in found["remedy"]
