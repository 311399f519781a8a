"""Throwaway PgBouncer in front of a throwaway PostgreSQL, in transaction mode.

A small pool for many clients changes the session between transactions, which reveals code that relies on one session.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from infra.postgres import (
    PostgresError,
    PostgresServer,
    build_server_user_prefix,
    find_free_port,
    make_clean_environment,
)

POOL_SIZE = 3
"""Server sessions per database."""

_START_TIMEOUT_SECONDS = 10.0
_DEFAULT_SETTINGS = {
    "listen_addr": "127.0.0.1",
    "unix_socket_dir": "",
    "auth_type": "trust",
    "pool_mode": "transaction",
    "default_pool_size": str(POOL_SIZE),
    "max_client_conn": "1000",
    # Tests create and drop databases; close idle sessions soon.
    "server_idle_timeout": "5",
}


def find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


class PgBouncer:
    """PgBouncer on 127.0.0.1, for every database of a server. Created by `start`; ends with this process."""

    def __init__(self, server: PostgresServer, *, home: Path) -> None:
        self.server, self.port = server, find_free_port()
        self._home, self._program = home, ""
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls, server: PostgresServer, *, users: tuple[str, ...], settings: Mapping[str, str] | None = None
    ) -> Self:
        program = find_pgbouncer()
        if program is None:
            raise PostgresError("PgBouncer is not installed: install Debian's package pgbouncer.")
        pooler = cls(server, home=Path(tempfile.mkdtemp(prefix="quire-pgbouncer-")))
        try:
            pooler._write_config({**_DEFAULT_SETTINGS, **(settings or {})}, users)
            pooler._program = program
            pooler._start_process()
        except BaseException:
            pooler.stop()
            raise
        return pooler

    def url(self, database: str, *, user: str) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def restart(self) -> None:
        """Restart it at the same address; every client's connection ends."""
        self._stop_process()
        self._start_process()

    def _stop_process(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Stop it and remove its files; idempotent."""
        self._stop_process()
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write_config(self, settings: Mapping[str, str], users: tuple[str, ...]) -> None:
        """Write its files, readable by the server's account; they hold no secret."""
        names = self._home / "users.txt"
        names.write_text("".join(f'"{user}" ""\n' for user in users))
        lines = [f"{name} = {value}" for name, value in {**settings, "auth_file": str(names)}.items()]
        (self._home / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={self.server.port}\n"
            f"[pgbouncer]\nlisten_port = {self.port}\n" + "\n".join(lines) + "\n"
        )
        self._home.chmod(0o755)

    def _start_process(self) -> None:
        # `--pdeathsig` ends PgBouncer with the process that started it.
        ending = ["setpriv", "--pdeathsig", "TERM", "--"]
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*build_server_user_prefix(), *ending, self._program, str(self._home / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=make_clean_environment(),
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                psycopg.connect(self.url("pgbouncer", user="nobody"), connect_timeout=5).close()
            except psycopg.OperationalError as refused:
                if "refused" not in str(refused):
                    return
                time.sleep(0.02)
        log_text = (self._home / "log").read_text(errors="replace")
        raise PostgresError(f"PgBouncer did not start; its log ends:\n{log_text[-2000:]}")
