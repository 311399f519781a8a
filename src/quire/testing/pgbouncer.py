"""A throwaway PgBouncer in front of a throwaway PostgreSQL, in transaction mode: each transaction, another session.

Few sessions and many clients, so that whatever rests on a session staying the same comes to light.
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

from quire.testing.postgres import PostgresError, Server, as_server_user, clean_environment, free_port

SESSIONS = 3
"""The server's sessions for one database."""

_START_TIMEOUT = 10.0
_SETTINGS = {
    "listen_addr": "127.0.0.1",
    "unix_socket_dir": "",
    "auth_type": "trust",
    "pool_mode": "transaction",
    "default_pool_size": str(SESSIONS),
    "max_client_conn": "1000",
    # Databases come and go with tests; a session that is left in one is not kept.
    "server_idle_timeout": "5",
}


def find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


class Pooler:
    """PgBouncer on 127.0.0.1, for every database of a server. Make one with `start`; it ends with this process."""

    def __init__(self, server: Server, *, home: Path) -> None:
        self.server, self.port = server, free_port()
        self._home, self._program = home, ""
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, server: Server, *, users: tuple[str, ...], settings: Mapping[str, str] | None = None) -> Self:
        program = find_pgbouncer()
        if program is None:
            raise PostgresError("PgBouncer is not installed: install Debian's package pgbouncer.")
        pooler = cls(server, home=Path(tempfile.mkdtemp(prefix="quire-pgbouncer-")))
        try:
            pooler._write({**_SETTINGS, **(settings or {})}, users)
            pooler._program = program
            pooler._launch()
        except BaseException:
            pooler.stop()
            raise
        return pooler

    def url(self, database: str, *, user: str) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def restart(self) -> None:
        """Ends it, and every client's connection, and starts it again at the same address."""
        self._end()
        self._launch()

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Ends it and removes its files. Stopping twice is stopping once."""
        self._end()
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write(self, settings: Mapping[str, str], users: tuple[str, ...]) -> None:
        """Its files; they hold no secret, and another account must be able to read them."""
        names = self._home / "users.txt"
        names.write_text("".join(f'"{user}" ""\n' for user in users))
        lines = [f"{name} = {value}" for name, value in {**settings, "auth_file": str(names)}.items()]
        (self._home / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={self.server.port}\n"
            f"[pgbouncer]\nlisten_port = {self.port}\n" + "\n".join(lines) + "\n"
        )
        self._home.chmod(0o755)

    def _launch(self) -> None:
        # The last word of `setpriv` sees to it that no PgBouncer outlives whoever started it.
        ending = ["setpriv", "--pdeathsig", "TERM", "--"]
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*as_server_user(), *ending, self._program, str(self._home / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment(),
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                psycopg.connect(self.url("pgbouncer", user="nobody"), connect_timeout=5).close()
            except psycopg.OperationalError as refused:
                if "refused" not in str(refused):
                    return
                time.sleep(0.02)
        said = (self._home / "log").read_text(errors="replace")
        raise PostgresError(f"PgBouncer did not start; its log ends:\n{said[-2000:]}")
