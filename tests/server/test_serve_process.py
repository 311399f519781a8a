"""`quire serve` as a subprocess: authentication, refused options, graceful shutdown, worker processes."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from typer.testing import CliRunner

from infra.processes import find_children
from quire.cli.app import app
from quire.errors import InvalidConfiguration
from quire.model import Message
from quire.server.addresses import bind_socket
from quire.server.lifecycle import MIN_UPTIME_SECONDS
from quire.store import SqlStore

START_TIMEOUT_SECONDS = 60.0
PROGRAM = str(Path(sys.executable).with_name("quire"))
pytestmark = pytest.mark.slow


class SlowUpstreamHandler(BaseHTTPRequestHandler):
    """Streams one word, and the rest when `go` is set."""

    protocol_version = "HTTP/1.1"
    go: Event
    requests: list[dict[str, str]]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.requests.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        with suppress(OSError):
            self._send_chunk({"role": "assistant", "content": "Slowly"})
            while not self.go.wait(0.1):
                self.wfile.write(b": still there\n\n")
            self._send_chunk({"content": " but surely."})
            self._send_chunk({}, "stop")
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _send_chunk(self, delta: dict[str, str], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "slow", "choices": [choice]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


class SlowUpstream:
    def __init__(self, port: int, go: Event, requests: list[dict[str, str]]) -> None:
        self.url, self.go, self.requests = f"http://127.0.0.1:{port}/v1", go, requests


@pytest.fixture
def upstream() -> Iterator[SlowUpstream]:
    go, requests = Event(), list[dict[str, str]]()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (SlowUpstreamHandler,), {"go": go, "requests": requests})
    )
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    yield SlowUpstream(server.server_port, go, requests)
    go.set()
    server.shutdown()
    server.server_close()


class ServerProcess:
    """A server process; `url` is the address that it printed."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process, self._log = process, log
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        assert self.url, self.log
        parts = urlsplit(self.url)
        self.base_url = f"http://{parts.netloc}"
        self.token = next(iter(parse_qs(parts.query).get("token", [])), None)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self.client = httpx2.Client(base_url=self.base_url, headers=headers, timeout=30)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(httpx2.HTTPError):
                if self.client.get("/readyz").status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(self.log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.log.splitlines() if line.startswith("{")]

    def send_signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, within: float = 30) -> int:
        return self.process.wait(within)

    def wait_stopping(self) -> None:
        deadline = time.monotonic() + 10
        while "stopping" not in self.events and time.monotonic() < deadline:
            time.sleep(0.02)


def build_environment(folder: Path, url: str, **settings: str) -> dict[str, str]:
    own = {"HOME": str(folder), "QUIRE_DATABASE_URL": url, "QUIRE_MODEL": "slow", "PYTHONUNBUFFERED": "1", **settings}
    others = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "XDG_"))}
    return {**others, **own}


@contextmanager
def start_server(folder: Path, url: str, *options: str, **settings: str) -> Iterator[ServerProcess]:
    log = folder / "server.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0", "--log-format", "json", *options],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=folder,
            env=build_environment(folder, url, **settings),
        )
    server = None
    try:
        server = ServerProcess(process, log)
        yield server
    finally:
        if server is not None:
            server.client.close()
        process.kill()
        process.communicate()


def iter_events(response: httpx2.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in response.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


@contextmanager
def start_turn(server: ServerProcess) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """Starts a turn and reads its events up to the first text."""
    server.client.post("/api/conversations", json={"id": "c"}).raise_for_status()
    with server.client.stream("POST", "/api/conversations/c/send", json={"message": "Take your time."}) as response:
        events = iter_events(response)
        for name, _ in events:
            if name == "text":
                break
        yield events


async def load_messages(url: str) -> list[tuple[str, bool]]:
    """Returns each message with whether it is incomplete."""
    async with SqlStore.open(url) as store:
        assert await store.verify_conversation("c") == []
        entries = await store.read_range("c", kinds=["message"])
    return [
        (entry.body.text, bool(entry.metadata and entry.metadata.incomplete))
        for entry in entries
        if isinstance(entry.body, Message)
    ]


def run_refused(folder: Path, *options: str, url: str = "") -> str:
    """What the command says that refuses to start; it ends before it changes its process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in os.environ if each.startswith(("QUIRE_", "XDG_"))]:
            patch.delenv(name)
        for name, value in build_environment(folder, url or f"sqlite:///{folder}/q.db").items():
            patch.setenv(name, value)
        patch.chdir(folder)
        result = CliRunner().invoke(app, ["serve", *options])
    assert (result.exit_code, result.stdout) == (1, "")
    return result.stderr


def test_only_the_printed_address_gives_access_and_changes_are_saved(tmp_path: Path):
    file = tmp_path / "quire.toml"
    with start_server(tmp_path, f"sqlite:///{tmp_path}/q.db", QUIRE_CONFIG=str(file)) as server:
        changed = server.client.patch("/api/settings", json={"changes": {"strategy": "discard", "context_limit": 9000}})
        changed.raise_for_status()
        assert tomllib.loads(file.read_text()) == {"strategy": "discard", "context_limit": 9000}
        assert server.base_url.startswith("http://127.0.0.1:")
        assert server.client.get("/api/conversations").status_code == 200
        assert httpx2.get(f"{server.base_url}/api/conversations").status_code == 401
        opened = httpx2.get(server.url)
        assert opened.status_code == 303
        assert httpx2.get(f"{server.base_url}/api/conversations", cookies=opened.cookies).status_code == 200
        assert httpx2.get(f"{server.base_url}/readyz").status_code == 200
        assert server.token is not None
        server.send_signal()
        assert server.wait() == 0
        assert server.token not in server.log
        # On a busy machine the event loop may wait for a CPU, and says so.
        named = [name for name in server.events if name not in ("request", "event loop stalled")]
        assert named == ["serving", "stopping", "stopped"]


@pytest.mark.every_postgres
async def test_with_keys_every_request_needs_one(tmp_path: Path, database_url: str):
    async with SqlStore.open(database_url) as store:
        _, key = await store.keys.create("mine", ["read"])
    with start_server(tmp_path, database_url, "--keys") as server:
        assert server.token is None
        assert server.client.get("/api/conversations").status_code == 401
        mine = {"Authorization": f"Bearer {key}"}
        assert server.client.get("/api/conversations", headers=mine).status_code == 200
        assert server.client.post("/api/conversations", headers=mine, json={}).status_code == 403
        assert key.rpartition("_")[2] not in server.log


def test_without_keys_other_machines_cannot_ask(tmp_path: Path):
    assert "0.0.0.0" in run_refused(tmp_path, "--host", "0.0.0.0", "--no-keys")


def test_several_processes_do_not_share_sqlite(tmp_path: Path):
    assert "PostgreSQL, not SQLite" in run_refused(tmp_path, "--workers", "2")


def test_a_port_that_is_taken_is_named(tmp_path: Path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"port {port}" in run_refused(tmp_path, "--port", str(port))
        with pytest.raises(InvalidConfiguration):
            bind_socket("127.0.0.1", port)


@pytest.mark.every_postgres
@pytest.mark.parametrize(("version", "remedy"), [("0013", "quire db upgrade"), ("0000", "quire export")])
def test_a_database_that_must_be_upgraded_first_is_named(tmp_path: Path, admin_url: str, version: str, remedy: str):
    import psycopg

    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("UPDATE quire_version SET version_num = %s", (version,))
    assert remedy in run_refused(tmp_path, "--port", "0", url=admin_url)


async def test_a_turn_may_end_within_the_grace_period(tmp_path: Path, database_url: str, upstream: SlowUpstream):
    with start_server(tmp_path, database_url, "--grace", "20", QUIRE_BASE_URL=upstream.url) as server:
        with start_turn(server) as events:
            server.send_signal()
            server.wait_stopping()
            assert not accepts_connections(server)
            upstream.go.set()
            names = [name for name, _ in events]
        assert names[-1] == "turn_ended"
        assert server.wait(10) == 0
    assert await load_messages(database_url) == [("Take your time.", False), ("Slowly but surely.", False)]


async def test_after_the_grace_period_the_partial_reply_is_recorded_and_the_stream_ends_in_order(
    tmp_path: Path, database_url: str, upstream: SlowUpstream
):
    with start_server(tmp_path, database_url, "--grace", "0.5", QUIRE_BASE_URL=upstream.url) as server:
        with start_turn(server) as events:
            server.send_signal()
            last, data = list(events)[-1]
        assert (last, data["reason"]) == ("turn_ended", "stopped")
        assert server.wait(10) == 0
    assert await load_messages(database_url) == [("Take your time.", False), ("Slowly", True)]


@pytest.mark.nightly
async def test_a_turn_without_listeners_may_end_too(tmp_path: Path, database_url: str, upstream: SlowUpstream):
    with start_server(tmp_path, database_url, "--grace", "20", QUIRE_BASE_URL=upstream.url) as server:
        with start_turn(server):
            pass
        server.send_signal()
        server.wait_stopping()
        await asyncio.sleep(0.5)
        assert server.process.poll() is None
        upstream.go.set()
        assert server.wait(15) == 0
    assert await load_messages(database_url) == [("Take your time.", False), ("Slowly but surely.", False)]


@pytest.mark.nightly
def test_endless_streams_end_at_once(tmp_path: Path, upstream: SlowUpstream):
    with start_server(tmp_path, f"sqlite:///{tmp_path}/q.db", "--grace", "20", QUIRE_BASE_URL=upstream.url) as server:
        with start_turn(server), server.client.stream("GET", "/api/conversations/c/events") as listening:
            events = iter_events(listening)
            next(events)
            server.send_signal()
            started_at = time.monotonic()
            last, data = list(events)[-1]
            assert last == "server_stopping"
            assert data["error"]["code"] == "server_stopping"
            assert time.monotonic() - started_at < 5
            upstream.go.set()
        assert server.wait(10) == 0


async def test_a_killed_server_leaves_a_request_that_has_no_end(
    tmp_path: Path, database_url: str, upstream: SlowUpstream
):
    body = {"model": "slow", "messages": [{"role": "user", "content": "Take your time."}], "stream": True}
    with (
        start_server(tmp_path, database_url, QUIRE_BASE_URL=upstream.url) as server,
        server.client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        request = answer.headers["x-quire-request"]
        server.process.kill()
        server.process.wait()
        with suppress(httpx2.HTTPError):
            answer.read()
    upstream.go.set()
    async with SqlStore.open(database_url) as store:
        [exchange] = await store.list_unanswered()
        assert (exchange.id, exchange.outcome, exchange.completed_at) == (request, None, None)
        assert "Quire ended" in exchange.describe()
        content = await store.read_exchange(exchange.conversation, request)
        assert content is not None
        assert json.loads(content.request or "") == body
        assert await store.verify_conversation(exchange.conversation) == []


async def test_a_second_signal_ends_it_at_once_and_harms_nothing(
    tmp_path: Path, database_url: str, upstream: SlowUpstream
):
    with (
        start_server(tmp_path, database_url, "--grace", "60", QUIRE_BASE_URL=upstream.url) as server,
        start_turn(server),
    ):
        server.send_signal()
        server.wait_stopping()
        started_at = time.monotonic()
        server.send_signal()
        assert server.wait(5) == 128 + signal.SIGTERM
        assert time.monotonic() - started_at < 3
    assert (await load_messages(database_url))[0] == ("Take your time.", False)


@pytest.mark.every_postgres
class TestSeveralProcesses:
    def test_a_dead_one_is_replaced_and_their_counts_are_one(self, tmp_path: Path, database_url: str):
        with start_server(tmp_path, database_url, "--workers", "2") as server:
            first = worker_pids(server)
            assert len(first) == 2
            for _ in range(40):
                with httpx2.Client(base_url=server.base_url, headers=server.client.headers) as client:
                    client.get("/api/conversations").raise_for_status()
            page = server.client.get("/metrics").text
            assert 'quire_http_requests_total{method="GET",route="/api/conversations",status="200"} 40.0' in page
            # One that dies earlier could not start.
            time.sleep(MIN_UPTIME_SECONDS + 0.1)
            os.kill(first[0], signal.SIGKILL)
            deadline = time.monotonic() + START_TIMEOUT_SECONDS
            while len(worker_pids(server)) < 2 or first[0] in worker_pids(server):
                assert time.monotonic() < deadline, server.log
                time.sleep(0.1)
            assert "worker died" in server.events
            server.send_signal()
            assert server.wait(20) == 0

    def test_they_end_with_the_one_that_started_them(self, tmp_path: Path, database_url: str):
        with start_server(tmp_path, database_url, "--workers", "2") as server:
            mine = worker_pids(server)
            server.process.kill()
            deadline = time.monotonic() + 15
            while any(Path(f"/proc/{pid}").exists() and not _is_zombie(pid) for pid in mine):
                assert time.monotonic() < deadline
                time.sleep(0.1)

    @pytest.mark.nightly
    def test_ctrl_c_reaches_all_of_them_and_counts_once(
        self, tmp_path: Path, database_url: str, upstream: SlowUpstream
    ):
        with start_server(
            tmp_path, database_url, "--workers", "2", "--grace", "20", QUIRE_BASE_URL=upstream.url
        ) as server:
            with start_turn(server) as events:
                for pid in (server.process.pid, *worker_pids(server)):
                    os.kill(pid, signal.SIGINT)
                server.wait_stopping()
                upstream.go.set()
                assert [name for name, _ in events][-1] == "turn_ended"
            assert server.wait(20) == 0


def accepts_connections(server: ServerProcess) -> bool:
    """Whether the server accepts a new connection."""
    parts = urlsplit(server.base_url)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname, parts.port)) == 0


def worker_pids(server: ServerProcess) -> list[int]:
    """Returns the worker processes, without the resource tracker that the interpreter also starts."""
    return [
        pid
        for pid in find_children(server.process.pid)
        if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    ]


def _is_zombie(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_a_server_imports_no_client_of_a_model_before_it_calls_one():
    """They take half of the start; a server that only passes requests on needs none."""
    program = (
        "import sys, quire.cli.run_host; from quire.cli.server_setup import preload_modules, open_app;"
        "from quire.server.app import create_app; from quire.settings import Settings;"
        "preload_modules(Settings(model='gpt-4o'));"
        "assert not {'openai', 'anthropic', 'pydantic_ai', 'genai_prices'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
