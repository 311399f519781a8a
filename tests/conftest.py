"""Fixtures of all tests: a new, migrated database for each test, and a local model.

A test runs on SQLite unless a marker says otherwise: `every_database` adds PostgreSQL 18, and
`every_postgres` leaves SQLite out. At full size all run on PostgreSQL 15 too, the first one behind PgBouncer.

The PostgreSQL clusters belong to the process that runs the session. Under xdist that is the controller, which starts
them before the workers; otherwise each is started on first use. The local model is always started on first use. No test
can connect to another machine.
"""

import os
import shutil
import signal
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from infra.llama import LocalModelAddress, find_missing_packages
from infra.pgbouncer import PgBouncer, find_pgbouncer
from infra.postgres import VERSIONS, Cluster, PostgresServer, Version, find_binaries
from infra.sizes import IS_FULL_SIZE
from network_guard import block_external_network
from shared_local_model import SharedLocalModel, fetch_address

if TYPE_CHECKING:
    from quire.store import SqlStore

TEMPLATE = "quire_template"
APPLICATION_ROLE = "quire_app"

_POSTGRES_BACKENDS = ("postgres18", pytest.param("postgres15", marks=pytest.mark.nightly))
_EVERY_DATABASE = ("sqlite", *_POSTGRES_BACKENDS, pytest.param("pgbouncer", marks=pytest.mark.nightly))
BACKENDS_BY_MARKER = {
    "every_database": _EVERY_DATABASE,
    "every_postgres": _POSTGRES_BACKENDS,
}
POSTGRES_VERSIONS: dict[str, Version] = {f"postgres{version}": version for version in VERSIONS} | {"pgbouncer": 18}

IN_CI = bool(os.environ.get("CI"))
SQLITE_ONLY = bool(os.environ.get("QUIRE_TEST_SQLITE_ONLY"))
"""Whether tests on PostgreSQL are deselected, for a quick answer."""

_COMMON_PROFILE = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
settings.register_profile("dev", max_examples=30, **_COMMON_PROFILE)
settings.register_profile("ci", max_examples=15, derandomize=True, **_COMMON_PROFILE)
settings.register_profile("full", max_examples=100, **_COMMON_PROFILE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("full" if IS_FULL_SIZE else "ci" if IN_CI else "dev"))

CLUSTERS_KEY = pytest.StashKey[dict[Version, Cluster]]()
LOCAL_MODEL_KEY = pytest.StashKey[SharedLocalModel]()
POOLERS_KEY = pytest.StashKey[dict[int, PgBouncer]]()


class Database(NamedTuple):
    """Connection URLs of one database: for the application's role and for its owner."""

    url: str
    admin_url: str


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # In the background of a shell; programs that the tests start would ignore Ctrl+C too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[CLUSTERS_KEY] = {}
    config.stash[LOCAL_MODEL_KEY] = SharedLocalModel()
    config.stash[POOLERS_KEY] = {}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    installed = [version for version in VERSIONS if find_binaries(version) and not SQLITE_ONLY]
    clusters = start_clusters(node.config, installed)
    node.workerinput["postgres_ports"] = {version: cluster.port for version, cluster in clusters.items()}
    node.workerinput["model_port"] = node.config.stash[LOCAL_MODEL_KEY].serve_address()


def pytest_unconfigure(config: pytest.Config) -> None:
    for pooler in config.stash[POOLERS_KEY].values():
        pooler.stop()
    for cluster in config.stash[CLUSTERS_KEY].values():
        cluster.stop()
    config.stash[LOCAL_MODEL_KEY].close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs tests that use `backend` on those of their marker, unless the test parametrizes it itself."""
    marks = metafunc.definition.iter_markers("parametrize")
    if "backend" in metafunc.fixturenames and not any(mark.args[:1] == ("backend",) for mark in marks):
        names = (mark.name for mark in metafunc.definition.iter_markers())
        marker = next((name for name in names if name in BACKENDS_BY_MARKER), None)
        metafunc.parametrize("backend", BACKENDS_BY_MARKER[marker] if marker else ("sqlite",))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    deselected = [item for item in items if is_deselected(item)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if not is_deselected(item)]


def is_deselected(item: pytest.Item) -> bool:
    if item.get_closest_marker("nightly") and not IS_FULL_SIZE:
        return True
    call: Any = getattr(item, "callspec", None)
    return SQLITE_ONLY and call is not None and call.params.get("backend", "sqlite") != "sqlite"


def start_clusters(config: pytest.Config, versions: Iterable[Version]) -> dict[Version, Cluster]:
    """Starts and migrates the missing clusters of these versions; returns all clusters of the session."""
    clusters = config.stash[CLUSTERS_KEY]
    missing = [version for version in versions if version not in clusters]
    with ThreadPoolExecutor() as threads:
        clusters.update(zip(missing, threads.map(Cluster.start, missing), strict=True))
    # Sequentially: Alembic has its context in module globals.
    for version in missing:
        create_template(clusters[version])
    return clusters


def create_template(server: PostgresServer) -> None:
    from quire.db import migrate

    server.create_database(TEMPLATE)
    server.create_role(APPLICATION_ROLE)
    migrate.upgrade(server.url(TEMPLATE))
    migrate.grant_access(server.url(TEMPLATE), APPLICATION_ROLE)


def get_postgres_server(config: pytest.Config, version: Version) -> PostgresServer:
    """Returns the session's server of this version. If it is not installed, the test is skipped, or fails in CI."""
    if SQLITE_ONLY:
        pytest.skip("PostgreSQL is excluded by QUIRE_TEST_SQLITE_ONLY")
    if find_binaries(version) is None:
        message = f"PostgreSQL {version} IS NOT INSTALLED: its tests do not run"
        pytest.fail(message) if IN_CI else pytest.skip(message)
    if hasattr(config, "workerinput"):
        return PostgresServer(config.workerinput["postgres_ports"][version])
    return start_clusters(config, [version])[version]


def get_pooler(config: pytest.Config, server: PostgresServer) -> PgBouncer:
    """Returns the PgBouncer in front of this server; each process of a run has its own."""
    if find_pgbouncer() is None:
        message = "PGBOUNCER IS NOT INSTALLED: its tests do not run"
        pytest.fail(message) if IN_CI else pytest.skip(message)
    poolers = config.stash[POOLERS_KEY]
    if server.port not in poolers:
        poolers[server.port] = PgBouncer.start(server, users=(APPLICATION_ROLE,))
    return poolers[server.port]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from quire.db import migrate

    path = tmp_path_factory.mktemp("template") / "quire.db"
    migrate.upgrade(f"sqlite:///{path}")
    # A copy of the file would lack what is still in the write-ahead log.
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def database(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if backend == "sqlite":
        path = shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "quire.db")
        yield Database(url=f"sqlite:///{path}", admin_url=f"sqlite:///{path}")
        return
    server = get_postgres_server(request.config, POSTGRES_VERSIONS[backend])
    name = f"test_{uuid.uuid4().hex}"
    server.create_database(name, template=TEMPLATE)
    endpoint = get_pooler(request.config, server) if backend == "pgbouncer" else server
    yield Database(url=endpoint.url(name, user=APPLICATION_ROLE), admin_url=server.url(name))
    server.drop_database(name)


@pytest.fixture
def database_url(database: Database) -> str:
    """A new, migrated database; on PostgreSQL as the application's role, which owns nothing."""
    return database.url


@pytest.fixture
def admin_url(database: Database) -> str:
    """The same database; on PostgreSQL as its owner, who bypasses row-level security."""
    return database.admin_url


@pytest.fixture
async def store(database_url: str) -> "AsyncIterator[SqlStore]":
    from quire.store import SqlStore

    async with SqlStore.open(database_url) as store:
        yield store


@pytest.fixture(scope="session")
def local_model(request: pytest.FixtureRequest) -> LocalModelAddress:
    """The real local model of the run. If it is not installed, the test is skipped, or fails in CI."""
    if missing := find_missing_packages():
        message = f"{' AND '.join(missing)} NOT INSTALLED: tests against a real model do not run"
        pytest.fail(message) if IN_CI else pytest.skip(message)
    if hasattr(request.config, "workerinput"):
        return fetch_address(request.config.workerinput["model_port"])
    return request.config.stash[LOCAL_MODEL_KEY].get_address()


@pytest.fixture
def default_interrupt() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt`, even in a process that was started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def no_external_network() -> Iterator[None]:
    with block_external_network():
        yield
