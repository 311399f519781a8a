"""Servers of `gateway.py` as processes: those of `gateway_servers.py`, and LiteLLM's proxy.

LiteLLM is installed into an environment of its own under .cache, so that its dependencies do not meet Quire's.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

from infra.postgres import find_free_port

LITELLM_FOLDER = Path(__file__).parents[1] / ".cache" / "litellm"
START_TIMEOUT_SECONDS = 600.0
"""Imports of LiteLLM take minutes on a busy machine."""


class ServerProcess(NamedTuple):
    port: int
    pid: int

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


def find_litellm(*, install: bool) -> str | None:
    """LiteLLM's version, after an installation if it is missing; None if it stays missing."""
    python = LITELLM_FOLDER / "bin" / "python"
    try:
        if not (LITELLM_FOLDER / "bin" / "litellm").exists():
            if not install:
                print("LiteLLM is left out: it is not installed, which a run without --quick does.")
                return None
            subprocess.run([sys.executable, "-m", "venv", LITELLM_FOLDER], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "litellm[proxy]"], check=True)
        program = "from importlib.metadata import version; print(version('litellm'))"
        return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"LiteLLM is left out: its installation failed ({type(error).__name__}).")
        shutil.rmtree(LITELLM_FOLDER, ignore_errors=True)
        return None


@contextmanager
def start_litellm(upstream: str, *, key: str) -> Iterator[ServerProcess | None]:
    """Starts LiteLLM's proxy with one key, without callbacks and database; None if it does not start."""
    port, parameters = find_free_port(), {"model": "openai/gpt-4o", "api_base": upstream, "api_key": "sk-none"}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QUIRE_"))},
        "LITELLM_MASTER_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
    }
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "output").open("w+") as output:
        config = Path(folder) / "config.yaml"
        # JSON is YAML.
        config.write_text(json.dumps({"model_list": [{"model_name": "gpt-4o", "litellm_params": parameters}]}))
        command = [LITELLM_FOLDER / "bin" / "litellm", "--config", config, "--host", "127.0.0.1", "--port", str(port)]
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT) as process:
            try:
                if _wait_until_ready(process, port):
                    yield ServerProcess(port, process.pid)
                else:
                    output.seek(0)
                    print(f"LiteLLM is left out: it did not start.\n{output.read()[-2_000:]}", file=sys.stderr)
                    print("LiteLLM is left out: it did not start.")
                    yield None
            finally:
                process.terminate()


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError, HTTPException):
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health/liveliness")
            if connection.getresponse().status == 200:
                return True
        time.sleep(0.5)
    return False
