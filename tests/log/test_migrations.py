"""The migrations create the tables of schema.py, once, also when several processes run it."""

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import make_url
from sqlalchemy.types import UserDefinedType
from writer_processes import start_writers

from infra.postgres import PostgresServer
from quire.db import migrate, schema
from quire.errors import SchemaOutdated
from quire.store import SqlStore

pytestmark = pytest.mark.every_database

on_sqlite = pytest.mark.parametrize("backend", ["sqlite"])

CONCURRENT_UPGRADES = 3

# Types that are equal to a database, or to Quire.
SAME_TYPES = {
    "sqlite": {"BIGINT": "INTEGER", "REAL": "DOUBLE"},
    "postgresql": {"BYTEA": "BLOB", "VECTOR": "BLOB", 'TEXT COLLATE "C"': "TEXT", "DOUBLE PRECISION": "DOUBLE"},
}

UNIQUE_KEYS_WITHOUT_TENANT = r"""
    SELECT indexrelid::regclass::text FROM pg_index
    JOIN pg_attribute AS tenant ON tenant.attrelid = indrelid AND tenant.attname = 'tenant'
    WHERE indisunique AND indrelid::regclass::text LIKE 'quire\_%%' AND NOT tenant.attnum = ANY (indkey)
"""

SchemaColumns = dict[str, dict[str, tuple[str, bool, bool]]]
"""By table and column: the type, whether it is nullable, whether it is in the primary key."""


@pytest.fixture
def empty_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The owner's URL of a database without any migration."""
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.db"
        return
    server = PostgresServer(make_url(request.getfixturevalue("admin_url")).port)
    name = f"empty_{uuid.uuid4().hex}"
    server.create_database(name)
    yield server.url(name)
    server.drop_database(name)


class Vector(UserDefinedType[str]):
    """Registers the type of pgvector with SQLAlchemy."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def get_col_spec(self, **_: Any) -> str:
        return "VECTOR"


PGDialect.ischema_names["vector"] = Vector


def reflect_schema(url: str) -> MetaData:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    reflected = MetaData()
    reflected.reflect(engine)
    engine.dispose()
    return reflected


def to_columns(metadata: MetaData, url: str) -> SchemaColumns:
    same = SAME_TYPES[make_url(url).get_backend_name()]
    return {name: {c.name: to_column(c, same) for c in table.columns} for name, table in metadata.tables.items()}


def to_column(column: Any, same: dict[str, str]) -> tuple[str, bool, bool]:
    type_ = str(column.type)
    return same.get(type_, type_), column.nullable, column.primary_key


def is_partition(name: str) -> bool:
    return name[-3] == "_" and name[-2:].isdigit()


def read_primary_keys(metadata: MetaData) -> dict[str, list[str]]:
    return {name: [column.name for column in table.primary_key] for name, table in metadata.tables.items()}


def select_declared(tables: dict[str, Any]) -> dict[str, Any]:
    """Without the version table and the partitions, which schema.py does not declare."""
    return {name: value for name, value in tables.items() if name != migrate.VERSION_TABLE and not is_partition(name)}


def test_an_upgrade_makes_the_tables_of_the_schema(empty_url: str) -> None:
    assert migrate.upgrade(empty_url) is None
    found = reflect_schema(empty_url)
    assert migrate.VERSION_TABLE in found.tables
    assert select_declared(to_columns(found, empty_url)) == to_columns(schema.metadata, empty_url)
    assert select_declared(read_primary_keys(found)) == read_primary_keys(schema.metadata)


@pytest.mark.every_postgres
def test_tables_that_grow_have_partitions_and_every_unique_key_the_tenant(admin_url: str) -> None:
    """So that the tables can be distributed by tenant, except API keys: see tests/server/test_citus.py."""
    partitions = {name for name in reflect_schema(admin_url).tables if is_partition(name)}
    partitioned = (
        "entries", "exchanges", "imports", "manifests", "message_segments", "passages", "paths", "terms",
        "usage_contributions", "usage_turns",
    )  # fmt: skip
    assert partitions == {f"quire_{table}_{n:02}" for table in partitioned for n in range(16)}
    with migrate.connect(admin_url) as connection:
        found = connection.exec_driver_sql(UNIQUE_KEYS_WITHOUT_TENANT).scalars().all()
    assert found == ["quire_api_keys_by_id"]


def test_a_second_upgrade_changes_nothing(empty_url: str) -> None:
    assert migrate.upgrade(empty_url) is None
    before = to_columns(reflect_schema(empty_url), empty_url)
    assert migrate.upgrade(empty_url) == migrate.SCHEMA_VERSION
    assert to_columns(reflect_schema(empty_url), empty_url) == before


def test_upgrades_at_once_all_succeed(empty_url: str) -> None:
    with ThreadPoolExecutor(CONCURRENT_UPGRADES) as threads:
        before = list(threads.map(migrate.upgrade, [empty_url] * CONCURRENT_UPGRADES))
    assert sorted(before, key=str) == [migrate.SCHEMA_VERSION] * (CONCURRENT_UPGRADES - 1) + [None]
    assert migrate.upgrade(empty_url) == migrate.SCHEMA_VERSION


@pytest.mark.every_postgres
async def test_postgresql_that_was_never_migrated_is_refused(empty_url: str) -> None:
    with pytest.raises(SchemaOutdated, match="`quire db upgrade`"):
        async with SqlStore.open(empty_url):
            pass
    migrate.upgrade(empty_url)
    async with SqlStore.open(empty_url) as store:
        assert await store.list_conversations() == []


@on_sqlite
async def test_sqlite_is_migrated_by_several_processes_that_open_it_at_once(empty_url: str) -> None:
    names = {f"from process {number}" for number in range(CONCURRENT_UPGRADES)}
    with start_writers(empty_url, [("create", name) for name in names]) as started:
        answers = [writer.communicate(timeout=60) for writer in started]
    assert [writer.returncode for writer in started] == [0] * CONCURRENT_UPGRADES, answers
    async with SqlStore.open(empty_url) as store:
        assert {conversation.id for conversation in await store.list_conversations()} == names


async def test_several_new_databases_can_be_opened_at_once_in_one_process(tmp_path: Path) -> None:
    async def open_new(number: int) -> list[str]:
        async with SqlStore.open(f"sqlite:///{tmp_path}/{number}.db") as store:
            await store.create_conversation(str(number))
            return [conversation.id for conversation in await store.list_conversations()]

    found = await asyncio.gather(*map(open_new, range(CONCURRENT_UPGRADES)))
    assert found == [[str(number)] for number in range(CONCURRENT_UPGRADES)]


def test_the_version_that_the_code_needs_is_the_newest() -> None:
    config = Config()
    config.set_main_option("script_location", "quire.db:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [migrate.SCHEMA_VERSION]


@on_sqlite
@pytest.mark.parametrize(("oldest_reader", "is_refused"), [(migrate.SCHEMA_VERSION, False), ("9999", True)])
async def test_a_newer_file_opens_unless_it_needs_newer_code(
    empty_url: str, oldest_reader: str, is_refused: bool
) -> None:
    migrate.upgrade(empty_url)
    with migrate.connect(empty_url) as connection:
        connection.exec_driver_sql(f"UPDATE quire_version SET version_num = '9999', oldest_reader = '{oldest_reader}'")
    with pytest.raises(SchemaOutdated, match="Install the version") if is_refused else nullcontext():
        async with SqlStore.open(empty_url) as store:
            await store.create_conversation("c")


def test_a_database_from_before_the_first_migration_is_refused(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    with migrate.connect(empty_url) as connection:
        connection.exec_driver_sql("UPDATE quire_version SET version_num = '0012'")
    with pytest.raises(SchemaOutdated, match=r"schema version 0012.*from 0013 on\. Run `quire export`"):
        migrate.upgrade(empty_url)
