"""The files in deploy/: the same commands with the same settings, run without containers.

No container engine is used, so building and starting the images is not tested.
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

import httpx2
import pytest
import yaml

from infra.pgbouncer import find_pgbouncer
from infra.postgres import Cluster, build_server_user_prefix, find_free_port
from quire.server.lifecycle import FORCED_SHUTDOWN_SECONDS

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAM = str(Path(sys.executable).with_name("quire"))
PASSWORD = 'a "quoted" p%40ss'
PSQL = Path("/usr/lib/postgresql/15/bin/psql")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def resolve_environment(service: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, str]:
    """Returns a service's environment with the variables of `.env` filled in."""

    def fill(match: "re.Match[str]") -> str:
        return secrets.get(match[1], "")

    return {name: re.sub(r"\$\{(\w+)(?::[-?][^}]*)?\}", fill, value) for name, value in service["environment"].items()}


def test_every_variable_is_in_the_example(compose: dict[str, Any]):
    used = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    documented = set(re.findall(r"^(\w+)=", (DEPLOY / "env.example").read_text(), re.MULTILINE))
    assert used == documented
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
    assert float(server["stop_grace_period"].removesuffix("s")) > grace + FORCED_SHUTDOWN_SECONDS


def test_the_image_starts_what_there_is(compose: dict[str, Any]):
    lines = (DEPLOY / "Containerfile").read_text()
    [command] = re.findall(r"^CMD (\[.*\])$", lines, re.MULTILINE)
    for words in (json.loads(command), *(compose["services"][name]["command"] for name in ("server", "worker"))):
        options = [word for word in words[1:] if word.startswith("--")]
        help_output = subprocess.run(
            [PROGRAM, words[0], "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "200"},
        )
        assert all(option in help_output.stdout for option in options)
    ports = re.findall(r"^EXPOSE (\d+)$", lines, re.MULTILINE)
    assert compose["services"]["server"]["ports"] == [f"127.0.0.1:{ports[0]}:8300"]


class LocalDeployment:
    """The services as local processes."""

    def __init__(self, compose: dict[str, Any], folder: Path) -> None:
        self._services, self._folder = compose["services"], folder
        self._secrets = {"QUIRE_APP_PASSWORD": PASSWORD, "QUIRE_OWNER_PASSWORD": "owner"}
        self._addresses = {"postgres:5432": "", "pgbouncer:6432": ""}
        self._processes: list[subprocess.Popen[bytes]] = []

    def set_address(self, name: str, port: int) -> None:
        self._addresses[name] = f"127.0.0.1:{port}"

    def _environment(self, service: str) -> dict[str, str]:
        own = resolve_environment(self._services[service], self._secrets)
        for name, address in self._addresses.items():
            own = {key: value.replace(name, address).replace("quire_owner@", "postgres@") for key, value in own.items()}
        others = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "XDG_", "PG"))}
        return {**others, "HOME": str(self._folder), **own}

    def run(self, service: str, *words: str) -> str:
        """Runs a service's program to its end, with its own command unless another is given."""
        command = [PROGRAM, *(words or self._services[service]["command"])]
        completed = subprocess.run(
            command, env=self._environment(service), capture_output=True, text=True, cwd=self._folder, check=False
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    def start(self, service: str, *more: str) -> "subprocess.Popen[bytes]":
        with (self._folder / f"{service}.log").open("wb") as log:
            process = subprocess.Popen(
                [PROGRAM, *self._services[service]["command"], *more],
                env=self._environment(service),
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        self._processes.append(process)
        return process

    def make_role(self, cluster: Cluster) -> None:
        own = {"POSTGRES_USER": "postgres", "POSTGRES_DB": "quire", "PGHOST": "127.0.0.1", "PGPORT": str(cluster.port)}
        path = {"PATH": f"{PSQL.parent}:{os.environ['PATH']}"}
        subprocess.run(
            [str(DEPLOY / "role.sh")], env={**os.environ, **own, **path, "QUIRE_APP_PASSWORD": PASSWORD}, check=True
        )

    def start_pgbouncer(self, cluster: Cluster) -> None:
        port, folder = find_free_port(), self._folder / "pgbouncer"
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
        pgbouncer = find_pgbouncer()
        assert pgbouncer is not None
        own = {"PGBOUNCER_FOLDER": str(folder), "PGBOUNCER_INI": str(ini), "QUIRE_APP_PASSWORD": PASSWORD}
        environment = {**os.environ, **own, "PATH": f"{Path(pgbouncer).parent}:{os.environ['PATH']}"}
        with (self._folder / "pgbouncer.log").open("wb") as log:
            process = subprocess.Popen(
                [*build_server_user_prefix(), str(script)], env=environment, stdout=log, stderr=log
            )
        self._processes.append(process)
        self.set_address("pgbouncer:6432", port)
        deadline = time.monotonic() + 30
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            assert time.monotonic() < deadline, (self._folder / "pgbouncer.log").read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def deployment(compose: dict[str, Any], tmp_path: Path) -> Iterator[LocalDeployment]:
    if find_pgbouncer() is None or not PSQL.is_file():
        message = "PGBOUNCER OR PSQL IS NOT INSTALLED: deploy/ is not tested here"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    deployment = LocalDeployment(compose, tmp_path)
    yield deployment
    deployment.stop()


@pytest.mark.nightly
def test_the_services_work_together_without_containers(deployment: LocalDeployment, tmp_path: Path):
    """Role, upgrade by the owner, PgBouncer with a password, servers through it, worker directly."""
    with Cluster.start(18) as cluster:
        cluster.create_database("quire")
        deployment.set_address("postgres:5432", cluster.port)
        deployment.make_role(cluster)
        assert "quire_app" in deployment.run("upgrade")
        deployment.start_pgbouncer(cluster)
        key = deployment.run("server", "key", "create", "laptop", "--scope", "read", "--scope", "write").strip()
        port = find_free_port()
        server = deployment.start("server", "--port", str(port))
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}) as client:
            wait_until_ready(client, tmp_path / "server.log")
            assert client.post("/api/conversations", json={"id": "c"}).status_code == 201
            assert client.get("/api/conversations/c").json()["id"] == "c"
            assert httpx2.get(f"http://127.0.0.1:{port}/api/conversations").status_code == 401
            assert PASSWORD not in client.get("/metrics").text
        deployment.run("worker", "worker", "--once")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        for log in tmp_path.glob("*.log"):
            assert PASSWORD not in log.read_text(errors="replace")


def wait_until_ready(client: httpx2.Client, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(httpx2.HTTPError):
            if client.get("/readyz").status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(log.read_text())
