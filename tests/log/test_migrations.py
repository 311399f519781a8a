"""The migrations make the tables that the statements expect, once, whoever else is at it."""

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import make_url
from sqlalchemy.types import UserDefinedType
from writers import writers

from quire.errors import SchemaOutdated
from quire.log import SqlStore, migrate, schema
from quire.testing.postgres import Server

on_postgres = pytest.mark.parametrize("backend", ["postgres18", "postgres15"])
on_sqlite = pytest.mark.parametrize("backend", ["sqlite"])

AT_ONCE = 4

# Types that are one and the same to a database, or to us.
SAME_TYPES = {
    "sqlite": {"BIGINT": "INTEGER", "REAL": "DOUBLE"},
    "postgresql": {"BYTEA": "BLOB", "VECTOR": "BLOB", 'TEXT COLLATE "C"': "TEXT", "DOUBLE PRECISION": "DOUBLE"},
}

Shape = dict[str, dict[str, tuple[str, bool, bool]]]
"""For each table, for each column: its type, whether it may be null, whether it is in the key."""


@pytest.fixture
def empty_url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database in which nothing was ever migrated, as its owner reaches it."""
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.db"
        return
    server = Server(make_url(request.getfixturevalue("admin_url")).port)
    name = f"empty_{uuid.uuid4().hex}"
    server.create_database(name)
    yield server.url(name)
    server.drop_database(name)


class Vector(UserDefinedType[str]):
    """The extension's type, so that SQLAlchemy knows it."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def get_col_spec(self, **_: Any) -> str:
        return "VECTOR"


PGDialect.ischema_names["vector"] = Vector


def reflected(url: str) -> MetaData:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    found = MetaData()
    found.reflect(engine)
    engine.dispose()
    return found


def shape(metadata: MetaData, url: str) -> Shape:
    same = SAME_TYPES[make_url(url).get_backend_name()]
    return {name: {c.name: column_shape(c, same) for c in table.columns} for name, table in metadata.tables.items()}


def column_shape(column: Any, same: dict[str, str]) -> tuple[str, bool, bool]:
    type_ = str(column.type)
    return same.get(type_, type_), column.nullable, column.primary_key


def is_partition(name: str) -> bool:
    return name[-3] == "_" and name[-2:].isdigit()


def keys(metadata: MetaData) -> dict[str, list[str]]:
    return {name: [column.name for column in table.primary_key] for name, table in metadata.tables.items()}


def declared(tables: dict[str, Any]) -> dict[str, Any]:
    """Without those that statements do not name."""
    return {name: value for name, value in tables.items() if name != migrate.VERSION_TABLE and not is_partition(name)}


@pytest.mark.every_backend
def test_an_upgrade_makes_the_tables_of_the_schema(empty_url: str) -> None:
    assert migrate.upgrade(empty_url) is None
    found = reflected(empty_url)
    assert migrate.VERSION_TABLE in found.tables
    assert declared(shape(found, empty_url)) == shape(schema.metadata, empty_url)
    assert declared(keys(found)) == keys(schema.metadata)


@on_postgres
def test_what_grows_is_split(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    partitions = {name for name in reflected(empty_url).tables if is_partition(name)}
    split = ("entries", "manifests", "passages", "paths", "shelves", "terms")
    assert partitions == {f"quire_{table}_{n:02}" for table in split for n in range(16)}


@pytest.mark.every_backend
def test_a_second_upgrade_changes_nothing(empty_url: str) -> None:
    assert migrate.upgrade(empty_url) is None
    before = shape(reflected(empty_url), empty_url)
    assert migrate.upgrade(empty_url) == migrate.HEAD
    assert shape(reflected(empty_url), empty_url) == before


@pytest.mark.every_backend
def test_upgrades_at_once_all_succeed(empty_url: str) -> None:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        before = list(threads.map(migrate.upgrade, [empty_url] * AT_ONCE))
    assert sorted(before, key=str) == [migrate.HEAD] * (AT_ONCE - 1) + [None]
    assert migrate.upgrade(empty_url) == migrate.HEAD


@on_postgres
async def test_postgresql_that_was_never_migrated_is_refused(empty_url: str) -> None:
    with pytest.raises(SchemaOutdated, match="`quire db upgrade`"):
        async with SqlStore.open(empty_url):
            pass
    migrate.upgrade(empty_url)
    async with SqlStore.open(empty_url) as store:
        assert await store.conversations() == []


@on_sqlite
async def test_sqlite_is_migrated_by_several_processes_that_open_it_at_once(empty_url: str) -> None:
    names = {f"from process {number}" for number in range(AT_ONCE)}
    with writers(empty_url, [("create", name) for name in names]) as started:
        answers = [writer.communicate(timeout=60) for writer in started]
    assert [writer.returncode for writer in started] == [0] * AT_ONCE, answers
    async with SqlStore.open(empty_url) as store:
        assert {conversation.id for conversation in await store.conversations()} == names


async def test_several_new_databases_can_be_opened_at_once_in_one_process(tmp_path: Path) -> None:
    async def open_new(number: int) -> list[str]:
        async with SqlStore.open(f"sqlite:///{tmp_path}/{number}.db") as store:
            await store.create_conversation(str(number))
            return [conversation.id for conversation in await store.conversations()]

    found = await asyncio.gather(*map(open_new, range(AT_ONCE)))
    assert found == [[str(number)] for number in range(AT_ONCE)]


def test_the_version_that_the_code_needs_is_the_newest() -> None:
    config = Config()
    config.set_main_option("script_location", "quire.log:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [migrate.HEAD]
