"""The temporary PostgreSQL clusters of the other tests: what these do not use themselves."""

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


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met within 20 seconds"
        time.sleep(0.02)


def test_a_clone_waits_for_sessions_in_its_template(cluster: Cluster, name: str) -> None:
    with psycopg.connect(cluster.url(name)), ThreadPoolExecutor() as threads:
        # The server itself gives up after five seconds, so by now the first attempt has failed.
        clone = threads.submit(cluster.create_database, f"{name}_clone", template=name)
        time.sleep(5.5)
        assert not clone.done()
        fetch_value(cluster.url("postgres"), TERMINATE_SESSIONS_SQL.format(name))
        clone.result(timeout=20)


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
