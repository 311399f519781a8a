"""The gateway on Citus: each tenant's rows on a shard, under row-level security.

`QUIRE_TEST_CITUS` is the URL of a superuser of an empty database with the extension on a coordinator, whose nodes trust
the role `quire_app`.
"""

import os

import pytest
from gateway_fixtures import run_gateway, user_message
from sqlalchemy.engine import make_url

from fake_upstream import respond_with_text, run_fake_upstream
from infra.postgres import PostgresServer
from quire.db import migrate
from quire.db.schema import metadata
from quire.store import SqlStore

URL = os.environ.get("QUIRE_TEST_CITUS")
TENANTS = ("a", "b")
TURNS = 50
"""Turns of each tenant."""
SHARD_COUNT = 8
ROOT = "quire_conversations"
REFERENCE_TABLE = "quire_api_keys"
"""Copied to every node: a key is found by its id, which is unique, before its tenant is known."""
# A foreign key refers to blobs, so they come before the others.
FIRST = (ROOT, "quire_blobs")
TENANT_TABLES = [
    *FIRST,
    *(
        table.name
        for table in metadata.sorted_tables
        if "tenant" in table.c and table.name not in (*FIRST, REFERENCE_TABLE)
    ),
]
UNLOGGED = r"SELECT relname FROM pg_class WHERE relpersistence = 'u' AND relkind = 'r' AND relname LIKE 'quire\_%%'"
SHARDS_OF_TABLES = "SELECT shard_name, nodename, nodeport FROM citus_shards WHERE table_name::text = ANY (%(tables)s)"


def distribute_schema(url: str) -> None:
    """Creates the schema, distributed by tenant, and the role of the application."""
    PostgresServer(make_url(url).port or 5432).create_role("quire_app")
    migrate.upgrade(url)
    with migrate.connect(url) as owner:
        database = make_url(url).database
        owner.exec_driver_sql(f"ALTER DATABASE {database} SET citus.propagate_set_commands = 'local'")
        owner.exec_driver_sql(f"SET citus.shard_count = {SHARD_COUNT}")
        # Tables without a write-ahead log cannot move between nodes.
        for name in owner.exec_driver_sql(UNLOGGED).scalars().all():
            owner.exec_driver_sql(f"ALTER TABLE {name} SET LOGGED")
        owner.exec_driver_sql(f"SELECT create_reference_table('{REFERENCE_TABLE}')")
        for name in TENANT_TABLES:
            place = "" if name == ROOT else f", colocate_with => '{ROOT}'"
            owner.exec_driver_sql(f"SELECT create_distributed_table('{name}', 'tenant'{place})")
    migrate.grant_access(url, "quire_app")


async def test_turns_of_two_tenants_are_served_and_a_shard_shows_a_tenant_its_own_rows():
    if URL is None:
        pytest.skip("QUIRE_TEST_CITUS NAMES NO DATABASE: the gateway does not run on Citus")
    distribute_schema(URL)
    app_url = make_url(URL).set(username="quire_app").render_as_string(hide_password=False)
    async with run_fake_upstream(respond_with_text("It is high water.")) as upstream:
        for tenant in TENANTS:
            async with (
                SqlStore.open(app_url, tenant=tenant) as store,
                run_gateway(store, f"{upstream.url}/v1", trusted_tenants=[]) as gateway,
            ):
                for number in range(TURNS):
                    answer = await gateway.ask(user_message(f"Question {number} of {tenant}?"))
                    assert answer.status_code == 200, answer.text
                assert len(await store.list_conversations(limit=2 * TURNS)) == TURNS
                assert await store.verify_tenant() == []
    check_shards(URL)


def check_shards(url: str) -> None:
    """Asks each shard on its node, past the coordinator, as the role of the application."""
    with migrate.connect(url) as owner:
        shards = owner.exec_driver_sql(SHARDS_OF_TABLES, {"tables": TENANT_TABLES}).fetchall()
    seen: dict[str, set[str]] = {tenant: set() for tenant in TENANTS}
    for host, port in sorted({(host, port) for _, host, port in shards}):
        node = make_url(url).set(username="quire_app", host=host, port=port)
        with migrate.connect(node.render_as_string(hide_password=False)) as connection:
            for tenant in TENANTS:
                connection.exec_driver_sql(f"SET LOCAL quire.tenant = '{tenant}'")
                for name in (shard for shard, *place in shards if place == [host, port]):
                    seen[tenant] |= set(connection.exec_driver_sql(f"SELECT DISTINCT tenant FROM {name}").scalars())
    assert seen == {tenant: {tenant} for tenant in TENANTS}
    with migrate.connect(url) as owner:
        assert set(owner.exec_driver_sql("SELECT DISTINCT tenant FROM quire_entries").scalars()) == set(TENANTS)
