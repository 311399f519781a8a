"""A database and the settings of every released version open in this one: migrated, verified, read.

`just released VERSION` writes the fixture of a release, before its tag. The present source's own fixture is written
and read here too, so that the next release's will be complete.
"""

import gzip
import json
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from infra import released_fixtures as released
from infra.postgres import Cluster, PostgresServer
from quire.db import migrate
from quire.errors import QuireError
from quire.settings.sources import load_settings, read_settings_file

PRESENT = "present"
VERSIONS = sorted(path.name for path in released.FIXTURES.glob("*") if path.is_dir())

BROKEN_MIGRATIONS = {
    "a changed body": "UPDATE quire_entries SET body = replace(body, 'three metres', 'four metres')",
    "a lost column": "UPDATE quire_entries SET notes = NULL",
    "lost memories": "DELETE FROM quire_memories",
    "a lost key": "DELETE FROM quire_api_keys",
    "lost manifests": "DELETE FROM quire_manifests",
}
"""What a wrong migration could do to the rows."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def present_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released") / PRESENT
    with Cluster.start(18) as cluster:
        released.write_fixture(folder, cluster)
    return folder


@pytest.fixture(params=[*VERSIONS, PRESENT])
def fixture(request: pytest.FixtureRequest) -> Path:
    if request.param == PRESENT:
        return request.getfixturevalue("present_fixture")
    return released.FIXTURES / request.param


@pytest.fixture
def postgres_url(admin_url: str) -> Iterator[str]:
    """The owner's URL of an empty database."""
    server = PostgresServer(make_url(admin_url).port or 0)
    name = f"released_{uuid.uuid4().hex}"
    server.create_database(name)
    yield server.url(name)
    server.drop_database(name)


def read_expected(fixture: Path, backend: str) -> tuple[str, Any]:
    content = json.loads((fixture / released.CONTENT_FILE).read_text())[backend]
    return content["api_key"], content["read"]


def load_sqlite(fixture: Path, path: Path) -> str:
    released.load_sqlite(gzip.decompress((fixture / released.SQLITE_FILE).read_bytes()), path)
    return f"sqlite:///{path}"


async def test_sqlite_is_migrated_verified_and_read(fixture: Path, tmp_path: Path):
    key, expected = read_expected(fixture, "sqlite")
    assert await released.read_content(load_sqlite(fixture, tmp_path / "quire.db"), key) == expected


@pytest.mark.parametrize("backend", ["postgres18"])
async def test_postgres_is_migrated_verified_and_read(fixture: Path, postgres_url: str):
    key, expected = read_expected(fixture, "postgres")
    released.load_postgres(gzip.decompress((fixture / released.POSTGRES_FILE).read_bytes()), postgres_url)
    migrate.upgrade(postgres_url)
    migrate.grant_access(postgres_url, released.APPLICATION_ROLE)
    url = postgres_url.replace("postgresql://postgres@", f"postgresql://{released.APPLICATION_ROLE}@")
    assert await released.read_content(url, key) == expected
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute(f"SELECT version_num FROM {migrate.VERSION_TABLE}").fetchone()
    assert row == (migrate.SCHEMA_VERSION,)


def test_its_settings_are_read(fixture: Path):
    settings = load_settings([read_settings_file(fixture / released.SETTINGS_FILE)]).settings
    assert {name: getattr(settings, name) for name in released.SETTINGS} == released.SETTINGS


@pytest.mark.parametrize("statement", BROKEN_MIGRATIONS.values(), ids=BROKEN_MIGRATIONS)
async def test_a_wrong_migration_is_found(statement: str, present_fixture: Path, tmp_path: Path):
    path = tmp_path / "quire.db"
    key, expected = read_expected(present_fixture, "sqlite")
    url = load_sqlite(present_fixture, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()
    with pytest.raises((AssertionError, QuireError)):
        assert await released.read_content(url, key) == expected


def test_a_fixture_has_content_of_every_kind(present_fixture: Path):
    _, content = read_expected(present_fixture, "sqlite")
    text = json.dumps(content["branches"])
    assert all(word in text for word in ("call-1", "compaction", "Harbour.md"))
    assert any(purged_at is not None for entries in content["branches"].values() for *_, purged_at, _ in entries)
    assert released.SECRET not in text
    assert min(map(len, (content["memories"], content["keys"], content["hits"], content["candidates"]))) >= 2
