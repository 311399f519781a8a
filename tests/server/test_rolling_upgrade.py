"""A rolling upgrade refuses no request: servers of this release serve on the schema of the next one, until they are
replaced. The next release is this source with one more migration, which only expands the schema."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from fault_clients import GatewayClient
from fleet import Fleet, Process

import quire
from infra.postgres import find_free_port
from infra.sizes import IS_FULL_SIZE
from quire.db import migrate
from quire.errors import SchemaOutdated
from quire.store import SqlStore

pytestmark = pytest.mark.every_postgres

NEXT_VERSION = f"{int(migrate.SCHEMA_VERSION) + 1:04}"
NEXT_MIGRATION = f'''
from alembic import op

revision = "{NEXT_VERSION}"
down_revision = "{migrate.SCHEMA_VERSION}"


def upgrade() -> None:
    op.execute("ALTER TABLE quire_conversations ADD COLUMN colour TEXT")
'''
CLIENT_COUNT = 4
TURN_COUNT = 1_000 if IS_FULL_SIZE else 40
"""Minimum of turns in one upgrade."""
PAUSE_SECONDS = 0.0 if IS_FULL_SIZE else 0.1
"""Between two turns of a client."""


def create_next_release(folder: Path) -> Path:
    """Copies the package, adds the migration, and returns the folder to import it from."""
    package = folder / "next" / "quire"
    # With its compiled modules, which stay valid: the times of the files are copied too.
    shutil.copytree(Path(quire.__file__).parent, package)
    (package / "db" / "migrations" / "versions" / f"{NEXT_VERSION}_next.py").write_text(NEXT_MIGRATION)
    source = package / "db" / "migrate.py"
    current = f'SCHEMA_VERSION = "{migrate.SCHEMA_VERSION}"'
    assert current in source.read_text()
    source.write_text(source.read_text().replace(current, f'SCHEMA_VERSION = "{NEXT_VERSION}"'))
    return package.parent


def start_server(fleet: Fleet, *, source: Path) -> tuple[Process, int]:
    port = find_free_port()
    arguments = [sys.executable, "-m", "quire", "serve", "--port", str(port), "--keys"]
    environment = fleet.environment | {"PYTHONPATH": str(source)}
    return Process(arguments, output=fleet.folder / f"server-{port}.log", environment=environment), port


async def replace_server(fleet: Fleet, rotation: list[int], *, source: Path) -> None:
    """Starts a server, adds it to the ports that clients use once it is ready, and stops the oldest one."""
    process, port = start_server(fleet, source=source)
    old_process, old_port = fleet.servers.pop(0), fleet.ports.pop(0)
    fleet.servers.append(process)
    fleet.ports.append(port)
    await fleet.wait_ready()
    rotation.append(port)
    rotation.remove(old_port)
    await asyncio.to_thread(old_process.stop)


@pytest.mark.nightly
async def test_no_turn_is_refused_during_an_upgrade(database_url: str, admin_url: str, tmp_path: Path):
    async with SqlStore.open(database_url) as store:
        _, key = await store.keys.create("upgrade", ["chat"])
    this, following = Path(quire.__file__).parent.parent, create_next_release(tmp_path)
    fleet = Fleet(database_url, key, tmp_path)
    rotation: list[int] = []
    ending = asyncio.Event()
    try:
        for _ in range(2):
            process, port = start_server(fleet, source=this)
            fleet.servers.append(process)
            fleet.ports.append(port)
        await fleet.wait_ready()
        rotation += fleet.ports
        clients = [GatewayClient(rotation, key, f"u{number}") for number in range(CLIENT_COUNT)]
        running = [
            asyncio.create_task(client.run(ending, turns_after=2, pause_seconds=PAUSE_SECONDS)) for client in clients
        ]
        await _wait_for_turns(clients, TURN_COUNT // 4)
        command = [sys.executable, "-m", "quire", "db", "upgrade", admin_url, "--role", "quire_app"]
        environment = os.environ | {"PYTHONPATH": str(following)}
        await asyncio.to_thread(subprocess.run, command, check=True, env=environment, stdout=subprocess.DEVNULL)
        await _wait_for_turns(clients, TURN_COUNT // 2)
        # A server of this release is ready, and starts, on the schema of the next one.
        await fleet.wait_ready()
        await replace_server(fleet, rotation, source=this)
        await replace_server(fleet, rotation, source=following)
        await _wait_for_turns(clients, TURN_COUNT * 3 // 4)
        await replace_server(fleet, rotation, source=following)
        await _wait_for_turns(clients, TURN_COUNT)
        ending.set()
        await asyncio.gather(*running)
    finally:
        fleet.stop()
    with psycopg.connect(admin_url) as connection:
        versions = connection.execute("SELECT version_num, oldest_reader FROM quire_version").fetchall()
    assert versions == [(NEXT_VERSION, migrate.OLDEST_READER)]
    refused = {status: count for client in clients for status, count in client.statuses.items() if status != "200"}
    assert refused == {}


async def _wait_for_turns(clients: list[GatewayClient], count: int) -> None:
    async with asyncio.timeout(600):
        while sum(client.turn_count for client in clients) < count:  # noqa: ASYNC110 (several clients)
            await asyncio.sleep(0.05)


async def test_a_schema_that_needs_newer_code_is_refused(database_url: str, admin_url: str):
    async with SqlStore.open(database_url) as store:
        for oldest_reader, is_usable in ((migrate.SCHEMA_VERSION, True), (NEXT_VERSION, False)):
            with psycopg.connect(admin_url) as connection:
                statement = "UPDATE quire_version SET version_num = %s, oldest_reader = %s"
                connection.execute(statement, [NEXT_VERSION, oldest_reader])
            assert migrate.is_usable(admin_url) is is_usable
            if is_usable:
                await store.check()
                assert migrate.upgrade(admin_url) == NEXT_VERSION
                continue
            for use in (store.check(), asyncio.to_thread(migrate.upgrade, admin_url)):
                with pytest.raises(SchemaOutdated, match=f"schema {NEXT_VERSION} or newer"):
                    await use
