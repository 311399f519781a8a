"""What stands under deploy/: the same commands with the same settings, run here without containers.

No container engine is needed, and none is used: that the images build and start is not tested.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from quire.server.running import LAST_SECONDS
from quire.testing.pgbouncer import find_pgbouncer
from quire.testing.postgres import Cluster, as_server_user, free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAM = str(Path(sys.executable).with_name("quire"))
PASSWORD = 'a "quoted" p%40ss'
PSQL = Path("/usr/lib/postgresql/15/bin/psql")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def settings_of(service: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """A service's environment with what `.env` would give."""

    def filled(found: "re.Match[str]") -> str:
        return given.get(found[1], "")

    return {
        name: re.sub(r"\$\{(\w+)(?::[-?][^}]*)?\}", filled, value) for name, value in service["environment"].items()
    }


def test_every_variable_stands_in_the_example(compose: dict[str, Any]):
    wanted = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    offered = set(re.findall(r"^(\w+)=", (DEPLOY / "env.example").read_text(), re.MULTILINE))
    assert wanted == offered
    assert re.findall(r"^(\w*PASSWORD)=(.+)$", (DEPLOY / "env.example").read_text(), re.MULTILINE) == []


def test_services_name_networks_volumes_and_each_other_as_they_are(compose: dict[str, Any]):
    for service in compose["services"].values():
        assert set(service["networks"]) <= set(compose["networks"])
        assert set(service.get("depends_on", {})) <= set(compose["services"])
    assert compose["networks"]["inside"] == {"internal": True}
    assert [name for name, service in compose["services"].items() if "ports" in service] == ["server"]


def test_a_server_has_the_time_that_it_takes_to_stop(compose: dict[str, Any]):
    server = compose["services"]["server"]
    command: list[str] = server["command"]
    grace = float(command[command.index("--grace") + 1])
    assert float(server["stop_grace_period"].removesuffix("s")) > grace + LAST_SECONDS


def test_the_image_starts_what_there_is(compose: dict[str, Any]):
    lines = (DEPLOY / "Containerfile").read_text()
    [command] = re.findall(r"^CMD (\[.*\])$", lines, re.MULTILINE)
    for words in (json.loads(command), *(compose["services"][name]["command"] for name in ("server", "worker"))):
        given = [word for word in words[1:] if word.startswith("--")]
        shown = subprocess.run(
            [PROGRAM, words[0], "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "200"},
        )
        assert all(option in shown.stdout for option in given)
    ports = re.findall(r"^EXPOSE (\d+)$", lines, re.MULTILINE)
    assert compose["services"]["server"]["ports"] == [f"127.0.0.1:{ports[0]}:8300"]


class Here:
    """The services as processes of this machine."""

    def __init__(self, compose: dict[str, Any], folder: Path) -> None:
        self._services, self._folder = compose["services"], folder
        self._given = {"QUIRE_APP_PASSWORD": PASSWORD, "QUIRE_OWNER_PASSWORD": "owner"}
        self._places = {"postgres:5432": "", "pgbouncer:6432": ""}
        self._running: list[subprocess.Popen[bytes]] = []

    def at(self, name: str, port: int) -> None:
        self._places[name] = f"127.0.0.1:{port}"

    def _environment(self, service: str) -> dict[str, str]:
        own = settings_of(self._services[service], self._given)
        for name, place in self._places.items():
            own = {key: value.replace(name, place).replace("quire_owner@", "postgres@") for key, value in own.items()}
        others = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "XDG_", "PG"))}
        return {**others, "HOME": str(self._folder), **own}

    def run(self, service: str, *words: str) -> str:
        """A service's program, to its end, with its own command unless another is given."""
        command = [PROGRAM, *(words or self._services[service]["command"])]
        done = subprocess.run(
            command, env=self._environment(service), capture_output=True, text=True, cwd=self._folder, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, service: str, *more: str) -> "subprocess.Popen[bytes]":
        with (self._folder / f"{service}.log").open("wb") as log:
            process = subprocess.Popen(
                [PROGRAM, *self._services[service]["command"], *more],
                env=self._environment(service),
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        self._running.append(process)
        return process

    def make_role(self, cluster: Cluster) -> None:
        own = {"POSTGRES_USER": "postgres", "POSTGRES_DB": "quire", "PGHOST": "127.0.0.1", "PGPORT": str(cluster.port)}
        path = {"PATH": f"{PSQL.parent}:{os.environ['PATH']}"}
        subprocess.run(
            [str(DEPLOY / "role.sh")], env={**os.environ, **own, **path, "QUIRE_APP_PASSWORD": PASSWORD}, check=True
        )

    def start_pgbouncer(self, cluster: Cluster) -> None:
        port, folder = free_port(), self._folder / "pgbouncer"
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        ini = self._folder / "pgbouncer.ini"
        text = (
            (DEPLOY / "pgbouncer.ini")
            .read_text()
            .replace("host=postgres port=5432", f"host=127.0.0.1 port={cluster.port}")
        )
        ini.write_text(text.replace("listen_port = 6432", f"listen_port = {port}\nunix_socket_dir ="))
        script = Path(shutil.copy(DEPLOY / "pgbouncer.sh", self._folder))
        for path in (self._folder, *self._folder.parents[:3], ini, script):
            with suppress(PermissionError):
                path.chmod(path.stat().st_mode | 0o055)
        found = find_pgbouncer()
        assert found is not None
        own = {"PGBOUNCER_FOLDER": str(folder), "PGBOUNCER_INI": str(ini), "QUIRE_APP_PASSWORD": PASSWORD}
        environment = {**os.environ, **own, "PATH": f"{Path(found).parent}:{os.environ['PATH']}"}
        with (self._folder / "pgbouncer.log").open("wb") as log:
            process = subprocess.Popen([*as_server_user(), str(script)], env=environment, stdout=log, stderr=log)
        self._running.append(process)
        self.at("pgbouncer:6432", port)
        deadline = time.monotonic() + 30
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            assert time.monotonic() < deadline, (self._folder / "pgbouncer.log").read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def here(compose: dict[str, Any], tmp_path: Path) -> Iterator[Here]:
    if find_pgbouncer() is None or not PSQL.is_file():
        message = "PGBOUNCER OR PSQL IS NOT INSTALLED: deploy/ is not tested here"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    made = Here(compose, tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_the_services_work_together_without_containers(here: Here, tmp_path: Path):
    """The role, the upgrade by the owner, PgBouncer with a password, servers through it, the worker past it."""
    with Cluster.start(18) as cluster:
        cluster.create_database("quire")
        here.at("postgres:5432", cluster.port)
        here.make_role(cluster)
        assert "quire_app" in here.run("upgrade")
        here.start_pgbouncer(cluster)
        key = here.run("server", "key", "create", "laptop", "--scope", "read", "--scope", "write").strip()
        port = free_port()
        server = here.start("server", "--port", str(port))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}) as client:
            wait_until_ready(client, tmp_path / "server.log")
            assert client.post("/api/conversations", json={"id": "c"}).status_code == 201
            assert client.get("/api/conversations/c").json()["id"] == "c"
            assert httpx.get(f"http://127.0.0.1:{port}/api/conversations").status_code == 401
            assert PASSWORD not in client.get("/metrics").text
        here.run("worker", "worker", "--once")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        for log in tmp_path.glob("*.log"):
            assert PASSWORD not in log.read_text(errors="replace")


def wait_until_ready(client: httpx.Client, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            if client.get("/readyz").status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(log.read_text())
