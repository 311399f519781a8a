"""A real identity provider for tests: the npm package `oidc-provider` in a process, and people who sign in there.

`just install-agents` installs it under `.cache/oidc-provider`. Its own pages ask for a name and any password.
"""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx2
import pytest

PACKAGE_FOLDER = Path(__file__).parents[2] / ".cache" / "oidc-provider"
CLIENT_SECRET = "a secret & more"
"""With characters that the client must encode."""


class OidcProvider:
    """A running provider; people exist as soon as they sign in."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self._process, self.issuer = process, f"http://127.0.0.1:{port}"

    def command(self, **command: Any) -> None:
        """Sets `groups` of people, takes the provider `down`, lets it `rotate` its keys, or `block`s a person."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        # The provider prints notes of its own too.
        while (line := self._process.stdout.readline()) != "done\n":
            assert line, "the provider has ended"


def require_provider() -> None:
    """Skips the test without Node.js or the package, as tests of the coding agents do."""
    if shutil.which("node") is None or not (PACKAGE_FOLDER / "node_modules" / "oidc-provider").is_dir():
        pytest.skip("OIDC-PROVIDER IS NOT INSTALLED (just install-agents): no sign-in is tested here")


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def run_provider(redirect_uri: str) -> Iterator[OidcProvider]:
    require_provider()
    port, script = find_free_port(), Path(__file__).with_suffix(".mjs")
    command = ["node", str(script), str(PACKAGE_FOLDER.resolve()), str(port), redirect_uri]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n", "the provider did not start"
            yield OidcProvider(process, port)
        finally:
            process.kill()


async def sign_in_by_forms(browser: httpx2.AsyncClient, url: str, name: str) -> httpx2.Response:
    """Follows redirects and fills in the provider's forms, as a person does in a browser; returns the last response."""
    response = await browser.get(url, follow_redirects=True)
    for _ in range(6):
        form = re.search(r'<form[^>]*action="([^"]+)"[^>]*>(.*?)</form>', response.text, re.DOTALL)
        is_question = 'name="prompt"' in response.text or 'name="xsrf"' in response.text
        if form is None or not is_question:
            return response
        fields = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', form[2]))
        fields |= {"login": name, "password": "any"} if 'name="login"' in form[2] else {}
        action = urljoin(str(response.url), unescape(form[1]))
        response = await browser.post(action, data=fields, follow_redirects=True)
    return response
