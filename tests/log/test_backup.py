"""Backups as in docs/deployment.md: taken during writes, complete when restored."""

import asyncio
import sqlite3
import subprocess
import uuid
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from infra.postgres import PostgresServer, find_binaries
from quire.model import Message
from quire.store import SqlStore


async def write_until(store: SqlStore, until: asyncio.Event) -> int:
    """Appends messages until the event is set; returns the number of acknowledged appends."""
    number = 0
    while not until.is_set():
        await store.append("c", Message.user(f"line {number}"))
        number += 1
    return number


async def count_verified(url: str) -> int:
    """Verifies a copy and returns its number of messages."""
    async with SqlStore.open(url) as store:
        assert await store.verify_conversation("c") == []
        texts = [entry.body.text for entry in await store.read_range("c") if isinstance(entry.body, Message)]
    assert texts == [f"line {number}" for number in range(len(texts))]
    return len(texts)


def copy_by_vacuum(source: Path, copy: Path) -> None:
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("VACUUM INTO ?", [str(copy)])


def copy_by_backup(source: Path, copy: Path) -> None:
    with closing(sqlite3.connect(source)) as connection, closing(sqlite3.connect(copy)) as target:
        connection.backup(target, pages=50)


@pytest.mark.parametrize("make_copy", [copy_by_vacuum, copy_by_backup])
async def test_sqlite_is_copied_while_it_is_written(make_copy, tmp_path: Path):
    source, copy, stop = tmp_path / "quire.db", tmp_path / "copy.db", asyncio.Event()
    async with SqlStore.open(f"sqlite:///{source}") as store:
        await store.create_conversation("c")
        writer = asyncio.create_task(write_until(store, stop))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(make_copy, source, copy)
        stop.set()
        acknowledged = await writer
    assert 0 < await count_verified(f"sqlite:///{copy}") <= acknowledged


def dump_postgres(url: str, file: Path) -> "subprocess.CompletedProcess[str]":
    binaries = find_binaries(18)
    assert binaries is not None
    command = [str(binaries / "pg_dump"), "--format", "custom", "--file", str(file), url]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("backend", ["postgres18"])
async def test_postgres_is_dumped_by_a_role_that_sees_every_tenant_and_restored(
    database_url: str, admin_url: str, tmp_path: Path
):
    server = PostgresServer(int(admin_url.rpartition(":")[2].partition("/")[0]))
    role, copy = f"backup_{uuid.uuid4().hex}", f"copy_{uuid.uuid4().hex}"
    with psycopg.connect(admin_url, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN BYPASSRLS").format(sql.Identifier(role)))
        owner.execute(sql.SQL("GRANT pg_read_all_data TO {}").format(sql.Identifier(role)))
    server.create_database(copy)
    try:
        stop = asyncio.Event()
        async with SqlStore.open(database_url) as store:
            await store.create_conversation("c")
            writer = asyncio.create_task(write_until(store, stop))
            await asyncio.sleep(0.2)
            name = admin_url.rpartition("/")[2]
            dump = await asyncio.to_thread(dump_postgres, server.url(name, user=role), tmp_path / "quire.dump")
            stop.set()
            acknowledged = await writer
        assert dump.returncode == 0, dump.stderr
        binaries = find_binaries(18)
        restore = [
            f"{binaries}/pg_restore",
            "--exit-on-error",
            "--dbname",
            server.url(copy),
            str(tmp_path / "quire.dump"),
        ]
        await asyncio.to_thread(subprocess.run, restore, check=True)
        assert 0 < await count_verified(server.url(copy, user="quire_app")) <= acknowledged
    finally:
        server.drop_database(copy)
        with psycopg.connect(admin_url, autocommit=True) as owner:
            owner.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


@pytest.mark.parametrize("backend", ["postgres18"])
def test_a_role_under_row_level_security_cannot_dump(database_url: str, tmp_path: Path):
    dump = dump_postgres(database_url, tmp_path / "quire.dump")
    assert dump.returncode != 0
