"""Running servers of the local user: each has a file in the data folder, by which `quire run` finds it."""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import ValidationError

from quire.cli.paths import get_servers_folder
from quire.model.base import FrozenModel

if TYPE_CHECKING:
    from quire.settings import Settings

PROBE_SECONDS = 20.0
"""Seconds that a server has to answer before it counts as not running. One that starts on a busy machine takes several;
a port that nothing listens on refuses at once."""


class LocalServer(FrozenModel):
    """A server on loopback with a token."""

    url: str
    """Base URL, without a path and without the token."""
    token: str
    configuration: str
    """Digest of its settings, its database and its API keys of upstreams."""

    def is_running(self) -> bool:
        """Whether this server answers: another program on its port does not know the token."""
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=PROBE_SECONDS)
        try:
            connection.request("GET", "/api/conversations?limit=1", headers={"X-Quire-Key": self.token})
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def digest_configuration(settings: "Settings", database_url: str, environ: Mapping[str, str]) -> str:
    """Computes a digest that is equal for servers with the same settings, database and API keys of upstreams."""
    if database_url.startswith("sqlite:///"):
        database_url = str(Path(database_url.removeprefix("sqlite:///")).absolute())
    variables = [each.api_key_env for each in settings.upstreams.values()]
    api_keys = [environ.get(name) for name in variables if name is not None]
    return sha256(f"{database_url}\n{api_keys}\n{settings.model_dump_json()}".encode()).hexdigest()


@contextmanager
def register_server(server: LocalServer) -> Generator[None]:
    """Lets `find_server` find the server while the context is open. Only the user can read the file.

    Where the data folder is read-only, the server runs unregistered.
    """
    path = get_servers_folder() / f"{os.getpid()}.json"
    with suppress(OSError):
        create_servers_folder()
        path.unlink(missing_ok=True)
        with open(path, "w", encoding="utf-8", opener=_open_private) as file:
            file.write(server.model_dump_json())
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def create_servers_folder() -> Path:
    folder = get_servers_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def find_server(configuration: str) -> LocalServer | None:
    """Finds a running server with this configuration. Files of servers that have crashed are ignored."""
    for path in sorted(get_servers_folder().glob("*.json")):
        with suppress(OSError, ValidationError):
            server = LocalServer.model_validate_json(path.read_bytes())
            if server.configuration == configuration and server.is_running():
                return server
    return None
