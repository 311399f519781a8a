"""`pg_dump` takes one tenant to another cluster, as docs/deployment.md says."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url
from test_encryption import make_keys
from test_tenant_isolation import TABLES

from infra.builders import export_lines, make_messages
from infra.database_dump import contains_text
from infra.postgres import Cluster, PostgresServer, find_binaries, make_clean_environment
from quire.db import migrate
from quire.db.schema import metadata
from quire.store import SqlStore

LEAVING, STAYING = "leaving", "staying"
ROLE = "quire_leaving"
GLOBAL_TABLES = (
    "quire_version",
    "quire_queue_*",
    *(name for name, table in metadata.tables.items() if "tenant" not in table.c),
)
"""Tables that pg_dump leaves out, because their rows are of no tenant."""


def run_program(name: str, *arguments: str, options: str = "") -> bytes:
    binaries = find_binaries(18)
    assert binaries is not None
    environment = {**make_clean_environment(), "PGOPTIONS": options}
    done = subprocess.run([binaries / name, *arguments], capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def dump_tenant(admin_url: str, path: Path) -> bytes:
    """Writes what docs/deployment.md says to a file."""
    database = make_url(admin_url)
    server = PostgresServer(database.port or 0)
    server.create_role(ROLE)
    with migrate.connect(admin_url) as owner:
        owner.exec_driver_sql(f"ALTER ROLE {ROLE} IN DATABASE {database.database} SET quire.tenant = '{LEAVING}'")
        owner.exec_driver_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE}")
    run_program(
        "pg_dump", "--enable-row-security", "--data-only", "--load-via-partition-root", "--no-unlogged-table-data",
        "--rows-per-insert", "100", "--table", "quire_*", *(f"--exclude-table={name}" for name in GLOBAL_TABLES),
        "--file", str(path), server.url(str(database.database), user=ROLE),
    )  # fmt: skip
    return path.read_bytes()


@pytest.fixture
def other_cluster() -> Iterator[Cluster]:
    with Cluster.start(18) as cluster:
        cluster.create_database("quire")
        cluster.create_role("quire_app")
        migrate.upgrade(cluster.url("quire"))
        migrate.grant_access(cluster.url("quire"), "quire_app")
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("backend", ["postgres18"])
async def test_a_dump_has_one_tenant_and_restores_elsewhere(
    database_url: str, admin_url: str, other_cluster: Cluster, tmp_path: Path, *, is_encrypted: bool
):
    keys = make_keys() if is_encrypted else make_keys(tenants=())
    async with SqlStore.open(database_url, keys=keys) as store:
        for tenant in (LEAVING, STAYING):
            own = store.for_tenant(tenant)
            for number in range(20):
                await own.create_conversation(f"{tenant}-{number}", title=f"title of {tenant}")
                await own.append(f"{tenant}-{number}", *make_messages(3))
            await own.put_blob(b"a picture", media_type="image/png")
            await own.keys.create("agent", ["chat"])
        before = [await export_lines(store.for_tenant(LEAVING), f"{LEAVING}-{each}") for each in range(20)]
    dump = dump_tenant(admin_url, tmp_path / "leaving.sql")
    assert not contains_text(dump, STAYING)
    assert contains_text(dump, f"title of {LEAVING}") != is_encrypted
    run_program(
        "psql", "--quiet", "--no-psqlrc", "--single-transaction", "--set", "ON_ERROR_STOP=1", "--file",
        str(tmp_path / "leaving.sql"), other_cluster.url("quire", user="quire_app"),
        options=f"-c quire.tenant={LEAVING}",
    )  # fmt: skip
    async with SqlStore.open(other_cluster.url("quire", user="quire_app"), keys=keys) as store:
        own = store.for_tenant(LEAVING)
        assert [await export_lines(own, f"{LEAVING}-{each}") for each in range(20)] == before
        assert await own.verify_tenant() == []
        assert [key.name for key in await own.keys.list()] == ["agent"]
    with migrate.connect(other_cluster.url("quire")) as owner:
        for (name,) in owner.exec_driver_sql(TABLES.replace("%", "%%")).fetchall():
            if name not in GLOBAL_TABLES:
                found = {row[0] for row in owner.exec_driver_sql(f"SELECT DISTINCT tenant FROM {name}")}
                assert found <= {LEAVING}, name
