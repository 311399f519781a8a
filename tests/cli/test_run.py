"""`quire run` as a subprocess, with a stand-in for the agent, a real server and an upstream on loopback."""

import asyncio
import json
import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir, closing, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

import pytest
from cli_fixtures import invoke_cli
from fastapi import FastAPI

from infra.processes import find_children, wait_for_exit
from quire.cli import run_host, service_client
from quire.cli.agent_programs import (
    AGENT_PROGRAMS,
    CHATGPT_URL,
    OTHER_PROGRAM,
    AgentProgram,
    Gateway,
    add_default_upstreams,
    add_local_model,
    find_answering_model,
    find_set_window,
    list_routes,
)
from quire.cli.paths import get_servers_folder
from quire.cli.server_setup import ServeOptions
from quire.cli.service_client import MAX_SOCKET_PATH_BYTES, UserSocket, ask_service, connect_service, get_socket_path
from quire.errors import InvalidConfiguration
from quire.model import Message
from quire.settings import Settings
from quire.settings.schema import Upstream, upstream_for
from quire.store import SqlStore

PROGRAM = str(Path(sys.executable).with_name("quire"))
FAKE_AGENT = Path(__file__).with_name("fake_agent.py")
TIMEOUT_SECONDS = 120
ANSWER = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "any",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}


class UpstreamHandler(BaseHTTPRequestHandler):
    """Answers every request, and records its headers and body."""

    requests: list[tuple[dict[str, str], dict[str, Any]]]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
        answer = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@dataclass
class RunHome:
    """A home with the stand-in under the names of all agents, and an upstream."""

    folder: Path
    upstream_url: str
    requests: list[tuple[dict[str, str], dict[str, Any]]]

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.folder}/quire.db"

    def list_server_files(self) -> list[Path]:
        """Files of running servers; the folder is made by the first that needs it."""
        return list((self.folder / "data/quire/servers").glob("*"))

    def build_environment(self, **variables: str) -> dict[str, str]:
        hidden = ("QUIRE_", "XDG_", "ANTHROPIC_", "OPENAI_", "OPENCODE_", "CLAUDE_")
        others = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        own = {
            "HOME": str(self.folder),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "QUIRE_DATABASE_URL": self.database_url,
            "QUIRE_BASE_URL": self.upstream_url,
            "FAKE_AGENT_REPORT": str(self.folder / "report.json"),
        }
        return {**others, **own, **variables}

    @property
    def report(self) -> Path:
        """What the stand-in writes when it has called the gateway."""
        return self.folder / "report.json"

    def run(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        self.report.unlink(missing_ok=True)
        return subprocess.run(
            [PROGRAM, "run", *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.build_environment(**variables),
            timeout=TIMEOUT_SECONDS,
        )

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Starts a run as the leader of a process group, as a shell does."""
        self.report.unlink(missing_ok=True)
        return subprocess.Popen(
            [PROGRAM, "run", *words],
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.build_environment(),
            start_new_session=True,
        )

    def find_socket(self) -> Path:
        """Waits until a server listens for commands; returns its socket."""
        code = "from quire.cli.service_client import get_socket_path; print(get_socket_path())"
        command = [sys.executable, "-c", code]
        printed = subprocess.run(command, capture_output=True, text=True, env=self.build_environment(), check=True)
        path, deadline = Path(printed.stdout.strip()), time.monotonic() + TIMEOUT_SECONDS
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return path

    def read_served_requests(self) -> list[dict[str, Any]]:
        """What `quire serve` has logged of its requests."""
        lines = [line for line in (self.folder / "serve.log").read_text().splitlines() if line.startswith("{")]
        return [each for each in map(json.loads, lines) if each["event"] == "request"]

    def read_report(self) -> dict[str, Any]:
        return json.loads(self.report.read_text())

    async def load_keys(self) -> list[tuple[str, bool]]:
        """Returns the name of each key, and whether it is revoked."""
        async with SqlStore.open(self.database_url) as store:
            return [(key.name, key.revoked_at is not None) for key in await store.keys.list(limit=10)]

    async def count_replies(self) -> int:
        """Replies in all conversations."""
        async with SqlStore.open(self.database_url) as store:
            records = await store.list_conversations(limit=10)
            entries = [entry for each in records for entry in await store.read_range(each.id)]
        return sum(isinstance(each.body, Message) and each.body.role == "assistant" for each in entries)

    async def count_conversations(self) -> int:
        async with SqlStore.open(self.database_url) as store:
            return len(await store.list_conversations(limit=10))


@contextmanager
def make_run_home(folder: Path) -> Iterator[RunHome]:
    (folder / "bin").mkdir()
    for name in (*AGENT_PROGRAMS, "my-agent"):
        path = folder / "bin" / name
        path.write_text(f"#!{sys.executable}\n{FAKE_AGENT.read_text()}")
        path.chmod(0o755)
    requests: list[tuple[dict[str, str], dict[str, Any]]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (UpstreamHandler,), {"requests": requests}))
    Thread(target=server.serve_forever, daemon=True).start()
    yield RunHome(folder, f"http://127.0.0.1:{server.server_port}/v1", requests)
    server.shutdown()
    server.server_close()


@pytest.fixture
def run_home(tmp_path: Path) -> Iterator[RunHome]:
    with make_run_home(tmp_path) as home:
        yield home


@contextmanager
def run_serve(home: RunHome) -> Iterator["subprocess.Popen[str]"]:
    with (home.folder / "serve.log").open("a") as log:
        process = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0", "--log-format", "json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=home.folder,
            env=home.build_environment(),
        )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_SECONDS)


@contextmanager
def start_serve(home: RunHome) -> Iterator[str]:
    """Runs `quire serve`; yields the address that it prints."""
    with run_serve(home) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


# whole runs


@pytest.mark.slow
async def test_an_agent_is_run_recorded_and_cleaned_up_after(run_home: RunHome):
    completed = run_home.run(
        "claude", "-p", "--help", "--", "a b", FAKE_AGENT_EXIT="5", OPENAI_API_KEY="sk-provider"
    )  # fmt: skip
    assert completed.returncode == 5, completed.stderr
    report = run_home.read_report()
    assert report["status"] == 200
    assert report["argv"][-4:] == ["-p", "--help", "--", "a b"]
    assert report["interrupt_is_default"]
    assert [body["messages"][0]["content"] for _, body in run_home.requests] == ["Hello from the agent"]
    assert report["key"] not in str(run_home.requests)
    assert report["key"] not in " ".join(report["argv"])
    assert await run_home.count_conversations() == 1
    assert await run_home.load_keys() == [("quire run claude", True)]
    assert completed.stdout == ""
    assert "“Hello from the agent”" in completed.stderr
    assert "quire context show" in completed.stderr
    assert run_home.list_server_files() == []
    assert {each.name for each in run_home.folder.iterdir()} <= {"bin", "data", "report.json", "quire.db"}


@pytest.mark.slow
async def test_a_running_server_is_used_whatever_its_settings(run_home: RunHome, tmp_path: Path):
    other = f"sqlite:///{tmp_path}/other.db"
    with run_serve(run_home) as process:
        # The address is printed when the server is about to answer; the socket is there long before.
        socket_path = run_home.find_socket()
        used = run_home.run("claude")
        assert used.returncode == 0, used.stderr
        address = process.stdout.readline().strip() if process.stdout is not None else ""
        assert not socket_path.stat().st_mode & 0o077
        assert stat.S_IMODE(socket_path.parent.stat().st_mode) == 0o700
        # Other programs, another model, another database, and an upstream of the environment.
        for words, variables in (
            (("codex",), {}),
            (("--", "my-agent"), {}),
            (("--model", "other", "opencode"), {"QUIRE_STRATEGY": "discard"}),
            (("--set", f"database_url={other}", "claude"), {}),
            (
                ("claude",),
                {"QUIRE_BASE_URL": "", "ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": run_home.upstream_url},
            ),
        ):
            used = run_home.run(*words, **variables)
            assert used.returncode == 0, used.stderr
            assert address.partition("token=")[2] not in used.stderr
            assert "quire serve --open" in used.stderr or "no reply" in used.stderr
        quiet = run_home.run("--quiet", "claude", FAKE_AGENT_EXIT="3")
        assert (quiet.returncode, quiet.stdout, quiet.stderr) == (3, "", "")
    assert len(run_home.read_served_requests()) == 7
    assert [body["model"] for _, body in run_home.requests][:4] == ["any-model"] * 3 + ["other"]
    assert not socket_path.exists()
    assert run_home.list_server_files() == []
    programs = ["claude", "codex", "my-agent", "opencode", "claude", "claude"]
    assert sorted(await run_home.load_keys()) == sorted((f"quire run {each}", True) for each in programs)
    async with SqlStore.open(other) as store:
        assert len(await store.list_conversations(limit=10)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "has_service", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["own-server", "service"]
)
def test_an_agent_outlives_its_server(run_home: RunHome, *, has_service: bool):
    """A server that is killed is replaced, by its own next start or by one of the run; the agent keeps its address."""
    folder = run_home.folder / "calls"
    folder.mkdir()
    with ExitStack() as stack:
        service = stack.enter_context(run_serve(run_home)) if has_service else None
        if has_service:
            run_home.find_socket()
        process = subprocess.Popen(
            [PROGRAM, "run", "claude"],
            stderr=subprocess.PIPE,
            text=True,
            cwd=run_home.folder,
            env=run_home.build_environment(FAKE_AGENT_FOLDER=str(folder)),
        )
        children = wait_for_report(run_home, process)
        for number in range(1, 4):
            servers = [pid for pid in children if b"run_host" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            for pid in [service.pid] if service is not None and number == 1 else servers:
                os.kill(pid, signal.SIGKILL)
            (folder / f"call-{number}").touch()
            answer = folder / f"answer-{number}"
            wait_until(answer.exists)
            assert answer.read_text() == "200"
            children = find_children(process.pid)
        (folder / "end").touch()
        _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, errors
    assert "“Hello from the agent”" in errors
    assert len(run_home.requests) == 4
    assert asyncio.run(run_home.count_replies()) == 4
    assert asyncio.run(run_home.load_keys()) == [("quire run claude", True)]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0.0], "1 request passed unrecorded at 00:00:00: "),
        ([75.0, 0.0], "2 requests passed unrecorded from 00:00:00 to 00:01:15: "),
    ],
)
def test_a_gap_has_its_times(monkeypatch: pytest.MonkeyPatch, times: list[float], expected: str):
    monkeypatch.setattr(run_host.time, "localtime", time.gmtime)
    assert run_host.describe_gap(times).startswith(expected)


@pytest.mark.slow
@pytest.mark.nightly  # a database that is locked is waited for a minute
def test_what_passes_while_the_database_does_not_answer_is_counted_at_the_end(run_home: RunHome):
    folder = run_home.folder / "calls"
    folder.mkdir()
    process = subprocess.Popen(
        [PROGRAM, "run", "claude"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=run_home.folder,
        env=run_home.build_environment(FAKE_AGENT_FOLDER=str(folder)),
    )
    wait_for_report(run_home, process)
    with closing(sqlite3.connect(run_home.folder / "quire.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        (folder / "call-1").touch()
        wait_until((folder / "answer-1").exists)
        other.execute("ROLLBACK")
    (folder / "end").touch()
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (folder / "answer-1").read_text() == "200"
    assert len(run_home.requests) == 2
    assert asyncio.run(run_home.count_replies()) == 1
    assert re.search(r"1 request passed unrecorded at \d\d:\d\d:\d\d: the database did not answer", errors), errors


@pytest.mark.slow
def test_runs_at_a_server_name_their_own_conversation_and_leave_no_valid_key(run_home: RunHome):
    with start_serve(run_home) as address:
        run_home.find_socket()
        first = run_home.start("claude", "--wait")
        wait_for_report(run_home, first)
        second = run_home.run("claude")
        os.killpg(first.pid, signal.SIGINT)
        _, first_errors = first.communicate(timeout=TIMEOUT_SECONDS)
        shown = re.compile(r"quire context show (\w+)")
        named = [*shown.findall(first_errors), *shown.findall(second.stderr)]
        assert (len(named), len(set(named))) == (2, 2), (first_errors, second.stderr)

        killed = run_home.start("claude", "--wait")
        [agent] = wait_for_report(run_home, killed)
        assert (
            sorted(asyncio.run(run_home.load_keys()))
            == [("quire run claude", False)] + [("quire run claude", True)] * 2
        )
        killed.kill()
        killed.communicate()
        os.kill(agent, signal.SIGKILL)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not all(is_revoked for _, is_revoked in asyncio.run(run_home.load_keys())):
            assert time.monotonic() < deadline
            time.sleep(0.1)

        assert_serve_finds_the_server(run_home, address)


def assert_serve_finds_the_server(home: RunHome, address: str) -> None:
    opened = home.folder / "opened"
    browser = home.folder / "bin/browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)
    variables = home.build_environment(BROWSER=str(browser))
    port = address.partition("127.0.0.1:")[2].partition("/")[0]
    for words, expected in ((["--open"], 0), (["--port", port], 1)):
        ended = subprocess.run(
            [PROGRAM, "serve", *words], capture_output=True, text=True, env=variables, timeout=TIMEOUT_SECONDS
        )
        assert ended.returncode == expected, ended.stderr
        assert address.partition("/?token=")[0] in ended.stderr
        assert "token" not in ended.stdout + ended.stderr
    assert opened.read_text() == address


@pytest.mark.slow
def test_where_the_requests_of_a_run_go_and_where_not(run_home: RunHome, tmp_path: Path):
    with start_serve(run_home):
        run_home.find_socket()
        # A program's own login goes upstream untouched.
        upstreams = json.dumps({"*": {"base_url": run_home.upstream_url, "credentials": "client"}})
        for program in ("claude", "codex"):
            completed = run_home.run("--set", f"upstreams={upstreams}", program, ANTHROPIC_AUTH_TOKEN="sk-own")
            assert (completed.returncode, run_home.read_report()["status"]) == (0, 200), completed.stderr
            headers, _ = run_home.requests.pop()
            assert headers["authorization"] == "Bearer sk-own-login"
            assert run_home.read_report()["key"] not in str(headers)
            assert run_home.read_report()["environ"]["ANTHROPIC_AUTH_TOKEN"] == "sk-own"
        written = [path for path in run_home.folder.rglob("*") if path.is_file() and path.parent.name != "bin"]
        assert not [path for path in written if b"sk-own-login" in path.read_bytes()]

        # A model server that does not answer is named before the agent runs.
        completed = run_home.run("claude", QUIRE_BASE_URL="http://127.0.0.1:1/v1", QUIRE_MODEL="qwen3")
        assert run_home.read_report()["status"] == 502
        first, recorded, unanswered, place = completed.stderr.splitlines()
        assert "No model server answers at http://127.0.0.1:1/v1" in first
        assert recorded == "Quire recorded no reply in this run. Upstreams: claude-* at http://127.0.0.1:1/v1"
        assert unanswered.startswith("1 request was not answered: no answer: ")
        assert "127.0.0.1:1" in unanswered
        assert "`quire context show" in place

        # Nothing reaches a host that the settings do not name, such as the program's own provider.
        settings = tmp_path / "config/quire/quire.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text('[upstreams."some-*"]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "qwen3"\n')
        provider = {"ANTHROPIC_BASE_URL": run_home.upstream_url, "OPENAI_BASE_URL": run_home.upstream_url}
        keys = {"ANTHROPIC_API_KEY": "sk-own", "OPENAI_API_KEY": "sk-own", "QUIRE_BASE_URL": ""}
        for program in ("claude", "codex"):
            run_home.run(program, **provider, **keys)
            assert run_home.read_report()["status"] == 404
        settings.unlink()

        # Without an upstream, or past Quire, no program is run.
        for words in (["opencode"], ["--set", "base_url=", "opencode"]):
            completed = run_home.run(*words, QUIRE_BASE_URL="")
            assert (completed.returncode, run_home.report.exists()) == (1, False)
            assert "base_url" in completed.stderr
        (tmp_path / "claude").mkdir()
        (tmp_path / "claude/settings.json").write_text('{"env": {"ANTHROPIC_BASE_URL": "https://elsewhere.test"}}')
        run = run_home.run("claude", CLAUDE_CONFIG_DIR=str(tmp_path / "claude"))
        assert (run.returncode, run_home.report.exists()) == (1, False)
        assert "ANTHROPIC_BASE_URL" in run.stderr
    assert run_home.requests == []


@pytest.mark.slow
def test_ctrl_c_is_the_agents(run_home: RunHome):
    process = run_home.start("claude", "--wait")
    children = wait_for_report(run_home, process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 7, errors
    assert "quire context show" in errors
    wait_for_exit(children)
    assert asyncio.run(run_home.load_keys()) == [("quire run claude", True)]


@pytest.mark.slow
def test_the_server_ends_with_a_run_that_is_killed(run_home: RunHome):
    process = run_home.start("claude", "--wait")
    children = wait_for_report(run_home, process)
    agent = next(pid for pid in children if b"--wait" in Path(f"/proc/{pid}/cmdline").read_bytes())
    process.kill()
    process.communicate()
    os.kill(agent, signal.SIGKILL)
    wait_for_exit(children)


def wait_until(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_report(home: RunHome, process: "subprocess.Popen[Any]") -> list[int]:
    """Waits until the agent has called the gateway; returns the children of the run."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not home.report.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return find_children(process.pid)


def test_a_missing_program_is_named_with_how_to_install_it(run_home: RunHome):
    (run_home.folder / "bin/codex").unlink()
    path = str(run_home.folder / "bin")
    completed = run_home.run("codex", PATH=path)
    assert completed.returncode == 127
    assert "npm install -g @openai/codex" in completed.stderr
    completed = run_home.run("--", "no-such-program", PATH=path)
    assert (completed.returncode, "'no-such-program'" in completed.stderr) == (127, True)


# what each program gets


def make_gateway(*, passes_credentials: bool = False) -> Gateway:
    return Gateway(url="http://127.0.0.1:9", key="quire_k", passes_credentials=passes_credentials, models=("a", "b"))


def connect(program: str, environ: Mapping[str, str], *, passes_credentials: bool = False) -> dict[str, str]:
    launch = AGENT_PROGRAMS.get(program, OTHER_PROGRAM).connect(
        make_gateway(passes_credentials=passes_credentials), environ
    )
    return launch.build_environment(environ)


def test_claude_gets_the_key_alone_so_that_no_other_is_sent_with_it():
    own = {"ANTHROPIC_API_KEY": "sk-own", "CLAUDE_CODE_USE_BEDROCK": "1", "NO_PROXY": "intra"}
    assert connect("claude", own) == {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "ANTHROPIC_AUTH_TOKEN": "quire_k",
        "NO_PROXY": "intra,127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def test_claudes_own_credentials_and_headers_stay_where_they_go_upstream():
    own = {"ANTHROPIC_API_KEY": "sk-own", "ANTHROPIC_CUSTOM_HEADERS": "X-Team: 7"}
    changed = connect("claude", own, passes_credentials=True)
    assert changed["ANTHROPIC_API_KEY"] == "sk-own"
    assert changed["ANTHROPIC_CUSTOM_HEADERS"] == "X-Team: 7\nX-Quire-Key: quire_k"
    assert "ANTHROPIC_AUTH_TOKEN" not in changed


def test_opencode_gets_the_gateway_for_every_provider_and_its_own_configuration_stays():
    own = {"OPENCODE_CONFIG_CONTENT": '{"theme": "x", "provider": {"mine": {}}}'}
    config = json.loads(connect("opencode", own)["OPENCODE_CONFIG_CONTENT"])
    assert (config["theme"], config["provider"]["mine"]) == ("x", {})
    for name in ("anthropic", "openai", "quire"):
        options = config["provider"][name]["options"]
        assert options == {"baseURL": "http://127.0.0.1:9/v1", "apiKey": "quire_k"}
    assert list(config["provider"]["quire"]["models"]) == ["a", "b"]
    with pytest.raises(InvalidConfiguration, match="OPENCODE_CONFIG_CONTENT"):
        connect("opencode", {"OPENCODE_CONFIG_CONTENT": "{"})


def test_any_other_program_gets_the_variables_of_both_providers():
    changed = connect("python", {"OPENAI_API_KEY": "sk-own"})
    assert changed["OPENAI_BASE_URL"] == "http://127.0.0.1:9/v1"
    assert changed["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9"
    assert {changed[name] for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "QUIRE_KEY")} == {"quire_k"}
    assert "ANTHROPIC_AUTH_TOKEN" not in connect("python", {"ANTHROPIC_AUTH_TOKEN": "sk-own"})
    assert "ANTHROPIC_AUTH_TOKEN" in connect("python", {"ANTHROPIC_AUTH_TOKEN": "sk-own"}, passes_credentials=True)


@pytest.mark.parametrize(
    ("program", "environ", "expected"),
    [
        ("claude", {"ANTHROPIC_API_KEY": "k"}, {"*": ("https://api.anthropic.com", "ANTHROPIC_API_KEY", "operator")}),
        ("claude", {}, {"*": ("https://api.anthropic.com", None, "client")}),
        ("claude", {"ANTHROPIC_BASE_URL": "http://g"}, {"*": ("http://g", None, "client")}),
        ("codex", {"OPENAI_API_KEY": "k"}, {"*": ("https://api.openai.com/v1", "OPENAI_API_KEY", "operator")}),
        ("codex", {}, {"*": (CHATGPT_URL, None, "client")}),
        ("opencode", {}, {}),
        ("opencode", {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}, {
            "claude-*": ("https://api.anthropic.com", "ANTHROPIC_API_KEY", "operator"),
            "*": ("https://api.openai.com/v1", "OPENAI_API_KEY", "operator"),
        }),
    ],
)  # fmt: skip
def test_without_settings_the_upstream_is_the_programs_provider(
    program: str, environ: dict[str, str], expected: dict[str, tuple[str, str | None, str]]
):
    added = add_default_upstreams(Settings(), AGENT_PROGRAMS[program], environ).upstreams
    assert {name: (each.base_url, each.api_key_env, each.credentials) for name, each in added.items()} == expected


def test_settings_that_name_an_upstream_get_no_other():
    claude: AgentProgram = AGENT_PROGRAMS["claude"]
    own = Upstream(base_url="http://own/v1")
    named = [Settings(base_url="http://own/v1"), Settings(upstreams={"*": own}), Settings(upstreams={"gpt-*": own})]
    for settings in named:
        assert add_default_upstreams(settings, claude, {"ANTHROPIC_API_KEY": "k"}) is settings


def test_a_model_is_served_by_the_upstream_that_names_it():
    own = Upstream(base_url="http://own/v1", model="qwen3")
    settings = Settings(upstreams={"gpt-*": own})
    assert upstream_for(settings, "qwen3") is upstream_for(settings, "gpt-5") is own
    assert upstream_for(settings, "claude-opus-4") is None


class LocalServerHandler(BaseHTTPRequestHandler):
    """Answers as a model server does: a path gives its document, all others 404."""

    documents: dict[str, Any]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        document = self.documents.get(self.path)
        data = json.dumps(document).encode()
        self.send_response(404 if document is None else 200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


LISTED = {"/v1/models": {"data": [{"id": "qwen3"}, {"id": "nomic-embed"}]}}


@pytest.mark.parametrize(
    ("documents", "window"),
    [
        ({"/v1/models": {"data": [{"id": "qwen3", "max_model_len": 40_960}]}}, 40_960),
        ({**LISTED, "/props": {"default_generation_settings": {"n_ctx": 8_192}}}, 8_192),
        ({**LISTED, "/api/v0/models": {"data": [{"id": "qwen3", "max_context_length": 131_072}]}}, 131_072),
        ({**LISTED, "/api/ps": {"models": [{"name": "qwen3", "context_length": 32_768}]}}, 32_768),
        ({**LISTED, "/api/ps": {"models": []}}, 4_096),
        (LISTED, None),
    ],
    ids=["vLLM", "llama.cpp", "LM Studio", "Ollama", "Ollama, not loaded", "unknown"],
)
def test_a_local_model_needs_only_its_address(documents: dict[str, Any], window: int | None):
    handler = type("Handler", (LocalServerHandler,), {"documents": documents})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        claude = AGENT_PROGRAMS["claude"]
        settings = add_default_upstreams(add_local_model(Settings(base_url=url)), claude, {})
        assert settings.upstreams == {"claude-*": Upstream(base_url=url, model="qwen3")}
        assert find_set_window(settings, "qwen3") == window
        assert find_set_window(add_local_model(Settings(base_url=url, context_limit=5_000)), "qwen3") == 5_000
        server.shutdown()


def test_explain_names_the_host_and_the_credential_of_each_model(tmp_path: Path):
    local = "http://127.0.0.1:9/v1"

    def explain(program: str, **variables: str) -> str:
        environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "COLUMNS": "200", **variables}
        with chdir(tmp_path), patch.dict(os.environ, environ, clear=True):
            return invoke_cli("run", "--explain", program).stdout

    printed = explain("claude", QUIRE_BASE_URL=local, QUIRE_MODEL="qwen3", ANTHROPIC_API_KEY="sk-own")
    lines = [line.split() for line in printed.splitlines()]
    assert lines[1] == ["claude-*", local, "(chat)", "qwen3", "none"]
    own = explain("claude", ANTHROPIC_API_KEY="sk-own")
    assert "https://api.anthropic.com (messages)  the same  ANTHROPIC_API_KEY" in own
    assert "sk-own" not in printed + own
    refused = explain("codex", QUIRE_UPSTREAMS=json.dumps({"claude-*": {"base_url": local}}))
    assert "gpt-*      refused: no upstream serves it" in refused


@pytest.mark.parametrize("place", ["home/settings.json", ".claude/settings.json", ".claude/settings.local.json"])
def test_settings_of_claude_code_that_lead_past_quire_are_refused(tmp_path: Path, place: str):
    """Claude Code's own settings come before the environment, so that Quire would see no request."""
    claude, environ = AGENT_PROGRAMS["claude"], {"CLAUDE_CONFIG_DIR": str(tmp_path / "home")}
    path = tmp_path / place
    path.parent.mkdir()
    assert claude.find_bypass(tmp_path, environ) is None
    for harmless in ({"env": {"FOO": "1"}}, {"env": []}, []):
        path.write_text(json.dumps(harmless))
        assert claude.find_bypass(tmp_path, environ) is None
    path.write_text("{")
    assert claude.find_bypass(tmp_path, environ) is None
    path.write_text(json.dumps({"env": {"ANTHROPIC_BASE_URL": "https://elsewhere.test"}}))
    assert claude.find_bypass(tmp_path, environ) == (path, "ANTHROPIC_BASE_URL")


def test_a_window_smaller_than_the_programs_prompt_is_named():
    settings = Settings(base_url="http://127.0.0.1:9/v1", model="qwen3", context_limit=8_192)
    settings = add_default_upstreams(settings, AGENT_PROGRAMS["claude"], {})
    routes = list_routes(settings, AGENT_PROGRAMS["claude"])
    _, problem = run_host.describe_problems(settings, AGENT_PROGRAMS["claude"], routes)
    assert "a window of 8,192 tokens" in problem


@pytest.mark.parametrize(
    ("program", "model", "patterns"),
    [
        ("claude", "qwen3", ["claude-*"]),
        ("codex", "qwen3", ["gpt-*", "codex-*"]),
        ("codex", "gpt-oss", ["codex-*"]),
        ("claude", None, []),
        ("python", "qwen3", []),
    ],
)
def test_the_model_of_the_settings_answers_for_those_of_the_provider(
    program: str, model: str | None, patterns: list[str]
):
    own = Upstream(base_url="http://own/v1")
    chosen = {} if model is None else {"model": model}
    settings = Settings(base_url="http://local/v1", upstreams={"mine": own}, **chosen)
    added = add_default_upstreams(settings, AGENT_PROGRAMS.get(program, OTHER_PROGRAM), {"OPENAI_API_KEY": "k"})
    answering = Upstream(base_url="http://local/v1", model=model)
    assert added.upstreams == {"mine": own, **dict.fromkeys(patterns, answering)}


@pytest.mark.parametrize(
    ("upstreams", "expected"),
    [
        ({"*": Upstream(base_url="u", model="qwen3")}, ['model="qwen3"']),
        ({"gpt-*": Upstream(base_url="u", model="qwen3")}, ['model="qwen3"']),
        ({"*": Upstream(base_url="u", model="qwen3", speaks=("responses", "chat"))}, []),
        ({"*": Upstream(base_url="u")}, []),
        ({"mine": Upstream(base_url="u", model="qwen3")}, []),
    ],
)
def test_codex_names_the_model_that_answers_in_another_format(upstreams: dict[str, Upstream], expected: list[str]):
    codex = AGENT_PROGRAMS["codex"]
    gateway = replace(make_gateway(), answering_model=find_answering_model(Settings(upstreams=upstreams), codex))
    assert [word for word in codex.connect(gateway, {}).options if word.startswith("model=")] == expected


# running servers


def test_applications_differ_by_settings_database_and_api_keys():
    def digest(model: str, database_url: str, environ: dict[str, str]) -> str:
        settings = Settings(model=model, upstreams={"*": Upstream(base_url="", api_key_env="UP_KEY")})
        return ServeOptions(
            settings=settings,
            database_url=database_url,
            agent=None,
            local_token="t",
            grace_seconds=1,
            log_format="json",
            environ=environ,
        ).configuration

    digests = {digest(model, "sqlite:///q.db", {"X": "1"}) for model in "ab"}
    digests |= {digest("a", "sqlite:///q.db", {"UP_KEY": "k"}), digest("a", "postgresql://x/y", {})}
    assert len(digests) == 4
    assert digest("a", "sqlite:///q.db", {"X": "2"}) in digests


def test_the_socket_is_in_the_folder_of_servers_or_under_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/home/user/.local/share")
    assert Path(get_socket_path()).parent == get_servers_folder()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / ("long" * 30)))
    assert len(get_socket_path()) < MAX_SOCKET_PATH_BYTES
    assert get_socket_path().startswith(f"/tmp/quire-{os.getuid()}/")


async def test_without_unix_sockets_both_sides_prove_that_they_know_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for module in (run_host, service_client):
        monkeypatch.setattr(module, "HAS_UNIX_SOCKETS", False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    options = ServeOptions(
        settings=Settings(),
        database_url="sqlite://",
        agent=None,
        local_token="t",
        grace_seconds=1,
        log_format="json",
        environ={},
    )
    host = run_host.RunHost(FastAPI(), options, "http://127.0.0.1:9")

    async def ask() -> str | None:
        answer = await asyncio.to_thread(ask_service, {"command": "describe"})
        return answer["page"] if answer is not None else None

    with UserSocket() as user_socket:
        path = Path(get_socket_path())
        async with run_host.listen_for_commands(host, user_socket):
            assert await ask() == "http://127.0.0.1:9/?token=t"
            written = json.loads(path.read_text())
            path.write_text(json.dumps({**written, "token": "another"}))
            assert await ask() is None
    assert not path.exists()
    assert await ask() is None


def test_a_socket_in_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path):
    path = tmp_path / "service.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        tmp_path.chmod(0o700)
        connection = connect_service(str(path))
        assert connection is not None
        connection.close()
        tmp_path.chmod(0o777)
        assert connect_service(str(path)) is None
