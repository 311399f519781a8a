"""Real databases for every test: a fresh, migrated one each, on SQLite and on PostgreSQL.

The PostgreSQL clusters belong to the process that runs the session. Under xdist that is the controller,
which starts them before the workers; otherwise each is started when a test first asks for it. The local model is
started when a test first asks for it, everywhere. Connections leave this machine from no test.
"""

import os
import shutil
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from loopback import loopback_only
from quire.testing.llama import Address, missing_packages
from quire.testing.pgbouncer import Pooler
from quire.testing.postgres import VERSIONS, Cluster, Server, Version, find_binaries
from shared_model import SharedModel, ask_for_address

if TYPE_CHECKING:
    from quire.log import SqlStore

TEMPLATE = "quire_template"
APPLICATION_ROLE = "quire_app"

BACKENDS = ("sqlite", "postgres18")
EVERY_BACKEND = (*BACKENDS, "postgres15")
POSTGRES_VERSIONS: dict[str, Version] = {f"postgres{version}": version for version in VERSIONS}

IN_CI = bool(os.environ.get("CI"))
THROUGH_PGBOUNCER = bool(os.environ.get("QUIRE_TEST_PGBOUNCER"))
"""Whether the application reaches PostgreSQL through a pooler in transaction mode, in every test."""

_common = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
settings.register_profile("dev", max_examples=30, **_common)
settings.register_profile("ci", max_examples=100, derandomize=True, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "dev"))

CLUSTERS = pytest.StashKey[dict[Version, Cluster]]()
MODEL = pytest.StashKey[SharedModel]()
POOLERS = pytest.StashKey[dict[int, Pooler]]()


class Database(NamedTuple):
    """One database, as the application reaches it and as its owner does."""

    url: str
    admin_url: str


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CLUSTERS] = {}
    config.stash[MODEL] = SharedModel()
    config.stash[POOLERS] = {}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    installed = [version for version in VERSIONS if find_binaries(version)]
    clusters = running_clusters(node.config, installed)
    node.workerinput["postgres_ports"] = {version: cluster.port for version, cluster in clusters.items()}
    node.workerinput["model_port"] = node.config.stash[MODEL].open_desk()


def pytest_unconfigure(config: pytest.Config) -> None:
    for pooler in config.stash[POOLERS].values():
        pooler.stop()
    for cluster in config.stash[CLUSTERS].values():
        cluster.stop()
    config.stash[MODEL].close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what uses `backend` on each of them, unless the test itself parametrizes it."""
    marks = metafunc.definition.iter_markers("parametrize")
    if "backend" in metafunc.fixturenames and not any(mark.args[:1] == ("backend",) for mark in marks):
        everywhere = metafunc.definition.get_closest_marker("every_backend")
        metafunc.parametrize("backend", EVERY_BACKEND if everywhere else BACKENDS)


def running_clusters(config: pytest.Config, versions: Iterable[Version]) -> dict[Version, Cluster]:
    """The session's clusters, with those of these versions started and migrated."""
    clusters = config.stash[CLUSTERS]
    missing = [version for version in versions if version not in clusters]
    with ThreadPoolExecutor() as threads:
        clusters.update(zip(missing, threads.map(Cluster.start, missing), strict=True))
    # One after the other: Alembic keeps its context in module globals.
    for version in missing:
        make_template(clusters[version])
    return clusters


def make_template(server: Server) -> None:
    from quire.log import migrate

    server.create_database(TEMPLATE)
    server.create_role(APPLICATION_ROLE)
    migrate.upgrade(server.url(TEMPLATE))
    migrate.grant(server.url(TEMPLATE), APPLICATION_ROLE)


def postgres_server(config: pytest.Config, version: Version) -> Server:
    """The session's server of this version; a missing one is a skip on a laptop and a failure in CI."""
    if find_binaries(version) is None:
        message = f"PostgreSQL {version} IS NOT INSTALLED: nothing is tested on it here"
        pytest.fail(message) if IN_CI else pytest.skip(message)
    if hasattr(config, "workerinput"):
        return Server(config.workerinput["postgres_ports"][version])
    return running_clusters(config, [version])[version]


def pooler_of(config: pytest.Config, server: Server) -> Pooler:
    """The PgBouncer in front of this server; each process of a run has its own."""
    poolers = config.stash[POOLERS]
    if server.port not in poolers:
        poolers[server.port] = Pooler.start(server, users=(APPLICATION_ROLE,))
    return poolers[server.port]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from quire.log import migrate

    path = tmp_path_factory.mktemp("template") / "quire.db"
    migrate.upgrade(f"sqlite:///{path}")
    # What is still in the write-ahead log would be missing from a copy of the file.
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def database(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if backend == "sqlite":
        path = shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "quire.db")
        yield Database(url=f"sqlite:///{path}", admin_url=f"sqlite:///{path}")
        return
    server = postgres_server(request.config, POSTGRES_VERSIONS[backend])
    name = f"test_{uuid.uuid4().hex}"
    server.create_database(name, template=TEMPLATE)
    door = pooler_of(request.config, server) if THROUGH_PGBOUNCER else server
    yield Database(url=door.url(name, user=APPLICATION_ROLE), admin_url=server.url(name))
    server.drop_database(name)


@pytest.fixture
def database_url(database: Database) -> str:
    """A fresh, migrated database; on PostgreSQL as the application's role, which owns nothing."""
    return database.url


@pytest.fixture
def admin_url(database: Database) -> str:
    """The same database; on PostgreSQL as its owner, whom row-level security does not hold."""
    return database.admin_url


@pytest.fixture
async def store(database_url: str) -> "AsyncIterator[SqlStore]":
    from quire.log import SqlStore

    async with SqlStore.open(database_url) as store:
        yield store


@pytest.fixture(scope="session")
def local_model(request: pytest.FixtureRequest) -> Address:
    """The run's real model; a missing one is a skip on a laptop and a failure in CI."""
    if missing := missing_packages():
        message = f"{' AND '.join(missing)} NOT INSTALLED: nothing is tested against a real model here"
        pytest.fail(message) if IN_CI else pytest.skip(message)
    if hasattr(request.config, "workerinput"):
        return ask_for_address(request.config.workerinput["model_port"])
    return request.config.stash[MODEL].address()


@pytest.fixture(scope="session", autouse=True)
def nothing_leaves_this_machine() -> Iterator[None]:
    with loopback_only():
        yield
