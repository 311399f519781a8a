"""PostgreSQL's extension `vector` (pgvector) is used where available, and replaced by a scan elsewhere."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from infra.postgres import PostgresServer
from quire.db import migrate, pgvector
from quire.index.types import Passage
from quire.index.vectors import pack_vector
from quire.store import SqlStore

on_postgres_18 = pytest.mark.parametrize("backend", ["postgres18"])
on_postgres_15 = pytest.mark.parametrize("backend", ["postgres15"])

VECTOR_COLUMN_TYPE = "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'quire_passages'::regclass AND attname = 'vector'"  # noqa: E501
FORCES_ROW_SECURITY = "SELECT relforcerowsecurity FROM pg_class WHERE oid = 'quire_terms'::regclass"
OWNER = "quire_owner"


def read_vector_type(url: str) -> str:
    with psycopg.connect(url) as session:
        return session.execute(VECTOR_COLUMN_TYPE).fetchone()[0]


@on_postgres_18
def test_an_upgrade_enables_it_where_the_server_has_it(admin_url: str):
    assert read_vector_type(admin_url) == "vector"


@on_postgres_15
def test_an_upgrade_does_not_enable_it_where_the_server_lacks_it(admin_url: str):
    assert read_vector_type(admin_url) == "bytea"


@pytest.fixture
def owned_url(admin_url: str) -> Iterator[str]:
    """An empty database whose owner has no other rights and cannot install the extension."""
    server = PostgresServer(make_url(admin_url).port)
    server.create_role(OWNER)
    name = f"{make_url(admin_url).database}_owned"
    server.create_database(name)
    with psycopg.connect(server.url("postgres"), autocommit=True) as session:
        session.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(name), sql.Identifier(OWNER)))
    yield server.url(name, user=OWNER)
    server.drop_database(name)


async def fill_store(url: str, tenant: str) -> None:
    async with SqlStore.open(url, tenant=tenant) as store:
        await store.passages.put("vault:v", [Passage("a", "otter", embedder="e", vector=pack_vector([1.0, 0.0]))])
        assert [
            hit.key for hit in await store.passages.search("dawn", scopes=["vault:v"], vector=[1, 0], embedder="e")
        ] == ["a"]


@on_postgres_18
async def test_a_later_upgrade_enables_it_and_passages_are_embedded_again(
    owned_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pgvector, "_try_create_extension", lambda _: False)
    migrate.upgrade(owned_url)
    assert read_vector_type(owned_url) == "bytea"
    for tenant in ("a", "b"):
        await fill_store(owned_url, tenant)
    monkeypatch.undo()
    as_superuser = owned_url.replace(f"{OWNER}@", "postgres@")
    with psycopg.connect(as_superuser, autocommit=True) as session:
        session.execute("CREATE EXTENSION vector")
        migrate.upgrade(owned_url)
        assert session.execute("SELECT count(*) FROM quire_terms WHERE term LIKE 'vector:%'").fetchone() == (0,)
        assert session.execute("SELECT count(*) FROM quire_terms").fetchone() == (2,)
        assert session.execute(FORCES_ROW_SECURITY).fetchone() == (True,)
    assert read_vector_type(owned_url) == "vector"
    async with SqlStore.open(owned_url, tenant="a") as store:
        assert [each.key for each in await store.passages.list_unembedded("vault:v", embedder="e")] == ["a"]
        assert [hit.key for hit in await store.passages.search("otters", scopes=["vault:v"])] == ["a"]
    await fill_store(owned_url, "a")


@on_postgres_18
async def test_an_owner_who_cannot_install_it_can_upgrade(owned_url: str):
    as_superuser = owned_url.replace(f"{OWNER}@", "postgres@")
    with psycopg.connect(as_superuser, autocommit=True) as session:
        session.execute(
            sql.SQL("REVOKE CREATE ON DATABASE {} FROM {}").format(
                sql.Identifier(make_url(owned_url).database), sql.Identifier(OWNER)
            )
        )
        session.execute(sql.SQL("ALTER SCHEMA public OWNER TO {}").format(sql.Identifier(OWNER)))
    migrate.upgrade(owned_url)
    assert read_vector_type(owned_url) == "bytea"
    await fill_store(owned_url, "a")
