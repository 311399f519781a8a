"""`quire serve` as a process of its own: what it asks for, what it refuses, and how it ends."""

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

import httpx
import pytest

from quire.errors import InvalidConfiguration
from quire.log import SqlStore
from quire.model import Message
from quire.server.running import bind
from quire.testing.processes import children_of

START = 60.0
PROGRAM = str(Path(sys.executable).with_name("quire"))
pytestmark = pytest.mark.slow


class Upstream(BaseHTTPRequestHandler):
    """Says a word, and the rest when it may."""

    protocol_version = "HTTP/1.1"
    go: Event
    asked: list[dict[str, str]]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.asked.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        with suppress(OSError):
            self._say({"role": "assistant", "content": "Slowly"})
            while not self.go.wait(0.1):
                self.wfile.write(b": still there\n\n")
            self._say({"content": " but surely."})
            self._say({}, "stop")
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _say(self, delta: dict[str, str], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "slow", "choices": [choice]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


class Slow:
    def __init__(self, port: int, go: Event, asked: list[dict[str, str]]) -> None:
        self.url, self.go, self.asked = f"http://127.0.0.1:{port}/v1", go, asked


@pytest.fixture
def upstream() -> Iterator[Slow]:
    go, asked = Event(), list[dict[str, str]]()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Upstream,), {"go": go, "asked": asked}))
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    yield Slow(server.server_port, go, asked)
    go.set()
    server.shutdown()
    server.server_close()


class Served:
    """A server's process; `address` is what it printed."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process, self._log = process, log
        assert process.stdout is not None
        self.address = process.stdout.readline().strip()
        assert self.address, self.log
        parts = urlsplit(self.address)
        self.base = f"http://{parts.netloc}"
        self.token = next(iter(parse_qs(parts.query).get("token", [])), None)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self.client = httpx.Client(base_url=self.base, headers=headers, timeout=30)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(httpx.HTTPError):
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

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self, within: float = 30) -> int:
        return self.process.wait(within)

    def until_stopping(self) -> None:
        deadline = time.monotonic() + 10
        while "stopping" not in self.events and time.monotonic() < deadline:
            time.sleep(0.02)


def environment(folder: Path, url: str, **settings: str) -> dict[str, str]:
    own = {"HOME": str(folder), "QUIRE_DATABASE_URL": url, "QUIRE_MODEL": "slow", "PYTHONUNBUFFERED": "1", **settings}
    others = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "XDG_"))}
    return {**others, **own}


@contextmanager
def serving(folder: Path, url: str, *options: str, **settings: str) -> Iterator[Served]:
    log = folder / "server.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0", "--log-format", "json", *options],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=folder,
            env=environment(folder, url, **settings),
        )
    served = None
    try:
        served = Served(process, log)
        yield served
    finally:
        if served is not None:
            served.client.close()
        process.kill()
        process.communicate()


def events_in(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in response.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


@contextmanager
def asked(server: Served) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """A turn under way, its first word heard."""
    server.client.post("/api/conversations", json={"id": "c"}).raise_for_status()
    with server.client.stream("POST", "/api/conversations/c/send", json={"message": "Take your time."}) as response:
        events = events_in(response)
        for name, _ in events:
            if name == "text":
                break
        yield events


async def kept(url: str) -> list[tuple[str, bool]]:
    """The messages, and whether each is a reply that was broken off."""
    async with SqlStore.open(url) as store:
        assert await store.verify("c") == []
        entries = await store.range("c", kinds=["message"])
    return [
        (entry.body.text, bool(entry.notes and entry.notes.unfinished))
        for entry in entries
        if isinstance(entry.body, Message)
    ]


def refused(folder: Path, *options: str, url: str = "sqlite:///q.db") -> str:
    done = subprocess.run(
        [PROGRAM, "serve", *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder, url),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_it_is_for_whoever_has_the_address_that_it_printed(tmp_path: Path):
    with serving(tmp_path, f"sqlite:///{tmp_path}/q.db") as server:
        assert server.base.startswith("http://127.0.0.1:")
        assert server.client.get("/api/conversations").status_code == 200
        assert httpx.get(f"{server.base}/api/conversations").status_code == 401
        opened = httpx.get(server.address)
        assert opened.status_code == 303
        assert httpx.get(f"{server.base}/api/conversations", cookies=opened.cookies).status_code == 200
        assert httpx.get(f"{server.base}/readyz").status_code == 200
        assert server.token is not None
        server.signal()
        assert server.ended() == 0
        assert server.token not in server.log
        assert [name for name in server.events if name != "request"] == ["serving", "stopping", "stopped"]


@pytest.mark.parametrize("backend", ["postgres18"])
async def test_with_keys_every_request_needs_one(tmp_path: Path, database_url: str, backend: str):
    async with SqlStore.open(database_url) as store:
        _, key = await store.create_key("mine", ["read"])
    with serving(tmp_path, database_url, "--keys") as server:
        assert server.token is None
        assert server.client.get("/api/conversations").status_code == 401
        mine = {"Authorization": f"Bearer {key}"}
        assert server.client.get("/api/conversations", headers=mine).status_code == 200
        assert server.client.post("/api/conversations", headers=mine, json={}).status_code == 403
        assert key.rpartition("_")[2] not in server.log


def test_without_keys_other_machines_cannot_ask(tmp_path: Path):
    assert "0.0.0.0" in refused(tmp_path, "--host", "0.0.0.0", "--no-keys")


def test_several_processes_do_not_share_sqlite(tmp_path: Path):
    assert "PostgreSQL, not SQLite" in refused(tmp_path, "--workers", "2")


def test_a_port_that_is_taken_is_named(tmp_path: Path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"port {port}" in refused(tmp_path, "--port", str(port))
        with pytest.raises(InvalidConfiguration):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("backend", ["postgres18"])
def test_a_database_that_must_be_upgraded_first_is_named(tmp_path: Path, admin_url: str, backend: str):
    import psycopg

    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("UPDATE quire_version SET version_num = '0004'")
    assert "quire db upgrade" in refused(tmp_path, "--port", "0", url=admin_url)


async def test_a_turn_may_end_within_the_grace(tmp_path: Path, database_url: str, upstream: Slow):
    with serving(tmp_path, database_url, "--grace", "20", QUIRE_BASE_URL=upstream.url) as server:
        with asked(server) as events:
            server.signal()
            server.until_stopping()
            assert not accepts(server)
            upstream.go.set()
            names = [name for name, _ in events]
        assert names[-1] == "turn_ended"
        assert server.ended(10) == 0
    assert await kept(database_url) == [("Take your time.", False), ("Slowly but surely.", False)]


async def test_after_the_grace_what_had_come_is_kept_and_the_stream_ends_in_order(
    tmp_path: Path, database_url: str, upstream: Slow
):
    with serving(tmp_path, database_url, "--grace", "0.5", QUIRE_BASE_URL=upstream.url) as server:
        with asked(server) as events:
            server.signal()
            last, said = list(events)[-1]
        assert (last, said["reason"]) == ("turn_ended", "stopped")
        assert server.ended(10) == 0
    assert await kept(database_url) == [("Take your time.", False), ("Slowly", True)]


async def test_a_turn_to_which_nobody_listens_any_more_may_end_too(tmp_path: Path, database_url: str, upstream: Slow):
    with serving(tmp_path, database_url, "--grace", "20", QUIRE_BASE_URL=upstream.url) as server:
        with asked(server):
            pass
        server.signal()
        server.until_stopping()
        await asyncio.sleep(0.5)
        assert server.process.poll() is None
        upstream.go.set()
        assert server.ended(15) == 0
    assert await kept(database_url) == [("Take your time.", False), ("Slowly but surely.", False)]


def test_what_is_changed_on_the_page_stands_in_the_settings(tmp_path: Path):
    file = tmp_path / "quire.toml"
    with serving(tmp_path, f"sqlite:///{tmp_path}/q.db", QUIRE_CONFIG=str(file)) as server:
        changed = server.client.patch("/api/settings", json={"changes": {"strategy": "discard", "context_limit": 9000}})
        changed.raise_for_status()
    assert tomllib.loads(file.read_text()) == {"strategy": "discard", "context_limit": 9000}


def test_streams_without_an_end_of_their_own_are_told_at_once(tmp_path: Path, upstream: Slow):
    with serving(tmp_path, f"sqlite:///{tmp_path}/q.db", "--grace", "20", QUIRE_BASE_URL=upstream.url) as server:
        with asked(server), server.client.stream("GET", "/api/conversations/c/events") as listening:
            heard = events_in(listening)
            next(heard)
            server.signal()
            began = time.monotonic()
            last, said = list(heard)[-1]
            assert last == "server_stopping"
            assert said["error"]["code"] == "server_stopping"
            assert time.monotonic() - began < 5
            upstream.go.set()
        assert server.ended(10) == 0


async def test_a_second_signal_ends_it_at_once_and_harms_nothing(tmp_path: Path, database_url: str, upstream: Slow):
    with serving(tmp_path, database_url, "--grace", "60", QUIRE_BASE_URL=upstream.url) as server, asked(server):
        server.signal()
        server.until_stopping()
        began = time.monotonic()
        server.signal()
        assert server.ended(5) == 128 + signal.SIGTERM
        assert time.monotonic() - began < 3
    assert (await kept(database_url))[0] == ("Take your time.", False)


@pytest.mark.parametrize("backend", ["postgres18"])
class TestSeveralProcesses:
    def test_a_dead_one_is_replaced_and_their_counts_are_one(self, tmp_path: Path, database_url: str, backend: str):
        with serving(tmp_path, database_url, "--workers", "2") as server:
            first = workers_of(server)
            assert len(first) == 2
            for _ in range(40):
                with httpx.Client(base_url=server.base, headers=server.client.headers) as client:
                    client.get("/api/conversations").raise_for_status()
            page = server.client.get("/metrics").text
            assert 'quire_http_requests_total{method="GET",route="/api/conversations",status="200"} 40.0' in page
            time.sleep(2.5)
            os.kill(first[0], signal.SIGKILL)
            deadline = time.monotonic() + START
            while len(workers_of(server)) < 2 or first[0] in workers_of(server):
                assert time.monotonic() < deadline, server.log
                time.sleep(0.1)
            assert "worker died" in server.events
            server.signal()
            assert server.ended(20) == 0

    def test_they_end_with_the_one_that_started_them(self, tmp_path: Path, database_url: str, backend: str):
        with serving(tmp_path, database_url, "--workers", "2") as server:
            mine = workers_of(server)
            server.process.kill()
            deadline = time.monotonic() + 15
            while any(Path(f"/proc/{pid}").exists() and not _is_zombie(pid) for pid in mine):
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def test_ctrl_c_reaches_all_of_them_and_counts_once(
        self, tmp_path: Path, database_url: str, backend: str, upstream: Slow
    ):
        with serving(tmp_path, database_url, "--workers", "2", "--grace", "20", QUIRE_BASE_URL=upstream.url) as server:
            with asked(server) as events:
                for pid in (server.process.pid, *workers_of(server)):
                    os.kill(pid, signal.SIGINT)
                server.until_stopping()
                upstream.go.set()
                assert [name for name, _ in events][-1] == "turn_ended"
            assert server.ended(20) == 0


def accepts(server: Served) -> bool:
    """Whether a new connection is let in."""
    parts = urlsplit(server.base)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname, parts.port)) == 0


def workers_of(server: Served) -> list[int]:
    """The processes that serve; the interpreter starts one beside them that looks after shared resources."""
    return [
        pid
        for pid in children_of(server.process.pid)
        if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    ]


def _is_zombie(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True
