"""The local model's server ends with its owner, however that ends."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from infra import llama
from infra.processes import find_children

TESTS_FOLDER = Path(__file__).parents[1]
"""`python -m infra.llama` finds the package here."""

pytestmark = [pytest.mark.nightly, pytest.mark.real_model]


@pytest.fixture(autouse=True)
def require_packages() -> None:
    if llama.find_missing_packages() and not os.environ.get("CI"):
        pytest.skip("THE LOCAL MODEL IS NOT INSTALLED: nothing is tested on it here")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 20 seconds"
        time.sleep(0.02)


def has_exited(pid: int) -> bool:
    """Whether the process is gone; a zombie counts as gone, because in a container it may never be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def is_listening(url: str) -> bool:
    place = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((place.hostname, place.port)) == 0


def test_it_ends_with_an_owner_that_is_killed_in_the_middle_of_a_request():
    command = [sys.executable, "-m", "infra.llama", "--context", "4096"]
    with subprocess.Popen(command, cwd=TESTS_FOLDER, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        (server,) = find_children(owner.pid)
        place = urlsplit(url)
        body = json.dumps({"prompt": "word " * 4000, "max_tokens": 4000}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection((place.hostname, place.port)) as busy:
            busy.sendall(head + body)
            time.sleep(0.5)
            owner.kill()
            owner.wait()
            wait_until(lambda: has_exited(server))
            # Its first thread may be gone before the last, which closes what they shared.
            wait_until(lambda: not is_listening(url))
