"""Throwaway PostgreSQL cluster under Patroni: three members with synchronous replication, one etcd, and HAProxy, whose
port leads to the primary.

Every member has a file system of its own where this process may mount one, so that its disk can be filled. However the
owner ends, even by SIGKILL, all processes end and all files are removed.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg

from infra.fault_database import APPLICATION_ROLE, DATABASE_NAME, create_schema
from infra.fault_schedule import FaultKind
from infra.pgbouncer import PgBouncer
from infra.postgres import (
    PostgresError,
    PostgresServer,
    build_server_user_prefix,
    find_binaries,
    find_free_port,
    get_server_user,
    make_clean_environment,
)
from infra.processes import find_children, freeze_tree, kill_tree, send_signal, wait_for_exit
from quire.db.database_url import build_conninfo

T = TypeVar("T")

MEMBER_COUNT = 3
PROGRAMS = ("patroni", "etcd", "haproxy")
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
LEASE_SECONDS = 20
"""Patroni's `ttl`: how long a silent leader remains the leader. Patroni accepts no less."""
DISK_BYTES = 1_000_000_000
"""Size of the file system of one member."""
FULL_DISK_SECONDS = 5.0

_HAPROXY_CONFIGURATION = """
global
    maxconn 1000
defaults
    mode tcp
    timeout connect 2s
    timeout check 2s
    timeout client 1h
    timeout server 1h
listen primary
    bind 127.0.0.1:{port}
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
{servers}
"""
_START_TIMEOUT_SECONDS = 120.0
_REST_TIMEOUT_SECONDS = 3.0

# Waits on its standard input, which closes however the owner ends.
_CLEANUP_SCRIPT = """
read -r _
for file in "$1"/pids/*; do kill -KILL "${file##*/}" 2>/dev/null; done
for file in "$1"/member*/data/postmaster.pid; do kill -QUIT "$(head -n 1 "$file")" 2>/dev/null; done
sleep 1
for folder in "$1"/member*; do umount --lazy "$folder" 2>/dev/null; done
rm -rf "$1"
"""


def find_missing_program() -> str | None:
    """The first program that is needed and not installed."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=PROGRAM_PATH) is None]
    return missing[0] if missing else None if find_binaries(15) is not None else "postgres"


class PatroniCluster:
    """Three members, numbered from 0. Created by `start`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        ports: set[int] = set()
        while len(ports) < 2 * MEMBER_COUNT + 3:
            ports.add(find_free_port())
        self._etcd_port, self._etcd_peer_port, self.primary_port, *others = ports
        self.ports, self._rest_ports = others[:MEMBER_COUNT], others[MEMBER_COUNT:]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._frozen: dict[int, list[int]] = {}
        self.has_own_disks = True
        self._cleanup_process = subprocess.Popen(
            ["/bin/sh", "-c", _CLEANUP_SCRIPT, "cleanup", str(home)], stdin=subprocess.PIPE, start_new_session=True
        )

    @classmethod
    def start(cls) -> Self:
        missing = find_missing_program()
        if missing is not None:
            raise PostgresError(f"{missing} is not installed: install patroni, etcd-server, haproxy and postgresql-15.")
        cluster = cls(Path(tempfile.mkdtemp(prefix="quire-patroni-")))
        try:
            cluster._create_folders()
            cluster._start_etcd()
            for member in range(MEMBER_COUNT):
                cluster.start_member(member)
            cluster._start_haproxy()
            cluster.wait_healthy()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def url(self, database: str, *, user: str = "postgres", ports: Sequence[int] | None = None) -> str:
        """A URL with all members, or with proxies in front of them, that connects to the primary."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports or self.ports)
        return f"postgresql://{user}@{hosts}/{database}?target_session_attrs=read-write"

    def create_database(self, name: str) -> None:
        PostgresServer(self.ports[self.get_primary()]).create_database(name)

    def create_role(self, name: str) -> None:
        PostgresServer(self.ports[self.get_primary()]).create_role(name)

    def find_primary(self, *, other_than: int | None = None) -> int | None:
        """The member that accepts writes, if there is one."""
        for member, port in enumerate(self.ports):
            if member == other_than or member in self._frozen:
                continue
            with suppress(psycopg.OperationalError):
                url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
                with psycopg.connect(url, connect_timeout=2) as connection:
                    if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,):
                        return member
        return None

    def get_primary(self, *, other_than: int | None = None) -> int:
        """Waits for a primary."""
        return _wait_for(lambda: self.find_primary(other_than=other_than), "no member is the primary")

    def wait_healthy(self) -> None:
        """Waits for a primary with two standbys, one of them synchronous."""
        try:
            _wait_for(lambda: self._is_healthy() or None, "the cluster is not healthy")
        except PostgresError as error:
            logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in self._home.glob("*.log"))
            raise PostgresError(f"{error} Its logs end:\n{logs}") from None

    def _is_healthy(self) -> bool:
        for port in self._rest_ports:
            with suppress(OSError, ValueError):
                members = _get_json(f"http://127.0.0.1:{port}/cluster")["members"]
                states = sorted((each["role"], each["state"]) for each in members)
                running = {"running", "streaming"}
                roles = [role for role, state in states if state in running]
                return roles == ["leader", "replica", "sync_standby"]
        return False

    def kill_member(self, member: int) -> None:
        """Kills Patroni and PostgreSQL of a member, as the loss of its machine would."""
        process = self._processes.pop(member)
        process.kill()
        process.wait()
        self.kill_postgres(member)

    def kill_postgres(self, member: int) -> None:
        """Kills PostgreSQL of a member; its Patroni lives."""
        pid = self._read_postmaster(member)
        if pid is not None:
            wait_for_exit([pid, *kill_tree(pid)])

    def freeze_member(self, member: int) -> None:
        """Stops Patroni and PostgreSQL of a member with SIGSTOP: its connections stay open, and nothing answers."""
        pids = freeze_tree(self._processes[member].pid)
        postmaster = self._read_postmaster(member)
        self._frozen[member] = pids + (freeze_tree(postmaster) if postmaster is not None else [])

    def thaw_member(self, member: int) -> None:
        send_signal(self._frozen.pop(member, []), signal.SIGCONT)

    def switchover(self) -> None:
        """Makes a standby the primary, as `patronictl switchover` does; returns when Patroni reports success."""
        primary = self.get_primary()
        body = json.dumps({"leader": f"member{primary}"}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._rest_ports[primary]}/switchover", data=body)
        with urllib.request.urlopen(request, timeout=60):
            return

    @contextmanager
    def full_disk(self, member: int) -> Iterator[None]:
        """Leaves no free byte on the member's file system meanwhile."""
        ballast = self._home / f"member{member}" / "ballast"
        free = shutil.disk_usage(ballast.parent).free
        try:
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, free)
                while file.write(bytes(4096)):
                    pass
            yield
        finally:
            ballast.unlink()

    def start_member(self, member: int) -> None:
        """Starts Patroni of a member, which starts PostgreSQL: as a standby if there is a primary."""
        arguments = [*build_server_user_prefix(), "patroni", str(self._home / f"member{member}.json")]
        self._processes[member] = self._spawn(arguments, log=f"patroni{member}.log")

    def stop(self) -> None:
        """Stops all processes and removes all files; idempotent."""
        if self._cleanup_process.returncode is None:
            for member in range(MEMBER_COUNT):
                self.thaw_member(member)
            self._cleanup_process.communicate(b"\n")
            for process in self._processes.values():
                process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _create_folders(self) -> None:
        user = get_server_user()
        for folder in (self._home, *(self._home / f"member{member}" for member in range(MEMBER_COUNT))):
            folder.mkdir(exist_ok=True)
            if folder is not self._home:
                mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
                self.has_own_disks &= subprocess.run(mount, check=False, stderr=subprocess.DEVNULL).returncode == 0
            if user is not None:
                shutil.chown(folder, user, user)
        (self._home / "pids").mkdir()
        for member in range(MEMBER_COUNT):
            path = self._home / f"member{member}.json"
            path.write_text(json.dumps(self._build_configuration(member)))

    def _build_configuration(self, member: int) -> dict[str, Any]:
        """Patroni reads YAML, of which JSON is a part."""
        address, rest_address = f"127.0.0.1:{self.ports[member]}", f"127.0.0.1:{self._rest_ports[member]}"
        trust = ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
        settings = {"max_connections": 200, "max_wal_size": "128MB", "wal_log_hints": "on", "shared_buffers": "32MB"}
        return {
            "scope": "quire",
            "name": f"member{member}",
            "restapi": {"listen": rest_address, "connect_address": rest_address},
            "etcd3": {"host": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {
                "dcs": {
                    "ttl": LEASE_SECONDS,
                    "loop_wait": 2,
                    "retry_timeout": 3,
                    "synchronous_mode": True,
                    # A killed primary is replaced, not restarted.
                    "master_start_timeout": 0,
                    "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": settings},
                },
                "initdb": [{"encoding": "UTF8"}, "data-checksums"],
                "pg_hba": trust,
            },
            "postgresql": {
                "listen": address,
                "connect_address": address,
                "data_dir": str(self._home / f"member{member}" / "data"),
                "bin_dir": str(find_binaries(15)),
                "pgpass": str(self._home / f"member{member}" / "pgpass"),
                "pg_hba": trust,
                "authentication": {
                    "superuser": {"username": "postgres", "password": "p"},
                    "replication": {"username": "replicator", "password": "p"},
                    "rewind": {"username": "rewinder", "password": "p"},
                },
                "parameters": {"unix_socket_directories": str(self._home / f"member{member}")},
            },
        }

    def _start_etcd(self) -> None:
        peer, client = f"http://127.0.0.1:{self._etcd_peer_port}", f"http://127.0.0.1:{self._etcd_port}"
        arguments = [
            *("etcd", "--data-dir", str(self._home / "etcd"), "--listen-client-urls", client),
            *("--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}", "--unsafe-no-fsync", "--log-level", "error"),
        ]
        self._spawn(arguments, log="etcd.log")
        _wait_for(lambda: _get_json(f"{client}/health") or None, "etcd did not start")

    def _start_haproxy(self) -> None:
        members = enumerate(zip(self.ports, self._rest_ports, strict=True))
        servers = [f"    server member{number} 127.0.0.1:{port} check port {rest}" for number, (port, rest) in members]
        path = self._home / "haproxy.cfg"
        path.write_text(_HAPROXY_CONFIGURATION.format(port=self.primary_port, servers="\n".join(servers)))
        program = shutil.which("haproxy", path=PROGRAM_PATH)
        assert program is not None
        self._spawn([program, "-db", "-f", str(path)], log="haproxy.log")

    def _spawn(self, arguments: list[str], *, log: str) -> subprocess.Popen[bytes]:
        with (self._home / log).open("ab") as output:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._home,
                env=make_clean_environment(),
                start_new_session=True,
            )
        (self._home / "pids" / str(process.pid)).touch()
        return process

    def _read_postmaster(self, member: int) -> int | None:
        """The process ID of a running PostgreSQL; a file of a killed one may remain."""
        try:
            pid = int((self._home / f"member{member}" / "data" / "postmaster.pid").read_text().split()[0])
            name = Path(f"/proc/{pid}/comm").read_text()
        except (OSError, ValueError, IndexError):
            return None
        return pid if name.startswith("postgres") and find_children(pid) else None


def _wait_for(find: Callable[[], T | None], failure: str) -> T:
    end = time.monotonic() + _START_TIMEOUT_SECONDS
    while time.monotonic() < end:
        with suppress(OSError):
            if (found := find()) is not None:
                return found
        time.sleep(0.1)
    raise PostgresError(f"After {_START_TIMEOUT_SECONDS:g} seconds {failure}.")


def _get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_REST_TIMEOUT_SECONDS) as response:
        return json.load(response)


class ReplicatedDatabase:
    """Three members under Patroni."""

    def __init__(self, cluster: PatroniCluster, *, pooler: PgBouncer | None = None) -> None:
        self._cluster, self.pooler = cluster, pooler
        cluster.create_role(APPLICATION_ROLE)
        cluster.create_database(DATABASE_NAME)
        create_schema(cluster.url(DATABASE_NAME))
        self.ports = cluster.ports
        self.admin_conninfo = build_conninfo(cluster.url(DATABASE_NAME))

    @property
    def unsupported_faults(self) -> frozenset[FaultKind]:
        return frozenset[FaultKind]() if self._cluster.has_own_disks else frozenset({FaultKind.FILL_DISK})

    def url(self, *, ports: Sequence[int] | None = None) -> str:
        return self._cluster.url(DATABASE_NAME, user=APPLICATION_ROLE, ports=ports)

    async def inject(self, kind: FaultKind, seconds: float) -> None:
        await asyncio.to_thread(self._inject, kind)
        await asyncio.to_thread(self._cluster.wait_healthy)

    def _inject(self, kind: FaultKind) -> None:
        cluster, primary = self._cluster, self._cluster.get_primary()
        match kind:
            case FaultKind.KILL_PRIMARY:
                cluster.kill_member(primary)
                cluster.get_primary(other_than=primary)
                cluster.start_member(primary)
            case FaultKind.KILL_POSTGRES:
                cluster.kill_postgres(primary)
            case FaultKind.FREEZE_PRIMARY:
                cluster.freeze_member(primary)
                cluster.get_primary(other_than=primary)
                cluster.thaw_member(primary)
            case FaultKind.SWITCH_OVER:
                cluster.switchover()
            case FaultKind.FILL_DISK:
                with cluster.full_disk(primary):
                    time.sleep(FULL_DISK_SECONDS)
            case _:
                raise NotImplementedError(kind)
