"""Servers of `gateway.py` as processes: those of `gateway_servers.py`, and the proxies of other projects.

Each peer is installed under .cache, so that its dependencies do not meet Quire's.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

from infra.postgres import find_free_port

CACHE_FOLDER = Path(__file__).parents[1] / ".cache"
START_TIMEOUT_SECONDS = 600.0
"""Imports of LiteLLM take minutes on a busy machine."""


class ServerProcess(NamedTuple):
    port: int
    pid: int
    headers: str = ""
    """Lines that each request to it needs."""

    def read_cpu_seconds(self) -> float:
        """Reads the CPU seconds of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def start_servers(*commands: tuple[str, ...]) -> Iterator[list[ServerProcess]]:
    """Starts servers of `gateway_servers.py`."""
    script = str(Path(__file__).with_name("gateway_servers.py"))
    with ExitStack() as running:
        started = [
            running.enter_context(
                subprocess.Popen([sys.executable, script, *each], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for each in commands
        ]
        try:
            yield [ServerProcess(int(each.stdout.readline()), each.pid) for each in started if each.stdout is not None]
        finally:
            for each in started:
                if each.stdin is not None:
                    each.stdin.close()
                each.wait(20)


class PeerSetup(NamedTuple):
    """What a peer's command line is made of."""

    environment: Path
    """Folder of its installation."""
    folder: Path
    """An empty folder for its files."""
    upstream: str
    port: int
    key: str


@dataclass(frozen=True)
class Peer:
    """A proxy of another project that passes chat completions on, and stores nothing that one could read later."""

    title: str
    package: str
    """With its extras; a package of npm begins with @."""
    how: str
    """Its settings, as the report names them."""
    build_command: Callable[[PeerSetup], list[str | Path]]
    ready_path: str
    variables: Callable[[PeerSetup], Mapping[str, str]] = lambda _: {}
    headers: Callable[[PeerSetup], str] = lambda _: ""


def build_litellm_command(setup: PeerSetup) -> list[str | Path]:
    parameters = {"model": "openai/gpt-4o", "api_base": setup.upstream, "api_key": "sk-none"}
    config = setup.folder / "config.yaml"
    # JSON is YAML.
    config.write_text(json.dumps({"model_list": [{"model_name": "gpt-4o", "litellm_params": parameters}]}))
    program = setup.environment / "bin" / "litellm"
    return [program, "--config", config, "--host", "127.0.0.1", "--port", str(setup.port)]


PEERS: Mapping[str, Peer] = {
    "litellm": Peer(
        title="LiteLLM",
        package="litellm[proxy]",
        how="with one key, without callbacks and database",
        build_command=build_litellm_command,
        ready_path="/health/liveliness",
        variables=lambda setup: {
            "LITELLM_MASTER_KEY": setup.key,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
        },
    ),
    "portkey": Peer(
        title="Portkey",
        package="@portkey-ai/gateway",
        how="as it starts",
        build_command=lambda setup: [
            "node",
            setup.environment / "node_modules/@portkey-ai/gateway/build/start-server.js",
            "--headless",
            f"--port={setup.port}",
        ],
        ready_path="/",
        headers=lambda setup: f"x-portkey-provider: openai\r\nx-portkey-custom-host: {setup.upstream}\r\n",
    ),
    "headroom": Peer(
        title="Headroom",
        package="headroom-ai[proxy]",
        how="as it starts, without its rate limit",
        build_command=lambda setup: [
            setup.environment / "bin" / "headroom",
            "proxy",
            "--port",
            str(setup.port),
            "--no-rate-limit",
        ],
        ready_path="/health",
        variables=lambda setup: {
            "OPENAI_TARGET_API_URL": setup.upstream.removesuffix("/v1"),
            "HEADROOM_TELEMETRY": "off",
            "HOME": str(setup.folder),
        },
    ),
}


def find_peer(name: str, *, install: bool) -> str | None:
    """The peer's version, after an installation if it is missing; None if it stays missing."""
    peer, environment = PEERS[name], CACHE_FOLDER / name
    is_node = peer.package.startswith("@")
    try:
        if not environment.exists():
            if not install:
                print(f"{peer.title} is left out: it is not installed, which a run without --quick does.")
                return None
            environment.mkdir(parents=True)
            if is_node:
                command = ["npm", "install", "--silent", "--prefix", environment, peer.package]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            else:
                subprocess.run([sys.executable, "-m", "venv", environment], check=True)
                command = [environment / "bin/python", "-m", "pip", "install", "--quiet", peer.package]
                subprocess.run(command, check=True)
        if is_node:
            installed = environment / "node_modules" / peer.package / "package.json"
            return str(json.loads(installed.read_text("utf-8"))["version"])
        program = f"from importlib.metadata import version; print(version({peer.package.partition('[')[0]!r}))"
        command = [environment / "bin/python", "-c", program]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{peer.title} is left out: its installation failed ({type(error).__name__}).")
        shutil.rmtree(environment, ignore_errors=True)
        return None


@contextmanager
def start_peer(name: str, upstream: str, *, key: str) -> Iterator[ServerProcess | None]:
    """Starts a peer's proxy; None if it does not start."""
    peer = PEERS[name]
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "output").open("w+") as output:
        setup = PeerSetup(CACHE_FOLDER / name, Path(folder), upstream, find_free_port(), key)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QUIRE_"))}
        environment = {**inherited, **peer.variables(setup)}
        command = peer.build_command(setup)
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT) as process:
            try:
                if _wait_until_ready(process, setup.port, peer.ready_path):
                    yield ServerProcess(setup.port, process.pid, peer.headers(setup))
                else:
                    output.seek(0)
                    print(f"{peer.title} is left out: it did not start.\n{output.read()[-2_000:]}", file=sys.stderr)
                    print(f"{peer.title} is left out: it did not start.")
                    yield None
            finally:
                process.terminate()


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, path: str) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError, HTTPException):
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return True
        time.sleep(0.5)
    return False
