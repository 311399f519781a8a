"""PostgreSQL's extension `vector` is taken up where it can be, and done without where it cannot."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url

from quire.log import Passage, SqlStore, extension, migrate, packed
from quire.testing.postgres import Server

on_postgres_18 = pytest.mark.parametrize("backend", ["postgres18"])
on_postgres_15 = pytest.mark.parametrize("backend", ["postgres15"])

KIND = "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'quire_passages'::regclass AND attname = 'vector'"  # noqa: E501
PROTECTED = "SELECT relforcerowsecurity FROM pg_class WHERE oid = 'quire_terms'::regclass"
OWNER = "quire_owner"


def kind(url: str) -> str:
    with psycopg.connect(url) as session:
        return session.execute(KIND).fetchone()[0]


@on_postgres_18
def test_an_upgrade_takes_it_up_where_the_server_has_it(admin_url: str):
    assert kind(admin_url) == "vector"


@on_postgres_15
def test_an_upgrade_does_without_where_the_server_has_not(admin_url: str):
    assert kind(admin_url) == "bytea"


@pytest.fixture
def owned_url(admin_url: str) -> Iterator[str]:
    """An empty database whose owner has no other right: one who may not install the extension."""
    server = Server(make_url(admin_url).port)
    server.create_role(OWNER)
    name = f"{make_url(admin_url).database}_owned"
    server.create_database(name)
    with psycopg.connect(server.url("postgres"), autocommit=True) as session:
        session.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(name), sql.Identifier(OWNER)))
    yield server.url(name, user=OWNER)
    server.drop_database(name)


async def fill(url: str, tenant: str) -> None:
    async with SqlStore.open(url, tenant=tenant) as store:
        await store.put_passages("vault:v", [Passage("a", "otter", embedder="e", vector=packed([1.0, 0.0]))])
        assert [hit.key for hit in await store.search("dawn", scopes=["vault:v"], vector=[1, 0], embedder="e")] == ["a"]


@on_postgres_18
async def test_a_later_upgrade_takes_it_up_and_what_was_embedded_is_embedded_anew(
    owned_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(extension, "_can_create", lambda _: False)
    migrate.upgrade(owned_url)
    assert kind(owned_url) == "bytea"
    for tenant in ("a", "b"):
        await fill(owned_url, tenant)
    monkeypatch.undo()
    as_superuser = owned_url.replace(f"{OWNER}@", "postgres@")
    with psycopg.connect(as_superuser, autocommit=True) as session:
        session.execute("CREATE EXTENSION vector")
        migrate.upgrade(owned_url)
        assert session.execute("SELECT count(*) FROM quire_terms WHERE term LIKE 'vector:%'").fetchone() == (0,)
        assert session.execute("SELECT count(*) FROM quire_terms").fetchone() == (2,)
        assert session.execute(PROTECTED).fetchone() == (True,)
    assert kind(owned_url) == "vector"
    async with SqlStore.open(owned_url, tenant="a") as store:
        assert [each.key for each in await store.unembedded("vault:v", embedder="e")] == ["a"]
        assert [hit.key for hit in await store.search("otters", scopes=["vault:v"])] == ["a"]
    await fill(owned_url, "a")


@on_postgres_18
async def test_an_owner_who_may_not_install_it_upgrades_all_the_same(owned_url: str):
    as_superuser = owned_url.replace(f"{OWNER}@", "postgres@")
    with psycopg.connect(as_superuser, autocommit=True) as session:
        session.execute(
            sql.SQL("REVOKE CREATE ON DATABASE {} FROM {}").format(
                sql.Identifier(make_url(owned_url).database), sql.Identifier(OWNER)
            )
        )
        session.execute(sql.SQL("ALTER SCHEMA public OWNER TO {}").format(sql.Identifier(OWNER)))
    migrate.upgrade(owned_url)
    assert kind(owned_url) == "bytea"
    await fill(owned_url, "a")
