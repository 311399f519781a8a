"""A real S3-compatible server for tests: moto's, as a process on loopback.

`just install-agents` installs it under `.cache/moto`.
"""

import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError

import pytest

SERVER = Path(__file__).parents[2] / ".cache/moto/bin/moto_server"
BUCKET = "quire"
START_SECONDS = 60.0


class S3Server:
    """A server that can go away and come back, with the environment of its clients. It forgets what it had."""

    def __init__(self, port: int) -> None:
        self.port, self._process = port, self._start(port)
        self.environ = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
        self.url = f"s3://{BUCKET}/some/folder"

    @staticmethod
    def _start(port: int) -> "subprocess.Popen[bytes]":
        command = [SERVER, "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(URLError, OSError):
                request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
                urllib.request.urlopen(request, timeout=5).close()
                return process
            time.sleep(0.1)
        process.kill()
        raise AssertionError("the S3 server did not start")

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Answers nothing in the block, and has everything after it."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def run_s3_server() -> Iterator[S3Server]:
    if not SERVER.exists():
        pytest.skip("MOTO IS NOT INSTALLED (`just install-agents`): nothing is stored in S3 here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = S3Server(port)
    try:
        yield server
    finally:
        server.stop()
